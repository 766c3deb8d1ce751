"""report: the run, alternatives, sample and findings of tiny models; stopped, resumed and damaged folders."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_runs
from polars.testing import assert_frame_equal

import abbe
from abbe.studies import Report, report

QUICK: dict[str, Any] = tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}


def made(family: str = "gpt2", **options: Any) -> Report:
    return report(tiny_runs.model(family), tiny_runs.TEXT, **(QUICK | options))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A report that tests only read, and its folder."""
    folder = tmp_path_factory.mktemp("report") / "out"
    return made(folder=folder), folder


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", list(tiny_runs.BUILDERS))
def test_every_family_has_all_parts(family: str, saved: tuple[Report, Path]) -> None:
    result = saved[0] if family == "gpt2" else made(family)
    places = result.run.table.select("layer", "head").drop_nulls().unique()
    assert len(result.heads) == result.growth.height == result.floors.height == places.height > 0
    assert "not measured" not in {verdict.kind for verdict in result.heads}
    assert {finding.topic for finding in result.verdicts} >= {"dispersion", "separability", "sinks", "gradients"}
    assert [finding.topic for finding in result.advice] == [
        "active-set size", "temperature floor", "sinks", "sparse normalizer",
    ]  # fmt: skip
    assert result.sample is not None
    assert {(row.layer, row.head) for row in result.sample.rows} <= set(places.iter_rows())
    assert all(number.shown and number.meaning for number in result.numbers)


def test_every_finding_says_its_rule_and_numbers(saved: tuple[Report, Path]) -> None:
    result = saved[0]
    for finding in (*result.verdicts, *result.advice):
        assert finding.sentence.endswith(".")
        assert finding.rule.endswith(".")
        assert finding.numbers
        assert all(value is None or isinstance(value, int | float | str) for value in finding.numbers.values())


def test_the_run_is_that_of_diagnose(saved: tuple[Report, Path]) -> None:
    run = saved[0].run
    alone = abbe.diagnose(tiny_runs.model(), tiny_runs.TEXT, **QUICK)
    assert_frame_equal(run.table, alone.table)


def lengths_read(**options: Any) -> tuple[Report, Counter[int]]:
    """A report, and how often windows of each length went through the model."""
    tiny = tiny_runs.model()
    passes = tiny_runs.passes_of(tiny)
    return report(tiny, tiny_runs.TEXT, **(QUICK | options)), Counter(passes)


def test_every_window_is_run_once_and_never_again(saved: tuple[Report, Path], tmp_path: Path) -> None:
    """Measures, alternatives and sample are taken from the same pass; the rest are self-check and loss."""
    made, passes = lengths_read()
    lengths = Counter(window["length"] for window in made.run.manifest["windows"])
    assert lengths <= passes
    assert (passes - lengths).total() == 4 + 1  # four of the self-check, one of the loss of the sample
    folder = Path(shutil.copytree(saved[1], tmp_path / "out"))
    (folder / "sample.json").unlink()
    again, passes = lengths_read(folder=folder)
    assert passes.total() == 4
    assert_frame_equal(again.alternatives, saved[0].alternatives)


def test_lengths_go_as_far_as_the_context() -> None:
    lengths = report(tiny_runs.model(), tiny_runs.TEXT, **(QUICK | {"lengths": None})).run.manifest["settings"][
        "lengths"
    ]
    assert lengths == [64]  # the context of the tiny model


def test_one_window_has_no_intervals_but_all_parts() -> None:
    result = made(windows=1)
    assert all(number.low is None for number in result.numbers if number.name != "decay exponent")  # over both lengths
    assert result.alternatives["gain_low"].is_null().all()
    assert result.advice


def test_without_temperatures_there_are_no_floors() -> None:
    result = made(temperatures=())
    assert result.floors["floor"].is_null().all()
    assert {finding.topic for finding in result.advice} == {"active-set size", "sinks", "sparse normalizer"}
    assert "gradients" not in {finding.topic for finding in result.verdicts}


def test_a_report_of_a_run_alone_needs_no_model() -> None:
    run = tiny_runs.shared_run()
    result = Report.of(run)
    assert result.sample is None
    assert result.alternatives.is_empty()
    assert isinstance(result.growth, pl.DataFrame)
    assert {finding.topic for finding in result.advice} == {"active-set size", "temperature floor", "sinks"}


def test_commands_name_the_text_as_it_was_given_and_its_repr_is_short(tmp_path: Path) -> None:
    file = tmp_path / "a text.txt"
    file.write_text(tiny_runs.TEXT.content)
    result = report(tiny_runs.model(), [file], folder=tmp_path / "out", **(QUICK | {"windows": 2}))
    assert result.manifest["given"] == {"text": [str(file)]}
    trained = replace(result, verdicts=())  # else its only step is another model
    commands = [shlex.split(step.command) for step in trained.next_steps()]
    assert len(commands) > 1
    assert all(command[-2:] == ["--text", str(file)] for command in commands)
    assert abbe.open(tmp_path / "out").manifest["given"] == result.manifest["given"]
    assert str(tmp_path) not in trained.to_html()  # pages are passed on
    assert len(repr(result)) < 300


def test_a_sample_of_another_form_is_refused_and_made_again(saved: tuple[Report, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved[1], tmp_path / "out"))
    written = (folder / "sample.json").read_text()
    (folder / "sample.json").write_text(written.replace('"keys"', '"others"'))
    with pytest.raises(abbe.AbbeError, match=r"sample\.json"):
        abbe.open(folder)
    assert made(folder=folder).sample == Report.opened(folder, *abbe.results.read_manifest(folder)).sample
