"""The quantities of a monitor for a network that provides its logits, values and gradients itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..measures import State, update
from ..normalizers import Normalizer
from ._reading import PARTS
from ._rows import row_readings, seeded
from ._update import no_change
from ._values import Values, values_of


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One attention layer at one step.

    Attributes:
        logits: (batch, head, query, key), -inf for hidden keys, any temperature included.
        values: (batch, head, key, feature).
        normalizer: maps logits to weights.
        gradients: of "query", "key" and "value", each (batch, head, position, feature), as far as known.
        after: the logits of the same rows after the update, if known.
    """

    logits: Tensor
    values: Tensor
    normalizer: Normalizer
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    after: Tensor | None = None


@torch.no_grad()
def measure_layers(
    layers: Sequence[LayerRows], *, sizes: tuple[int, ...], seed: int = 0, step: int = 0, alike: int = 1
) -> Values:
    """What a `Monitor` would measure, for a network that provides its logits, values and gradients itself.

    `list_quantities` says what high and low mean.

    Args:
        layers: rows of every layer.
        sizes: sizes N of the selected sets whose separability is measured, rising.
        seed: of the random sets, >= 0.
        step: of the optimizer, which the random sets depend on.
        alike: number of networks that the heads belong to, side by side; all get the same random sets, so that none
            depends on its neighbours.

    Returns:
        Every measure by name, with values by layer and head.

    Examples:
        >>> softmax = abbe.normalizer("softmax")
        >>> layer = abbe.training.LayerRows(torch.zeros(1, 2, 4, 8), torch.randn(1, 2, 8, 3), softmax)
        >>> values = abbe.training.measure_layers([layer], sizes=(2,))
        >>> [[round(x, 3) for x in heads] for heads in values["effective_tokens"].value]
        [[8.0, 8.0]]
    """
    states = {number: _state(number, layer, sizes, seed, step, alike) for number, layer in enumerate(layers)}
    return values_of(states)


def _state(number: int, layer: LayerRows, sizes: tuple[int, ...], seed: int, step: int, alike: int) -> State:
    heads, queries, keys = layer.logits.shape[1:]
    chance = torch.rand(
        queries, heads // alike, min(sizes[-1], keys), dtype=torch.float64,
        generator=seeded(seed, step, f"random sets of layer {number}"),
    ).repeat(1, alike, 1)  # fmt: skip
    logits, values = layer.logits.float(), layer.values.float()
    readings = row_readings(logits, values, None, sizes, chance, normalizer=layer.normalizer)
    known = {part: layer.gradients[part] for part in PARTS if part in layer.gradients}
    squares = {f"{part}_gradient/squares": x.double().square().sum((0, 2, 3)) for part, x in known.items()}
    return update({}, readings) | squares | _change(layer)


def _change(layer: LayerRows) -> State:
    """The change of the logits of visible keys, by head."""
    if layer.after is None:
        return no_change(layer.logits.shape[1])
    seen = layer.logits != -torch.inf
    moved = torch.where(seen, layer.after.double() - layer.logits.double(), 0.0)
    return {
        "logit_change/squares": moved.square().sum((0, 2, 3)),
        "logit_change/entries": seen.double().sum((0, 2, 3)),
        "logit_change/largest": moved.abs().amax((0, 2, 3)),
    }
