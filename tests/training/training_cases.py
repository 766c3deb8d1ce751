"""Tiny models and a plain loop, with and without a monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import abbe

VOCABULARY, LENGTH, WIDTH, HEADS = 61, 40, 32, 4


def gpt2(implementation: str = "sdpa", dropout: float = 0.1, **options: Any) -> Any:
    config = transformers.GPT2Config(
        n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=64, attn_pdrop=dropout,
        resid_pdrop=dropout, embd_pdrop=dropout, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM", **options,
    )  # fmt: skip
    return made(transformers.GPT2LMHeadModel, config, implementation)


def llama(implementation: str = "sdpa", **options: Any) -> Any:
    """Two query heads share a key head."""
    config = transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=2, hidden_size=WIDTH, vocab_size=VOCABULARY,
        intermediate_size=48, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=0, **options,
    )  # fmt: skip
    return made(transformers.LlamaForCausalLM, config, implementation)


def made(kind: Any, config: Any, implementation: str) -> Any:
    torch.manual_seed(0)
    config._attn_implementation = implementation
    network = kind(config).train()
    with torch.no_grad():  # attention far from uniform
        for name, parameter in network.named_parameters():
            if "attn" in name and parameter.dim() == 2:
                parameter.mul_(4.0)
    return network


def batches(steps: int, batch: int = 3, length: int = LENGTH, padded: bool = False) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(1, VOCABULARY, (batch, length), generator=generator)
        inputs = {"input_ids": tokens, "labels": tokens}
        if padded:
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[0, length // 2 :] = 0
            inputs |= {"attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}
        yield inputs


def train(
    network: Any,
    steps: int = 4,
    monitor: Callable[[Any], abbe.Monitor] | None = None,
    *,
    parts: int = 1,
    padded: bool = False,
    half: bool = False,
    call: Any = None,
    rate: float = 1e-2,
) -> tuple[dict[str, Tensor], abbe.Monitor | None]:
    """AdamW; the weights afterwards with the state of the random numbers, and the monitor, closed."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    made_monitor = None if monitor is None else monitor(network)
    for inputs in batches(steps, batch=3 if parts == 1 else 2 * parts, padded=padded):
        total = torch.zeros(())
        for part in range(parts):
            piece = {name: x.chunk(parts)[part] for name, x in inputs.items()}
            with torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext():
                loss = (call or network)(**piece).loss / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        if made_monitor is not None:
            made_monitor.step(total, rate)
    if made_monitor is not None:
        made_monitor.close()
    weights = {name: x.clone() for name, x in network.state_dict().items()}
    return weights | {"random": torch.get_rng_state()}, made_monitor


def watched(
    network: Any = None, steps: int = 1, change: Callable[[int], object] | None = None, **options: Any
) -> abbe.Monitor:
    """Steps without an optimizer, each of them read by default; `change(step)` plants faults."""
    network = network or gpt2(dropout=0.0)
    with abbe.Monitor(network, **({"every": 1} | options)) as monitor:
        for step, inputs in enumerate(batches(steps), 1):
            if change is not None:
                change(step)
            loss = network(**inputs).loss
            loss.backward()
            network.zero_grad()
            monitor.step(loss, 0.1)
    assert monitor.silent is None
    return monitor


def one_step(network: Any, inputs: dict[str, Tensor] | None = None, loss_of: Any = None, **options: Any) -> Any:
    """What is read of one step; the loss is the model's own, or `loss_of` its output."""
    with abbe.Monitor(network, **({"every": 1} | options)) as monitor:
        output = network(**(inputs or next(batches(1))))
        (output.loss if loss_of is None else loss_of(output)).backward()
        monitor.step()
    assert monitor.silent is None
    return monitor.result()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from its event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def hooks(network: nn.Module) -> int:
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in network.modules())


def value(result: Any, measure: str, step: int, layer: int, head: int, column: str = "value") -> float:
    rows = result.table.filter(measure=measure, step=step, layer=layer, head=head)
    assert len(rows) == 1, (measure, step, layer, head)
    return float(rows[column][0])
