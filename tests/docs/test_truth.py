"""What the documents name exists: functions, options, measures, normalizers, files, headings."""

from __future__ import annotations

import fnmatch
import importlib
import posixpath
import re
from functools import cache, reduce
from pathlib import Path

import pytest
import typer
from cli_runs import COMMANDS, command_of
from doc_blocks import DOCUMENTS, ROOT, read
from site_pages import command_pages, docstrings, generated, markdown, mathml, python_pages, reference_pages, slugs

import abbe
from abbe import cli
from abbe.bounds import catalogue
from abbe.measures import list_measures, list_tests
from abbe.studies import list_results
from abbe.training import list_quantities, list_rules

OF_OTHERS = {"--part", "--only", "--outtype", "--model_args"}  # of the benchmarks, of llama.cpp and lm-eval


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


# -- The reference ----------------------------------------------------------------------------------------------------


PACKAGES = ("bounds", "entmax", "measures", "models", "normalizers", "results", "studies", "training", "views")


def page(name: str) -> str:
    return reference_pages()[f"reference/{name}.md"]


def missing(names: list[str], text: str) -> list[str]:
    """Names that stand nowhere as a code span."""
    spans = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace(r"\|", "|")))
    return [name for name in names if name not in spans]


def test_public_names() -> None:
    text = page("python/abbe")
    assert [name for name in abbe.__all__ if f"::: abbe.{name}\n" not in text] == []
    assert {*PACKAGES} <= {*python_pages.PACKAGES}


def test_no_package_is_left_out() -> None:
    """`cli` is described as commands, `embedded` holds files; `lab`, `runs` and `words` belong to studies."""
    here = Path(abbe.__file__).parent
    packages = {path.parent.name for path in here.glob("*/__init__.py") if not path.parent.name.startswith("_")}
    assert packages - {"cli", "embedded", "lab", "runs", "words"} == {*PACKAGES}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_packages(package: str) -> None:
    text, names = page(f"python/{package}"), importlib.import_module(f"abbe.{package}").__all__
    assert [name for name in names if f"::: abbe.{package}.{name}\n" not in text and f"[abbe.{name}]" not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_options(name: str) -> None:
    text, command = page(f"commands/{name.replace(' ', '-')}"), command_of(name)
    options = [option for one in command.params for option in (*one.opts, *one.secondary_opts)]
    assert missing([option for option in options if option.startswith("-")], text) == []
    assert all(markdown.cell(one.help) in text for one in command.params if one.help)
    assert all(example in text for example in re.findall(r"\[bold\](.*?)\[/\]", command.epilog))
    assert f"`abbe {name}`" in page("commands/index")


def test_every_command_is_known_here() -> None:
    assert {name for name, _ in command_pages.commands()} == {*COMMANDS, "train"}


def test_names_of_registries() -> None:
    listed = {
        "measures": (*list_measures(), *list_tests()),
        "training": (*list_quantities(), *list_rules()),
        "statements": catalogue(),
    }
    for name, infos in listed.items():
        assert missing([info.name for info in infos], page(name)) == []
    assert missing(abbe.models.attention_names(), page("normalizers")) == []


def test_normalizers_and_their_options() -> None:
    for info in abbe.list_normalizers():
        section = page("normalizers").partition(f"\n## {info.name}\n")[2].partition("\n## ")[0]
        assert missing([option.name for option in info.parameters], section) == [], info.name


def test_every_quantity_is_explained() -> None:
    assert all(quantity.meaning.startswith("high") and ", low" in quantity.meaning for quantity in list_quantities())


def section(name: str, study: str) -> str:
    """What a page says of a study."""
    return page(name).partition(f"\n## abbe {study}\n")[2].partition("\n## ")[0]


def test_columns_and_files_of_every_result() -> None:
    for study, result in list_results().items():
        columns = [name for frame in result.frames().values() for name in frame.schema]
        assert missing(columns, section("columns", study)) == [], study
        assert missing([*result.list_files()], section("files", study)) == [], study


def test_a_name_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abbe, "__all__", [*abbe.__all__, "brand_new"])
    with pytest.raises(AssertionError, match="brand_new"):
        test_public_names()
    assert missing(["entropy", "brand_new"], page("measures")) == ["brand_new"]


# -- What is made of docstrings and formulas ---------------------------------------------------------------------------


def test_doctests_are_fenced() -> None:
    made = docstrings.fenced("What.\n\nExample:\n    >>> f([1])\n    [0]\n\nMore.")
    assert made == "What.\n\nExamples:\n    ```pycon\n    >>> f([1])\n    [0]\n    ```\n\nMore."


def test_a_formula_becomes_mathml() -> None:
    made = mathml.with_mathml('<p><span class="arithmatex">\\(a_i &lt; 1/n\\)</span></p>')
    assert made.startswith("<p><math")
    assert "arithmatex" not in made


def test_an_unknown_command_in_a_formula_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not know"):
        mathml.with_mathml(r'<div class="arithmatex">\[\nosuch x\]</div>')
