"""LoRA: the monitor reads a model whose own weights are frozen, in both modes and with gradient checkpointing."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from training_cases import batches, hooks, llama, same

import abbe


def trained(train: bool, checkpointing: bool, **options: Any) -> tuple[Any, abbe.Monitor | None]:
    torch.manual_seed(0)
    network = llama()
    if checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": True})
        network.enable_input_require_grads()
    model = peft.get_peft_model(network, peft.LoraConfig(target_modules=["q_proj", "v_proj"])).train(train)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = abbe.Monitor(model, every=1, **options) if options else None
    for inputs in batches(3):
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        monitor.close()
    return model, monitor


@pytest.mark.parametrize(("train", "checkpointing"), [(True, False), (True, True), (False, False)])
def test_adapters_are_trained_the_same_and_read(train: bool, checkpointing: bool) -> None:
    plain, _ = trained(train, checkpointing)
    read, monitor = trained(train, checkpointing, rows=4)
    assert monitor is not None
    assert monitor.silent is None
    assert same(plain.state_dict(), read.state_dict())
    assert hooks(read) == 0 or checkpointing  # `enable_input_require_grads` is a hook itself
    table = monitor.result().table
    assert monitor.result().steps["step"].to_list() == [1, 2, 3]
    for measure in ("entropy", "logit_change", "query_gradient", "value_gradient"):
        assert len(table.filter(measure=measure)) == 3 * 2 * 4, measure
    assert table.filter(measure="query_gradient")["value"].min() > 0
    # The first layer's keys have no trained part before them: they have no gradient, which is not a gradient of 0.
    assert set(table.filter(measure="key_gradient")["layer"]) == ({0, 1} if checkpointing else {1})
