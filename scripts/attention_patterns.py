"""attention_patterns: which heads look at the token before, at the token after an earlier copy, at the first one.

What is special: every score stands beside its chance value, what a head with uniform attention has on the same queries.
Induction (Olsson et al., 2022, arXiv 2209.11895) is measured on random tokens, which no text can have taught.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import polars as pl
import torch
from torch import Tensor

from abbe import AbbeError
from abbe.measures import last_occurrence, pattern_keys
from abbe.models import AttentionCall, LoadedModel, Tap, Text, read_text, tap, windows
from abbe.runs.window import BLOCK, check_model, check_tokens, run_model

ON_TEXT = ("previous_token", "first_token")
ON_REPEATS = ("induction", "same_token")
PATTERNS = ("previous_token", "induction", "first_token", "same_token")

# Random weights, even large ones, stay below 1.5 x chance; a head that only leans towards a pattern is not enough.
LEAST_INDUCTION, LEAST_PREVIOUS, TIMES_CHANCE = 0.2, 0.3, 10


def attention_patterns(
    model: LoadedModel, *, tokens: int = 256, repeats: int = 4, seed: int = 0, text: Text | None = None
) -> pl.DataFrame:
    """One row for every layer and head of a causal decoder: mean weights on four keys, and their chance values.

    previous_token: the key just before the query. first_token: key 0. Both over `repeats` windows of a text (by default
    the embedded sample), as long as the sequences of the other two.
    induction: the key after the earlier occurrence of the query's token. same_token: that occurrence itself. Both over
    `repeats` sequences of `tokens` different random tokens that come twice; the queries are those of the second time.
    High means that the head does this, low that it does not; `..._chance` is the mean of one over the number of keys.

    Example:
        >>> attention_patterns(abbe.load("embedded")).sort("induction")[-1]
    """
    _check_request(model, tokens, repeats, seed)
    before = _begin_tokens(model.tokenizer)
    length = len(before) + 2 * tokens
    if model.context is not None and length > model.context:
        fitting = (model.context - len(before)) // 2
        raise AbbeError(
            f"tokens is {tokens}, but a passage that comes twice in the {model.context} tokens of {model.name}'s "
            f"context has at most {fitting}"
        )
    sequences = _repeated_passages(_plain_tokens(model), before, tokens, repeats, seed)
    cut = windows(text or read_text(), [length], repeats, seed, tokenizer=model.tokenizer, context=model.context)
    with tap(model) as open_tap:
        check_model(model, open_tap, check_tokens(model, cut))
        reader = _Reader(open_tap)
        for window in cut:
            reader.read(model, window.tokens, ON_TEXT)
        for sequence in sequences:
            reader.read(model, sequence, ON_REPEATS)
        return reader.table()


@dataclass(frozen=True)
class Learned:
    """An answer and the numbers it rests on; true or false like its answer."""

    answer: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.answer


def learned_attention(patterns: pl.DataFrame) -> Learned:
    """Whether a model has learned to look at tokens for what they are and where they stand.

    The rule: one head has an induction score of at least 0.2, one a previous-token score of at least 0.3, and both are
    above 10 x their chance values. Induction takes two layers that work together, so random weights never show it.
    """
    best = [_best(patterns, "induction", LEAST_INDUCTION), _best(patterns, "previous_token", LEAST_PREVIOUS)]
    answer = all(one.answer for one in best)
    verdict = "has learned attention" if answer else "has not learned attention"
    return Learned(answer, f"{verdict}: {'; '.join(one.sentence for one in best)}")


def _best(patterns: pl.DataFrame, pattern: str, least: float) -> Learned:
    head = patterns.sort(pattern, descending=True).row(0, named=True)
    score, chance = head[pattern], head[f"{pattern}_chance"]
    sentence = (
        f"best {pattern.replace('_', '-')} score {score:.3g}, layer {head['layer']} head {head['head']} "
        f"(needed: {least:g} and {TIMES_CHANCE} x the chance of {chance:.2g})"
    )
    return Learned(score >= least and score > TIMES_CHANCE * chance, sentence)


def targets_of(tokens: Tensor) -> dict[str, Tensor]:
    """For every pattern the key that it expects of each query, -1 where it expects none.

    The earlier occurrence is the last one before the query. A query whose key would be itself does not count.
    """
    first = torch.where(torch.arange(len(tokens)) > 0, 0, -1)
    return pattern_keys(tokens) | {"first_token": first, "same_token": last_occurrence(tokens)}


def weight_on(weights: Tensor, targets: Tensor) -> Tensor:
    """(head,): the weights (head, query, key) of the queries on their targets, summed over queries that have one."""
    wanted = (targets >= 0).nonzero()[:, 0]
    return weights[:, wanted, targets[wanted]].sum(-1, dtype=torch.float64)


class _Reader:
    """Sums of weights and of chance, by layer and pattern, read in blocks of queries."""

    def __init__(self, open_tap: Tap) -> None:
        self.numbers = {name: number for number, name in enumerate(open_tap.layers)}
        self.sums: dict[tuple[int, str], Tensor] = {}
        self.queries: dict[str, int] = defaultdict(int)
        open_tap.listen(self._read)

    @torch.no_grad()
    def read(self, model: LoadedModel, tokens: Tensor, patterns: Sequence[str]) -> None:
        self.targets = {pattern: targets for pattern, targets in targets_of(tokens).items() if pattern in patterns}
        for pattern, targets in self.targets.items():
            self.queries[pattern] += int((targets >= 0).sum())
        run_model(model, tokens)

    def _read(self, call: AttentionCall) -> None:
        heads, length, keys = call.query.shape[1], call.query.shape[-2], call.key.shape[-2]
        for block in torch.split(torch.arange(length, device=call.query.device), max(1, BLOCK // (heads * keys))):
            visible = call.visible(block)[0]
            if bool(visible.logical_and(torch.arange(keys, device=block.device) > block[:, None]).any()):
                raise AbbeError(f"{call.name} sees later tokens: attention patterns are for causal decoders")
            uniform = (visible / visible.sum(-1, keepdim=True)).expand(heads, -1, -1)
            weights = call.weights(block)[0]
            for pattern, targets in self.targets.items():
                wanted = targets.to(block.device)[block]
                self._add(self.numbers[call.name], pattern, weight_on(weights, wanted))
                self._add(self.numbers[call.name], f"{pattern}_chance", weight_on(uniform, wanted))

    def _add(self, layer: int, name: str, more: Tensor) -> None:
        self.sums[layer, name] = self.sums.get((layer, name), 0) + more.cpu()

    def table(self) -> pl.DataFrame:
        layers = []
        for layer in self.numbers.values():
            columns: dict[str, Any] = {"layer": layer, "head": range(len(self.sums[layer, PATTERNS[0]]))}
            for pattern in PATTERNS:
                for name in (pattern, f"{pattern}_chance"):
                    columns[name] = (self.sums[layer, name] / self.queries[pattern]).tolist()
            layers.append(pl.DataFrame(columns, schema_overrides={"layer": pl.Int64, "head": pl.Int64}))
        return pl.concat(layers)


def _check_request(model: LoadedModel, tokens: int, repeats: int, seed: int) -> None:
    if model.kind != "decoder":
        raise AbbeError(f"{model.name} is an {model.kind}: attention patterns are for causal decoders")
    for what, value, least in (("tokens", tokens, 2), ("repeats", repeats, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
            raise AbbeError(f"{what} is {value!r}, but must be a whole number >= {least}")


def _begin_tokens(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before a text by itself."""
    encoded = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False)
    pairs = zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
    return [token for token, _ in takewhile(lambda pair: pair[1], pairs)]


def _plain_tokens(model: LoadedModel) -> Tensor:
    """All tokens of the vocabulary that stand for text, in rising order."""
    tokenizer, network = model.tokenizer, model.network
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *(token for token, entry in added.items() if entry.special)}
    config: Any = network.config
    size = config.get_text_config().vocab_size
    return torch.tensor(sorted(token for token in {*tokenizer.get_vocab().values()} - special if token < size))


def _repeated_passages(plain: Tensor, before: list[int], tokens: int, repeats: int, seed: int) -> list[Tensor]:
    """Sequences of different random tokens that come twice, after what the tokenizer begins every text with."""
    if tokens > len(plain):
        raise AbbeError(f"tokens is {tokens}, but the tokenizer has only {len(plain)} that stand for text")
    generator = torch.Generator().manual_seed(seed)
    passages = [plain[torch.randperm(len(plain), generator=generator)[:tokens]] for _ in range(repeats)]
    return [torch.cat([torch.tensor(before, dtype=torch.long), passage, passage]) for passage in passages]
