"""The vocabulary file of llama2.c as a fast tokenizer with character spans."""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "▁"


def read_vocabulary(data: bytes, size: int) -> list[tuple[str, float]]:
    """Pieces with their scores: the longest piece's length, then for each its score, its length and its bytes."""
    found: list[tuple[str, float]] = []
    place = 4
    for _ in range(size):
        score, length = struct.unpack_from("<fi", data, place)
        place += 8
        found.append((data[place : place + length].decode("utf-8"), score))
        place += length
    # The file shows spaces and single bytes as themselves, and two special tokens with line breaks around them.
    pieces = [piece.replace(" ", SPACE) for piece, _ in found]
    pieces[: len(SPECIAL) + len(BYTES)] = [*SPECIAL, *BYTES]
    return [(piece, score) for piece, (_, score) in zip(pieces, found, strict=True)]


def merges_of(vocabulary: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, best-scored piece first: what sentencepiece's BPE does greedily."""
    ids = {piece: place for place, (piece, _) in enumerate(vocabulary)}
    found = []
    for piece, score in vocabulary:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for _, _, _, left, right in sorted(found)]


def llama_tokenizer(vocabulary: list[tuple[str, float]], context: int) -> Any:
    """A begin token first, a space before the first word, and single bytes for what the vocabulary lacks."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    ids = {piece: place for place, (piece, _) in enumerate(vocabulary)}
    model = models.BPE(vocab=ids, merges=merges_of(vocabulary), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", ids["<s>"])]
    )
    return import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=context
    )
