"""capacity with targets: the losses are those of exactly the targets that are asked for, and the study says which."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_runs
import torch
from capacity_runs import QUICK, made
from cli_runs import run_main
from inside import capacity_settings, next_token_losses
from polars.testing import assert_frame_equal
from rich.console import Console

import abbe
from abbe.models import LoadedModel, Window
from abbe.models import windows as cut_windows
from abbe.views import capacity_chart, capacity_table

pytest_plugins = ("cli_fixtures",)
LENGTHS = [16, 40]
SPECS = {"deletion": "topk:k={},renormalize=false", "renormalised": "topk:k={},renormalize=true"}


def by_hand(model: LoadedModel, window: Window, last: int) -> float:
    """-ln p of each of the last targets, one after the other, from the logits of the whole window."""
    logits = model.network(input_ids=window.tokens[None]).logits[0].detach().double()
    tokens, total = window.tokens.tolist(), 0.0
    for target in range(len(tokens) - last, len(tokens)):
        row = logits[target - 1].tolist()
        total += math.log(sum(math.exp(x) for x in row)) - row[tokens[target]]
    return total / last


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["gpt2", "gpt-oss"])
@pytest.mark.parametrize("last", [1, 5, 15])
def test_losses_are_over_exactly_those_targets(family: str, last: int) -> None:
    """All losses of a study, own and truncated, in both ways, against sums by hand."""
    model = tiny_runs.model(family)
    result = made(family, targets=f"last:{last}", lengths=LENGTHS, tau=0.05, layers=False)
    cut = cut_windows(tiny_runs.TEXT, LENGTHS, QUICK["windows"], 0, tokenizer=model.tokenizer, context=model.context)
    for length in LENGTHS:
        windows = [window for window in cut if window.length == length]
        own = sum(by_hand(model, window, last) for window in windows) / len(windows)
        rows = result.curve.filter(pl.col("length") == length)
        assert rows["baseline"].to_list() == pytest.approx([own] * rows.height, rel=1e-5)
        row = rows.filter(pl.col("n") == 2).row(0, named=True)
        with abbe.swap(model, SPECS[row["way"]].format(2)):
            truncated = sum(by_hand(model, window, last) for window in windows) / len(windows)
        assert row["loss"] == pytest.approx(truncated, rel=1e-5)


def test_all_targets_are_the_default() -> None:
    quick = {"lengths": [16], "way": "deletion", "layers": False}
    default, whole, longest = made(**quick), made(**quick, targets="all"), made(**quick, targets="last:15")
    assert default.manifest["settings"]["targets"] == "all"
    assert_frame_equal(default.table, whole.table)
    assert longest.curve["baseline"].to_list() == pytest.approx(
        default.curve["baseline"].to_list()
    )  # no more than 15 are there


def test_only_the_logits_that_are_scored_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a model over a large vocabulary costs more than its attention."""
    model, seen = tiny_runs.model("llama"), []
    head: Any = model.network.get_output_embeddings()
    handle = head.register_forward_hook(lambda _module, given, _out: seen.append(given[0].shape[1]))
    tokens = torch.arange(30) + 40
    some, whole = next_token_losses(model, tokens, 4), next_token_losses(model, tokens)
    handle.remove()
    assert seen == [5, 30]
    torch.testing.assert_close(some, whole[-4:], rtol=1e-6, atol=1e-6)


def test_which_targets_changes_capacity() -> None:
    """A query of at most N keys is untouched, and early queries have few: over all targets the rise is smaller."""
    rises = {
        targets: made(targets=targets, lengths=[40], tau=0.05, way="deletion", layers=False)
        .curve.filter(pl.col("n") == 8)["rise"]
        .item()
        for targets in ("all", "last:8")
    }
    assert rises["all"] != rises["last:8"]


def test_layers_are_scored_on_the_same_targets() -> None:
    model = tiny_runs.model()
    result = made(targets="last:3", lengths=[16], tau=0.05, way="deletion", layer_windows=3)
    cut = cut_windows(tiny_runs.TEXT, [16], 3, 0, tokenizer=model.tokenizer, context=model.context)
    row = result.curve.filter(pl.col("layer") == 1).row(0, named=True)
    with abbe.swap(model, {"layers.1": SPECS["deletion"].format(row["n"])}):
        expected = sum(by_hand(model, window, 3) for window in cut) / 3
    assert row["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("last:0", "targets is 'last:0', but must be all, or last:N with a whole number N >= 1, such as last:128"),
        ("last:x", "targets is 'last:x', but must be all"),
        ("last:", "targets is 'last:', but must be all"),
        ("last:-3", "targets is 'last:-3', but must be all"),
        ("last:1.5", "targets is 'last:1.5', but must be all"),
        ("first:3", "targets is 'first:3', but must be all"),
        ("", "targets is '', but must be all"),
        (128, "targets is 128, but must be all"),
        (None, "targets is None, but must be all"),
        ("last:16", "targets is 'last:16', but windows of 16 tokens have only 15 targets: name longer lengths"),
    ],
)
def test_what_is_refused(targets: Any, message: str) -> None:
    with pytest.raises(abbe.AbbeError) as refused:
        made(targets=targets)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_lengths_that_are_not_named_are_long_enough() -> None:
    """`--targets last:128` works as it stands: the default lengths leave out windows of 128 tokens."""
    model = tiny_runs.model()
    options = {
        "tau": 0.05, "way": "deletion", "layers": True, "layer_lengths": None, "windows": 1, "layer_windows": 1,
        "queries": 1, "seed": 0, "level": 0.95, "resamples": 1,
    }  # fmt: skip

    def lengths(context: int | None, targets: str) -> tuple[int, ...]:
        network = type("Any", (), {"context": context})()
        return capacity_settings(network, lengths=None, targets=targets, **options).lengths

    assert lengths(1024, "all") == (128, 256, 512, 1024)
    assert lengths(1024, "last:128") == (256, 512, 1024)
    assert lengths(None, "last:127") == (128, 256, 512, 1024)
    assert model.context == 64
    with pytest.raises(abbe.AbbeError, match="windows of 64 tokens have only 63 targets"):
        lengths(64, "last:64")


def test_another_choice_is_another_study(tmp_path: Path) -> None:
    options = {"lengths": [16], "layers": False, "folder": tmp_path}
    first = made(targets="last:4", **options)
    assert_frame_equal(made(targets="last:4", **options).table, first.table)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: targets\)"):
        made(targets="last:5", **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("targets", "words"), [("all", "all next tokens"), ("last:4", "the last 4 targets")])
def test_every_place_says_which_targets(targets: str, words: str) -> None:
    result = made(targets=targets, lengths=LENGTHS, layers=False)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(capacity_table(result))
    assert words in " ".join(console.export_text().split())
    assert words in " ".join(capacity_chart(result, "light")["title"]["subtitle"])
    capacity_rule = next(one.rule for one in result.findings if one.topic == "capacity")
    assert words in capacity_rule
    assert result.as_json()["manifest"]["settings"]["targets"] == targets


def test_the_command_passes_it_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_main(monkeypatch, "capacity", "--targets", "last:x", "--quiet")
    assert code == 2
    assert capsys.readouterr().err.splitlines() == [
        "abbe: targets is 'last:x', but must be all, or last:N with a whole number N >= 1, such as last:128"
    ]
