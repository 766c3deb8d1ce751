"""capacity: how many keys does the model need at every query, and does the geometry of its heads say so?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._errors import AbbeError
from ..._locks import held
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Window, Windows, evaluating, swap
from ...results import Run
from .._engine.capacity.curve import Curve, trace
from .._engine.capacity.search import COARSE, EXACT, Sizes
from .._engine.capacity.truncation import has_sinks
from .._engine.cost import estimate
from .._engine.folder import claim_folder, finished_windows
from .._engine.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs, windows_for
from .._engine.loss import check_causal, next_token_losses
from .._engine.measuring import finished_manifest, manifest_facts, measure_run
from .._engine.memory import plan_memory
from .._engine.parts import JSON, Parts
from .._engine.sharing.board import Unit
from .._engine.sharing.calls import shareable
from .._engine.sharing.crew import need, share, unit_in
from .._engine.targets import ALL, last_targets
from .._engine.watch import Watch, watching
from .._engine.window import allowed_error, check_tokens
from .findings import findings
from .geometry import common_sizes, correlation_table, sizes_for, with_separability
from .losses import Losses, Truncation
from .result import SUMMARY, WAYS, Capacity
from .settings import CapacitySettings, capacity_settings
from .tables import allowed_rises, capacity_rows, capacity_table, curve_table, growth_table

TAUS = (0.01, 0.05)
_RUN = "separability"  # folder of the run beside


@shareable
def capacity(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    tau: float | Sequence[float] = TAUS, lengths: int | Sequence[int] | None = None, windows: int = 8,
    way: str | Sequence[str] = WAYS, grid: str = EXACT, layers: bool = True,
    layer_lengths: int | Sequence[int] | None = None, layer_windows: int = 4, queries: int = 64, targets: str = ALL,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Capacity:  # fmt: skip
    """The least N at which keeping only the N keys of largest weight at every query raises the loss by at most tau.

    A sink counts as a key: it is one of the N if its logit is among the N largest. N* and its two ways are those of
    "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879). A small N* means that few keys do the
    work, a large one that the model reads widely.

    Args:
        model, text: as for `diagnose`.
        tau: the rise that is allowed, relative to the baseline's loss on the same windows, in (0, 1); one or several.
        lengths: window lengths in tokens; by default 128, 256, 512 and 1024, as far as the model's context goes.
        windows: how many windows of each length; intervals come from resampling them in pairs.
        way: "deletion" keeps the weights of the N keys as they are, "renormalised" makes them sum to 1 again; or both.
        grid: "exact" searches the least whole N; "coarse" tries powers of 2 only and reads N off between them, in about
            half the time. Layers have the coarse one.
        layers: also truncate every layer alone.
        layer_lengths: at which of the lengths; by default all.
        layer_windows: how many of the windows, evenly spaced among them, are used for that; separability beside layers
            is that of all. Intervals from fewer than six are too narrow: those from four hold the true number in at
            most 87 % of cases, whatever the level.
        queries: of a window, for the separability beside it.
        targets: which tokens of a window are scored: "all" next ones, or "last:128", so many at the end of every
            window, whose queries see nearly all of it. This changes N* a lot (arXiv 2609.37879); the default lengths
            then leave out windows with fewer targets.
        seed: of all that is drawn: the same seed gives the same numbers.
        level: of the intervals, in (0, 1).
        resamples: of the bootstrap, >= 1.
        folder: keep losses there as they are known; an interrupted study is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        N* of the model and of every layer, with intervals, and every loss that was evaluated.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "grid": "coarse", "layers": False, "progress": False}
        >>> result = abbe.capacity("embedded", tau=0.05, way="renormalised", **small)
        >>> result.table.select("length", "way", "tau").rows()
        [(32, 'renormalised', 0.05)]
    """
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    check_causal(loaded, "capacity")
    settings = capacity_settings(
        loaded, lengths=lengths, tau=tau, way=way, windows=windows, layers=layers, layer_lengths=layer_lengths,
        layer_windows=layer_windows, queries=queries, targets=targets, grid=grid, seed=seed, level=level,
        resamples=resamples,
    )  # fmt: skip
    cut = _windows(loaded, source, settings)
    with held(place), watching(progress) as watch, evaluating(loaded.network):
        checked = _check(loaded, cut, settings.queries, watch)
        parts = claim_folder(place, Capacity.study, loaded, source, settings.as_json(), watch.announce)
        result = _Study(loaded, source, settings, cut, checked, parts, watch).run()
        if place is not None:
            result.save(place)
    return result


def _windows(model: LoadedModel, text: Text, settings: CapacitySettings) -> Windows:
    cut = windows_for(model, text, settings.lengths, settings.windows, settings.seed)
    absent = set(settings.lengths) - {window.length for window in cut}
    if absent:
        raise AbbeError(
            f"{text.name} is too short for windows of {max(absent)} tokens: name a longer text, or --lengths"
        )
    return cut


def evenly_spaced(windows: Sequence[Window], count: int) -> list[Window]:
    """The middle one of each of `count` equal parts, in order; all if there are no more."""
    there, parts = len(windows), min(count, len(windows))
    return [windows[(2 * part + 1) * there // (2 * parts)] for part in range(parts)]


def _curve_part(length: int, way: str, layer: int | None) -> str:
    """Says that all losses of a curve are there."""
    return f"curves/{length}-{way}" + ("" if layer is None else f"-layer{layer}")


@dataclass(frozen=True)
class _Checked:
    """What is known of the model before anything is measured."""

    layers: list[str]  # paths of its attention modules
    sinks: bool
    error: float  # of the self-check
    tokens: int
    seconds: float  # of a truncated pass on so many tokens


def _check(model: LoadedModel, cut: Windows, queries: int, watch: Watch) -> _Checked:
    """Softmax swapped in gives the model's output as it is; then one truncated pass is timed."""
    tokens = check_tokens(model, cut)
    plan_memory(model, [window.length for window in cut], len(tokens), watch.say, queries=queries, losses=True)
    with swap(model, "topk:k=8") as swapped:
        try:
            error = swapped.check(input_ids=tokens[None].to(model.device))
        except AbbeError as wrong:
            raise AbbeError(f"{model.name}: {wrong}") from None
        next_token_losses(model, tokens)  # loads kernels
        started = time.perf_counter()
        next_token_losses(model, tokens)
        seconds = time.perf_counter() - started
        sinks, layers = has_sinks(model, swapped, tokens), swapped.layers
    watch.say_checked(model.name, error, allowed_error(model))
    return _Checked(layers, sinks, error, len(tokens), seconds)


@dataclass(frozen=True)
class _Study:
    """One study in progress."""

    model: LoadedModel
    text: Text
    settings: CapacitySettings
    cut: Windows
    checked: _Checked
    parts: Parts
    watch: Watch

    def run(self) -> Capacity:
        started, layers = time.perf_counter(), len(self.checked.layers)
        losses = Losses(self.model, self.parts, self._on_window, last_targets(self.settings.targets))
        self._say_cost(losses.kept_lengths())
        self._share(losses)
        curves = self._curves(losses, self.settings.lengths, [None])
        curves += self._curves(losses, self.settings.layer_lengths, range(layers))
        rows = capacity_rows(curves, layers, self.settings)
        run = self._separability(sizes_for(rows))
        numbers = [run.manifest["layers"].index(path) for path in self.checked.layers]
        rows = with_separability(rows, run, numbers, common_sizes(rows, self.settings))
        table, growth = capacity_table(rows), growth_table(curves, layers, self.settings)
        correlation = correlation_table(rows, self.settings)
        sentences = findings(table, growth, correlation, self.settings)
        manifest = self._manifest(run, time.perf_counter() - started)
        return Capacity(
            table=table, curve=curve_table(curves, self.settings), growth=growth, correlation=correlation,
            findings=sentences, manifest=manifest,
        )  # fmt: skip

    def _say_cost(self, kept: Counter[int]) -> None:
        """Of what is left; a finished study left a summary, beside losses that can still be read."""
        if kept.total() and self.parts.folder is not None and (self.parts.folder / SUMMARY).is_file():
            self.watch.say("all windows were measured before")
            return
        left, beside = list((self._planned() - kept).elements()), self._run_left()
        timed = self.checked.tokens, self.checked.seconds
        losses = estimate(self.model, left, *timed, 1.0, losses=True)
        self.watch.say(str(losses + estimate(self.model, beside, *timed, queries=self.settings.queries)))
        self.watch.expect(len(left))

    def _run_left(self) -> list[int]:
        """Lengths of the windows whose separability no earlier call has measured."""
        measured = set(finished_windows(self._run_folder))
        return [window.length for window in self.cut if (window.length, window.index) not in measured]

    @property
    def _run_folder(self) -> Path | None:
        return None if self.parts.folder is None else self.parts.folder / _RUN

    def _planned(self) -> Counter[int]:
        """How many windows of each length will be evaluated, about: how far a search goes depends on the losses."""
        planned: Counter[int] = Counter()
        ways, layers = len(self.settings.ways), len(self.checked.layers)
        for length in self.settings.lengths:
            tried = 1 + ways * self._sizes(length, None).expected(len(self._allowed(None)))
            planned[length] += tried * len(self._windows(length, None))
        for length in self.settings.layer_lengths:
            tried = ways * layers * self._sizes(length, 0).expected(len(self._allowed(0)))
            planned[length] += tried * len(self._windows(length, 0))
        return planned

    def _windows(self, length: int, layer: int | None) -> list[Window]:
        """Of the whole model all. They stand in the order of the text: the first ones would be those of its start."""
        windows = [window for window in self.cut if window.length == length]
        return windows if layer is None else evenly_spaced(windows, self.settings.layer_windows)

    def _sizes(self, length: int, layer: int | None) -> Sizes:
        """Of the whole model on the grid that was asked for, of a layer on the coarse one."""
        return Sizes.of(self.settings.grid if layer is None else COARSE, length + self.checked.sinks)

    def _allowed(self, layer: int | None) -> list[float]:
        layers = 1 if layer is None else len(self.checked.layers)
        return [allowed for tau in self.settings.taus for allowed in allowed_rises(tau, layers)]

    def _on_window(self, window: Window, what: str) -> None:
        self.watch.step(f"length {window.length}, {what}")

    def _share(self, losses: Losses) -> None:
        """In a shared folder every curve is a part: which sizes it tries depends on the losses before."""
        if self.parts.folder is None:
            return
        whole = [(n, way, None) for n in reversed(self.settings.lengths) for way in self.settings.ways]
        layers = range(len(self.checked.layers))
        alone = [
            (n, way, layer)
            for n in reversed(self.settings.layer_lengths)
            for way in self.settings.ways
            for layer in layers
        ]
        curves = {self._unit(_curve_part(*curve)): curve for curve in [*whole, *alone]}
        by_name = {unit.name: curve for unit, curve in curves.items()}

        def make(unit: Unit) -> None:
            length, way, layer = by_name[unit.name]
            baseline = self._unit(losses.baseline_part(length))
            need([baseline], lambda _: losses.baseline(self._windows(length, None)))
            self._curve(losses, length, way, layer)
            self.parts.keep_json(_curve_part(length, way, layer), {"length": length, "way": way, "layer": layer})

        share(list(curves), make)

    def _unit(self, part: str) -> Unit:
        assert self.parts.folder is not None
        return unit_in(self.parts.folder, part, [self.parts.folder / f"{part}{JSON}"])

    def _curves(self, losses: Losses, lengths: Sequence[int], layers: Sequence[int | None]) -> list[Curve]:
        """The longest windows first, so that the time left is rather over- than underestimated."""
        curves = [
            self._curve(losses, length, way, layer)
            for length in reversed(lengths)
            for way in self.settings.ways
            for layer in layers
        ]
        return sorted(curves, key=lambda curve: curve.length)

    def _curve(self, losses: Losses, length: int, way: str, layer: int | None) -> Curve:
        windows = self._windows(length, layer)
        baseline = losses.baseline(windows)

        def losses_with(size: int) -> Tensor:
            return losses.truncated(windows, Truncation(way, size, layer))

        return trace(
            losses_with, baseline, baseline, self._allowed(layer), self._sizes(length, layer), length=length, way=way,
            layer=layer,
        )  # fmt: skip

    def _separability(self, sizes: Sequence[int]) -> Run:
        asked = self.settings.diagnosis(self.model.context, sizes)
        with self.watch.within_a_study():
            return measure_run(self.model, self.text, asked, self._run_folder, self.watch)

    def _manifest(self, run: Run, seconds: float) -> dict[str, Any]:
        facts = manifest_facts(Capacity.study, self.model, self.text, self.settings.as_json()) | {
            "layers": self.checked.layers,
            "sinks": self.checked.sinks,
            "self_check": {"error": self.checked.error, "tokens": self.checked.tokens},
            "windows": run.manifest["windows"],
            "skipped": list(run.manifest["skipped"]),
        }
        return finished_manifest(facts, self.parts, {"total": seconds}, run.manifest["measured_again"])
