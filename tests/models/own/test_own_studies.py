"""Studies of networks that are not from transformers, by token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from cli_runs import run_main
from own_networks import CONTEXT, HEADS, VOCABULARY, Decoder, as_written, by_abbe, by_hand, decoder, encoder, ids
from safetensors.torch import save_file
from tiny_models import llama
from torch import Tensor, nn

import abbe
from abbe import AbbeError
from abbe.models import read_tokens, wrap

QUICK: dict[str, Any] = {"lengths": 32, "windows": 2, "queries": 4, "progress": False}


def stream(length: int = 2000) -> Tensor:
    """Ids in which the next one is often the same step ahead."""
    return (torch.arange(length) * 7 + (torch.arange(length) % 5 == 0) * 3) % VOCABULARY


@pytest.fixture(scope="module")
def network() -> Decoder:
    return decoder()


def test_diagnose_measures_what_the_weights_are(network: Decoder) -> None:
    run = abbe.diagnose(network, tokens=stream(), **QUICK | {"queries": "all"})
    assert run.manifest["layers"] == [f"blocks.{i}.attn" for i in range(3)]
    assert run.manifest["model"]["kind"] == "decoder"
    assert run.manifest["model"]["class"] == "Decoder"
    assert run.manifest["text"]["tokens"] == 2000
    assert run.manifest["self_check"]["error"] < 1e-5
    effective = []
    for place in run.manifest["windows"]:
        with abbe.tap(network) as tap:
            weights: list[Tensor] = []
            tap.listen(lambda call, weights=weights: weights.append(call.weights()[0]))
            network(stream()[None, place["start"] : place["end"]])
        effective.append(torch.stack([1 / layer.double().square().sum(-1) for layer in weights]).mean(-1))
    expected = torch.stack(effective).mean(0).flatten().tolist()
    rows = run.table.filter((pl.col("measure") == "effective_tokens") & pl.col("layer").is_not_null()).sort(
        "layer", "head"
    )
    assert rows["value"].to_list() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("vectors", ["value", "output", "hidden", "embedding"])
def test_every_kind_of_vectors(network: Decoder, vectors: str) -> None:
    run = abbe.diagnose(network, tokens=stream(), vectors=vectors, **QUICK)
    assert run.table.filter(pl.col("measure") == "separability").height > 0


def test_a_report_with_its_page(network: Decoder, tmp_path: Path) -> None:
    report = abbe.report(network, tokens=stream(), folder=tmp_path / "run", **QUICK)
    assert report.sample is not None
    window = next(place for place in report.manifest["windows"] if place["index"] == report.sample.index)
    assert report.sample.tokens == tuple(map(str, stream()[window["start"] : window["end"]].tolist()))
    tokens = stream()[window["start"] : window["end"]]
    expected = F.cross_entropy(network(tokens[None])[0, :-1], tokens[1:]).item()
    assert report.sample.loss == pytest.approx(expected, rel=1e-4)
    assert report.sample.guessing == pytest.approx(np.log(VOCABULARY))
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "token ids, 2,000 tokens" in page
    again = abbe.report(network, tokens=stream(), folder=tmp_path / "run", **QUICK)
    assert again.table.equals(report.table)
    with pytest.raises(AbbeError, match="another"):
        abbe.report(network, tokens=stream().flip(0), folder=tmp_path / "run", **QUICK)


def test_next_steps_are_python() -> None:
    """No command can name a network in memory; here it selects, and its loss is said to be low."""
    options = QUICK | {"lengths": [16, 32], "tokens": stream(), "loss": lambda network, ids: ids[:, 1:] * 0.0}
    report = abbe.report(decoder(scale=12.0), **options)
    commands = [step.command for step in report.next_steps()]
    assert (
        "abbe.report(network, tokens=tokens, windows=8, lengths=[16, 32], queries=4, folder='abbe-report-8-windows')"
        in (commands)
    )
    assert "abbe.capacity(network, tokens=tokens, lengths=32, layers=False)" in commands


def test_capacity_and_comparison(network: Decoder) -> None:
    small = {"windows": 2, "progress": False, "tokens": stream()}
    capacity = abbe.capacity(network, lengths=32, grid="coarse", layers=False, queries=4, **small)
    assert capacity.table.height > 0
    compared = abbe.compare(network, normalizers="entmax:alpha=1.5", length=32, queries=4, calibrate=True, **small)
    rows = compared.table.filter(pl.col("normalizer") == "entmax:alpha=1.5")
    windows = [stream()[1000 + p["start"] : 1000 + p["end"]] for p in compared.manifest["windows"]]

    def loss(other: Decoder) -> float:
        with torch.no_grad():
            parts = [F.cross_entropy(other(ids[None])[0, :-1], ids[1:]) for ids in windows]
        return float(torch.stack(parts).mean())

    rise = loss(as_written(network, by_abbe("entmax:alpha=1.5"))) / loss(network) - 1
    assert rows["loss_rise"][0] == pytest.approx(rise, rel=1e-3, abs=1e-6)
    assert any("needle test" in line for line in compared.manifest["skipped"])


def test_diff_of_two_checkpoints(network: Decoder) -> None:
    other = decoder()
    other.blocks[1].attn.qkv.weight.data.mul_(0.2)
    difference = abbe.diff(network, other, tokens=stream(), sizes=5, **QUICK | {"windows": 6, "queries": 8})
    assert difference.heads == 3 * HEADS
    assert set(difference.table.filter(pl.col("q_value") <= 0.05)["layer"].to_list()) >= {1}


# -- Losses, passes and contexts --------------------------------------------------------------------------------------


class Last(nn.Module):
    """As nanoGPT: without targets only the last logits, and a loss with them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.block_size = inner, 64

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.inner(ids)
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_loss_that_is_given(network: Decoder) -> None:
    last, small = Last(network), QUICK | {"tokens": stream(), "grid": "coarse", "layers": False, "way": "deletion"}
    with pytest.raises(AbbeError, match=r"Last has no language-model head: .* give loss="):
        abbe.capacity(last, **small)

    def losses(last: Any, tokens: Tensor) -> Tensor:
        logits = last(tokens, tokens)[0]
        return F.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="none")[None]

    plain = abbe.capacity(network, **small).curve
    for loss in (losses, lambda last, tokens: last(tokens, tokens)[0]):
        given = abbe.capacity(last, loss=loss, **small).curve
        assert given["loss"].to_list() == pytest.approx(plain["loss"].to_list(), rel=1e-5)
    with pytest.raises(AbbeError, match=r"loss gave a tensor of shape \(\) for token ids of shape \(1, 32\)"):
        abbe.capacity(last, loss=lambda last, tokens: last(tokens, tokens)[1], **small)


def test_wrap_says_what_it_saw(network: Decoder) -> None:
    model = wrap(network, name="mine")
    assert (model.name, model.kind, model.context) == ("mine", "decoder", CONTEXT)
    assert model.about.startswith("Decoder, 3 layers x 4 heads, width 32")
    assert wrap(Last(network)).context == 64
    assert wrap(network, context=48).context == 48
    assert model.fingerprint != wrap(decoder(seed=1)).fingerprint
    assert model.configuration != wrap(as_written(network, by_abbe("sparsemax"))).configuration
    with pytest.raises(AbbeError, match="above the model's context of 48"):
        abbe.diagnose(wrap(network, context=48), tokens=stream(), **QUICK | {"lengths": 64})


def test_a_pass_that_needs_more(network: Decoder) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, ids: Tensor, mode: str) -> dict[str, Tensor]:
            return {"logits": self.inner(ids)} if mode == "lm" else {}

    with pytest.raises(AbbeError, match=r"Two fails on the token ids 3, 2, 1, 0 \(.*mode.*\): give run="):
        abbe.diagnose(Two(), tokens=stream(), **QUICK)
    model = wrap(Two(), run=lambda network, tokens: network(tokens, "lm"))
    assert model.kind == "decoder"
    run = abbe.diagnose(model, tokens=stream(), **QUICK)
    plain = abbe.diagnose(network, tokens=stream(), **QUICK)
    assert run.table.drop("model").equals(plain.table.drop("model"))


def test_an_encoder_of_tokens() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.symbols, self.body = nn.Embedding(VOCABULARY, 32), encoder()

        def forward(self, ids: Tensor) -> Tensor:
            return self.body(self.symbols(ids))

    network = Encoder().eval()
    assert wrap(network).kind == "encoder"
    assert abbe.diagnose(network, tokens=stream(), **QUICK).table.height > 0
    with pytest.raises(AbbeError, match="capacity needs a causal language model"):
        abbe.capacity(network, tokens=stream(), lengths=32, progress=False)


# -- Token ids --------------------------------------------------------------------------------------------------------


def test_forms_of_token_ids(tmp_path: Path) -> None:
    expected = stream(60)
    np.save(tmp_path / "ids.npy", expected.numpy().astype(np.uint16))
    save_file({"ids": expected.int()}, tmp_path / "ids.safetensors")
    forms = [
        expected, expected.int(), expected.numpy(), expected.tolist(), expected.view(3, 20),
        expected.view(3, 20).tolist(), [expected[:7], expected[7:]], str(tmp_path / "ids.npy"),
        tmp_path / "ids.safetensors",
    ]  # fmt: skip
    for form in forms:
        assert torch.equal(read_tokens(form).ids, expected)
    assert len({read_tokens(form).fingerprint for form in forms}) == 1


def test_the_command_line_takes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(200) % 97)
    out = str(tmp_path / "run")
    quick = ["--lengths", "32", "--windows", "2", "--queries", "4", "--quiet", "--out", out]
    assert run_main(monkeypatch, "diagnose", "embedded", "--tokens", tmp_path / "ids.npy", *quick) == 0
    assert abbe.open(out).manifest["text"] == {
        "name": "ids.npy", "tokens": 200, "fingerprint": read_tokens(tmp_path / "ids.npy").fingerprint,
    }  # fmt: skip
    assert run_main(monkeypatch, "diagnose", "embedded", "--tokens", "none.npy", *quick) == 2
    assert "there is no file none.npy" in capsys.readouterr().err


def test_a_transformers_network_without_a_tokenizer() -> None:
    network = llama()
    vocabulary = network.config.vocab_size
    run = abbe.diagnose(network, tokens=torch.arange(500) % vocabulary, **QUICK)
    assert run.manifest["text"]["tokens"] == 500
    with pytest.raises(AbbeError, match=r"holds the id .*, but .* knows only"):
        abbe.diagnose(network, tokens=torch.arange(500) + vocabulary, **QUICK)


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        (torch.randn(20), "tokens must be whole numbers"),
        ([], "tokens must be whole numbers|there are no tokens"),
        ([1, -2], "a token id is negative"),
        ([1, "a"], "tokens must be whole numbers"),
        ("none.npy", "there is no file none.npy"),
        (torch.arange(8), "token ids has 8 tokens, too few for the shortest window"),
    ],
)
def test_bad_token_ids(network: Decoder, tokens: object, why: str) -> None:
    with pytest.raises(AbbeError, match=why) as error:
        abbe.diagnose(network, tokens=tokens, **QUICK)
    assert "\n" not in str(error.value)


def test_bad_files_and_calls(network: Decoder, tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("bad.npy", "object.npy"):
        with pytest.raises(AbbeError, match=r"is not a \.npy or \.safetensors file with one array"):
            read_tokens(tmp_path / name)
    for options, why in (
        ({"text": "a b", "tokens": stream()}, "text and tokens are two things"),
        ({}, "a network comes without its tokenizer: give tokenizer=..., or token ids, tokens="),
        ({"text": "a b", "tokenizer": None}, "without its tokenizer"),
    ):
        with pytest.raises(AbbeError, match=why):
            abbe.diagnose(network, **options, **QUICK)
    with pytest.raises(AbbeError, match="there is no tokenizer for a text"):
        abbe.diagnose(wrap(network), **QUICK)
    with pytest.raises(AbbeError, match=r"loss=\.\.\. is for a network in memory"):
        abbe.diagnose("embedded", loss=lambda network, tokens: tokens, **QUICK)
    with pytest.raises(AbbeError, match="calls none of"):
        abbe.diagnose(as_written(network, by_hand), tokens=ids(), **QUICK)
