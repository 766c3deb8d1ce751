"""Quick studies of capacity, and studies of planted losses: only the separability of their layers is measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import planted_parts
import tiny_models
import tiny_runs

import abbe
from abbe.models import LoadedModel, wrap
from abbe.studies import Capacity, capacity
from abbe.words.finding import Finding

WAYS = ("deletion", "renormalised")
QUICK: dict[str, Any] = {"lengths": [16, 40], "windows": 3, "queries": 12, "resamples": 50, "progress": False}


def made(family: str = "gpt2", **options: Any) -> Capacity:
    return capacity(tiny_runs.model(family), tiny_runs.TEXT, **(QUICK | options))


# -- Planted losses ---------------------------------------------------------------------------------------------------

Losses = Callable[[int, str, int | None, int | None], Sequence[float]]  # of length, way, layer and N, by window
PLANTED: dict[str, Any] = {
    "lengths": [64], "tau": [0.05], "way": "deletion", "layers": False, "windows": 3, "queries": 12, "resamples": 200,
    "progress": False,
}  # fmt: skip
TEXT = abbe.Text("some text", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(3000)))
_PART = re.compile(r"losses/(\d+)-(?:baseline|(?:layer(\d+)-)?(deletion|renormalised)-(\d+))")


@cache
def small(layers: int, name: str) -> LoadedModel:
    network = tiny_models.gpt2(vocab_size=256, n_positions=1024, n_layer=layers, n_embd=16, n_head=2)
    return wrap(network, tiny_models.byte_tokenizer(), name)


def planted(losses: Losses, of: int = 1, name: str = "made-up", **options: Any) -> Capacity:
    """The study of a model `of` that many layers with these losses; the baseline has no N."""

    def numbers(part: str) -> Mapping[str, Any] | None:
        if (match := _PART.fullmatch(part)) is None:
            return None
        length, layer, way, size = match.groups()
        known = losses(int(length), way, layer and int(layer), size and int(size))
        return {"by_window": dict(enumerate(known))}

    with planted_parts.planted(numbers):
        return capacity(small(of, name), TEXT, **(PLANTED | options))


def falling(slopes: Sequence[float], own: Sequence[float] = range(1, 99)) -> Losses:
    """A window's rise at N is its slope over N, relative to its own loss: 1, 2, 3, ... if none are given."""
    return lambda length, way, layer, n: [a * (1 + (b / n if n else 0)) for a, b in zip(own, slopes, strict=False)]


# -- What is found ----------------------------------------------------------------------------------------------------

UP, DOWN, MIXED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.5, 0.2, 0.6, 0.25]
EQUAL = [0.5] * 6
NEEDED = 8  # keys of the whole model: the size of the sets whose separability is measured


def by_topic(result: Capacity) -> dict[str, Finding]:
    return {finding.topic: finding for finding in result.findings}


@cache
def measured(of: int, lengths: tuple[int, ...], ways: tuple[str, ...]) -> dict[tuple[int, str], list[float]]:
    """Separability of the layers of the small model, by length and way."""
    table = planted(falling([0.01 * NEEDED] * 3), of, lengths=lengths, way=ways, layers=True, tau=0.01).layers
    cells = table.sort("layer").group_by("length", "way", maintain_order=True)
    found = {(length, way): rows["separability"].to_list() for (length, way), rows in cells}
    assert all(len(set(shares)) == of for shares in found.values())
    return found


def of_cells(shares: Mapping[tuple[int, str], Sequence[float]], needed: Sequence[float] = ()) -> dict[str, Finding]:
    """By topic, for layers that need 1, 2, ... keys, or these, and whose separabilities are ordered like the shares."""
    lengths, ways = (tuple(dict.fromkeys(key[place] for key in shares)) for place in (0, 1))
    of = len(next(iter(shares.values())))
    ranks, needed = {}, needed or range(1, of + 1)
    for cell, known in measured(of, lengths, ways).items():
        in_order = sorted(range(of), key=known.__getitem__)  # layers, by what was measured
        wanted = sorted(range(of), key=shares[cell].__getitem__)
        equal = len(set(shares[cell])) == 1
        ranks[cell] = {layer: needed[0 if equal else pair] for layer, pair in zip(in_order, wanted, strict=True)}

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        keys = NEEDED if layer is None or n is None else ranks[length, way][layer] / of
        return falling([0.00999 * keys] * 3)(length, way, layer, n)  # just below what is allowed

    return by_topic(planted(losses, of, lengths=lengths, way=ways, layers=True, tau=0.01))


def geometry(capacities: list[float], shares: list[float]) -> Finding:
    """What is said about layers of these capacities, and separabilities in this order."""
    return of_cells({(64, "renormalised"): shares}, capacities)["geometry and function"]


def cells(*shares: list[float]) -> dict[tuple[int, str], list[float]]:
    """At 64 tokens, deletion and renormalised; then at 128."""
    return dict(zip([(length, way) for length in (64, 128) for way in WAYS], shares, strict=True))


def growing(exponent: float, spread: float, windows: int = 6) -> tuple[Finding, ...]:
    """Of a capacity that grows with this power of the length, within this spread over the windows."""

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        around = [1 + spread * (place - (windows - 1) / 2) for place in range(windows)]
        return falling([0.2 * (length / 64) ** exponent * x for x in around], [4.0] * windows)(length, way, layer, n)

    return planted(losses, lengths=[64, 128], windows=windows).findings


def at_sizes(rises: Mapping[int, float]) -> Losses:
    """One window with these rises of the loss; each holds up to the next size."""
    sizes = sorted(rises)

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        return [1.0] if n is None else [1 + rises[max(size for size in sizes if size <= n)]]

    return losses


def with_a_hole() -> Capacity:
    """One key is fine, two are not."""
    return planted(lambda *at: [1.0] * 3 if at[3] == 1 else falling([0.19] * 3, [1.0] * 3)(*at))


def layers_of(windows: int) -> Finding:
    """From layers truncated on this many windows."""
    losses = falling([0.19] * windows)
    return by_topic(planted(losses, layers=True, windows=windows, layer_windows=windows))["layers"]
