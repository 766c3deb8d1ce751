"""A monitor on networks that are not from transformers: same bits with and without, and the right numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_networks import HEADS, VOCABULARY, WIDTH, Block, Decoder, as_written, by_abbe, by_hand, decoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import abbe


class WithWeights(nn.Module):
    """nn.MultiheadAttention as most people call it: the weights are asked for, and thrown away."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        output: Tensor = self.inner(x, x, x, attn_mask=hidden)[0]
        return output


class Checkpointed(Block):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return output


class CheckpointedDecoder(Decoder):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.symbols(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.logits(x)


NETWORKS: dict[str, Any] = {
    "torch's function": lambda: decoder(),
    "abbe.attention": lambda: as_written(decoder(), by_abbe("entmax:alpha=1.5")),
    "weights": lambda: decoder(WithWeights),
    "weights and dropout": lambda: decoder(lambda: WithWeights(0.2)),
    "checkpoints": lambda: CheckpointedDecoder(),
}


def trained(name: str, monitored: bool) -> tuple[Tensor, Any]:
    torch.manual_seed(0)
    network = NETWORKS[name]().train()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    monitor = abbe.Monitor(network, every=2, sizes=(5,), alerts=False) if monitored else None
    chance = torch.Generator().manual_seed(5)
    for _ in range(4):
        batch = torch.randint(VOCABULARY, (3, 17), generator=chance)
        loss = F.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step(loss)
    weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    if monitor is None:
        return weights, None
    assert monitor.silent is None
    result = monitor.result()
    monitor.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    return weights, result


@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_the_same_bit_by_bit(name: str) -> None:
    plain, _ = trained(name, monitored=False)
    watched, result = trained(name, monitored=True)
    assert torch.equal(plain, watched)
    assert [record["step"] for record in result.records] == [1, 2, 4]
    inner = ".inner" if "weights" in name else ""
    assert result.manifest["layers"] == [f"blocks.{i}.attn{inner}" for i in range(3)]
    if "dropout" not in name:
        assert result.manifest["self_check"]["error"] < 1e-5
    measured = result.records[-1]["heads"]
    for measure in ("entropy", "max_logit", "query_gradient", "value_gradient", "logit_change"):
        values = measured[measure]["value"]
        assert len([x for x in values if x is not None]) == 3 * HEADS if not isinstance(values[0], list) else True
        assert all(x > 0 for x in torch.tensor(values).flatten().tolist()), measure


def test_gradients_are_those_of_the_tensors() -> None:
    """By head, against hooks in the network itself; q is the same before and after torch scales it."""
    network, squares = decoder(WithWeights).train(), dict[str, Tensor]()
    batch = torch.randint(VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(5))
    attention = network.blocks[0].attn.inner
    states: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    with abbe.Monitor(network, every=1, sizes=(5,), alerts=False) as monitor:
        loss = network(batch).square().mean()
        loss.backward()
        monitor.step(loss)
    handle.remove()
    (record,) = monitor.result().records
    network.zero_grad()
    # The same layer by hand: its output decides the rest of the pass.
    x = states[0].detach()
    parts = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2).detach().requires_grad_() for part in parts)
    attended = attention.out_proj(by_hand(q, k, v).transpose(1, 2).flatten(2))
    tokens = network.symbols(batch) + network.places(torch.arange(16))
    y = tokens + attended
    y = y + network.blocks[0].mlp(y)
    for block in network.blocks[1:]:
        y = block(y)
    network.logits(y).square().mean().backward()
    for name, part in (("query", q), ("key", k), ("value", v)):
        assert part.grad is not None
        squares[name] = part.grad.square().sum((0, 2, 3)).sqrt()
        values = torch.tensor(record["heads"][f"{name}_gradient"]["value"][0])
        torch.testing.assert_close(values, squares[name], rtol=1e-3, atol=1e-7)


def test_a_monitor_under_a_swap() -> None:
    network = decoder().train()
    batch = torch.randint(VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(5))
    with abbe.swap(network, "sparsemax"), abbe.Monitor(network, every=1, sizes=(5,), alerts=False) as monitor:
        loss = network(batch).square().mean()
        loss.backward()
        monitor.step(loss)
    assert monitor.silent is None
    assert monitor.result().manifest["self_check"]["error"] < 1e-5


def test_a_network_whose_attention_is_not_seen_trains_on(caplog: pytest.LogCaptureFixture) -> None:
    network = as_written(decoder(), by_hand).train()
    with abbe.Monitor(network, every=1) as monitor:
        loss = network(torch.randint(VOCABULARY, (2, 16))).square().mean()
        loss.backward()
        monitor.step(loss)
    assert monitor.silent is not None
    assert "no attention layer was seen" in monitor.silent
