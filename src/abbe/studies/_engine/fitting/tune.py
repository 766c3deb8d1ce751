"""Fine-tune only the parameters of a swap, end to end on the loss of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...._errors import AbbeError
from ....models import LoadedModel, Window

State = dict[str, Tensor]

_RATE = 0.05  # for raw parameters, decaying linearly to 0
_KEEP_EVERY = 5  # steps
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam


def fine_tune(
    model: LoadedModel, parameters: Sequence[nn.Parameter], windows: Sequence[Window], steps: int,
    start: State | None, keep: Callable[[State], object], on_step: Callable[[int], object],
) -> None:  # fmt: skip
    """Steps of Adam, each on one window, in turn; resumes from `start`, the state that `keep` received last."""
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    done = _restore(optimizer, parameters, start) if start is not None else 0
    with only_learning(model.network, parameters):
        for step in range(done, steps):
            optimizer.param_groups[0]["lr"] = _RATE * (1 - step / steps)
            optimizer.zero_grad(set_to_none=True)
            loss = _loss(model, windows[step % len(windows)].tokens)
            if not bool(torch.isfinite(loss)):
                raise AbbeError(f"fine-tuning failed: the loss is {float(loss)} at step {step + 1}; try fewer steps")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if (step + 1) % _KEEP_EVERY == 0 or step + 1 == steps:
                keep(_state(optimizer, parameters, step + 1))
            on_step(step + 1)
    optimizer.zero_grad(set_to_none=True)


@contextmanager
def only_learning(network: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Freeze all other parameters of the network."""
    learning = {id(parameter) for parameter in parameters}
    frozen = [weight for weight in network.parameters() if weight.requires_grad and id(weight) not in learning]
    for weight in frozen:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(True)


@torch.enable_grad()
def _loss(model: LoadedModel, tokens: Tensor) -> Tensor:
    network: Any = model.network
    batch = tokens[None].to(model.device)
    logits = network(input_ids=batch, use_cache=False).logits[0, :-1]
    return cross_entropy(logits.float(), batch[0, 1:].to(logits.device))


def _state(optimizer: torch.optim.Adam, parameters: Sequence[nn.Parameter], steps: int) -> State:
    state = {"steps": torch.tensor(steps)}
    for number, parameter in enumerate(parameters):
        state[f"{number}.raw"] = parameter.detach().clone()
        state |= {f"{number}.{name}": optimizer.state[parameter][name].clone() for name in _MOMENTS}
    return state


def _restore(optimizer: torch.optim.Adam, parameters: Sequence[nn.Parameter], state: State) -> int:
    for number, parameter in enumerate(parameters):
        with torch.no_grad():
            parameter.copy_(state[f"{number}.raw"])
        optimizer.state[parameter] = {name: state[f"{number}.{name}"].clone() for name in _MOMENTS}
    return int(state["steps"])
