"""Calibration: what was planted is found, held-out text is held out, and a stopped run ends as one that was not."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import normalizer_cases
import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import abbe
from abbe.models import AttentionCall, LoadedModel, Window, tap
from abbe.models import windows as cut_windows
from abbe.runs.loss import window_losses
from abbe.runs.window import run_model

QUICK: dict[str, Any] = {"windows": 3, "held_out": 2, "length": 40, "queries": 12, "resamples": 50, "progress": False}


def calibrate(spec: Any = "sparsemax", family: str = "gpt2", **options: Any) -> abbe.Calibration:
    return abbe.calibrate(tiny_runs.model(family), tiny_runs.TEXT, normalizer=spec, **(QUICK | options))


@dataclass(frozen=True)
class LayerRows:
    """All rows of a layer, (window, head, query, key); a learned sink is a first key without a value."""

    logits: Tensor
    values: Tensor
    visible: Tensor

    def averaged(self, weights: Tensor) -> Tensor:
        return weights[..., -self.values.shape[-2] :] @ self.values

    @torch.no_grad()
    def errors(self, made: abbe.Normalizer) -> Tensor:
        """Of the outputs with these weights, relative to the energy, per head."""
        off = self.averaged(made(self.logits)).double() - self.outputs
        return off.square().sum((0, 2, 3)) / self.outputs.square().sum((0, 2, 3))

    @property
    def outputs(self) -> Tensor:
        return self.averaged(torch.softmax(self.logits, -1)).double()


@torch.no_grad()
def rows_of(model: LoadedModel, result: abbe.Calibration) -> list[LayerRows]:
    """The rows of the unchanged model, layer by layer, on the windows that were fitted."""
    heard: dict[str, list[tuple[Tensor, Tensor]]] = {}
    with tap(model) as open_tap:
        open_tap.listen(lambda call: heard.setdefault(call.name, []).append(of_call(call)))
        for window in fitted_windows(model, result):
            run_model(model, window.tokens)
    layers = [[torch.cat(parts) for parts in zip(*calls, strict=True)] for calls in heard.values()]
    return [LayerRows(logits, values, logits > -math.inf) for logits, values in layers]


def fitted_windows(model: LoadedModel, result: abbe.Calibration) -> list[Window]:
    spans, held_out = result.manifest["windows"], result.manifest["held_out"]
    cut = cut_windows(tiny_runs.TEXT, [40], len(spans) + len(held_out), 0, tokenizer=model.tokenizer)
    found = [window for window in cut if window.start in [span["start"] for span in spans]]
    assert len(found) == len(spans)
    return found


def of_call(call: AttentionCall) -> tuple[Tensor, Tensor]:
    logits = call.logits(torch.arange(40), sink=True).float()
    return logits, call.value.float().repeat_interleave(logits.shape[1] // call.value.shape[1], 1)


@pytest.mark.quick(3)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("spec", ["sparsemax", "topk:k=5", "entmax:alpha=1.5"])
def test_the_temperature_of_each_head_is_the_best_by_brute_force(family: str, spec: str) -> None:
    """Better than a little more or less, and than all of a grid from exp(-3.5) to exp(3.5)."""
    calibration = calibrate(spec, family, queries="all", windows=1, held_out=1, steps=30)
    for layer, rows in enumerate(rows_of(tiny_runs.model(family), calibration)):
        found = calibration.parameters.filter(layer=layer, parameter="t")["value"].to_list()

        def errors(*values: float, rows: LayerRows = rows) -> Tensor:
            listed = "/".join(map(str, values))
            return rows.errors(abbe.normalizer(f"scaled:of={spec},t={listed}" + ",learn=true" * (len(values) > 1)))

        own = errors(*found)
        assert calibration.table.filter(layer=layer)["error_after"].to_list() == pytest.approx(own.tolist(), rel=1e-3)
        others = [errors(*(t + by for t in found)) for by in (-0.05, 0.05)] + [errors(t / 10) for t in range(-35, 36)]
        assert bool((own < torch.stack(others)).all())


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5,learn=true", "sink:b=0,learn=true"])
def test_two_parameters_are_as_good_as_the_best_of_a_grid(spec: str) -> None:
    calibration = calibrate(spec, queries="all", windows=1, held_out=1, steps=40)
    first, values = ("alpha", (1.01, 1.1, 1.25, 1.5, 1.75, 2.0)) if "alpha" in spec else ("b", range(-8, 5))
    name = spec.partition(":")[0]
    specs = [f"scaled:of={name}:{first}={one},t={t / 10}" for one in values for t in range(-20, 21, 2)]
    for layer, rows in enumerate(rows_of(tiny_runs.model(), calibration)):
        least = torch.stack([rows.errors(abbe.normalizer(one)) for one in specs]).amin(0)
        after = torch.tensor(calibration.table.filter(layer=layer)["error_after"].to_list())
        assert bool((after <= least + 1e-9).all())


def test_the_wrong_temperature_of_a_whole_model_is_undone() -> None:
    """softmax(exp(t) l / 2) is the model's own attention at t = ln 2, in every head."""
    calibration = calibrate("softmax:temperature=2", "llama")
    assert calibration.parameters["value"].to_list() == pytest.approx([math.log(2)] * 8, abs=1e-3)
    own, swapped, fitted = calibration.losses
    assert abs(swapped.over_baseline.value) > 1e-3  # random weights: it may be lower
    assert fitted.loss.value == pytest.approx(own.loss.value, abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt-oss", "gemma2", "bert"])
def test_the_target_is_the_model_s_own_output(family: str) -> None:
    """Against the weights that the eager twin of the model gives out; a sink takes its share without a value."""
    model = tiny_runs.model(family)
    calibration = calibrate("sparsemax", family, queries="all", windows=1, held_out=1, steps=0)
    (window,) = fitted_windows(model, calibration)
    expected = tiny_models.eager_twin(model.network)(input_ids=window.tokens[None], output_attentions=True).attentions
    rows = rows_of(model, calibration)
    assert len(rows) == len(expected)
    for layer, (of_layer, weights) in enumerate(zip(rows, expected, strict=True)):
        output = of_layer.averaged(weights.detach()).double()
        torch.testing.assert_close(of_layer.outputs, output, rtol=1e-4, atol=1e-5)
        table = calibration.table.filter(layer=layer)
        assert table["energy"].to_list() == pytest.approx(output.square().sum((0, 2, 3)).tolist(), rel=1e-4)
        errors = of_layer.errors(abbe.normalizer("sparsemax")).tolist()
        assert table["error_before"].to_list() == pytest.approx(errors, rel=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "spec", ["sparsemax", "topp:p=0.5", "threshold:rel=0.5", "ssmax", "sigmoid", "sink:b=5", "softpick"]
)
def test_no_head_ends_worse_than_the_bare_swap(spec: str) -> None:
    calibration = calibrate(spec, steps=4, queries="all", windows=1)
    assert (calibration.table["error_after"] <= calibration.table["error_before"]).all()
    assert (calibration.table["error_after"] < 0.99 * calibration.table["error_before"]).any()
    for layer, rows in enumerate(rows_of(tiny_runs.model(), calibration)):
        errors = rows.errors(abbe.normalizer(spec)).tolist()
        assert calibration.table.filter(layer=layer)["error_before"].to_list() == pytest.approx(errors, rel=1e-4)


def test_held_out_windows_share_no_text_with_the_others() -> None:
    calibration = calibrate(windows=5, held_out=4)
    spans = calibration.manifest["windows"] + calibration.manifest["held_out"]
    assert [len(calibration.manifest[name]) for name in ("windows", "held_out")] == [5, 4]
    ordered = sorted((span["start"], span["end"]) for span in spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))


def test_a_short_text_is_shared_out_and_said() -> None:
    short = abbe.Text("short", tiny_runs.TEXT.content[:140])
    result = abbe.calibrate(tiny_runs.model(), short, normalizer="sparsemax", **(QUICK | {"windows": 6, "held_out": 3}))
    assert [len(result.manifest[name]) for name in ("windows", "held_out")] == [2, 1]
    assert "3 of 9 windows" in result.manifest["skipped"][0]
    assert result.losses[0].loss.low is None


def test_losses_are_those_of_the_swapped_model_and_intervals_are_paired(tmp_path: Path) -> None:
    calibration = calibrate("entmax:alpha=1.5", folder=tmp_path / "out", finetune=3)
    model = tiny_runs.model()
    spans = calibration.manifest["held_out"]
    cut = cut_windows(tiny_runs.TEXT, [40], 5, 0, tokenizer=model.tokenizer)
    held = [window for window in cut if window.start in [span["start"] for span in spans]]
    own = window_losses(model, held)
    with abbe.swap(model, "entmax:alpha=1.5"):
        bare = window_losses(model, held)
    with abbe.swap(model, f"file:{tmp_path / 'out' / 'calibrated.safetensors'}"):
        fitted = window_losses(model, held)
    with abbe.swap(model, f"file:{calibration.file}"):
        tuned = window_losses(model, held)
    stages = {stage.stage: stage for stage in calibration.losses}
    assert list(stages) == ["baseline", "swapped", "calibrated", "fine-tuned"]
    for name, expected in zip(stages, (own, bare, fitted, tuned), strict=True):
        assert stages[name].loss.value == float(expected.mean())
    assert stages["calibrated"].over_baseline.value == float((fitted - own).mean())
    assert stages["calibrated"].gain.value == float((bare - fitted).mean())
    low, high = abbe.measures.bootstrap_interval(bare - fitted, 0.95, 50, 0)
    assert (stages["calibrated"].gain.low, stages["calibrated"].gain.high) == (float(low), float(high))


def test_saved_by_hand_it_is_the_same_swap(tmp_path: Path) -> None:
    model = tiny_runs.model()
    calibration = calibrate()
    assert calibration.file is None
    calibration.save_swap(tmp_path / "by_hand.safetensors", model)
    tokens = torch.arange(30)[None]
    with abbe.swap(model, calibration.normalizers):
        expected = model.network(input_ids=tokens).logits
    with abbe.swap(model, f"file:{tmp_path / 'by_hand.safetensors'}"):
        assert torch.equal(model.network(input_ids=tokens).logits, expected)


class Stopped(Exception):
    """Stands for Ctrl-C, which would end pytest itself where it is not caught."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.slow
def test_fine_tuning_that_was_stopped_ends_as_if_it_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of Adam is kept, too; it is written every five steps."""
    options = {"spec": "entmax:alpha=1.5,learn=true", "steps": 3, "finetune": 12}
    whole, left = calibrate(folder=tmp_path / "whole", **options), [8]
    real = tiny_runs.model

    def stops(*_: Any) -> None:
        if torch.is_grad_enabled():
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

    def stopping(family: str) -> LoadedModel:
        model = real(family)
        model.network.register_forward_pre_hook(stops)
        return model

    monkeypatch.setattr(tiny_runs, "model", stopping)
    with pytest.raises(Stopped):
        calibrate(folder=tmp_path / "parts", **options)
    left[0] = 7  # what is left: the steps after the fifth
    again = calibrate(folder=tmp_path / "parts", **options)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert again.losses == whole.losses
    assert again.parameters.equals(whole.parameters)
    assert again.table.equals(whole.table)
    assert left[0] == 0


def test_fine_tuning_moves_the_parameters_of_the_swap_and_nothing_else() -> None:
    model = tiny_runs.model()
    model.network.transformer.wpe.weight.requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    flags = {name: weight.requires_grad for name, weight in model.network.named_parameters()}
    losses: list[float] = []

    def seen(_module: Any, _args: Any, given: dict[str, Any], output: Any) -> None:
        if output.logits.requires_grad:
            losses.append(float(cross_entropy(output.logits[0, :-1].detach(), given["input_ids"][0, 1:])))
            learning = [name for name, weight in model.network.named_parameters() if weight.requires_grad]
            assert len(learning) == 2  # one for each layer
            assert all(name.startswith("abbe_normalizers.") for name in learning)

    hook = model.network.register_forward_hook(seen, with_kwargs=True)
    fitted = abbe.calibrate(model, tiny_runs.TEXT, normalizer="sparsemax", **QUICK)
    tuned = abbe.calibrate(model, tiny_runs.TEXT, normalizer="sparsemax", finetune=18, **QUICK)
    assert not fitted.parameters["value"].equals(tuned.parameters["value"])
    hook.remove()
    assert len(losses) == 18
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(weight.grad is None for weight in model.network.parameters())
    assert {name: weight.requires_grad for name, weight in model.network.named_parameters()} == flags
    after = model.network.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    "spec", ["sparsemax", {"layers.1.heads.0,2": "topk:k=3", "layers.0.heads.1": "entmax:alpha=1.5"}]
)
def test_errors_and_zeros_are_reported_for_every_stage(spec: Any) -> None:
    """Those of the fine-tuned stage against its normalizers by hand, on the rows of the original model."""
    calibration, fitted = (calibrate(spec, queries="all", finetune=steps) for steps in (12, 0))
    before_tuning = ["error_before", "error_after", "zeros_before", "zeros_after"]
    assert calibration.table.select(before_tuning).equals(fitted.table.select(before_tuning))
    for name in ("error_tuned", "zeros_tuned"):
        assert fitted.table[name].is_null().all()
        assert fitted.layers[name].is_null().all()
    rows = rows_of(tiny_runs.model(), calibration)
    for pattern, made in calibration.normalizers.items():
        layer, heads = int(pattern.split(".")[1]), [int(head) for head in pattern.split(".")[3].split(",")]
        some = LayerRows(*(part[:, heads] for part in vars(rows[layer]).values()))
        with torch.no_grad():
            weights = made(some.logits)
        errors = some.errors(made)
        zeros = ((weights == 0) & some.visible).sum((0, 2, 3)).double() / some.visible.sum((0, 2, 3))
        table = calibration.table.filter(pl.col("layer") == layer, pl.col("head").is_in(heads))
        assert table["error_tuned"].to_list() == pytest.approx(errors.tolist(), rel=1e-4)
        assert table["zeros_tuned"].to_list() == zeros.tolist()
    assert not (calibration.table["error_tuned"] == calibration.table["error_after"]).any()
    pooled = (calibration.table["error_tuned"] * calibration.table["energy"]).sum() / calibration.table["energy"].sum()
    outputs = next(one for one in calibration.findings if one.topic == "outputs")
    assert outputs.numbers["tuned"] == pytest.approx(pooled)
    assert outputs.sentence.endswith(" fine-tuned.")
    assert calibration.as_json()["layers"][0]["error_tuned"] is not None


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        calibrate(folder=tmp_path / name)
    calibrate(folder=tmp_path / "c", seed=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


def test_patterns_choose_the_heads() -> None:
    calibration = calibrate({"layers.1.heads.0,2": "sparsemax", "layers.0": "topk:k=4"})
    places = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 2)]
    assert list(zip(calibration.table["layer"], calibration.table["head"], strict=True)) == places
    assert set(calibration.table.filter(layer=0)["spec"]) == {"scaled:of=topk:k=4,t=0,learn=true,heads=4"}
    assert calibration.layers["heads"].to_list() == [4, 2]
    line = calibrate("layers.1.heads.0,2=sparsemax; layers.0=topk:k=4")
    assert line.table.equals(calibration.table)
    whole = calibrate()
    both = [one.table.filter(layer=1, head=2)["error_after"].item() for one in (calibration, whole)]
    assert both[0] == pytest.approx(both[1], rel=1e-3)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_an_encoder_is_fitted_but_has_no_loss(family: str) -> None:
    calibration = calibrate("sparsemax", family)
    assert calibration.losses == ()
    assert "needs a causal language model" in calibration.manifest["skipped"][-1]
    assert (calibration.table["error_after"] < calibration.table["error_before"]).any()
    with pytest.raises(abbe.AbbeError, match="fine-tuning needs a causal language model"):
        calibrate("sparsemax", family, finetune=2)


FITTED = {
    "softmax": "scaled:of=softmax,t=0,learn=true",
    "topk:k=7": "scaled:of=topk:k=7,t=0,learn=true",
    "entmax:alpha=1.3,learn=true": "scaled:of=(entmax:alpha=1.3,learn=true),t=0,learn=true",
    "ssmax:s=0.4": "scaled:of=ssmax:s=0.4,t=0,learn=true",
    "ssmax:s=0.4,learn=true": "ssmax:s=0.4,learn=true",  # it learns a scale already
    "learned-temperature": "learned-temperature",
    "scaled:of=sparsemax,t=1": "scaled:of=sparsemax,t=1,learn=true",
    "hybrid:a=(sink:learn=true),b=topk:k=2": "scaled:of=(hybrid:a=(sink:learn=true),b=topk:k=2),t=0,learn=true",
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("spec", FITTED)
def test_what_is_fitted(spec: str) -> None:
    """Part of the identity: a folder in which something else was fitted is another run."""
    tiny = calibrate(spec, steps=0, windows=1, held_out=1, length=8, queries=2)
    assert tiny.manifest["settings"]["fitted"] == FITTED[spec]


def learnable(spec: str) -> str:
    return f"scaled:of={f'({spec})' if ',' in spec else spec},t=0,learn=true"


@pytest.mark.parametrize("spec", [case.spec for case in normalizer_cases.CASES if "learn" not in case.spec])
def test_a_spec_means_what_it_says(spec: str) -> None:
    """Only a temperature is free, and where it starts the weights are those of the spec."""
    made = abbe.normalizer(learnable(spec))
    assert [path.rpartition(".")[2] for path, part in made.named_modules() if hasattr(part, "above_low")] == ["t"]
    logits = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made(logits), abbe.normalizer(spec)(logits), atol=1e-5, rtol=1e-4)


def test_alpha_stays_as_written_and_zeros_stay() -> None:
    calibration = calibrate("entmax:alpha=1.5", held_out=6, windows=3, length=20)
    assert set(calibration.parameters["parameter"]) == {"t"}
    assert set(calibration.table["spec"]) == {"scaled:of=entmax:alpha=1.5,t=0,learn=true,heads=4"}
    assert not any(finding.topic == "softmax again" for finding in calibration.findings)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("entmx", {}, "unknown normalizer 'entmx'"),
        ("entmax:learn=true,heads=4", {}, "leave heads= out"),
        ("file:x.safetensors", {}, "is already calibrated"),
        (abbe.normalizer("sparsemax"), {}, "give the spec 'sparsemax'"),
        (3, {}, "needs a spec such as 'entmax:alpha=1.5', got int"),
        ("scaled:of=sparsemax,t=1,learn=false", {}, "has nothing to fit: leave learn=false out"),
        ({"layers.7": "sparsemax"}, {}, "there is no layer 7"),
        ("sparsemax", {"length": 65}, "above the model's context of 64"),
    ],
)
def test_refusals(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(abbe.AbbeError, match=message):
        calibrate(spec, **options)


def test_a_text_without_a_held_out_window_is_refused() -> None:
    tiny = abbe.Text("tiny", tiny_runs.TEXT.content[:50])
    with pytest.raises(abbe.AbbeError, match="room for 1 window of 40 tokens"):
        abbe.calibrate(tiny_runs.model(), tiny, normalizer="sparsemax", **QUICK)


@pytest.mark.slow
def test_a_free_alpha_goes_back_to_softmax_and_this_is_said_first() -> None:
    for finetune in (0, 2):
        calibration = calibrate("entmax:alpha=1.5,learn=true", steps=40, queries="all", finetune=finetune)
        assert calibration.parameters.filter(parameter="alpha")["value"].max() < 1.05
        first = calibration.findings[0]
        assert first.sentence.startswith("All 8 heads are softmax again: on average, alpha from 1.50 to 1.0")
        assert first.numbers["zeros_after"] < 0.05 < 0.3 < first.numbers["zeros_before"]
