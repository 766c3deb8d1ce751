"""capacity: how many keys does the model need at every query, and does the geometry of its heads predict it?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..._arguments import plain, positive, several, shown, whole, window_lengths, yes_or_no
from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, Loss, Window, swap
from ...runs.cost import estimate, plan_memory
from ...runs.inputs import FolderLike, ModelLike, Placed, Settings, TextLike, TokensLike, settings_for
from ...runs.loss import check_causal, check_targets, last_targets, next_token_losses, window_losses
from ...runs.measuring import Job, at_work, measure_runs
from ...runs.study import study
from ...runs.window import check_tokens, window_part
from ...words.names import BASELINE
from .._shared.swapped import best_seconds
from .._shared.truncation import COARSE, Curve, Sizes, checked_grid, has_sinks, top_keys, trace, truncated_rules
from . import rules
from .result import WAYS, Capacity

TAUS = (0.01, 0.05)
_LENGTHS = (128, 256, 512, 1024)
_Key = tuple[int, str, int | None]  # of a curve: length, way and layer, None for the whole model


@study(Capacity)
def capacity(
    model: ModelLike = "embedded", text: TextLike | None = None, *, tokens: TokensLike | None = None,
    tau: float | Sequence[float] = TAUS, lengths: int | Sequence[int] | None = None, windows: int = 8,
    way: str | Sequence[str] = ("deletion", "renormalised"), grid: str = "exact", layers: bool = True,
    layer_lengths: int | Sequence[int] | None = None, layer_windows: int = 4, queries: int = 64, targets: str = "all",
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    loss: Loss | None = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Capacity:  # fmt: skip
    """How many keys per query a model needs to keep its loss, and whether its geometry agrees.

    The least N at which keeping only the N keys of largest weight at every query raises the loss by at most tau.

    A sink counts as a key: it is one of the N if its logit is among the N largest. N* and its two ways are those of
    "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879). A small N* means that few keys do the
    work, a large one that the model reads widely.

    Args:
        model, text, tokens: as for `diagnose`.
        tau: the rise that is allowed, relative to the baseline's loss on the same windows, in (0, 1); one or several.
        lengths: window lengths in tokens; by default 128, 256, 512 and 1024, as far as the model's context goes.
        windows: how many windows of each length; intervals come from resampling them in pairs.
        way: "deletion" keeps the weights of the N keys as they are, "renormalised" makes them sum to 1 again; or both.
        grid: "exact" searches for the least whole N; "coarse" tries powers of 2 only and interpolates N between them,
            in about half the time. Layers always use the coarse one.
        layers: also truncate every layer alone.
        layer_lengths: at which of the lengths; by default all.
        layer_windows: how many of the windows, evenly spaced, are used for that; separability of layers uses all.
            Intervals from fewer than six are too narrow: those from four contain the true number in at most 87 % of
            cases, whatever the level.
        queries: how many per window, for the separability.
        targets: which tokens of a window are scored: "all" next ones, or "last:128", the last 128 of every window,
            whose queries see nearly all of it. This changes N* a lot (arXiv 2609.37879); the default lengths then
            leave out windows with fewer targets.
        seed: random seed; the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep losses there as they are measured; an interrupted study is resumed.
        tokenizer, loss, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        N* of the model and of every layer, with intervals, and every loss that was evaluated.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe capacity
        abbe capacity smollm2 --text book.txt --tau 0.01 --lengths 256,1024 --no-layers --out smollm2-capacity
        abbe capacity ./my-model --way renormalised --figures figures --json
        abbe capacity smollm2 --text book.txt --targets last:128

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "grid": "coarse", "layers": False, "progress": False}
        >>> result = abbe.capacity("embedded", tau=0.05, way="renormalised", **small)
        >>> result.table.select("length", "way", "tau").rows()
        [(32, 'renormalised', 0.05)]
    """
    with at_work(
        Capacity, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map), tokens, loss
    ) as job:
        check_causal(job.model, "capacity")
        long_enough = [length for length in _LENGTHS if length > (last_targets(targets) or 0)]
        base = settings_for(
            job.model.context, lengths=None if lengths is None else sorted(window_lengths(lengths)),
            usual=long_enough, windows=windows, sizes=1, queries=whole("queries", queries, least=1), seed=seed,
            level=level, resamples=resamples,
        )  # fmt: skip
        taus = sorted(positive("tau", tau, ", such as 0.01,0.05"))
        if not taus:
            raise AbbeError("tau must be numbers > 0, such as 0.01,0.05, got none")
        ways = way.split(",") if isinstance(way, str) else plain(way)
        if not isinstance(ways, list | tuple) or not ways or any(one not in WAYS for one in ways):
            raise AbbeError(f"way is {shown(way)}, but must be one of {', '.join(WAYS)}, or both")
        at = _layer_lengths(layer_lengths, base.lengths, yes_or_no("layers", layers))
        for what, values in (("way", ways), ("layer_lengths", at)):
            if len(set(values)) < len(values):
                raise AbbeError(f"{what} has duplicates: {list(values)}")
        check_targets(targets, min(base.lengths, default=2))
        settings = {"taus": taus, "ways": list(ways), "layers": layers, "layer_lengths": sorted(at), "targets": targets}
        settings |= {"layer_windows": whole("layer_windows", layer_windows, least=1), "grid": checked_grid(grid)}
        shared = ("lengths", "windows", "queries", "seed", "level", "resamples")
        settings |= {key: base.as_json()[key] for key in shared}
        return _Work(job, base, settings).run()


def _layer_lengths(chosen: Any, lengths: tuple[int, ...], layers: bool) -> tuple[int, ...]:
    """Where layers are truncated: at all lengths, unless some are chosen; nowhere without layers."""
    if chosen is None:
        return lengths if layers else ()
    named, there = several("layer_lengths", chosen), ", ".join(map(str, lengths))
    if named and not layers:
        raise AbbeError(f"layer_lengths is {list(named)}, but layers are left out: give only one of the two")
    if unknown := [length for length in named if length not in lengths]:
        raise AbbeError(f"layer_lengths has {unknown[0]!r}, but must be among the lengths: {there}")
    if layers and not named:
        raise AbbeError(f"layer_lengths is empty: name some of the lengths {there}, or leave the layers out")
    return named


def evenly_spaced(windows: Sequence[Window], count: int) -> list[Window]:
    """The middle one of each of `count` equal parts, in order; all if there are no more."""
    parts = min(count, len(windows))
    return [windows[(2 * part + 1) * len(windows) // (2 * parts)] for part in range(parts)]


class _Work:
    """One study in progress; it starts with a check of the model."""

    def __init__(self, job: Job, base: Settings, settings: dict[str, Any]) -> None:
        self.job, self.model, self.watch, self.base, self.settings = job, job.model, job.watch, base, settings
        self.cut = job.windows(base)
        if absent := {*base.lengths} - {window.length for window in self.cut}:
            advice = "give a longer text, or shorter --lengths"
            raise AbbeError(f"{job.text.name} is too short for windows of {max(absent)} tokens: {advice}")
        plan_memory(self.model, self.cut, self.watch.say, queries=base.queries, losses=True)
        job.describe(settings)
        with swap(self.model, "topk:k=8") as swapped:
            job.check(swapped, self.cut)
            tokens = check_tokens(self.model, self.cut)
            run_pass = partial(next_token_losses, self.model, tokens)
            self.timed = len(tokens), best_seconds(run_pass, 2, time.perf_counter)  # the first one loads kernels
            self.sinks, self.layers = has_sinks(self.model, swapped, tokens), swapped.layers
        job.claim()
        self.parts = job.parts
        self.separability = None if job.folder is None else job.folder / "separability"  # the folder of the diagnosis

    def run(self) -> Capacity:
        self._say_cost()
        # A curve is a part: which sizes it tries depends on the losses before.
        names = {
            f"curves/{length}-{way}" + ("" if layer is None else f"-layer{layer}"): (length, way, layer)
            for length, way, layer in self._keys()
        }

        def make(name: str) -> None:
            self._curve(*names[name])
            self.parts.keep_json(name, {"key": names[name]})

        self.parts.each(names, make)
        curves = [self._curve(*key) for key in names.values()]
        curves.sort(key=lambda curve: (curve.layer is not None, curve.length))
        rows = rules.capacity_rows(curves, len(self.layers), self.settings)
        self.watch.silent = True  # check and cost of the diagnosis are part of those above
        diagnosis = replace(self.base, sizes=tuple(rules.sizes_for(rows)))
        run = measure_runs(self.job, [diagnosis], self.cut, [self.separability])[0].run
        measured = list(enumerate(run.manifest["layers"]))  # a module that is called several times is several layers
        numbers = [{number for number, name in measured if name == path} for path in self.layers]
        tables = rules.tables(curves, rules.with_separability(rows, run, numbers), len(self.layers), self.settings)
        facts = {key: run.manifest[key] for key in ("windows", "skipped")} | {
            "layers": self.layers,
            "sinks": self.sinks,
        }
        manifest = self.job.manifest(facts, again=run.manifest["measured_again"])
        return Capacity(**tables, findings=rules.findings(tables, self.settings), manifest=manifest)

    def _keys(self) -> Iterator[_Key]:
        """All curves. The longest windows come first, so that the time left is over- rather than underestimated."""
        for length, way in product(reversed(self.base.lengths), self.settings["ways"]):
            yield length, way, None
        for length, way in product(reversed(self.settings["layer_lengths"]), self.settings["ways"]):
            yield from ((length, way, layer) for layer in range(len(self.layers)))

    def _curve(self, length: int, way: str, layer: int | None) -> Curve:
        windows = self._windows(length, layer)
        baseline = self._losses(windows)
        if not 0 < (mean := float(baseline.mean())) < float("inf"):
            why = "a rise relative to it is meaningless"
            raise AbbeError(f"{self.model.name} has a loss of {mean:g} at length {length}: {why}")
        return trace(
            lambda size: self._losses(windows, way, size, layer), baseline, baseline, self._allowed(layer),
            self._sizes(length, layer), length=length, way=way, layer=layer,
        )  # fmt: skip

    def _windows(self, length: int, layer: int | None) -> list[Window]:
        """All for the whole model. They are in the order of the text, so the first few would only cover its start."""
        windows = [window for window in self.cut if window.length == length]
        return windows if layer is None else evenly_spaced(windows, self.settings["layer_windows"])

    def _sizes(self, length: int, layer: int | None) -> Sizes:
        """Sizes of the chosen grid for the whole model, of the coarse one for a layer."""
        return Sizes.of(self.settings["grid"] if layer is None else COARSE, length + self.sinks)

    def _allowed(self, layer: int | None) -> list[float]:
        return [rise for tau in self.settings["taus"] for rise in rules.allowed_rises(tau, layer, len(self.layers))]

    def _losses(self, windows: Sequence[Window], way: str = "", size: int = 0, layer: int | None = None) -> Tensor:
        """(window,) in nats, with the top keys alone, in one layer or in all; without a way, of the unchanged model.

        Each loss is evaluated once and kept right away; losses of some windows are reused from all.
        """
        length, where = windows[0].length, "" if layer is None else f"layer{layer}-"
        part = f"losses/{length}-" + (f"{where}{way}-{size}" if way else BASELINE)
        known = self._known(part)
        if any(window.index not in known for window in windows):
            spec: Any = top_keys(size, way) if layer is None else {f"layers.{layer}": top_keys(size, way)}
            if way and self.model.plan is not None:
                spec = truncated_rules(self.model, None, size, way, layer)
            words = f"length {length}, {f'{where}{way}, N = {size}' if way else 'baseline loss'}"
            with swap(self.model, spec) if way else nullcontext():
                last = last_targets(self.settings["targets"])
                losses = window_losses(self.model, windows, lambda _: self.watch.step(words), last)
            known |= dict(zip((window.index for window in windows), losses.tolist(), strict=True))
            self.parts.keep_json(part, {"by_window": known})
        return torch.tensor([known[window.index] for window in windows], dtype=torch.float64)

    def _known(self, part: str) -> dict[int, float]:
        """Losses of an earlier call, by number of the window; none if the part is missing or damaged."""
        kept = self.parts.json(part) or {"by_window": {}}
        return {int(index): float(loss) for index, loss in kept["by_window"].items()}

    def _say_cost(self) -> None:
        """Cost of the remaining work; a finished study has left a summary along with its losses."""
        folder, kept = self.parts.folder, Counter[int]()  # windows of each length that an earlier call left
        for path in () if folder is None else sorted((folder / "losses").glob("*-*.json")):
            if (first := path.name.partition("-")[0]).isdecimal():
                kept[int(first)] += len(self._known(f"losses/{path.stem}"))
        if kept.total() and folder is not None and (folder / f"{Capacity.study}.json").is_file():
            self.watch.say("all windows were measured before")
            return
        planned = Counter(window.length for window in self.cut)  # the baseline
        for length, _, layer in self._keys():  # how far a search goes depends on the losses
            tried = self._sizes(length, layer).expected(len(self._allowed(layer)))
            planned[length] += tried * len(self._windows(length, layer))
        left, parts = list((planned - kept).elements()), self.separability
        to_diagnose = [
            window.length for window in self.cut if parts is None or not any(parts.glob(f"{window_part(window)}.*"))
        ]
        lengths = [*left, *to_diagnose]
        self.watch.say(str(estimate(self.model, lengths, *self.timed, 1.0, queries=self.base.queries, losses=True)))
        self.watch.expect(len(left))
