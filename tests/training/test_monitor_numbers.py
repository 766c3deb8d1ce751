"""The numbers of a monitor are those of the tap, of `abbe diagnose`, of autograd and of a second forward pass."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import training_cases
from torch import Tensor
from training_cases import HEADS, LENGTH, batches, gpt2, llama, train, value

import abbe
from abbe.measures import Rows, choose_sets, dispersion, geometry, sensitivity, summarize

ALL = 10_000  # rows: every position


one_step = partial(training_cases.one_step, rows=ALL)


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_numbers_are_those_of_the_tap_on_the_same_batch(build: Any, implementation: str) -> None:
    network = build(implementation) if build is llama else build(implementation, dropout=0.0)
    inputs = next(batches(1, batch=1))
    result = one_step(network, inputs)
    expected: dict[int, Any] = {}

    def read(call: abbe.models.AttentionCall) -> None:
        queries = torch.arange(1, LENGTH)
        rows = Rows(call.logits(queries)[0], call.weights(queries)[0], call.value[0], softmax=True)
        sets = choose_sets(rows, (20,), torch.Generator().manual_seed(0))
        soft = abbe.normalizer("softmax")
        readings = dispersion(rows) | geometry(rows, sets)
        readings |= sensitivity(rows, soft, (1.0,), torch.Generator().manual_seed(0))
        expected[call.layer] = summarize(readings), call.logits(queries)[0].flatten(1).amax(1)

    network.eval()
    with abbe.tap(network) as tap, torch.no_grad():
        tap.listen(read)
        network(**inputs)
    for layer, (means, largest) in expected.items():
        for head in range(HEADS):
            for name in ("entropy", "effective_tokens", "max_weight", "sink_mass", "sensitivity_worst_mean"):
                assert value(result, name, 1, layer, head) == pytest.approx(float(means[name].value[head]), rel=1e-4)
            for name in ("entropy", "effective_tokens"):
                ceiling = float(means[name].limit[head])
                assert value(result, name, 1, layer, head, "limit") == pytest.approx(ceiling, rel=1e-4)
            separable = float(means["separability"].value[head, 0])
            assert value(result, "separability@N=20", 1, layer, head) == pytest.approx(separable, abs=1e-3)
            assert value(result, "max_logit", 1, layer, head) == pytest.approx(float(largest[head]), rel=1e-4)
            worst = float(means["sensitivity_worst_max"].value[head])
            assert value(result, "sensitivity_worst_max", 1, layer, head) == pytest.approx(worst, rel=1e-4)
    error = result.manifest["self_check"]["error"]
    assert 0 <= error < 1e-4


def test_gradients_are_those_of_autograd() -> None:
    network, inputs = gpt2(dropout=0.0), next(batches(1))
    result = one_step(network, inputs)
    kept: list[Tensor] = []
    hook = network.transformer.h[1].attn.c_attn.register_forward_hook(lambda m, a, out: kept.append(out))
    network.zero_grad()
    loss = network(**inputs).loss
    hook.remove()
    (gradient,) = torch.autograd.grad(loss, kept)
    by_part = gradient.view(3, LENGTH, 3, HEADS, -1)
    norms = by_part.square().sum((0, 1, 4)).sqrt()
    for head in range(HEADS):
        query, key, values = norms[:, head].tolist()
        for name, norm in (("query", query), ("key", key), ("value", values)):
            assert value(result, f"{name}_gradient", 1, 1, head) == pytest.approx(norm, rel=1e-4)
        assert value(result, "gradient_ratio", 1, 1, head) == pytest.approx(math.hypot(query, key) / values, rel=1e-4)


def test_logits_that_no_update_moves_do_not_change_under_autocast() -> None:
    """Both passes are rounded to bfloat16: a difference of precisions would count as a change."""
    network, inputs = gpt2(dropout=0.0), next(batches(1))
    with abbe.Monitor(network, every=1, rows=ALL) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = network(**inputs).loss
        loss.backward()
        monitor.step()
        changes = monitor.result().table.filter(measure="logit_change_max")
    assert len(changes) > 0
    assert changes["value"].to_list() == [0.0] * len(changes)


@pytest.mark.parametrize("half", [False, True])
def test_change_of_logits_is_that_of_two_passes(half: bool) -> None:
    """The first layer's inputs do not depend on the attention weights that are trained here."""
    network, inputs = gpt2(dropout=0.0), next(batches(1))
    attention = network.transformer.h[0].attn
    optimizer = torch.optim.SGD(attention.parameters(), lr=10.0)

    def logits() -> Tensor:
        seen: list[Tensor] = []
        with abbe.tap(network) as tap, torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            tap.listen(lambda call: seen.append(call.logits(torch.arange(1, LENGTH))[0]))
            network(**inputs)
        return seen[0]

    before = logits()
    with abbe.Monitor(network, every=1, rows=ALL) as monitor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = network(**inputs).loss
        loss.backward()
        optimizer.step()
        monitor.step()
        assert monitor.silent is None
        result = monitor.result()
    change, rounding = (logits() - before).flatten(1), 2e-2 if half else 1e-3
    for head in range(HEADS):
        moved = change[head][change[head].isfinite()]
        assert value(result, "logit_change", 1, 0, head) == pytest.approx(
            float(moved.square().mean().sqrt()), rel=rounding
        )
        assert value(result, "logit_change_max", 1, 0, head) == pytest.approx(float(moved.abs().max()), rel=rounding)


def measured(result: Any) -> dict[tuple[Any, ...], float]:
    rows = result.table.select("step", "layer", "head", "measure", "value").iter_rows()
    return {tuple(row[:4]): row[4] for row in rows}


def assert_close(a: dict[tuple[Any, ...], float], b: dict[tuple[Any, ...], float], rel: float = 2e-3) -> None:
    assert a.keys() == b.keys()
    for place, x in a.items():
        assert x == pytest.approx(b[place], rel=rel, abs=1e-6), place


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_runs_twice_counts_once(reentrant: bool) -> None:
    network, checkpointed = gpt2(dropout=0.0), gpt2(dropout=0.0)
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    inputs = next(batches(1))
    assert_close(measured(one_step(network, inputs)), measured(one_step(checkpointed, inputs)))


def test_micro_batches_are_read_like_the_whole_batch() -> None:
    inputs = next(batches(1, batch=6))
    whole = measured(one_step(gpt2(dropout=0.0), inputs))
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1, rows=ALL) as reader:
        for part in range(3):
            (network(**{name: x.chunk(3)[part] for name, x in inputs.items()}).loss / 3).backward()
        reader.step()
        parts = measured(reader.result())
    assert_close(whole, parts)


def test_padding_is_not_measured() -> None:
    """A sequence that is half padding is measured like the same sequence cut in half."""
    network, inputs = llama(), next(batches(1, batch=1, padded=True))
    half = {name: x[:, : LENGTH // 2] for name, x in inputs.items()}
    padded, cut = one_step(network, inputs, sizes=5), one_step(network, half, sizes=5)
    for name in ("entropy", "effective_tokens", "max_weight", "sink_mass", "max_logit", "separability@N=5"):
        for head in range(HEADS):
            assert value(padded, name, 1, 1, head) == pytest.approx(value(cut, name, 1, 1, head), rel=1e-3)


def test_masks_of_flash_attention_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """(batch, key), or none at all: here in front of a stand-in that computes the same with SDPA."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import flash_attention_mask

    def flash(module: Any, query: Tensor, key: Tensor, values: Tensor, mask: Tensor | None, **keywords: Any) -> Any:
        length = query.shape[-2]
        seen = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        seen = seen if mask is None else seen & mask[:, None, None].bool()
        return sdpa_attention_forward(module, query, key, values, seen, **keywords)

    monkeypatch.setitem(AttentionInterface._global_mapping, "stand_in", flash)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "stand_in", flash_attention_mask)
    for padded in (False, True):
        inputs = next(batches(1, padded=padded))
        plain, read = one_step(llama(), inputs), one_step(llama("stand_in"), inputs)
        assert_close(measured(plain), measured(read))


def entropy_ceilings(rows: int, length: int = LENGTH, **options: Any) -> list[float]:
    """Mean of ln(visible keys) over the rows that were read, for each of four steps: it tells which rows they are."""
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1, rows=rows, **options) as monitor:
        for inputs in batches(4, length=length):
            network(input_ids=inputs["input_ids"]).logits.square().mean().backward()
            monitor.step()
        assert monitor.silent is None
        return list(monitor.result().table.filter(measure="entropy", layer=0, head=0)["limit"])


def test_rows_are_few_seeded_and_spread() -> None:
    """One row of each of equal stretches, never the first position, where a query sees one key."""
    first = entropy_ceilings(rows=1)
    assert all(x == pytest.approx(math.log(round(math.exp(x))), abs=1e-5) for x in first)  # of a single row
    assert all(math.log(2) - 1e-5 <= x <= math.log(LENGTH) + 1e-5 for x in first)
    assert first == entropy_ceilings(rows=1)
    assert len(set(first)) > 1  # drawn anew at every step
    assert first != entropy_ceilings(rows=1, seed=1)
    edges = [1 + (LENGTH - 1) * i // 8 for i in range(9)]
    nearest = sum(math.log(1 + edge) for edge in edges[:-1]) / 8
    farthest = sum(math.log(edge) for edge in edges[1:]) / 8
    assert all(nearest - 1e-5 <= x <= farthest + 1e-5 for x in entropy_ceilings(rows=8))
    every = sum(math.log(keys) for keys in range(2, LENGTH + 1)) / (LENGTH - 1)
    assert entropy_ceilings(rows=LENGTH) == pytest.approx([every] * 4, rel=1e-5)
    assert entropy_ceilings(rows=8, length=1) == [0.0] * 4


def test_mean_loss_and_reductions_of_the_steps() -> None:
    _, monitor = train(gpt2(dropout=0.0), steps=4, monitor=lambda network: abbe.Monitor(network, every=3))
    assert monitor is not None
    result = monitor.result()
    assert result.steps["step"].to_list() == [1, 3]
    assert result.steps["learning_rate"].to_list() == [0.01, 0.01]
    _, each = train(gpt2(dropout=0.0), steps=3, monitor=lambda network: abbe.Monitor(network, every=1))
    assert each is not None
    losses = each.result().steps["loss"].to_list()
    assert result.steps["loss_mean"].to_list() == pytest.approx([losses[0], (losses[1] + losses[2]) / 2])
    rows = result.table.filter(measure="entropy", step=3)["value"]
    assert result.steps["entropy_min"][1] == pytest.approx(rows.min(), rel=1e-4)
    assert result.steps["entropy_mean"][1] == pytest.approx(rows.mean(), rel=1e-4)
    layer = result.layers.filter(measure="entropy", step=3, layer=1)
    assert layer["max"][0] == pytest.approx(result.table.filter(measure="entropy", step=3, layer=1)["value"].max())
