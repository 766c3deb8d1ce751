"""Attention modules that are called more than once per pass (each call is a layer), and layers of different shapes."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import torch
from tiny_runs import QUICK, TEXT, pick
from torch import Tensor

import abbe
from abbe.models import LoadedModel, shape_of, wrap

BUILDERS = {
    "albert": tiny_models.albert, "diffllama": tiny_models.diffllama, "hrm": tiny_models.hrm,
    "gemma4": tiny_models.gemma4,
}  # fmt: skip
LAYERS = {"albert": 3, "diffllama": 4, "hrm": 12, "gemma4": 2}
LENGTH = 24


def model(family: str) -> LoadedModel:
    special = {"vocab_size": 256} | ({"vocab_size_per_layer_input": 256} if family == "gemma4" else {})
    return wrap(BUILDERS[family](**special), tiny_models.byte_tokenizer(64), f"tiny {family}")


@torch.no_grad()
def plain_weights(family: str, tokens: Tensor) -> list[Tensor]:
    """The weights of every call in its order, (head, query, key), which eager modules return beside their outputs."""
    twin: Any = tiny_models.eager_twin(model(family).network)
    calls: list[Tensor] = []
    for part in twin.modules():
        if type(part).__name__.endswith("Attention"):
            # The two calls of DiffLlama differ in their values only.
            times = 2 if family == "diffllama" else 1
            part.register_forward_hook(lambda _part, _inputs, output, n=times: calls.extend([output[1][0]] * n))
    twin(input_ids=tokens[None])
    return calls


@pytest.mark.parametrize("family", BUILDERS)
def test_diagnose_is_a_plain_loop_over_the_calls(family: str) -> None:
    run = abbe.diagnose(model(family), TEXT, lengths=LENGTH, **(QUICK | {"queries": "all", "windows": 2}))
    assert len(run.manifest["layers"]) == LAYERS[family]
    tokens = [torch.tensor(list(TEXT.content.encode()))[start:][:LENGTH] for start in starts(run)]
    weights = [plain_weights(family, window) for window in tokens]
    for measure, of_row in (
        ("entropy", lambda a: -torch.xlogy(a, a).sum(-1)),
        ("max_weight", lambda a: a.amax(-1)),
        ("effective_tokens", lambda a: 1 / (a**2).sum(-1)),
    ):
        rows = pick(run.table, measure, LENGTH).sort("layer", "head")
        wanted = torch.stack([torch.stack([of_row(a.double()).mean(-1) for a in calls]) for calls in weights]).mean(0)
        assert rows["layer"].to_list() == [layer for layer in range(LAYERS[family]) for _ in range(wanted.shape[1])]
        torch.testing.assert_close(
            torch.tensor(rows["value"].to_list(), dtype=torch.float64), wanted.flatten(), rtol=1e-4, atol=1e-5
        )


def starts(run: abbe.Run) -> list[int]:
    return [window["start"] for window in run.manifest["windows"]]


@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.slow) for name in BUILDERS])
def test_other_studies_take_them(family: str) -> None:
    short: dict[str, Any] = {"windows": 2, "resamples": 20, "progress": False}
    report = abbe.report(model(family), TEXT, lengths=LENGTH, **(QUICK | short))
    layers = set(range(LAYERS[family]))
    assert {head.layer for head in report.heads} == set(report.alternatives["layer"]) == layers
    assert {row.layer for row in report.sample.rows} == layers
    same = abbe.diff(model(family), model(family), TEXT, lengths=LENGTH, **(QUICK | short))
    assert pick(same.table, "entropy", LENGTH)["difference"].abs().max() == 0
    if family == "albert":  # without a loss
        return
    capacity = abbe.capacity(model(family), TEXT, lengths=LENGTH, tau=0.05, grid="coarse", layer_windows=1, **short)
    of_layers = capacity.table.drop_nulls("layer")
    # A module is one layer here, and its separability that of all its calls.
    assert of_layers["layer"].n_unique() == LAYERS[family] // {"diffllama": 2, "hrm": 3, "gemma4": 1}[family]
    assert of_layers["separability"].null_count() == 0
    compared = abbe.compare(
        model(family), TEXT, normalizers="sparsemax", length=LENGTH, needle_lengths=24, prompts=1, **short
    )
    assert compared.table["sensitivity_ratio"].null_count() < 2


def test_the_shape_of_layers_that_differ_is_that_of_the_largest() -> None:
    network = tiny_models.gemma4()
    assert shape_of(network, "decoder").head_width == 16
