"""New values for some parameters and settings of a network: kept apart from it, and applied for a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError


class Changes:
    """The changes of a fold; a parameter that two layers share is refused, since it would be changed twice."""

    def __init__(self) -> None:
        self._tensors: dict[nn.Parameter, tuple[str, Tensor]] = {}
        self._settings: list[tuple[Any, str, object]] = []

    def scale(self, where: str, parameter: nn.Parameter, factor: Tensor) -> None:
        """Multiply; the product is rounded once."""
        self.put(where, parameter, (parameter.detach().double() * factor.to(parameter.device)).to(parameter.dtype))

    def put(self, where: str, parameter: nn.Parameter, value: Tensor) -> None:
        if parameter in self._tensors:
            raise AbbeError(
                f"cannot fold: {where} and {self._tensors[parameter][0]} share one weight, which "
                "cannot be scaled for each of them; leave these layers as they are"
            )
        if not parameter.is_floating_point():
            raise AbbeError(f"cannot fold: weights of {where} are {parameter.dtype}, not floating-point numbers")
        self._tensors[parameter] = where, value

    def set(self, owner: Any, name: str, value: object) -> None:
        self._settings.append((owner, name, value))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network with the new values; afterwards every parameter and setting is restored."""
        with ExitStack() as undo:
            for parameter, (_, value) in self._tensors.items():
                undo.callback(setattr, parameter, "data", parameter.data)
                parameter.data = value
            for owner, name, setting in self._settings:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, setting)
            yield

    def __len__(self) -> int:
        return len(self._tensors)


def per_output(factors: Tensor, width: int) -> Tensor:
    """One factor per head, repeated for each of its `width` outputs."""
    return torch.repeat_interleave(factors, width)
