"""What the documents name exists: functions, options, measures, normalizers, files, headings."""

from __future__ import annotations

import fnmatch
import re
from functools import reduce

import pytest
import typer
from cli_runs import COMMANDS, command_of
from doc_blocks import DOCUMENTS, ROOT, names_in, read

import abbe
from abbe import cli
from abbe.bounds import catalogue
from abbe.measures import list_measures

OF_BENCHMARKS = {"--part", "--only"}
BESIDE_MEASURES = {"ks_statistic", "ks_p_value", "critical_n@0.01", "critical_n@0.05"}  # of all heads together
NEEDS_A_VALUE = {"learned-temperature", "scaled"}  # shown with more than their defaults


@pytest.mark.parametrize("name", DOCUMENTS)
def test_names_of_the_library_exist(name: str) -> None:
    document = read(name)
    code = "\n".join([*document.spans, *(block.text for block in document.of("python"))])
    for found in re.findall(r"\babbe((?:\.[a-z_]\w*)+)", code, re.IGNORECASE):
        assert reduce(getattr, found.strip(".").split("."), abbe) is not None, found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_exist(name: str) -> None:
    """Those that stand alone; whole commands are in test_commands.py."""
    commands = [typer.main.get_command(cli.app), *map(command_of, COMMANDS)]
    known = {opt for command in commands for option in command.params for opt in (*option.opts, *option.secondary_opts)}
    shown = {span.split()[0] for span in read(name).spans if span.startswith("--")}
    assert shown <= known | OF_BENCHMARKS | {"--help"}


def test_every_command_has_the_options_that_the_readme_promises() -> None:
    promise = re.search(r"Every command has (.*) with examples", read("README.md").prose)
    assert promise is not None
    for command in map(command_of, COMMANDS):
        has = {opt for option in command.params for opt in option.opts} | {"--help"}
        assert set(re.findall(r"--[a-z]+", promise[1])) <= has, command.name
        assert "Examples:" in command.epilog


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", read(name).prose):
        if link.startswith("http"):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.is_file(), link
        if heading:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}, link


def test_the_table_of_measures_is_complete() -> None:
    shown = [name for cells in read("docs/measuring.md").table("measure") for name in names_in(cells[0])]
    assert sorted(shown) == sorted({info.name for info in list_measures()} | BESIDE_MEASURES)


def test_the_table_of_normalizers_is_complete() -> None:
    specs = [cells[0].strip("`") for cells in read("docs/normalizers.md").table("spec")]
    names = [spec.partition(":")[0] for spec in specs]
    assert names == [info.name for info in abbe.list_normalizers()]
    for name, spec in zip(names, specs, strict=True):
        assert str(abbe.normalizer(spec)).startswith(name)
        if name not in NEEDS_A_VALUE:
            assert str(abbe.normalizer(spec)) == str(abbe.normalizer(name)), "the values shown are the defaults"


def test_theory_names_every_statement_and_no_other() -> None:
    names = {statement.name for statement in catalogue()}
    spans = read("docs/theory.md").spans
    shown = {span for span in spans if span in names or re.fullmatch(r"[a-z0-9]+(-[a-z0-9*]+)+", span)}
    assert [span for span in shown if not fnmatch.filter(names, span)] == []
    assert [name for name in sorted(names) if not any(fnmatch.fnmatch(name, span) for span in shown)] == []


def test_the_number_of_normalizers() -> None:
    counts = re.findall(r"(\d+) \*\*normalizers\*\*", read("README.md").prose)
    assert [int(count) for count in counts] == [len(abbe.list_normalizers())]
