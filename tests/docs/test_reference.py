"""The reference names everything that there is: public names, commands, options, measures, columns, files, normalizers.

Nothing is built: the Markdown is made in memory, and each name is looked for where a reader would.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from cli_runs import COMMANDS, command_of
from site_pages import command_pages, docstrings, markdown, mathml, python_pages, reference_pages

import abbe
from abbe.bounds import catalogue
from abbe.measures import list_measures, list_tests
from abbe.studies import list_results
from abbe.training import list_quantities, list_rules

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


def test_measures() -> None:
    assert missing([info.name for info in (*list_measures(), *list_tests())], page("measures")) == []


def test_normalizers_and_their_options() -> None:
    for info in abbe.list_normalizers():
        section = page("normalizers").partition(f"\n## {info.name}\n")[2].partition("\n## ")[0]
        assert missing([option.name for option in info.parameters], section) == [], info.name


def test_names_for_transformers() -> None:
    assert missing(abbe.models.attention_names(), page("normalizers")) == []


def test_quantities_and_rules() -> None:
    assert missing([one.name for one in (*list_quantities(), *list_rules())], page("training")) == []


def test_every_quantity_is_explained() -> None:
    assert all(quantity.meaning.startswith("high") and ", low" in quantity.meaning for quantity in list_quantities())


def test_statements() -> None:
    assert missing([one.name for one in catalogue()], page("statements")) == []


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
