"""What the documents name exists: functions, options, measures, normalizers, files, headings."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from functools import cache, reduce

import pytest
import typer
from cli_runs import COMMANDS, command_of
from doc_blocks import DOCUMENTS, ROOT, read
from site_pages import generated, slugs

import abbe
from abbe import cli
from abbe.bounds import catalogue

OF_OTHERS = {"--part", "--only", "--outtype"}  # of the benchmarks, and of llama.cpp


@pytest.mark.parametrize("name", DOCUMENTS)
def test_names_of_the_library_exist(name: str) -> None:
    document = read(name)
    code = "\n".join([*document.spans, *(block.text for block in document.of("python"))])
    for path in re.findall(r"\babbe((?:\.[a-z_]\w*)+)", code, re.IGNORECASE):
        assert reduce(getattr, path.strip(".").split("."), abbe) is not None, path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_exist(name: str) -> None:
    """Options that stand alone; whole commands are in test_commands.py."""
    shown = {span.split()[0] for span in read(name).spans if span.startswith("--")}
    assert shown <= known_options() | OF_OTHERS | {"--help"}


@cache
def known_options() -> set[str]:
    commands = [typer.main.get_command(cli.app), *map(command_of, COMMANDS)]
    return {opt for command in commands for option in command.params for opt in (*option.opts, *option.secondary_opts)}


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
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        made = generated(target.removeprefix("docs/"))
        assert made is not None or (ROOT / target).is_file(), link
        if heading:
            assert heading in slugs(made or (ROOT / target).read_text(encoding="utf-8")), link


def test_proofs_name_every_statement_and_no_other() -> None:
    names = {statement.name for statement in catalogue()}
    spans = read("docs/reference/proofs.md").spans
    shown = {span for span in spans if span in names or re.fullmatch(r"[a-z0-9]+(-[a-z0-9*]+)+", span)}
    assert [span for span in shown if not fnmatch.filter(names, span)] == []
    assert [name for name in sorted(names) if not any(fnmatch.fnmatch(name, span) for span in shown)] == []


def test_proofs_and_the_list_agree_on_every_status() -> None:
    """The first status after the last mention of a statement; "exact" is proved, "not proved" would be no status."""
    text = (ROOT / "docs/reference/proofs.md").read_text(encoding="utf-8").partition("## Found independently")[0]
    mentions = [(match[1], match.end()) for match in re.finditer(r"`([a-z0-9*.-]+)`", text)]
    for statement in catalogue():
        end = [end for name, end in mentions if fnmatch.fnmatch(statement.name, name)][-1]
        said = re.search(r"not\s+proved|proved|exact|refuted|approximation", text[end:])
        assert said is not None
        assert said[0].replace("exact", "proved") == statement.status, statement.name


def test_what_others_found_is_cited_at_the_statement_and_in_the_citation() -> None:
    proofs, citation = (ROOT / name for name in ("docs/reference/proofs.md", "CITATION.cff"))
    body, _, listed = proofs.read_text(encoding="utf-8").partition("## Found independently")
    cited = {
        "2512.07647": ("deletion-error", "renormalised-error", "mass-law"),
        "2510.23012": ("spectral", "one-norm"),
        "2602.18849": ("inf-to-one",),
        "2512.13898": ("log-margin",),
        "2510.05554": ("log-margin",),
        "2605.12697": ("log-margin",),
    }
    sources = {statement.name: statement.source for statement in catalogue()}
    for paper, names in cited.items():
        assert all(paper in text for text in (body, listed, citation.read_text(encoding="utf-8"))), paper
        assert {name for name, source in sources.items() if paper in source} == set(names)


def test_the_number_of_normalizers() -> None:
    counts = re.findall(r"(\d+) \*\*normalizers\*\*", read("README.md").prose)
    assert [int(count) for count in counts] == [len(abbe.list_normalizers())]


def test_the_readme_is_read_in_a_few_minutes() -> None:
    """600 to 800 words, code among them; addresses of links and signs of tables are none."""
    text = re.sub(r"\]\([^)]*\)", "]", (ROOT / "README.md").read_text(encoding="utf-8"))
    words = [word for word in re.sub(r"[|#*`!\[\]()]", " ", text).split() if re.search(r"\w", word)]
    assert 600 <= len(words) <= 800
