"""Real models and texts: they load, predict text sensibly, and are what abbe says they are."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from real import pulled, shared_model, shared_text

from abbe.models import LoadedModel, Text, Window, load, pulled_facts, pulled_folder, read_text, windows

pytestmark = pytest.mark.real

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends. "
    "One day, she saw a big red ball under a tree. She was very happy and wanted to play with it. Her mom said, "
    '"Be careful, Lily." Lily ran to the ball and kicked it high into the sky.'
)


@lru_cache
def model(name: str) -> LoadedModel:
    return load(name)


def loss(of: LoadedModel, tokens: torch.Tensor) -> float:
    """Mean surprise a token in nats."""
    with torch.no_grad():
        logits = of.network(tokens[None]).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, tokens[1:]))


def perplexity(of: LoadedModel, cut: list[Window]) -> float:
    return math.exp(sum(loss(of, window.tokens) for window in cut) / len(cut))


def shuffled(window: Window) -> Window:
    """The same tokens in another order; the first one, a begin token, stays."""
    order = torch.randperm(window.length - 1, generator=torch.Generator().manual_seed(0)) + 1
    return replace(window, tokens=window.tokens[torch.cat([torch.tensor([0]), order])])


def excerpt() -> Text:
    return Text("excerpt", read_text(shared_text()).content[100_000:500_000])


def test_stories15m_of_the_shared_folder_knows_stories() -> None:
    loaded = model(str(shared_model("stories15M")))
    assert (loaded.kind, loaded.context) == ("decoder", 256)
    story = torch.tensor(loaded.tokenizer(STORY)["input_ids"])
    assert math.exp(loss(loaded, story)) < 5
    prose = windows(excerpt(), [256], 4, 0, tokenizer=loaded.tokenizer, context=loaded.context)
    assert all(window.tokens[0] == loaded.tokenizer.bos_token_id for window in prose)
    # A novel in lines of 70 characters is foreign to this model, but far less so than the same words out of order.
    assert 5 * perplexity(loaded, prose) < perplexity(loaded, [shuffled(window) for window in prose])


def test_stories260k_of_the_shared_folder() -> None:
    loaded = model(str(shared_model("stories260K")))
    assert (loaded.kind, loaded.context) == ("decoder", 512)
    story = torch.tensor(loaded.tokenizer(STORY)["input_ids"])
    assert loss(loaded, story) < 2 < loss(loaded, shuffled(Window(len(story), 0, story, 0, 0)).tokens)


def test_windows_of_a_real_book_lie_where_they_say() -> None:
    text = read_text(shared_text())
    for folder in ("stories15M", "stories260K"):
        tokenizer = model(str(shared_model(folder))).tokenizer
        for window in windows(text, [64, 200], 5, 1, tokenizer=tokenizer):
            spanned = text.content[window.start : window.end]
            assert tokenizer.decode(window.tokens, skip_special_tokens=True).strip() == spanned.strip()


def test_smollm2_is_what_its_facts_say() -> None:
    loaded = model(pulled("smollm2"))
    facts, config = pulled_facts("smollm2"), json.loads((pulled_folder("smollm2") / "config.json").read_text())
    assert (facts["layers"], facts["query_heads"], facts["key_heads"], facts["context"]) == (30, 9, 3, 8192)
    assert config["num_hidden_layers"] == facts["layers"]
    assert config["num_attention_heads"] == facts["query_heads"]
    assert config["num_key_value_heads"] == facts["key_heads"]
    assert config["max_position_embeddings"] == facts["context"] == loaded.context
    assert config["rope_parameters"]["rope_theta"] == facts["rope_theta"] == 100000
    assert sum(parameter.numel() for parameter in loaded.network.parameters()) == 134_515_008
    # Four bits a weight: a block of 32 weights has at most 16 values.
    block = loaded.network.get_parameter("model.layers.3.mlp.up_proj.weight")[5, :32]
    assert len(block.unique()) <= 16


def test_smollm2_predicts_the_book() -> None:
    loaded = model(pulled("smollm2"))
    prose = windows(excerpt(), [512], 3, 0, tokenizer=loaded.tokenizer, context=loaded.context)
    assert 10 < perplexity(loaded, prose) < 40


def test_the_tokenizer_of_smollm2_gives_texts_back() -> None:
    tokenizer = model(pulled("smollm2")).tokenizer
    text = read_text(shared_text()).content[:20_000] + "\n\n\t  日本 é 1234 🙂"
    assert tokenizer.decode(tokenizer(text, verbose=False)["input_ids"]) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer("12345")["input_ids"]) == list("12345")


def embed(loaded: LoadedModel, sentence: str) -> torch.Tensor:
    inputs: Any = loaded.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        mean = loaded.network(**inputs).last_hidden_state.mean(1)[0]
    return torch.nn.functional.normalize(mean, dim=0)


def test_minilm_puts_like_sentences_together() -> None:
    loaded = model(pulled("minilm"))
    assert (loaded.kind, loaded.context) == ("encoder", 512)
    config: Any = loaded.network.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (6, 12)
    dog, puppy, bank = (
        embed(loaded, sentence)
        for sentence in ("A dog runs on the beach.", "A puppy is running by the sea.", "Interest rates rose in March.")
    )
    assert dog @ puppy > 0.6 > 0.2 > dog @ bank
    cut = windows(excerpt(), [128], 2, 0, tokenizer=loaded.tokenizer, context=loaded.context)
    assert all(window.tokens[0] == 101 and window.tokens[-1] == 102 for window in cut)
