"""The golden table: what the embedded model shows, with fixed seeds, so that nothing changes unseen.

After a change on purpose: `abbe reproduce --quick --json`, and copy topic, answer and numbers of its claims.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import abbe
from abbe.studies import Reproduction

GOLDEN = json.loads((Path(__file__).parent / "golden_embedded.json").read_text(encoding="utf-8"))
# Other processors round sums in another order, which moves a few tokens across the edge of a ball, and ties apart.
RELATIVE, ABSOLUTE = 0.02, 0.005

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reproduction() -> Reproduction:
    return abbe.reproduce("embedded", quick=True, seed=0, progress=False)


def test_all_statements_are_there(reproduction: Reproduction) -> None:
    assert [claim.topic for claim in reproduction.claims] == list(GOLDEN)


@pytest.mark.parametrize("topic", GOLDEN)
def test_golden_table(reproduction: Reproduction, topic: str) -> None:
    claim = next(claim for claim in reproduction.claims if claim.topic == topic)
    want = GOLDEN[topic]
    assert claim.answer == want["answer"]
    assert claim.numbers.keys() == want["numbers"].keys()
    for name, value in claim.numbers.items():
        assert value == (
            None if want["numbers"][name] is None else pytest.approx(want["numbers"][name], rel=RELATIVE, abs=ABSOLUTE)
        ), name


def test_page_and_figures_can_be_made_of_it(reproduction: Reproduction, tmp_path: Path) -> None:
    page = reproduction.to_html()
    assert len(page) < 2.5e6
    assert reproduction.manifest["model"]["about"] in page
    drawn = abbe.views.figures(reproduction, tmp_path)
    assert len(drawn) == len(reproduction.figures) * 2 * 3  # themes and formats


def test_nothing_depends_on_what_was_measured_before(reproduction: Reproduction) -> None:
    alone = abbe.reproduce("embedded", figures=["2b"], quick=True, seed=0, progress=False)
    assert alone.figures["2b"].tables["distance"].equals(reproduction.figures["2b"].tables["distance"])
