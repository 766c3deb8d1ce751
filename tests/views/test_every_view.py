"""What every result promises, from made-up numbers: page, card, terminal and figures, whatever the words in it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import made_up
import made_up_calibration
import made_up_capacity
import made_up_compare
import made_up_lift
import made_up_report
import made_up_watch
import polars as pl
import pytest
from chart_parts import printed
from parsed_page import HOSTILE, Page, check_inert

import abbe
from abbe.results import Result, Run
from abbe.studies import Claim
from abbe.views import card, figures
from abbe.views.text import plain
from abbe.views.theme import THEMES
from abbe.words.finding import Finding, KeyNumber

NASTY = f"\x1b[31mred\x07 [bold]x[/bold] [/] {HOSTILE}\rdef"
WORDS: dict[str, Any] = {"model": {"name": NASTY, "about": NASTY}, "text": {"name": NASTY}, "skipped": [NASTY]}
EVIL = Finding(NASTY, NASTY, NASTY, {NASTY: NASTY})
NUMBER = KeyNumber(NASTY, NASTY, 1.0, 0.5, 1.5, None, None, NASTY, NASTY)
CLAIM = Claim("2a", NASTY, NASTY, NASTY, NASTY, "holds", {NASTY: 1.5})
SETTINGS: dict[str, dict[str, Any]] = {
    "report": {"vectors": NASTY, "windows": 2, "queries": NASTY},
    "lift": dict(made_up_lift.made_up().manifest["settings"]) | {"goal": NASTY},
}


def reproduction() -> Result:
    return made_up.reproduction(figures={name: made_up.figures()[name] for name in ("2a", "drift")})


def report() -> Result:
    return made_up_report.report([(0, 0), (0, 1)])


USUAL: dict[str, Callable[[], Result]] = {
    "report": report,
    "diagnose": lambda: Run(report().table, made_up_report.MANIFEST),
    "reproduce": reproduction,
    "capacity": made_up_capacity.made_up,
    "calibrate": lambda: made_up_calibration.made_up(True),
    "compare": made_up_compare.comparison,
    "lift": lambda: made_up_lift.made_up("retrieval"),
    "watch": made_up_watch.training,
}
NAMES = {
    "report": ("map", "growth", "gradient", "alternatives", "sizes", "lengths", "ball"),
    "reproduce": ("figure-2a", "figure-drift"), "capacity": ("capacity",), "calibrate": ("calibration",),
    "compare": ("costs", "needles"), "lift": ("scan", "plans", "keys"), "watch": ("watch",),
}  # fmt: skip


@cache
def usual(study: str) -> Any:
    return USUAL[study]()


@cache
def hostile(study: str) -> Any:
    """The same result, with words that would break a page or steer a terminal wherever words come from outside."""
    if study == "watch":
        return made_up_watch.training(alerts=[(50, NASTY, 0, 0, 1.0, 0.5)], **WORDS)
    if study == "compare":
        return made_up_compare.comparison([made_up_compare.row(name) for name in ("baseline", NASTY)], **WORDS)
    result = usual(study)
    manifest = dict(result.manifest) | WORDS | ({"settings": SETTINGS[study]} if study in SETTINGS else {})
    if study == "diagnose":
        return Run(result.table.with_columns(model=pl.lit(NASTY)), manifest)
    words: dict[str, Any] = {
        "report": {"numbers": (NUMBER,), "verdicts": (EVIL,), "advice": (EVIL,)},
        "reproduce": {"claims": (CLAIM,)},
        "calibrate": {"findings": (EVIL,), "spec": NASTY},
    }
    return replace(result, manifest=manifest, **words.get(study, {"findings": (EVIL,)}))


@pytest.mark.parametrize("study", USUAL)
def test_hostile_words_are_inert_on_page_and_card_and_do_not_steer_the_terminal(study: str) -> None:
    odd = hostile(study)
    check_inert(odd.to_html(), usual(study).to_html(), 2)
    shown = odd._repr_html_()
    seen = Page(shown)
    assert not {"script", "style", "img", "iframe", "object", "link", "foreignobject"} & set(seen.tags)
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert not [value for _, _, value in seen.asks if not (value or "").startswith("#")]
    assert "alert(1)" in seen.text
    assert shown == card(odd)
    text = printed(odd, 120)
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text)
    assert "[bold]x[/bold] [/]" in text


@pytest.mark.parametrize("study", USUAL)
def test_the_page_asks_for_nothing_and_its_links_lead_somewhere(study: str) -> None:
    text = usual(study).to_html()
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert {tag for tag, _, _ in page.asks} <= {"a"}
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert "default-src 'none'" in page.policy
    body = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert "@import" not in text.partition("<body")[0]
    ids = re.findall(r'\bid="([^"]+)"', body)
    assert len(ids) == len(set(ids))
    assert {value[1:] for _, _, value in page.asks if value and value.startswith("#")} <= set(ids)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("study", USUAL)
def test_no_word_is_cut_off_in_the_terminal(study: str, width: int) -> None:
    lines = printed(usual(study), width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not [line for line in lines if "\N{HORIZONTAL ELLIPSIS}" in line]


@pytest.mark.quick(3)
@pytest.mark.parametrize("study", ["compare", "reproduce", "watch", "calibrate", "capacity", "lift", "report"])
def test_every_figure_is_written_in_both_themes(study: str, tmp_path: Path) -> None:
    result = hostile(study)
    written = figures(result, tmp_path / "new" / "folder")
    endings = [f"{look}.{ending}" for look in ("", "-dark") for ending in ("png", "svg", "pdf")]
    assert [path.name for path in written] == [f"{name}{end}" for name in NAMES[study] for end in endings]
    for path in written:
        content = path.read_bytes()
        assert content.startswith({".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}[path.suffix])
        if path.suffix == ".png":
            assert min(struct.unpack(">II", content[16:24])) > 300
        elif path.suffix == ".svg":
            ElementTree.fromstring(content)  # whole as XML
            assert THEMES["dark" if path.stem.endswith("-dark") else "light"].background.encode() in content
            assert b"<script" not in content
    (tmp_path / "here").write_text("x")
    for target in (tmp_path / "here", tmp_path / "here" / "below"):
        with pytest.raises(abbe.AbbeError, match="is a file: give a folder for the figures"):
            figures(result, target)


def test_lines_and_marks_are_plain_text() -> None:
    assert plain("a\nb\tc\u2028d👩\u200d🔬") == "a b c d👩\u200d🔬"
    assert "half ? of one" in made_up_compare.comparison(text={"name": "half \ud800 of one"}).to_html()
