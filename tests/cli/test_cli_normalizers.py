"""`abbe normalizers`: the list, and what normalizers make of one row."""

from __future__ import annotations

import json
import math
import re

import pytest
from cli_runs import run, run_main

import abbe
from abbe import AbbeError
from abbe.studies import try_normalizers

INFOS = abbe.list_normalizers()
E = math.e


def test_the_list_is_a_line_each() -> None:
    *lines, hint = run("normalizers", columns=80).stdout.splitlines()
    assert max(map(len, [*lines, hint])) <= 80
    for line, info in zip(lines, INFOS, strict=True):
        assert line.split()[0] == info.name
        assert info.meaning.partition(";")[0] in line
        assert not info.parameters or f"{info.parameters[0].name}=" in line
    assert hint.startswith(f"{len(INFOS)} normalizers.")
    assert hint.endswith("abbe normalizers NAME")


def test_a_name_says_everything() -> None:
    for info in INFOS:
        shown = run("normalizers", info.name, columns=1000).stdout
        for word in (info.name, info.meaning, f"paper {info.paper}", f"example {info.example}"):
            assert word in shown
        for option in info.parameters:
            assert f"  {option.allowed}: {option.meaning}" in shown


@pytest.mark.parametrize("columns", [80, 50])
def test_nothing_is_cut_off(columns: int) -> None:
    assert "…" not in run("normalizers", columns=columns).stdout
    assert "…" not in run("normalizers", *(info.example for info in INFOS), columns=columns).stdout


def test_the_list_as_json_and_as_names() -> None:
    normalizers = json.loads(run("normalizers", "--json").stdout)["normalizers"]
    assert [one["name"] for one in normalizers] == [info.name for info in INFOS]
    (entmax,) = [one for one in normalizers if one["name"] == "entmax"]
    assert entmax["parameters"][0]["default"] == 1.5
    assert entmax["parameters"][0]["allowed"] == "a number in (1, 2]"
    assert run("normalizers", "--quiet").stdout.split() == [info.name for info in INFOS]


@pytest.mark.quick(16)
@pytest.mark.parametrize("spec", [spec for info in INFOS for spec in (info.name, info.example)])
def test_every_normalizer_can_be_tried(spec: str) -> None:
    result = run("normalizers", spec, "--json")
    assert result.exit_code == 0, result.output
    (trial,) = json.loads(result.stdout)["trials"]
    assert "Infinity" not in result.stdout
    assert trial["logits"] == [3, 2, 1, 0, -1]
    assert len(trial["weights"]) == 5
    assert trial["zeros"] == trial["weights"].count(0)
    assert trial["row_sum"] == pytest.approx(sum(trial["weights"]))


def test_closed_forms() -> None:
    """softmax of (ln 4, ln 3, ln 1): eighths; sparsemax of (0.5, 0, -1): 3/4, 1/4, 0; the sink's row sum is less."""
    logits = [math.log(4), math.log(3), 0.0]
    softmax, sink, sharp = try_normalizers(["softmax", "sink:b=0", "softmax:temperature=0.5"], logits)
    assert softmax.weights == pytest.approx((4 / 8, 3 / 8, 1 / 8))
    assert (softmax.zeros, softmax.row_sum, softmax.lipschitz) == (0, pytest.approx(1), pytest.approx(0.5))
    assert sink.weights == pytest.approx((4 / 9, 3 / 9, 1 / 9))
    assert sink.row_sum == pytest.approx(8 / 9)
    assert sharp.weights == pytest.approx((16 / 26, 9 / 26, 1 / 26))
    assert (sharp.parameters, sharp.lipschitz) == ({"temperature": 0.5}, pytest.approx(1.0))
    (sparse,) = try_normalizers(["sparsemax"], [0.5, 0.0, -1.0])
    assert sparse.weights == pytest.approx((0.75, 0.25, 0.0))
    assert sparse.zeros == 1


def test_a_masked_key_gets_nothing() -> None:
    (trial,) = try_normalizers(["softmax"], [1.0, 1.0, -math.inf])
    assert trial.weights == pytest.approx((0.5, 0.5, 0))
    (only_trial,) = json.loads(run("normalizers", "softmax", "--logits", "1,1,-inf", "--json").stdout)["trials"]
    assert only_trial["logits"] == [1.0, 1.0, None]


def test_a_constant_that_is_infinite_is_null() -> None:
    (trial,) = json.loads(run("normalizers", "norm-softmax", "--json").stdout)["trials"]
    assert trial["lipschitz"] is None
    assert "Lipschitz constant for 5 keys: none" in run("normalizers", "norm-softmax").stdout


def test_the_table_of_a_trial() -> None:
    shown = run("normalizers", "topk:k=2", "sigmoid", "--logits", "1,1,0").stdout
    top = shown[: shown.index("sigmoid  ")]
    for words in ("k = 2  a whole number", "renormalize = true  true or false", "paper 1912.11637"):
        assert words in top
    assert "0.5000   " + 10 * "█" + " " in top
    assert "1 of 3 are exactly 0; row sum 1; Lipschitz constant for 3 keys: 0.5 between its jumps" in top
    assert "no weight is exactly 0" in shown
    assert "bias = none" in shown


def test_weights_alone() -> None:
    result = run("normalizers", "sparsemax", "softmax", "--logits", "2,2,0", "--quiet")
    first, second = result.stdout.splitlines()
    assert first == "0.5,0.5,0"
    total = 2 * E**2 + 1
    assert [float(part) for part in second.split(",")] == pytest.approx([E**2 / total, E**2 / total, 1 / total], 1e-5)


def test_bars() -> None:
    """To an eighth of a character; any weight above 0 is visible. A sigmoid gives each logit its own weight."""
    logits = {0.0: 10 * "█", 40.0: 20 * "█", -20.0: "▏", math.log(0.525 / 0.475): 10 * "█" + "▌", -math.inf: ""}
    shown = run("normalizers", "sigmoid:bias=0", "--logits", ",".join(map(str, logits))).stdout
    lines = [line for line in shown.splitlines() if line.strip().startswith(("0", "4", "-"))]
    for line, wanted in zip(lines, logits.values(), strict=True):
        assert re.sub(r"[^█▏▎▍▌▋▊▉]", "", line) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["entmx"], "unknown normalizer 'entmx'. Did you mean 'entmax'?"),
        (["softmax", "--logits", "1,two"], "--logits is '1,two', but must be numbers separated by commas"),
        (["softmax", "--logits", ""], "--logits is '', but must be numbers separated by commas"),
        (["softmax", "--logits", "1,nan"], "softmax: logits hold NaN or +inf at visible keys"),
        ([""], "spec '' has no name"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "normalizers", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"abbe: {message}")
    assert error.count("\n") == 1


def test_no_logits() -> None:
    with pytest.raises(AbbeError, match="there are no logits"):
        try_normalizers(["softmax"], [])


def test_heads_of_different_values_are_not_shown_as_one() -> None:
    message = "entmax:alpha=1.2/1.4,learn=true,heads=2 has heads of different values: try them one at a time"
    with pytest.raises(AbbeError, match=message):
        try_normalizers(["entmax:alpha=1.2/1.4,learn=true"], [3, 2, 1])
    (same,) = try_normalizers(["entmax:alpha=1.2/1.2,learn=true"], [3, 2, 1])
    assert same.spec == "entmax:alpha=1.2,learn=true,heads=2"
