"""reproduce on real models and the paper's text, quickly."""

from __future__ import annotations

from typing import Any

import pytest
from real import pulled, shared_model, shared_text

import abbe
from abbe.studies import FIGURES

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_all_figures_of_small_models(name: str) -> None:
    reproduction = abbe.reproduce(
        shared_model(name), shared_text("war_and_peace.txt"), windows=2, queries=4, quick=True, progress=False
    )
    assert set(reproduction.figures) == {*FIGURES, "drift"}
    assert reproduction.manifest["self_check"]["error"] < 1e-3
    table = reproduction.figures["3"].tables["mean"]
    means = {(row["vectors"], row["n"], row["series"]): row["value"] for row in table.iter_rows(named=True)}
    for vectors in ("embedding", "value"):
        assert means[vectors, 1, "selected"] == 1
        assert means[vectors, 32, "selected"] > 2 * means[vectors, 32, "random"]
    ceiling = next(claim for claim in reproduction.claims if claim.topic == "ceiling of Corollary 3")
    assert ceiling.answer == "does not hold"
    assert 0.5 < (ceiling.numbers["largest ratio to 1/(2T)"] or 0) <= 1.0001
    assert name in reproduction.to_html()


def test_separability_of_smollm2() -> None:
    options: Any = {"windows": 2, "queries": 4, "quick": True, "progress": False}
    reproduction = abbe.reproduce(pulled("smollm2"), shared_text("war_and_peace.txt"), figures=["3"], **options)
    table = reproduction.figures["3"].tables["mean"]
    means = {(row["vectors"], row["n"], row["series"]): row["value"] for row in table.iter_rows(named=True)}
    assert means["value", 16, "selected"] > means["value", 16, "random"] + 0.3
    assert reproduction.figures["3"].about["heads"] == 270
