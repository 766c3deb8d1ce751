"""diagnose on real models: what is known about them must come out."""

from __future__ import annotations

import polars as pl
import pytest
from real import pulled, shared_model, shared_text

import abbe

pytestmark = pytest.mark.real


def means(run: abbe.Run, measure: str, length: int, column: str = "value") -> pl.Series:
    chosen = (pl.col("measure") == measure) & (pl.col("length") == length) & pl.col("n").is_null()
    chosen &= pl.col("head").is_not_null()
    return run.table.filter(chosen)[column]


def test_stories15m_has_no_sinks_and_is_far_from_uniform() -> None:
    text = shared_text("gutenberg/bryant-stories.txt")
    run = abbe.diagnose(shared_model("stories15M"), text, lengths=[64, 256], windows=3, progress=False)
    assert run.manifest["self_check"]["error"] < 1e-4
    assert len(means(run, "sink_mass", 256)) == 36
    assert means(run, "sink_mass", 256).max() < 0.5
    assert means(run, "entropy", 256).mean() < 0.75 * means(run, "entropy", 256, "limit").mean()


def test_smollm2_has_sinks() -> None:
    """37 % of its attention falls on the first key, and about 93 of 270 heads put more than half there."""
    text = shared_text()
    run = abbe.diagnose(pulled("smollm2"), text, lengths=[256], windows=3, progress=False)
    assert run.manifest["self_check"]["error"] < 1e-4
    sinks = means(run, "sink_mass", 256)
    assert len(sinks) == 270
    assert sinks.mean() == pytest.approx(0.37, abs=0.04)
    assert (sinks > 0.5).sum() == pytest.approx(93, abs=15)


def test_selected_tokens_of_smollm2_are_separable_beyond_chance() -> None:
    run = abbe.diagnose(pulled("smollm2"), shared_text(), lengths=[256], windows=2, progress=False, temperatures=())
    table = run.table.filter((pl.col("measure") == "separability") & (pl.col("n") == 20))
    assert table["value"].mean() > 3 * table["control"].mean()


def test_minilm_is_an_encoder() -> None:
    run = abbe.diagnose(pulled("minilm"), shared_text(), lengths=[128], windows=2, progress=False)
    assert run.manifest["model"]["kind"] == "encoder"
    assert set(means(run, "effective_tokens", 128, "limit")) == {128.0}
    assert len(means(run, "entropy", 128)) == 72
