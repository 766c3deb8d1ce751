"""Pages from the registries of the code: normalizers, measures, columns, files, quantities and alerts, statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import abbe
from abbe.bounds import catalogue
from abbe.measures import GROUPS, list_measures, list_tests
from abbe.normalizers import usual_specs
from abbe.studies import list_results
from abbe.training import list_quantities, list_rules

from .markdown import cell, code, page, papers, sentence, table

_PLAIN = (
    "show_root_heading: false, show_root_toc_entry: false, members: false, show_bases: false, show_signature: false"
)
_LAB = "`abbe train temperature`"


def normalizers_page() -> str:
    infos = abbe.list_normalizers()
    rows = [
        (
            f"[{code(info.name)}](#{info.name})",
            code(info.example),
            cell(sentence(info.meaning)),
            papers(cell(info.paper)),
        )
        for info in infos
    ]
    usual: dict[str, list[str]] = {}
    for name, spec in usual_specs().items():
        usual.setdefault(abbe.normalizer(spec).name, []).append(code(f"abbe:{name}"))
    return page(
        "Normalizers",
        "`l` are the logits (already scaled by `1/sqrt(d)`), `n` the visible keys of the row. A spec is "
        "`name:option=value,...`; [how to choose one](../how-to/normalizers.md).",
        table(("normalizer", "example", "high and low mean", "arXiv"), rows),
        *(_normalizer(info) for info in infos),
        "## Names for transformers",
        'transformers must know the names of `attn_implementation="abbe:..."` before it makes a model, so this is a '
        "fixed list; [`abbe.swap`](../how-to/swapping.md) takes any value.",
        table(("normalizer", "names"), [(code(name), ", ".join(names)) for name, names in usual.items()]),
    )


def _normalizer(info: Any) -> str:
    kind = type(abbe.normalizer(info.name))
    options = [
        (code(option.name), code(_shown(option.default)), cell(option.allowed), cell(sentence(option.meaning)))
        for option in info.parameters
    ]
    return "\n\n".join(
        [
            f"## {info.name}",
            f"::: {kind.__module__}.{kind.__qualname__}\n    options: {{{_PLAIN}}}",
            table(("option", "default", "allowed", "meaning"), options) if options else "It has no options.",
        ]
    )


def _shown(default: object) -> str:
    """As a spec says it."""
    return str(default).lower() if isinstance(default, bool) or default is None else str(default)


def measures_page() -> str:
    known = (*list_measures(), *list_tests())
    titles = ("measure", "unit", "N", "high and low mean", "limit", "control")
    parts = []
    for group in GROUPS:
        rows = [
            (
                code(one.name),
                cell(one.unit),
                "yes" if one.by_size else "",
                cell(sentence(one.meaning)),
                cell(one.limit),
                cell(one.control),
            )
            for one in known
            if one.group == group
        ]
        parts += [f"## {group}", table(titles, rows)]
    return page(
        "Measures",
        "What stands in the column `measure` of the tables of `abbe diagnose` and `abbe report`. N: whether it "
        "has a value for every size of the selected set. [What they mean](../explanation/measures.md) explains the "
        "main ones.",
        *parts,
    )


def columns_page() -> str:
    parts = []
    for study, result in list_results().items():
        parts.append(f"## abbe {study}")
        for name, frame in result.frames().items():
            rows = [
                (", ".join(code(name) for name in column.names), cell(sentence(_without_braces(column.meaning))))
                for column in frame.columns
            ]
            parts += [
                f"### {code('.' + name)}",
                f"A row is {cell(frame.rows)}.",
                table(("column", "what it is"), rows),
            ]
    return page(
        "Columns",
        "The tables of every result, which are polars data frames: `abbe.report(...).table`, `.growth`, and so on. "
        "Three names in a cell are a value and the ends of its interval, null where there is none.",
        *parts,
    )


def _without_braces(meaning: str) -> str:
    return meaning.replace("{tau}", "tau, 5 % if nothing else is asked for")


def files_page() -> str:
    parts = []
    for study, result in list_results().items():
        rows = [(code(name), cell(sentence(meaning))) for name, meaning in result.list_files().items()]
        parts += [f"## abbe {study}", table(("file", "what it holds"), rows)]
    return page(
        "Files",
        "What the folder of a run holds; `abbe.open(folder)` opens it. A name that ends in a slash is a folder. "
        "[Run folders](../explanation/run-folders.md) says how they are written and checked.",
        *parts,
    )


def training_page() -> str:
    quantities = [
        (
            code(one.name),
            cell(sentence(one.label)),
            cell(one.unit),
            cell(sentence(one.meaning)),
            cell(one.limit),
            cell(one.control),
        )
        for one in list_quantities()
    ]
    rules = [
        (
            code(one.name),
            cell(sentence(one.fires)),
            cell(sentence(one.again)),
            papers(one.source).replace(_LAB, f"[{_LAB}](../results/lab.md#which-quantity-warns)"),
        )
        for one in list_rules()
    ]
    return page(
        "Training",
        "What [a monitor](../how-to/training.md) reads of every head, and when it raises an alert.",
        "## Quantities",
        "`separability@N=20` is that of sets of 20 keys.",
        table(("quantity", "what it is", "unit", "high and low mean", "limit", "control"), quantities),
        "## Alerts",
        "Each is raised once per event, and again only after recovery.",
        table(("rule", "raised at", "armed again", "number from"), rules),
    )


def statements_page() -> str:
    parts = []
    for section, statements in groupby(catalogue(), lambda one: one.section):
        rows = [
            (
                code(one.name),
                f"${one.latex}$",
                one.status + (", tight" if one.tight else ""),
                papers(cell(one.source)),
                cell(one.assumptions),
            )
            for one in statements
        ]
        parts += [f"## {sentence(section)}", table(("name", "statement", "status", "source", "assumptions"), rows)]
    return page(
        "Statements",
        "What `abbe verify` checks, on random draws and by gradient ascent. [Proofs](proofs.md) has them, "
        "[theory](../explanation/theory.md) what they mean.",
        *parts,
    )


PAGES: dict[str, Callable[[], str]] = {
    "normalizers.md": normalizers_page,
    "measures.md": measures_page,
    "columns.md": columns_page,
    "files.md": files_page,
    "training.md": training_page,
    "statements.md": statements_page,
}


def registry_pages(names: Sequence[str] = tuple(PAGES)) -> dict[str, str]:
    return {name: PAGES[name]() for name in names}
