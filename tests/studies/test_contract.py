"""What all six studies promise alike: one face, one manifest, a folder that opens again and refuses others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_runs
import pytest
import tiny_runs
from polars.testing import assert_frame_equal

import abbe
from abbe.results import FORMAT, MANIFEST

SHORT: dict[str, Any] = {"windows": 2, "resamples": 20, "progress": False}
STUDIES: dict[str, Callable[..., abbe.Result]] = {
    "diagnose": lambda **more: tiny_runs.run(lengths=[16], **more),
    "report": lambda **more: abbe.report(
        tiny_runs.model(), tiny_runs.TEXT, lengths=[16], queries=4, sizes=(1, 2), temperatures=1, **(SHORT | more)
    ),
    "reproduce": lambda **more: abbe.reproduce(
        tiny_runs.model(), tiny_runs.TEXT, figures=["3"], windows=2, queries=4, progress=False, **more
    ),
    "capacity": lambda **more: abbe.capacity(
        tiny_runs.model(), tiny_runs.TEXT, lengths=[16], tau=0.05, layers=False, queries=4, **(SHORT | more)
    ),
    "compare": lambda **more: compare_runs.made(normalizers="sparsemax", **more),
    "calibrate": lambda **more: abbe.calibrate(
        tiny_runs.model(), tiny_runs.TEXT, normalizer="sparsemax", length=16, held_out=2, steps=1, **(SHORT | more)
    ),
}
SCHEMA = {
    *("format", "study", "finished", "identity", "versions", "machine", "model", "text", "settings", "self_check"),
    *("skipped", "measured_again", "seconds", "made"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[abbe.Result, Path]]:
    """A study of each kind, run once, and its folder."""
    done: dict[str, tuple[abbe.Result, Path]] = {}

    def run(study: str) -> tuple[abbe.Result, Path]:
        if study not in done:
            folder = tmp_path_factory.mktemp(study)
            done[study] = STUDIES[study](folder=folder), folder
        return done[study]

    return run


Saved = Callable[[str], tuple[abbe.Result, Path]]


@pytest.mark.parametrize("study", STUDIES)
def test_manifest_and_json(study: str, saved: Saved) -> None:
    result, folder = saved(study)
    assert set(result.manifest) >= SCHEMA
    assert (result.manifest["format"], result.manifest["study"], result.study) == (FORMAT, study, study)
    assert result.manifest["seconds"]["total"] >= 0
    assert result.manifest["settings"]["seed"] == 0
    content = json.loads(result.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert content["manifest"] == json.loads(json.dumps(result.manifest))
    stored = json.loads((folder / MANIFEST).read_text())
    assert stored.pop("checked")["files"]
    assert stored == content["manifest"]


@pytest.mark.parametrize("study", STUDIES)
def test_opened_again_it_is_the_same(study: str, saved: Saved) -> None:
    result, folder = saved(study)
    again = abbe.open(folder)
    assert type(again) is type(result)
    assert again.manifest == result.manifest
    assert_frame_equal(again.table.fill_nan(None), result.table.fill_nan(None))
    first, second = json.loads(result.to_json()), json.loads(again.to_json())
    assert first == second


@pytest.mark.parametrize("study", STUDIES)
def test_saved_elsewhere_it_opens(study: str, saved: Saved, tmp_path: Path) -> None:
    result, _ = saved(study)
    assert result.save(tmp_path / "copy") == tmp_path / "copy"
    assert_frame_equal(abbe.open(tmp_path / "copy").table.fill_nan(None), result.table.fill_nan(None))


@pytest.mark.quick(3)
@pytest.mark.parametrize("study", ["capacity", "calibrate", "diagnose", "compare", "reproduce", "report"])
def test_page_and_card(study: str, saved: Saved, tmp_path: Path) -> None:
    result, _ = saved(study)
    page = result.to_html(tmp_path / "page.html")
    assert page.lower().startswith("<!doctype html>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "tiny" in page
    card = result._repr_html_()
    assert "tiny" in card
    assert "<script" not in card


@pytest.mark.parametrize("study", STUDIES)
def test_damaged_folders_are_refused_in_one_line(study: str, saved: Saved, tmp_path: Path) -> None:
    result, _ = saved(study)
    folder = result.save(tmp_path / "copy")
    files = json.loads((folder / MANIFEST).read_text())["checked"]["files"]
    name = next(name for name in files if not name.endswith(".csv"))  # CSV is for people: nothing is read from it
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(abbe.AbbeError, match=r"damaged|not valid JSON|cannot be read") as refused:
        abbe.open(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("study", ["diagnose", "capacity", "calibrate"])
def test_where_the_model_lies_stays_out_of_the_page(study: str, saved: Saved) -> None:
    result, _ = saved(study)
    model = dict(result.manifest["model"]) | {"name": "/home/somebody/secret/tiny", "source": "/home/somebody/secret"}
    page = dataclasses.replace(result, manifest=dict(result.manifest) | {"model": model}).to_html()  # type: ignore[type-var]
    assert "tiny" in page
    assert "somebody" not in page


def test_folder_of_another_study_is_refused_by_name(saved: Saved) -> None:
    _, folder = saved("capacity")
    with pytest.raises(abbe.AbbeError, match="is a folder of `abbe capacity`: name a new folder"):
        STUDIES["compare"](folder=folder)
    with pytest.raises(abbe.AbbeError, match=r"is a folder of `abbe capacity`: `abbe\.open` opens it"):
        abbe.open_run(folder)


def test_a_diagnosis_does_not_take_over_a_report(saved: Saved) -> None:
    """A report may take up the run of a diagnosis, never the other way round: its page and findings would lie there."""
    result, folder = saved("report")
    settings = {name: result.manifest["settings"][name] for name in ("lengths", "queries", "sizes", "temperatures")}
    with pytest.raises(abbe.AbbeError, match="is a folder of `abbe report`: name a new folder"):
        abbe.diagnose(tiny_runs.model(), tiny_runs.TEXT, folder=folder, **(SHORT | settings))
    assert type(abbe.open(folder)) is type(result)


@pytest.mark.parametrize("study", STUDIES)
def test_other_settings_are_refused_by_name(study: str, saved: Saved) -> None:
    _, folder = saved(study)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: .*seed.*\): name a new folder"):
        STUDIES[study](folder=folder, seed=1)


def test_folder_of_an_older_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(abbe.AbbeError, match=r"was written by an older version of abbe \(identity\.json\)"):
        STUDIES["capacity"](folder=tmp_path)


def test_a_run_of_an_older_format_is_still_read(saved: Saved, tmp_path: Path) -> None:
    result, _ = saved("diagnose")
    folder = result.save(tmp_path)
    older = {key: value for key, value in result.manifest.items() if key != "study"} | {"format": 1}
    (folder / MANIFEST).write_text(json.dumps(older))
    assert_frame_equal(abbe.open(folder).table, result.table)
