"""Bad input is one line at construction; an error of the monitor itself is said once and never ends a run."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from training_cases import batches, gpt2, hooks, same, train

import abbe
from abbe import AbbeError


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"every": 0}, "every is 0, but must be a whole number >= 1"),
        ({"every": 2.5}, "every is 2.5"),
        ({"rows": -1}, "rows is -1"),
        ({"sizes": 0}, "sizes must hold whole numbers >= 1"),
        ({"on_alert": "halt"}, "on_alert is 'halt', but must be 'stop' or a function"),
        ({"alerts": "yes"}, "alerts is 'yes'"),
        ({"seed": -1}, "seed is -1"),
        ({"resume": -1}, "resume is -1"),
    ],
)
def test_wrong_values(options: dict[str, Any], why: str) -> None:
    with pytest.raises(AbbeError, match=why) as error:
        abbe.Monitor(**options)
    assert "\n" not in str(error.value)


def test_models_without_readable_attention() -> None:
    import transformers

    mamba = transformers.MambaConfig(num_hidden_layers=1, hidden_size=16, vocab_size=16, state_size=4)
    for model, why in (
        (3, "needs a transformers model"),
        (transformers.MambaForCausalLM(mamba), "does not route its attention"),
    ):
        with pytest.raises(AbbeError, match=why) as error:
            abbe.Monitor(model)
        assert "\n" not in str(error.value)


def test_a_second_monitor_or_a_tap_is_refused() -> None:
    network = gpt2()
    with abbe.Monitor(network), pytest.raises(AbbeError, match="has a monitor already"):
        abbe.Monitor(network)
    with abbe.tap(network), pytest.raises(AbbeError, match="is tapped already"):
        abbe.Monitor(network)
    with abbe.Monitor(network):
        pass


def test_without_lightning_its_callback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(AbbeError, match="needs Lightning: pip install lightning"):
        abbe.Monitor().lightning()


def test_a_step_without_a_model() -> None:
    with pytest.raises(AbbeError, match="has no model"):
        abbe.Monitor().step()
    with pytest.raises(AbbeError, match="nothing was measured"):
        abbe.Monitor().result()


@cache
def plain_weights() -> dict[str, torch.Tensor]:
    return train(gpt2(), steps=2)[0]


@pytest.mark.parametrize("place", ["rows", "gradients", "update", "alerts", "disk"])
def test_an_error_of_its_own_is_said_once_and_the_result_is_the_same(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("planted")

    owner, name = {
        "rows": (abbe.normalizers.Softmax, "__call__"),
        "gradients": (torch.linalg, "vector_norm"),
        "update": (abbe.models.Listener, "capture"),
        "alerts": (abbe.training.Alerts, "check"),
        "disk": (os, "fsync"),
    }[place]
    network = gpt2()

    def monitor(model: Any) -> abbe.Monitor:
        made = abbe.Monitor(model, every=1, folder=tmp_path)
        monkeypatch.setattr(owner, name, broken)
        return made

    read, made = train(network, steps=2, monitor=monitor)
    assert same(plain_weights(), read)
    assert made is not None
    assert made.silent is not None
    assert "planted" in made.silent
    assert sum("planted" in line for line in caplog.messages) == 1
    assert hooks(network) == 0


@pytest.mark.parametrize("calls", ["nothing", "no_grad", "frozen", "no backward"])
def test_a_loop_that_never_trains_the_model_is_reported(calls: str) -> None:
    network = gpt2().requires_grad_(calls != "frozen")
    monitor = abbe.Monitor(network, every=1)
    if calls != "nothing":
        with torch.set_grad_enabled(calls != "no_grad"):
            network(**next(batches(1)))
    monitor.step()
    assert monitor.silent is not None
    assert "no backward pass went through this GPT2LMHeadModel" in monitor.silent
    monitor.step()
    monitor.close()
    assert monitor.result().records == []
    assert hooks(network) == 0


def test_a_model_within_another_module_is_found() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = gpt2()

    wrapper = Wrapper()
    with abbe.Monitor(wrapper, every=1) as monitor:
        wrapper.inner(**next(batches(1))).loss.backward()
        monitor.step()
        assert monitor.silent is None
        assert len(monitor.result().records) == 1
