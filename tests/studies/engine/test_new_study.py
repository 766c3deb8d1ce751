"""A study is declared once: one module of 40 lines gets its command, help, page, JSON, shards and `abbe.open`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from inside import declared as _declared
from typer.testing import CliRunner

import abbe
from abbe.cli.study import command_of

SOURCE = '''
"""How much weight do random rows put on their first key?"""

from dataclasses import dataclass

import polars as pl
import torch

from abbe.results import Result
from abbe.runs.parts import claim_folder
from abbe.runs.inputs import as_folder
from abbe.runs.measuring import finished_manifest, study_facts
from abbe.runs.study import study
from abbe.views import TextTable, View
from abbe.words.finding import Finding
from abbe.words.frames import column, frame


@dataclass(frozen=True, eq=False, kw_only=True)
class Fading(Result, study="fading"):
    table: pl.DataFrame = frame("a length", column("length", int, "keys"), column("share", float, "of the first key"))
    findings: tuple[Finding, ...] = ()
    manifest: dict

    def view(self) -> View:
        rows = [[f"{row['length']:,}", f"{row['share']:.3f}"] for row in self.table.to_dicts()]
        tables = [TextTable("Shares", ("length", "share"), rows)]
        seen = {"findings": self.findings, "tables": tables, "manifest": self.manifest}
        return View(study="fading", question="Does it fade?", **seen)


@study(Fading)
def fading(*, lengths: int = 4, seed: int = 0, folder=None, progress: bool = True) -> Fading:
    """Whether the first key fades as rows grow.

    Args:
        lengths: how many lengths, each twice the one before.
        seed: random seed.

    Commands:
        abbe fading --lengths 3
    """
    settings = {"lengths": lengths, "seed": seed}
    parts = claim_folder(as_folder(folder), "fading", {}, settings)

    def make(name: str) -> None:
        rows = torch.randn(64, 2 ** int(name), generator=torch.Generator().manual_seed(seed))
        parts.keep_json(name, {"share": float(rows.softmax(-1)[:, 0].mean())})

    names = [str(power) for power in range(1, lengths + 1)]
    parts.each(names, make)
    table = Fading.frame().of((2 ** int(name), parts.json(name)["share"]) for name in names)
    facts = study_facts("fading", settings) | {"model": {}, "text": {}, "self_check": {}, "skipped": []}
    found = Finding("fading", "The first key fades.", "the share falls", {"last": table["share"][-1]})
    return Fading(table=table, findings=(found,), manifest=finished_manifest(facts, parts, {"total": 0.0}))
'''


@pytest.fixture(scope="module")
def fading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    path = tmp_path_factory.mktemp("module") / "fading_study.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("fading_study", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fading_study"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fading_study"], _declared.registered["fading"], abbe.Result.known["fading"]


def run(*arguments: str) -> Any:
    """The command line of a program that knows the study."""
    import typer

    app = typer.Typer()
    function, _ = command_of(_declared.studies()["fading"])
    app.command()(function)
    app.command(name="other")(lambda: None)
    return CliRunner().invoke(app, ["fading", *arguments])


def test_it_has_a_command_with_help(fading: ModuleType) -> None:
    shown = run("--help").output
    assert "Whether the first key fades as rows grow" in shown
    for words in ("--lengths", "How many lengths", "--shard", "--engine", "--figures", "--json"):
        assert words in shown
    assert _declared.described(_declared.studies()["fading"]).examples == ("abbe fading --lengths 3",)


def test_the_command_writes_a_page_and_json(
    fading: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("--lengths", "3", "--json")
    assert result.exit_code == 0
    assert [row["length"] for row in json.loads(result.stdout)["table"]] == [2, 4, 8]
    assert "Does it fade?" in (tmp_path / "abbe-fading" / "fading.html").read_text()
    assert "The first key fades." in run("--lengths", "3").stdout


def test_it_is_opened_resumed_and_shared(fading: ModuleType, tmp_path: Path) -> None:
    local = fading.fading(lengths=5)
    with abbe.shard("1/2") as share:
        fading.fading(lengths=5, folder=tmp_path / "run")
    assert share.made == 3
    merged = abbe.merge(tmp_path / "run")
    assert merged.table.equals(local.table)
    opened = abbe.open(tmp_path / "run")
    assert opened.table.equals(local.table)
    assert opened.as_json()["findings"] == local.as_json()["findings"]
    assert opened.frame().columns[1].meaning == "of the first key"
    (tmp_path / "run" / "3.json").write_text("{}")  # damaged: made again
    again = fading.fading(lengths=5, folder=tmp_path / "run")
    assert again.table.equals(local.table)
    assert len(again.manifest["measured_again"]) == 1
    with pytest.raises(abbe.AbbeError, match="different: lengths"):
        fading.fading(lengths=6, folder=tmp_path / "run")


def test_a_card_and_a_short_repr(fading: ModuleType) -> None:
    result = fading.fading(lengths=2)
    assert "The first key fades." in result._repr_html_()
    assert repr(result) == "Fading(2 rows)"
