"""What every study of a model promises: one face, one manifest, a folder that opens again and refuses others."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import compare_runs
import pytest
import stand_in_harness
import tiny_runs
from needle_models import TEXT as PROSE
from polars.testing import assert_frame_equal
from run_files import check_files

import abbe
from abbe.lab import experiments as lab_running
from abbe.lab import run as lab_run
from abbe.results import FORMAT, MANIFEST
from abbe.runs import study as runs_study
from abbe.training import Training

QUICK: dict[str, Any] = {"windows": 2, "queries": 4, "progress": False}
SHORT: dict[str, Any] = QUICK | {"lengths": [16], "resamples": 20}
OPTIONS: dict[str, dict[str, Any]] = {
    "diagnose": SHORT | {"sizes": (1, 2, 5)},
    "report": SHORT | {"sizes": (1, 2), "temperatures": 1},
    "reproduce": QUICK | {"figures": ["3"]},
    "capacity": SHORT | {"tau": 0.05},
    "compare": QUICK
    | {"normalizers": "sparsemax", "length": 40, "needle_lengths": [31, 40], "prompts": 1, "resamples": 20},
    "calibrate": QUICK | {"normalizer": "sparsemax", "length": 16, "held_out": 2, "steps": 1, "resamples": 20},
    "lift": QUICK
    | {"normalizers": "sparsemax", "length": 16, "steps": 4, "prompts": 1, "budget": None, "resamples": 20},
    "diff": SHORT | {"sizes": (1, 2)},
    "eval": stand_in_harness.OPTIONS,
    "train": {"normalizers": ["softmax", "sparsemax"], "rates": [0.01, 0.03], "seeds": 2, "steps": 10, "workers": 1}
    | {"progress": False},
}
# Written by a monitor: tests/training. Many reports: test_report_each.py.
ELSEWHERE = {"watch", "report --each"}
STUDIES = [pytest.param(study, marks=[pytest.mark.slow] if study == "lift" else []) for study in OPTIONS]
# A part of each kind, as it lies in the folder of a finished study.
PARTS = {
    "diagnose": ["windows/16-1.safetensors"],
    "report": ["windows/16-1.safetensors", "sample/rows.json"],
    "reproduce": ["runs/*/windows/*.safetensors"],
    "capacity": ["losses/16-deletion-4.json", "losses/16-layer1-*.json", "separability/windows/16-0.safetensors"],
    "compare": ["parts/0-windows.json", "parts/1-capacity.json", "parts/1-needle.json"],
    "calibrate": ["layers/*.safetensors", "losses.json"],
    "lift": ["parts/fit-1.safetensors", "parts/scan-0-1.json", "parts/judged-1.json"],
    "diff": ["runs/0/windows/16-1.safetensors", "runs/1/windows/16-0.safetensors", "losses/1.json"],
    "eval": ["parts/0-0.json", "parts/1-1.json"],
    "train": ["runs/*.json"],
}
# Passes of self-checks (a text and its padded beginning, twice each), and of estimates of the cost.
CHECKING = {
    "diagnose": 4,
    "report": 4,
    "reproduce": 2 + 4,
    "capacity": 3 + 8,
    "compare": 7 + 4,
    "calibrate": 4,
    "lift": 4,
    "diff": 8,
    "eval": 4 + 2,
    "train": 0,  # what is passed there is a whole run
}
COSTS = ("seconds", "time_ratio", "extra_megabytes")  # of a comparison: other ones in every run
NOT_COMPARED = ("manifest", "file", "figure_seconds", *COSTS)


def run(study: str, on_pass: Callable[[], object] = lambda: None, **more: Any) -> Any:
    """A study of a model of its own, which calls `on_pass` before each of its forward passes."""
    if study == "train":
        return trained(on_pass, **more)
    wordy = study in ("compare", "lift")
    model, text = (compare_runs.word_model(), PROSE) if wordy else (tiny_runs.model(), tiny_runs.TEXT)
    models = [model, tiny_runs.model()] if study == "diff" else [model]
    for one in models:
        one.network.base_model.register_forward_pre_hook(lambda *_: on_pass())
    if study == "eval":
        with stand_in_harness.installed():
            return abbe.evaluate(model, **(OPTIONS[study] | more))
    return getattr(abbe, study)(*models, text, **(OPTIONS[study] | more))


def trained(on_pass: Callable[[], object], **more: Any) -> Any:
    """Without a page, which has tests of its own, and without an estimate of the time."""

    def train(*given: Any, **named: Any) -> Any:
        on_pass()
        return lab_run.train(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_study, "has", lambda extra: False)
        patch.setattr(lab_running, "_estimate", lambda task, left, device: dict.fromkeys(("softmax", "sparsemax"), 0.0))
        patch.setattr(lab_running, "train", train)
        return abbe.train_recall(**(OPTIONS["train"] | more))


def assert_measured_alike(result: abbe.Result, other: abbe.Result) -> None:
    """To the bit, but for time and memory: the table, and everything else that a result says."""
    first, second = (one.table.drop(COSTS, strict=False) for one in (result, other))
    assert_frame_equal(first, second, check_exact=True)
    assert _measured(result.as_json()) == _measured(other.as_json())


def _measured(content: Any) -> Any:
    """Numbers as text, in which NaN is equal to itself."""
    if isinstance(content, Mapping):
        return {key: _measured(value) for key, value in content.items() if key not in NOT_COMPARED}
    return [_measured(one) for one in content] if isinstance(content, list) else repr(content)


def stamps(folder: Path) -> dict[Path, int]:
    """When each part was written."""
    places = ("windows", "losses", "parts", "layers", "runs")
    parts = (path for place in places for path in folder.rglob(f"{place}/*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in parts}


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 8):  # one digit may be beyond the precision of a number
        content[place] ^= 0x55
    path.write_bytes(content)


SCHEMA = {
    *("format", "study", "finished", "identity", "versions", "machine", "model", "text", "settings", "self_check"),
    *("skipped", "measured_again", "seconds", "made"),
}


@dataclasses.dataclass(frozen=True)
class Whole:
    """A study that nothing disturbed."""

    result: abbe.Result
    folder: Path
    passes: int


Saved = Callable[[str], Whole]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A study of each kind, run once, and its folder."""
    done: dict[str, Whole] = {}

    def once(study: str) -> Whole:
        if study not in done:
            folder, passes = tmp_path_factory.mktemp(study), [0]
            result = run(study, counting(passes), folder=folder)
            done[study] = Whole(result, folder, passes[0])
        return done[study]

    return once


def counting(passes: list[int], stop_at: int | None = None) -> Callable[[], None]:
    """Counts passes; instead of the one with the number `stop_at` comes Ctrl-C."""

    def on_pass() -> None:
        passes[0] += 1
        if passes[0] == stop_at:
            raise KeyboardInterrupt

    return on_pass


def test_no_study_is_left_out() -> None:
    results = {made for name in abbe.studies.__all__ if isinstance(made := getattr(abbe.studies, name), type)}
    studies = {made.study for made in results if issubclass(made, abbe.Result)} | {abbe.Run.study, Training.study}
    assert studies == {*OPTIONS} | ELSEWHERE


@pytest.mark.parametrize("study", STUDIES)
def test_manifest_and_json(study: str, saved: Saved) -> None:
    result, folder = saved(study).result, saved(study).folder
    assert set(result.manifest) >= SCHEMA
    assert (result.manifest["format"], result.manifest["study"], result.study) == (FORMAT, study, study)
    assert result.manifest["seconds"]["total"] >= 0
    assert result.manifest["settings"].get("seed", 0) == 0
    content = json.loads(result.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert content["manifest"] == json.loads(json.dumps(result.manifest))
    stored = json.loads((folder / MANIFEST).read_text())
    assert stored.pop("checked")["files"]
    assert stored == content["manifest"]


@pytest.mark.parametrize("study", STUDIES)
def test_files_are_those_that_are_listed(study: str, saved: Saved) -> None:
    folder = saved(study).folder
    check_files(folder)
    if study in ("report", "reproduce", "compare"):  # the page of the command line is there, too
        assert (folder / f"{study}.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert not list(folder.glob(".*.part"))


@pytest.mark.parametrize("study", STUDIES)
def test_opened_again_it_is_the_same(study: str, saved: Saved) -> None:
    result, folder = saved(study).result, saved(study).folder
    again = abbe.open(folder)
    assert type(again) is type(result)
    assert again.manifest == result.manifest
    assert_frame_equal(again.table.fill_nan(None), result.table.fill_nan(None))
    first, second = json.loads(result.to_json()), json.loads(again.to_json())
    assert first == second


@pytest.mark.parametrize("study", STUDIES)
def test_saved_elsewhere_it_opens(study: str, saved: Saved, tmp_path: Path) -> None:
    result = saved(study).result
    assert result.save(tmp_path / "copy") == tmp_path / "copy"
    assert_frame_equal(abbe.open(tmp_path / "copy").table.fill_nan(None), result.table.fill_nan(None))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "study", ["calibrate", "capacity", "diagnose", "compare", "diff", "eval", "reproduce", "report", "lift"]
)
def test_page_and_card(study: str, saved: Saved, tmp_path: Path) -> None:
    result = saved(study).result
    page = result.to_html(tmp_path / "page.html")
    assert page.lower().startswith("<!doctype html>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "tiny" in page
    card = result._repr_html_()
    assert "tiny" in card
    assert "<script" not in card


@pytest.mark.parametrize("study", STUDIES)
def test_damaged_folders_are_refused_in_one_line(study: str, saved: Saved, tmp_path: Path) -> None:
    result = saved(study).result
    folder = result.save(tmp_path / "copy")
    files = json.loads((folder / MANIFEST).read_text())["checked"]["files"]
    name = next(name for name in files if not name.endswith(".csv"))  # CSV is for people: nothing is read from it
    damage(folder / name)
    with pytest.raises(abbe.AbbeError, match=r"damaged|not valid JSON|cannot be read") as refused:
        abbe.open(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("study", STUDIES)
def test_stopped_and_resumed_it_is_as_uninterrupted(study: str, saved: Saved, tmp_path: Path) -> None:
    whole, passes = saved(study), [0]
    with pytest.raises(KeyboardInterrupt):
        run(study, counting(passes, stop_at=max(whole.passes * 5 // 6 + 1, CHECKING[study] + 2)), folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match="is not finished: run it again with this folder to resume it"):
        abbe.open(tmp_path)
    finished = stamps(tmp_path)
    assert finished
    resumed = run(study, folder=tmp_path)
    assert_measured_alike(resumed, whole.result)
    assert_measured_alike(abbe.open(tmp_path), resumed)
    assert finished.items() <= stamps(tmp_path).items()


@pytest.mark.parametrize("study", STUDIES)
def test_a_finished_study_is_checked_again_but_not_measured(study: str, saved: Saved, tmp_path: Path) -> None:
    folder, passes = Path(shutil.copytree(saved(study).folder, tmp_path / "run")), [0]
    before = stamps(folder)
    again = run(study, counting(passes), folder=folder)
    assert_measured_alike(again, saved(study).result)
    assert stamps(folder) == before
    assert passes[0] == CHECKING[study]


@pytest.mark.parametrize("study", STUDIES)
def test_damaged_parts_are_measured_again_with_a_line_that_says_so(
    study: str, saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(saved(study).folder, tmp_path / "run"))
    damaged = [next(iter(sorted(folder.glob(pattern)))) for pattern in PARTS[study]]
    for path in damaged:
        damage(path)
    again = run(study, folder=folder, progress=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.endswith("; it is measured again")]
    assert sorted(lines) == sorted(again.manifest["measured_again"])
    assert len(lines) == len(damaged)
    assert all(any(str(path) in line for line in lines) for path in damaged)
    assert_measured_alike(again, saved(study).result)
    assert_measured_alike(abbe.open(folder), again)


@pytest.mark.quick(1)
@pytest.mark.parametrize("study", STUDIES)
def test_a_folder_in_which_nothing_was_finished_is_no_other_run(study: str, tmp_path: Path) -> None:
    def stop() -> None:
        """At the first pass after the folder became that of the run."""
        if (tmp_path / MANIFEST).exists():
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(study, stop, folder=tmp_path)
    assert any(tmp_path.iterdir())
    run(study, folder=tmp_path, seed=1)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: seeds?\)"):
        run(study, folder=tmp_path)


@pytest.mark.parametrize("study", ["diagnose", "capacity", "calibrate"])
def test_where_the_model_lies_stays_out_of_the_page(study: str, saved: Saved) -> None:
    result = saved(study).result
    model = dict(result.manifest["model"]) | {"name": "/home/somebody/secret/tiny", "source": "/home/somebody/secret"}
    page = dataclasses.replace(result, manifest=dict(result.manifest) | {"model": model}).to_html()  # type: ignore[type-var]
    assert "tiny" in page
    assert "somebody" not in page


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("report")
    assert list(tmp_path.iterdir()) == []


def test_folder_of_another_study_is_refused_by_name(saved: Saved) -> None:
    folder = saved("capacity").folder
    with pytest.raises(abbe.AbbeError, match="is a folder of `abbe capacity`: name a new folder"):
        run("compare", folder=folder)
    with pytest.raises(abbe.AbbeError, match=r"is a folder of `abbe capacity`: open it with `abbe\.open`"):
        abbe.open_run(folder)


def test_a_diagnosis_does_not_take_over_a_report(saved: Saved) -> None:
    """A report may take up the run of a diagnosis, never the other way round: its page and findings would lie there."""
    result, folder = saved("report").result, saved("report").folder
    settings = {name: result.manifest["settings"][name] for name in ("lengths", "queries", "sizes", "temperatures")}
    with pytest.raises(abbe.AbbeError, match="is a folder of `abbe report`: name a new folder"):
        abbe.diagnose(tiny_runs.model(), tiny_runs.TEXT, folder=folder, **(SHORT | settings))
    assert type(abbe.open(folder)) is type(result)


@pytest.mark.parametrize("study", STUDIES)
def test_other_settings_are_refused_by_name(study: str, saved: Saved) -> None:
    folder = saved(study).folder
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: .*seed.*\): name a new folder"):
        run(study, folder=folder, seed=1)


@pytest.mark.parametrize("written", [1, 3, 99])
def test_a_folder_of_another_format_is_refused_before_a_model_is_loaded(
    written: int, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("diagnose").result.save(tmp_path)
    (folder / MANIFEST).write_text(json.dumps({"format": written, "study": "diagnose"}))
    monkeypatch.setattr(abbe.models, "load", lambda *args, **more: pytest.fail("loaded"))
    for call in (lambda: abbe.open(folder), lambda: abbe.diagnose("embedded", folder=folder)):
        with pytest.raises(abbe.AbbeError, match=rf"another version of abbe \(format {written}.* measure again"):
            call()


def test_a_folder_of_another_study_or_model_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    abbe.diagnose(lengths=16, windows=2, queries=4, sizes=[2], folder=folder, progress=False)  # of the default model
    monkeypatch.setattr(abbe.models, "load", lambda *args, **more: pytest.fail("loaded"))
    with pytest.raises(abbe.AbbeError, match="is a folder of `abbe diagnose`"):
        abbe.capacity("embedded", folder=folder)
    with pytest.raises(abbe.AbbeError, match="holds a run of embedded, not of smollm2"):
        abbe.diagnose("smollm2", folder=folder)
