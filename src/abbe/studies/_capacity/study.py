"""capacity: how many keys does the model need at every query, and does the geometry of its heads predict it?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Window, Windows, evaluating, swap
from ...results import Run
from ...runs.cost import estimate, plan_memory
from ...runs.folder import claim_folder, finished_windows
from ...runs.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs, windows_for
from ...runs.loss import check_causal, last_targets, next_token_losses
from ...runs.measuring import finished_manifest, manifest_facts, measure_run
from ...runs.study import study
from ...runs.watch import Watch, watching
from ...runs.window import allowed_error, check_tokens
from .._shared.truncation import COARSE, Curve, Sizes, has_sinks, trace
from .findings import findings
from .geometry import common_sizes, correlation_table, sizes_for, with_separability
from .losses import Losses, Truncation
from .result import SUMMARY, Capacity, opened_capacity
from .settings import CapacitySettings, capacity_settings
from .tables import allowed_rises, capacity_rows, capacity_table, curve_table, growth_table

TAUS = (0.01, 0.05)
_RUN = "separability"  # folder of the diagnosis

_Key = tuple[int, str, int | None]  # of a curve: length, way and layer, None for the whole model


@study(Capacity, opened=opened_capacity)
def capacity(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    tau: float | Sequence[float] = TAUS, lengths: int | Sequence[int] | None = None, windows: int = 8,
    way: str | Sequence[str] = ("deletion", "renormalised"), grid: str = "exact", layers: bool = True,
    layer_lengths: int | Sequence[int] | None = None, layer_windows: int = 4, queries: int = 64, targets: str = "all",
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Capacity:  # fmt: skip
    """How many keys per query a model needs to keep its loss, and whether its geometry agrees.

    The least N at which keeping only the N keys of largest weight at every query raises the loss by at most tau.

    A sink counts as a key: it is one of the N if its logit is among the N largest. N* and its two ways are those of
    "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879). A small N* means that few keys do the
    work, a large one that the model reads widely.

    Args:
        model, text: as for `diagnose`.
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
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

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
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    check_causal(loaded, "capacity")
    settings = capacity_settings(
        loaded, lengths=lengths, tau=tau, way=way, windows=windows, layers=layers, layer_lengths=layer_lengths,
        layer_windows=layer_windows, queries=queries, targets=targets, grid=grid, seed=seed, level=level,
        resamples=resamples,
    )  # fmt: skip
    cut = _windows(loaded, source, settings)
    with watching(progress) as watch, evaluating(loaded.network):
        return _Study(loaded, source, settings, cut, watch).run(place)


def _windows(model: LoadedModel, text: Text, settings: CapacitySettings) -> Windows:
    cut = windows_for(model, text, settings.lengths, settings.windows, settings.seed)
    absent = set(settings.lengths) - {window.length for window in cut}
    if absent:
        raise AbbeError(
            f"{text.name} is too short for windows of {max(absent)} tokens: give a longer text, or shorter --lengths"
        )
    return cut


def evenly_spaced(windows: Sequence[Window], count: int) -> list[Window]:
    """The middle one of each of `count` equal parts, in order; all if there are no more."""
    parts = min(count, len(windows))
    return [windows[(2 * part + 1) * len(windows) // (2 * parts)] for part in range(parts)]


def _curve_part(length: int, way: str, layer: int | None) -> str:
    """Marks a curve whose losses are all there."""
    return f"curves/{length}-{way}" + ("" if layer is None else f"-layer{layer}")


class _Study:
    """One study in progress; it starts with a check of the model."""

    def __init__(self, model: LoadedModel, text: Text, settings: CapacitySettings, cut: Windows, watch: Watch) -> None:
        self.model, self.text, self.settings, self.cut, self.watch = model, text, settings, cut, watch
        tokens = self.probe = check_tokens(model, cut)
        lengths = [window.length for window in cut]
        plan_memory(model, lengths, len(tokens), watch.say, queries=settings.queries, losses=True)
        with swap(model, "topk:k=8") as swapped:
            try:
                self.error = swapped.check(input_ids=tokens[None].to(model.device))
            except AbbeError as wrong:
                raise AbbeError(f"{model.name}: {wrong}") from None
            next_token_losses(model, tokens)  # loads kernels
            started = time.perf_counter()
            next_token_losses(model, tokens)
            self.pass_seconds = time.perf_counter() - started
            self.sinks, self.layers = has_sinks(model, swapped, tokens), swapped.layers
        watch.say_checked(model.name, self.error, allowed_error(model))

    def run(self, place: Path | None) -> Capacity:
        facts = self.settings.as_json()
        self.parts = claim_folder(place, Capacity.study, self.model, self.text, facts, self.watch.announce)
        started, layers = time.perf_counter(), len(self.layers)
        losses = Losses(self.model, self.parts, self.watch.step, last_targets(self.settings.targets))
        self._say_cost(losses.kept_lengths())
        # A curve is a part: which sizes it tries depends on the losses before.
        names = {_curve_part(*key): key for key in self._keys()}

        def make(name: str) -> None:
            length, way, layer = names[name]
            self._curve(losses, length, way, layer)
            self.parts.keep_json(name, {"length": length, "way": way, "layer": layer})

        self.parts.each(names, make)
        curves = [self._curve(losses, *key) for key in names.values()]
        curves.sort(key=lambda curve: (curve.layer is not None, curve.length))
        rows = capacity_rows(curves, layers, self.settings)
        run = self._separability(sizes_for(rows))
        measured = list(enumerate(run.manifest["layers"]))  # a module that is called several times is several layers
        numbers = [{number for number, name in measured if name == path} for path in self.layers]
        rows = with_separability(rows, run, numbers, common_sizes(rows, self.settings))
        table, growth = capacity_table(rows), growth_table(curves, layers, self.settings)
        correlation = correlation_table(rows, self.settings)
        return Capacity(
            table=table, curve=curve_table(curves, self.settings), growth=growth, correlation=correlation,
            findings=findings(table, growth, correlation, self.settings),
            manifest=self._manifest(run, time.perf_counter() - started),
        )  # fmt: skip

    def _keys(self) -> list[_Key]:
        """Of all curves. The longest windows come first, so that the time left is over- rather than underestimated."""
        whole: list[int | None] = [None]
        plan = (self.settings.lengths, whole), (self.settings.layer_lengths, range(len(self.layers)))
        return [
            (length, way, layer)
            for lengths, layers in plan
            for length in reversed(lengths)
            for way in self.settings.ways
            for layer in layers
        ]

    def _say_cost(self, kept: Counter[int]) -> None:
        """Of the remaining work; a finished study has left a summary along with its losses."""
        if kept.total() and self.parts.folder is not None and (self.parts.folder / SUMMARY).is_file():
            self.watch.say("all windows were measured before")
            return
        left, timed = list((self._planned() - kept).elements()), (len(self.probe), self.pass_seconds)
        diagnosed = set(finished_windows(self._run_folder))
        to_diagnose = [window.length for window in self.cut if (window.length, window.index) not in diagnosed]
        losses = estimate(self.model, left, *timed, 1.0, losses=True)
        self.watch.say(str(losses + estimate(self.model, to_diagnose, *timed, queries=self.settings.queries)))
        self.watch.expect(len(left))

    @property
    def _run_folder(self) -> Path | None:
        return None if self.parts.folder is None else self.parts.folder / _RUN

    def _planned(self) -> Counter[int]:
        """About how many windows of each length will be evaluated: how far a search goes depends on the losses."""
        planned = Counter(window.length for window in self.cut)  # the baseline
        for length, _, layer in self._keys():
            tried = self._sizes(length, layer).expected(len(self._allowed(layer)))
            planned[length] += tried * len(self._windows(length, layer))
        return planned

    def _windows(self, length: int, layer: int | None) -> list[Window]:
        """All for the whole model. They are in the order of the text, so the first few would only cover its start."""
        windows = [window for window in self.cut if window.length == length]
        return windows if layer is None else evenly_spaced(windows, self.settings.layer_windows)

    def _sizes(self, length: int, layer: int | None) -> Sizes:
        """On the chosen grid for the whole model, on the coarse one for a layer."""
        return Sizes.of(self.settings.grid if layer is None else COARSE, length + self.sinks)

    def _allowed(self, layer: int | None) -> list[float]:
        return [rise for tau in self.settings.taus for rise in allowed_rises(tau, layer, len(self.layers))]

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
        settings = self.settings.diagnosis(self.model.context, sizes)
        with self.watch.within_a_study():
            return measure_run(self.model, self.text, settings, self._run_folder, self.watch)

    def _manifest(self, run: Run, seconds: float) -> dict[str, Any]:
        facts = manifest_facts(Capacity.study, self.model, self.text, self.settings.as_json()) | {
            "layers": self.layers,
            "sinks": self.sinks,
            "self_check": {"error": self.error, "tokens": len(self.probe)},
            "windows": run.manifest["windows"],
            "skipped": list(run.manifest["skipped"]),
        }
        return finished_manifest(facts, self.parts, {"total": seconds}, run.manifest["measured_again"])
