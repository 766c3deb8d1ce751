"""Every option of every study with every wrong value: one line that names the option, nothing run, nothing written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import tiny_runs
import torch
from tiny_runs import quick

import abbe

HUGE = 10**400  # no float holds it
NO_NUMBER: list[Any] = ["", "x", "1", b"1", {}, {1: 2}, {1}, object(), [None], ["1"], [[1]], [True], True, 1j]
NO_COUNT: list[Any] = [*NO_NUMBER, 0, -1, 1.5, math.nan, math.inf, -HUGE, None, [], [1], np.float64(1.5)]
NO_LIST: list[Any] = [*NO_NUMBER, 0, -1, 1.5, math.nan, -HUGE, HUGE, [], ()]
NO_LIST += [[one] for one in (0, -1, 1.5, math.nan, HUGE)] + [[1, 1]]
NO_POSITIVE: list[Any] = [*NO_NUMBER, 0, -1, math.nan, math.inf, [0.0], [math.nan], [math.inf], [1, 1], HUGE, -HUGE]
NO_SHARE: list[Any] = [*NO_NUMBER, 0, 1, -0.5, 1.5, math.nan, math.inf, None, [0.5]]
NO_SEED: list[Any] = [*NO_NUMBER, -1, 0.5, math.nan, 2**63, HUGE, None, [], [1]]
NO_CHOICE: list[Any] = ["", "x", 0, 1.5, None, True, b"value", [], ["x"], {}, object()]
NO_NONE, NO_WORD = ([v for v in values if v is not None] for values in (NO_COUNT, NO_CHOICE))
NO_STEPS = [v for v in NO_COUNT if not (isinstance(v, int) and v == 0) or v is False]
NO_FLAG: list[Any] = [None, 1, 0, "yes", "", [], object()]
NO_TEXT: list[Any] = [0, 5, 1.5, math.nan, True, b"a b", {}, [], [5], [None], object()]
NO_TEXT += ["", " \n", "no-such-file", 400 * "x"]
NO_MODEL: list[Any] = [0, 1.5, None, True, b"embedded", [], {}, object(), "", " "]
NO_FOLDER: list[Any] = [0, 1.5, True, b"x", [], {}, object(), "", "a\0b"]

COMMON = {"text": NO_TEXT, "model": NO_MODEL, "folder": NO_FOLDER, "seed": NO_SEED, "windows": NO_COUNT}
MEASURED = {"level": NO_SHARE, "resamples": [*NO_COUNT, HUGE, 10**9]}
DIAGNOSED = {
    "lengths": NO_LIST,
    "queries": NO_NONE,
    "sizes": [*NO_LIST, [2, 1]],
    "temperatures": [*NO_POSITIVE, None],
    "vectors": NO_CHOICE,
}
WRONG: dict[str, dict[str, list[Any]]] = {
    "diagnose": COMMON | MEASURED | DIAGNOSED | {"normalizer": NO_WORD},
    "report": COMMON | MEASURED | DIAGNOSED,
    "reproduce": COMMON
    | {
        "windows": NO_NONE,
        "figures": [*NO_CHOICE, 2, "5", ["2a", "x"]],
        "queries": NO_NONE,
        "quick": NO_FLAG,
    },
    "capacity": COMMON
    | MEASURED
    | {
        "tau": [*NO_POSITIVE, None, []],
        "lengths": NO_LIST,
        "way": NO_CHOICE,
        "layers": NO_FLAG,
        "layer_lengths": NO_LIST,
        "layer_windows": NO_COUNT,
        "queries": NO_COUNT,
    },
    "compare": COMMON
    | MEASURED
    | {
        "normalizers": NO_WORD,
        "length": [*NO_NONE, 1, HUGE],
        "queries": NO_COUNT,
        "tau": NO_SHARE,
        "needle_lengths": NO_LIST,
        "prompts": [*NO_COUNT, HUGE, 10**9],
        "calibrate": NO_FLAG,
    },
    "calibrate": COMMON
    | MEASURED
    | {
        "normalizer": NO_CHOICE,
        "held_out": NO_COUNT,
        "length": [*NO_NONE, 1, HUGE],
        "queries": NO_NONE,
        "steps": NO_STEPS,
        "finetune": NO_STEPS,
    },
}
FINE: dict[str, dict[str, Any]] = {
    "diagnose": {"lengths": 16},
    "report": {"lengths": 16},
    "reproduce": {},
    "capacity": {"lengths": 16},
    "compare": {"length": 32, "needle_lengths": 60},
    "calibrate": {"length": 16},
}
TABLE = [(study, option) for study, options in WRONG.items() for option in options]


@pytest.fixture(scope="module")
def tiny() -> abbe.LoadedModel:
    return tiny_runs.model()


class Ran(Exception):
    """The model was run: the value was taken."""


@pytest.mark.quick(25)
@pytest.mark.parametrize(("study", "option"), TABLE, ids=[f"{study}-{option}" for study, option in TABLE])
def test_one_line_that_names_the_option(
    study: str, option: str, tiny: abbe.LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*given: Any, **more: Any) -> None:
        raise Ran

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tiny.network, "forward", run)
    for value in WRONG[study][option]:
        given = {"model": tiny, "text": tiny_runs.TEXT, "folder": None} | FINE[study] | {option: value}
        with pytest.raises(abbe.AbbeError) as error:
            getattr(abbe, study)(**given, progress=False)
        line = str(error.value)
        assert "\n" not in line
        assert len(line) < 600
        assert not isinstance(error.value.__cause__, Ran), (option, value)
        if option not in NAMED_OTHERWISE:
            assert NAMES.get(option, option) in line, (value, line)
    assert list(tmp_path.iterdir()) == []


NAMES = {"lengths": "length", "figures": "figure", "needle_lengths": "needle"}
NAMED_OTHERWISE = ("model", "text", "normalizer", "normalizers", "length", "windows", "layer_lengths")


def test_numpy_and_torch_numbers_are_numbers(tiny: abbe.LoadedModel) -> None:
    want = tiny_runs.run(lengths=[16], windows=2, temperatures=(1.0,), sizes=(1, 2))
    for ints, floats in ((np.array([1, 2]), np.array([1.0])), (torch.tensor([1, 2]), torch.tensor([1.0]))):
        run = tiny_runs.run(lengths=ints.max() * 8, windows=ints[1], temperatures=floats, sizes=ints)
        assert run.table.equals(want.table)
        assert run.manifest["identity"] == want.manifest["identity"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("alone", "listed"),
    [
        ({"lengths": 16}, {"lengths": [16]}),
        ({"sizes": 2}, {"sizes": [2]}),
        ({"temperatures": 1}, {"temperatures": [1.0]}),
        ({"temperatures": 0.5}, {"temperatures": (0.5,)}),
    ],
)
def test_one_number_needs_no_list(alone: dict[str, Any], listed: dict[str, Any]) -> None:
    short = {"lengths": 16, "windows": 1}
    first, second = (tiny_runs.run(**(short | options)) for options in (alone, listed))
    assert first.table.equals(second.table)
    assert first.manifest["identity"] == second.manifest["identity"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("study", ["diagnose", "reproduce", "capacity", "compare", "calibrate"])
def test_more_windows_than_the_text_has_are_as_many_as_it_has(study: str, tiny: abbe.LoadedModel) -> None:
    """A list of a billion entries would fill the memory."""
    many = {"windows": 10**9} | ({"held_out": 10**9} if study == "calibrate" else {})
    result = quick(study, tiny, abbe.Text("short", tiny_runs.TEXT.content[:130]), **many)
    assert any("because short has only 130 tokens" in why for why in result.manifest["skipped"])


@pytest.mark.parametrize("trials", [*NO_COUNT, 10**9])
def test_trials(trials: Any) -> None:
    with pytest.raises(abbe.AbbeError, match="trials is"):
        abbe.studies.verify(["spectral"], trials=trials)


@pytest.mark.parametrize("seed", NO_SEED)
def test_seeds_of_verify(seed: Any) -> None:
    with pytest.raises(abbe.AbbeError, match="seed is"):
        abbe.studies.verify(["spectral"], seed=seed)


def test_windows_of_a_text_take_the_same_care() -> None:
    tokenizer = tiny_models.byte_tokenizer()
    for value in NO_TEXT[:8]:
        with pytest.raises(abbe.AbbeError, match="text is"):
            abbe.windows(value, 16, 1, 0, tokenizer=tokenizer)
