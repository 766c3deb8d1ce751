"""Models of many families: read, self-checked, and with gradients that are bit-identical to those without a monitor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, Family
from torch import Tensor

import abbe


def gradients(family: Family, network: Any) -> dict[str, Tensor]:
    torch.manual_seed(1)  # of dropout
    output = network(**family.inputs())
    (output.logits if hasattr(output, "logits") else output[0]).float().square().mean().backward()
    grads = {name: x.grad.clone() for name, x in network.named_parameters() if x.grad is not None}
    network.zero_grad()
    return grads


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    family = FAMILIES[name]
    network: Any = family.build().train()
    plain = gradients(family, network)
    with abbe.Monitor(network, every=1, sizes=5) as monitor:
        read = gradients(family, network)
        monitor.step()
    assert monitor.silent is None
    assert plain.keys() == read.keys()
    assert all(torch.equal(plain[part], read[part]) for part in plain)
    result = monitor.result()
    check = result.manifest["self_check"]
    assert check["error"] < 1e-3 if check["error"] is not None else "dropout" in check["why"]
    heads = len(result.table.filter(measure="entropy"))
    assert heads > 0
    for measure in ("logit_change", "query_gradient", "key_gradient", "value_gradient", "max_logit"):
        assert len(result.table.filter(measure=measure)) == heads, measure
    assert result.table.filter(measure="logit_change_max")["value"].max() < 1e-4  # no update was made
