"""Planted faults are found, each once per event; alerts can stop a run or call a function."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from training_cases import HEADS, batches, gpt2, watched

import abbe
from abbe.training import Alert, Alerts, Measured, list_rules

WIDTH = 32


def scale_queries(network: Any, layer: int, head: int, factor: float, to: float | None = None) -> None:
    """Multiply a head's part of W_q, or fill it."""
    part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
    with torch.no_grad():
        weight, bias = (network.transformer.h[layer].attn.c_attn.get_parameter(name) for name in ("weight", "bias"))
        weight[:, part] *= factor
        bias[part] *= factor
        if to is not None:
            bias[part] = to


def rules_of(monitor: abbe.Monitor, layer: int, head: int) -> set[str]:
    return set(monitor.result().alerts.filter(layer=layer, head=head)["rule"])


def others(monitor: abbe.Monitor, layer: int, head: int) -> set[tuple[Any, ...]]:
    rows = monitor.result().alerts.iter_rows(named=True)
    return {(row["layer"], row["head"], row["rule"]) for row in rows if (row["layer"], row["head"]) != (layer, head)}


def test_a_head_that_collapses_is_found() -> None:
    network = gpt2(dropout=0.0)
    scale_queries(network, 1, 2, 3e5)
    monitor = watched(network, 2)
    assert {"entropy_collapse", "logit_growth_100", "logit_growth_1000", "logit_growth_10000"} <= (
        rules_of(monitor, 1, 2)
    )
    assert not others(monitor, 1, 2)
    assert len(monitor.result().alerts) == len(rules_of(monitor, 1, 2))  # once each
    assert rules_of(monitor, 1, 2) <= {rule.name for rule in list_rules()}


def test_a_head_without_gradient_is_found() -> None:
    """Nothing reads what it gives."""
    network = gpt2(dropout=0.0)
    with torch.no_grad():
        network.transformer.h[0].attn.c_proj.weight[WIDTH // HEADS : 2 * WIDTH // HEADS] = 0.0
    monitor = watched(network, 1)
    assert rules_of(monitor, 0, 1) == {"dead_gradient"}
    assert not others(monitor, 0, 1)


def test_a_head_that_becomes_uniform_is_found_but_not_one_that_was_never_selective() -> None:
    network = gpt2(dropout=0.0)
    scale_queries(network, 0, 1, 30.0)
    monitor = watched(network, 3, lambda step: scale_queries(network, 0, 1, 1.0 if step < 3 else 0.0))
    alerts = monitor.result().alerts.filter(rule="uniform")
    assert alerts.select("step", "layer", "head").rows() == [(3, 0, 1)]
    assert "uniform" not in rules_of(watched(network, 2), 0, 1)  # from a step on at which it is uniform already


def test_a_sink_is_found() -> None:
    """Queries that are all the same, and a first key that they prefer."""
    network = gpt2(dropout=0.0)
    attention = network.transformer.h[0].attn.c_attn
    with torch.no_grad():
        part = slice(WIDTH + 3 * WIDTH // HEADS, WIDTH + WIDTH)  # the keys of head 3
        attention.weight[:, part] = 0.0
        network.transformer.wpe.weight[0] = 0.0
        network.transformer.wpe.weight[0, 0] = 50.0  # after the layer norm, the only token of this direction
        attention.weight[0, part] = 1.0
    scale_queries(network, 0, 3, 0.0, to=2.0)
    assert "sink" in rules_of(watched(network, 1), 0, 3)


def test_an_update_that_moves_the_logits_far_is_found() -> None:
    network = gpt2(dropout=0.0)
    monitor = abbe.Monitor(network, every=1)
    for step, inputs in enumerate(batches(3), 1):
        network(**inputs).loss.backward()
        network.zero_grad()
        if step == 2:
            scale_queries(network, 1, 2, 3e5)  # as an optimizer would, between the backward pass and the next step
        monitor.step()
    monitor.close()
    alerts = monitor.result().alerts.filter(rule="logit_jump")
    assert alerts.select("step", "layer", "head").rows() == [(2, 1, 2)]


def test_numbers_that_overflow_are_found_and_the_run_goes_on() -> None:
    network = gpt2(dropout=0.0)

    def overflow(step: int) -> None:
        if step == 2:
            scale_queries(network, 0, 0, 1.0, to=math.inf)

    monitor = watched(network, 3, overflow)
    alerts = monitor.result().alerts.filter(rule="non_finite", layer=0, head=0)
    assert alerts["step"].to_list() == [2]
    assert monitor.result().steps["step"].to_list() == [1, 2, 3]
    assert monitor.result().alerts.filter(rule="non_finite", step=1).is_empty()


def measured(share: float, logit: float = 1.0, sink: float = 0.0) -> dict[str, Measured]:
    """One head."""
    return {
        "entropy": Measured([[share * 4.0]], [[4.0]]),
        "max_logit": Measured([[logit]]),
        "sink_mass": Measured([[sink]], None, [[0.05]]),
        "nonfinite": Measured([[0.0]]),
    }


COLLAPSE, JUMP = ["entropy_collapse"], ["logit_jump"]
LEVELS = [["logit_growth_100"], ["logit_growth_1000", "logit_growth_10000"], [], ["logit_growth_100"]]


@pytest.mark.parametrize(
    ("values", "raised"),
    [
        ([measured(x) for x in (0.04, 0.03, 0.07, 0.04, 0.5, 0.04)], [COLLAPSE, [], [], [], [], COLLAPSE]),
        ([measured(0.5, logit=x) for x in (101.0, 2e4, 40.0, 150.0)], LEVELS),  # every level is an event of its own
        (
            [measured(0.5) | {"logit_change": Measured([[x]])} for x in (81.0, 100.0, 50.0, 81.0, 39.0, 81.0, 79.0)],
            [JUMP, [], [], [], [], JUMP, []],
        ),
    ],
)
def test_an_alert_is_raised_once_and_again_only_after_recovery(values: Any, raised: list[list[str]]) -> None:
    alerts = Alerts()
    checked = [alerts.check(step, one, None) for step, one in enumerate(values)]
    assert [[event.rule for event in events] for events in checked] == raised


def test_a_loss_that_is_not_finite_is_an_alert_without_a_head() -> None:
    (event,) = Alerts().check(7, measured(0.5), math.nan)
    assert (event.rule, event.layer, event.head) == ("non_finite", None, None)
    assert str(event) == "step 7: non_finite in the loss"


def test_many_heads_are_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    same = [Alert(5, "sink", 0, head, 0.3 + head / 100, 0.3) for head in range(8)]
    monkeypatch.setattr(Alerts, "check", lambda self, step, values, loss: same)
    watched(gpt2(dropout=0.0), 1)
    heads = "layer 0, heads 0, 1, 2 and 3; …"
    line = f"step 5: sink in 8 heads ({heads}), from 0.3 to 0.37 (threshold 0.3)"
    assert caplog.messages == [f"abbe.Monitor: {line}"]


def test_actions(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Alert] = []
    network = gpt2(dropout=0.0)
    scale_queries(network, 1, 2, 3e5)
    assert watched(network, 1, on_alert="stop").should_stop
    assert not watched(network, 1, on_alert=seen.append).should_stop
    assert {(alert.layer, alert.head) for alert in seen} == {(1, 2)}
    assert any("entropy_collapse in layer 1, head 2" in line for line in caplog.messages)
    silent = watched(network, 1, alerts=False).result()
    assert silent.alerts.is_empty()
    assert silent.manifest["settings"]["alerts"] is False
    assert "alerts" not in silent.manifest["identity"]["settings"]  # so that a resumed run may change it
