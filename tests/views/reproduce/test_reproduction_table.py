"""The terminal table of `abbe reproduce`."""

from __future__ import annotations

import io
import re

import pytest
from inside import plain
from made_up import CLAIMS, MANIFEST, reproduction
from rich.console import Console

from abbe.studies import Claim, Reproduction
from abbe.views import reproduction_table


def shown(given: Reproduction, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(reproduction_table(given))
    return console.file.getvalue()


def columns(text: str) -> list[str]:
    """The words of each column of the statements, joined."""
    lines = text.splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.strip().startswith("topic ")]
    (last,) = [i for i, line in enumerate(lines) if "statements hold" in line]
    edges = [lines[first].index(head) for head in ("topic", "the paper says", "this model shows", "holds?")]
    body = lines[first + 2 : last]
    return [
        " ".join(" ".join(line[a:b] for line in body).split()) for a, b in zip(edges, [*edges[1:], None], strict=True)
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_every_statement_is_readable(width: int) -> None:
    text = shown(reproduction(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    topics, paper, measured, answers = columns(text)
    for claim in CLAIMS:
        assert claim.topic in topics
        assert claim.paper in paper
        assert claim.measured in measured
        assert claim.answer in answers
    assert [mark for mark in answers if mark in "✓✗?"] == ["✓", "✗", "?", "✓", "✗"]
    assert "2 of 5 statements hold, 2 do not, 1 cannot be judged." in text


def test_times_stand_beside_those_of_the_paper() -> None:
    text = shown(reproduction(seconds={"2c": 261.7, "4": 3.0}), 80)
    assert re.search(r"Figure 2c +4 min 22 s +17 h", text)
    assert re.search(r"Figure 4 +3 s +1 min", text)
    assert "Figure 2a" not in text
    assert "Not the paper's machine" in text
    assert "in the paper" not in shown(reproduction(seconds={}), 80)


def test_head_and_skipped() -> None:
    text = shown(reproduction(), 100)
    assert "model: gpt2-like, 6 layers, 8 heads, 512 wide" in text
    assert "rebuilt within 3.1e-06 of its standard deviation" in text
    assert "skipped: length 2048: the model's context has 1024 tokens" in text
    assert shown(reproduction(manifest={}), 80)


def test_text_does_not_steer_the_terminal() -> None:
    nasty = "\x1b[31mred\x07 [bold]x[/bold] [/] \u202eabc\rdef 👩\u200d🔬"
    claim = Claim("2a", nasty, nasty, nasty, nasty, "holds")
    manifest = MANIFEST | {"model": {"name": nasty}, "skipped": [nasty]}
    text = shown(reproduction(claims=(claim,), manifest=manifest), 120)
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text)
    assert "[bold]x[/bold] [/]" in text
    assert plain("a\nb\tc\u2028d👩\u200d🔬") == "a b c d👩\u200d🔬"
