"""The terminal table of `abbe reproduce`."""

from __future__ import annotations

import re

import pytest
from chart_parts import printed
from made_up import CLAIMS, MANIFEST, reproduction


@pytest.mark.parametrize("width", [80, 120])
def test_every_statement_is_readable(width: int) -> None:
    text = printed(reproduction(), width)
    words = " ".join(text.split())
    for claim, mark in zip(CLAIMS, "✓✗?", strict=True):
        assert f"{mark} {claim.answer}: {claim.topic} (figure {claim.figure})" in words
        assert f"paper: {claim.paper} here: {claim.measured}" in words
    answer = "1 of 3 statements hold, 1 does not, 1 cannot be judged."
    assert words.index(answer) < words.index(CLAIMS[0].topic)


def test_a_quick_look_says_so_above_all_statements() -> None:
    quick = reproduction(manifest=MANIFEST | {"settings": MANIFEST["settings"] | {"quick": True}})
    words = " ".join(printed(quick, 80).split())
    assert "A quick look, not a result" in words[: words.index(CLAIMS[0].topic)]
    assert "A quick look, not a result" in quick.to_html()


def test_times_stand_beside_those_of_the_paper() -> None:
    text = printed(reproduction(seconds={"2c": 261.7, "4": 3.0}), 80)
    assert re.search(r"Figure 2c +4 min 22 s +17 h", text)
    assert re.search(r"Figure 4 +3 s +1 min", text)
    assert "Figure 2a" not in text
    assert "Not the paper's machine" in text
    assert "in the paper" not in printed(reproduction(seconds={}), 80)


def test_head_and_skipped() -> None:
    text = printed(reproduction(), 100)
    assert "model: gpt2-like, 6 layers, 8 heads, 512 wide" in text
    assert "rebuilt within 3.1e-06 of its standard deviation" in text
    assert "skipped: length 2048: the model's context has 1024 tokens" in text
    assert printed(reproduction(manifest={}), 80)
