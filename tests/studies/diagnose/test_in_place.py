"""Models with other normalizers in place: by a swap, by the plan of a folder, by a name. All are measured alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import abbe
from abbe import AbbeError
from abbe.measures import Rows, sensitivity

USUAL: dict[str, Any] = {
    "lengths": (16, 32),
    "windows": 2,
    "queries": 6,
    "sizes": (1, 5),
    "temperatures": (1.0,),
    "progress": False,
}
MIXED = {"layers.0-1.heads.0-3": "sparsemax", "layers.3": "entmax:alpha=1.3,learn=true"}


def without_model(table: pl.DataFrame) -> pl.DataFrame:
    return table.drop("model", strict=False)


@pytest.mark.parametrize(
    "what", [pytest.param("entmax:alpha=1.5", marks=pytest.mark.slow, id="one"), pytest.param(MIXED, id="mixed")]
)
def test_a_report_on_a_swapped_model_equals_that_of_the_exported_folder(what: Any, tmp_path: Path) -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, what):
        swapped = abbe.report(model, **USUAL)
    abbe.export("embedded", what, tmp_path / "exported")
    exported = abbe.report(tmp_path / "exported", **USUAL)
    for name in ("table", "growth", "floors", "alternatives"):
        assert without_model(getattr(swapped, name)).equals(without_model(getattr(exported, name)))
    assert swapped.manifest["model"]["normalizers"] == exported.manifest["model"]["normalizers"]


def test_limits_that_hold_for_softmax_only_are_absent_elsewhere() -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, {"*.heads.0-3": "entmax:alpha=1.5"}):
        table = abbe.diagnose(model, **USUAL).table.filter(pl.col("layer").is_not_null())
    ceilings = table.filter(measure="max_weight")
    entmax = pl.col("head") < 4
    assert ceilings.filter(entmax)["limit"].is_null().all()
    assert ceilings.filter(~entmax)["limit"].is_not_null().all()
    assert set(table.filter(measure="entropy_floor")["head"]) == {4, 5, 6, 7}
    limits = table.filter(measure="sensitivity_worst_max", length=32)
    assert (limits.filter(entmax)["limit"] > 0.5).all()
    assert (limits.filter(~entmax)["limit"] == 0.5).all()
    assert (limits["value"] <= limits["limit"] + 1e-6).all()


def test_heads_that_are_not_swapped_are_measured_as_before() -> None:
    """In the first layer, whose inputs are the same; random sets and directions differ."""
    model = abbe.load("embedded")
    plain = abbe.diagnose(model, **USUAL).table
    with abbe.swap(model, "layers.0.heads.2-3=sparsemax"):
        some = abbe.diagnose(model, **USUAL).table
    for measure in ("entropy", "top_mass", "logit_range", "separability"):
        one, other = (
            each.filter(pl.col("head").is_in([0, 1, 4, 7]), layer=0, measure=measure).drop("control", "model")
            for each in (plain, some)
        )
        assert one.equals(other)
        assert one.height


def test_a_folder_that_was_measured_under_one_plan_is_refused_for_another(tmp_path: Path) -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, "sparsemax"):
        first = abbe.diagnose(model, **USUAL, folder=tmp_path / "run")
        shutil.rmtree(tmp_path / "run" / "windows")
        again = abbe.diagnose(model, **USUAL, folder=tmp_path / "run")
        assert again.table.equals(first.table)
    for other in ("softmax", "entmax:alpha=1.5"):
        with abbe.swap(model, other), pytest.raises(AbbeError, match="different: configuration"):
            abbe.diagnose(model, **USUAL, folder=tmp_path / "run")
    with pytest.raises(AbbeError, match="different: configuration"):
        abbe.diagnose(model, **USUAL, folder=tmp_path / "run")


def test_learned_values_are_part_of_the_identity() -> None:
    model = abbe.load("embedded")
    weights, plain = model.fingerprint, model.configuration
    assert model.plan is None
    with abbe.swap(model, "entmax:alpha=1.5,learn=true") as swapped, torch.no_grad():
        one = model.configuration
        next(swapped.parameters()).add_(0.5)
        assert plain != one != model.configuration
        assert abbe.models.wrap(model.network, model.tokenizer).fingerprint == weights
        assert model.plan is not None
    assert model.configuration == plain
    with abbe.swap(model, "sparsemax"):
        one = model.configuration
    with abbe.swap(model, {"*.heads.0-7": "sparsemax"}):
        assert model.configuration == one


@pytest.mark.parametrize(
    "spec", ["entmax:alpha=1.5", "sparsemax", "softmax:temperature=0.5", "softmax1", "topk:k=3", "entmax:alpha=1.3"]
)
@pytest.mark.parametrize("t", [1.0, 0.5])
def test_the_sensitivity_beside_a_learned_sink_is_that_of_its_jacobian(spec: str, t: float) -> None:
    torch.manual_seed(0)
    logits, sink = torch.randn(2, 3, 7, dtype=torch.float64), torch.tensor([0.3, -0.5], dtype=torch.float64)
    logits[:, 0, 4:] = -torch.inf
    normalizer = abbe.normalizer(spec)

    def weights(x: torch.Tensor) -> torch.Tensor:
        column = (sink / t)[:, None, None].expand(2, 3, 1)
        made: torch.Tensor = normalizer(torch.cat([column, x / t], -1))
        return made[..., 1:]

    column = sink[:, None, None].expand(2, 3, 1)
    whole = normalizer(torch.cat([column, logits], -1))
    vectors = torch.randn(1, 7, 4, dtype=torch.float64)
    rows = Rows(logits, whole[..., 1:].contiguous(), vectors, sink=True, sink_logits=sink)
    name = "sensitivity_worst" + ("" if t == 1 else f"@T={t:g}")
    reading = sensitivity(rows, normalizer, (t,), torch.Generator().manual_seed(0))[name]
    for head in range(2):
        for query in range(3):
            seen = int((logits[head, query] > -torch.inf).sum())
            steps = 1e-6 * torch.eye(7, dtype=torch.float64)[:seen]
            place = torch.tensor(head), torch.tensor(query)
            up, down = (
                [weights(logits.index_put(place, logits[place] + sign * step))[place] for step in steps]
                for sign in (1, -1)
            )
            columns = [(one - other) / 2e-6 for one, other in zip(up, down, strict=True)]
            norm = torch.linalg.matrix_norm(torch.stack(columns), 2)
            assert float(reading.value[head, query]) == pytest.approx(float(norm), rel=1e-4, abs=1e-6)
            assert reading.limit is not None
            assert float(reading.value[head, query]) <= float(reading.limit[head, query]) + 1e-9
