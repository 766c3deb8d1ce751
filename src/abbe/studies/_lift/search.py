"""The search on training and validation text: scan, nested plans, rounds of tuning, one plan chosen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...models import AttentionCall, LoadedModel, Window, swap
from ...normalizers import Normalizer, normalizer
from ...results import finite, tables_from
from ...runs.loss import window_losses
from ...runs.parts import Parts
from ...runs.watch import Watch
from .._shared.estimates import mean
from .._shared.prompts import Haystack, PassKey, answers
from .._shared.swapped import SwapReading, spread
from .result import PLANS_SCHEMA, SCAN_SCHEMA
from .rule import relative_rise
from .schedule import LEARNING, PLANS, SCAN, Schedule
from .settings import CONTROL_SPEC, LOSS, RETRIEVAL, LiftSettings
from .tuning import Fits, Heads, Plan, SlopeLearner, Tuner, learns, round_ends, spans

_MEANS = ("zeros", "active", "effective_tokens")
_LEAST_GAIN = 1e-6  # below, harm over gain would be noise over noise
_MARGIN = 0.5  # of the allowed loss: the upper end on the validation text should stay below
_SLACKS = (16.0, 4.0)  # of the allowed loss, before the first and before the second round of tuning
_FINAL = 2  # plans in the last round
_TIME = {LEARNING: "the time for learning", SCAN: "the time for the scan", PLANS: "time"}
_CONTROL_NUMBER, _HEADS_NUMBER, _LEARNED_NUMBER = 1000, 2000, 3000  # added to the number of a plan
TEMPERATURES = (0.7, 0.8, 0.9, 1.1)

What = str | Mapping[str, str | Normalizer]
Layers = tuple[int, ...]


class Records:
    """Finished parts by name; `spent` sums the seconds that they took, in earlier calls too."""

    def __init__(self, parts: Parts, watch: Watch) -> None:
        self.parts, self._watch = parts, watch
        self.spent = 0.0

    def get(self, name: str) -> dict[str, Any] | None:
        return self.parts.json(f"parts/{name}")

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        self.parts.keep_json(f"parts/{name}", content)

    def get_or_make(
        self, name: str, make: Callable[[], Mapping[str, Any]], step: str = "", steps: int = 0
    ) -> dict[str, Any]:
        """The record of an earlier call, for which the progress bar moves by `steps`, or what `make` returns."""
        content = self.get(name)
        if content is None:
            started = time.perf_counter()
            content = finite(dict(make()) | {"seconds": 0.0})
            content["seconds"] = time.perf_counter() - started
            self.keep(name, content)
        else:
            for _ in range(steps):
                self._watch.step(step)
        self.spent += content["seconds"]
        return content


class SparsityReader(SwapReading[Tensor]):
    """Adds to the loss of a window the means over all queries of all heads."""

    def _note(
        self, call: AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        visible = call.logits(positions)[0] > -torch.inf
        weights = weights_of(positions).float()
        keys = visible.sum(-1).clamp(min=1).float()
        zeros = ((weights == 0) & visible).sum(-1) / keys
        squares = weights.square().sum(-1)
        effective = weights.sum(-1).square() / torch.where(squares > 0, squares, torch.nan)
        columns = (zeros, (weights > 0).sum(-1).float(), effective)
        return torch.stack([column.nanmean(-1) for column in columns], -1).cpu()

    def _means(self, noted: Sequence[Tensor]) -> dict[str, float]:
        means = torch.cat(list(noted)).nanmean(0).tolist()  # every head of every layer counts the same
        return dict(zip(_MEANS, means, strict=True))


# -- From the scan to plans: nested sets of layers, in the order of harm per gain --------------------------------------


@dataclass(frozen=True)
class Cell:
    """One candidate in a single group of layers."""

    layers: Layers
    spec: str
    harm: float  # relative rise of the loss
    gain: float  # what the goal wants more of, per layer


@dataclass(frozen=True)
class Tried:
    """A plan with its numbers on the validation text.

    The rise of the loss is that over the baseline or over its control, whichever is larger; if the goal is the loss,
    over the baseline.
    """

    name: str
    recipe: tuple[tuple[int, str], ...]
    steps: int
    rise: float
    rise_high: float  # upper end of the interval
    gain: float


def layer_groups(layers: int, most: int) -> list[Layers]:
    """At most so many groups of neighbouring layers, as equal in size as possible."""
    count = min(layers, most)
    edges = [round(place * layers / count) for place in range(count + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(edges)]


def price(cell: Cell, goal: str) -> float:
    """Harm per gain, the cheapest first; if the goal is the loss, only the harm."""
    if goal == LOSS:
        return cell.harm
    if cell.gain <= _LEAST_GAIN:
        return math.inf
    # A harm below 0 is luck of the windows or a true gain; dividing it would put the smallest gains first.
    return cell.harm / cell.gain if cell.harm > 0 else cell.harm * cell.gain


def nested_recipes(cells: Sequence[Cell], goal: str) -> list[dict[int, str]]:
    """For each candidate the cheapest group, the cheapest two, ...; then the same with each group's best candidate."""
    specs = list(dict.fromkeys(cell.spec for cell in cells))
    rows = [[cell for cell in cells if cell.spec == spec] for spec in specs]
    if len(specs) > 1:
        by_group: dict[Layers, list[Cell]] = {}
        for cell in cells:
            by_group.setdefault(cell.layers, []).append(cell)
        rows.append([min(some, key=lambda cell: price(cell, goal)) for some in by_group.values()])
    recipes: list[dict[int, str]] = []
    for row in rows:
        recipe: dict[int, str] = {}
        for cell in sorted(row, key=lambda one: (price(one, goal), one.layers)):
            if math.isinf(price(cell, goal)):
                break
            recipe = recipe | dict.fromkeys(cell.layers, cell.spec)
            if recipe not in recipes:
                recipes.append(recipe)
    return recipes


def thinned(recipes: Sequence[dict[int, str]], most: int) -> list[dict[int, str]]:
    """At most so many, evenly over the list: every candidate keeps small and large sets."""
    if len(recipes) <= most:
        return list(recipes)
    return [recipes[round((place + 0.5) * len(recipes) / most - 0.5)] for place in range(most)]


def for_next_round(tried: Sequence[Tried], count: int, settings: LiftSettings, slack: float) -> list[Tried]:
    """So many plans for the next round.

    Tuning regains part of the loss, and nobody knows beforehand how much. So there is a ladder of allowed rises, from
    the final limit to `slack` times that limit, and each rung sends the plan of largest gain.
    """
    if settings.goal == LOSS:
        return _lowest(tried, count)
    chosen: list[Tried] = []
    for rung in range(count):
        allowed = settings.max_loss * slack ** (rung / max(1, count - 1))
        left = [one for one in tried if one not in chosen]
        affordable = [one for one in left if one.rise <= allowed]
        if affordable:
            chosen.append(max(affordable, key=lambda one: (one.gain, -one.rise)))
        elif left:
            chosen.append(min(left, key=lambda one: (one.rise, one.name)))
    return chosen


def _lowest(tried: Sequence[Tried], count: int) -> list[Tried]:
    """Those of least loss; before the first tuning, half of them with the most layers, where there is most to tune."""
    lowest = sorted(tried, key=lambda one: (one.rise, one.name))
    if any(one.steps for one in tried):
        return lowest[:count]
    largest = sorted(tried, key=lambda one: (-len(one.recipe), one.rise, one.name))[: count - count // 2]
    return [*largest, *(one for one in lowest if one not in largest)][:count]


def best(tried: Sequence[Tried], settings: LiftSettings) -> Tried:
    """The plan to judge: the largest gain within the allowed loss, else the least loss."""
    if settings.goal == LOSS:
        return min(tried, key=lambda one: (one.rise, one.name))
    gaining = [one for one in tried if one.gain > 0 and one.rise <= settings.max_loss]
    # The best of many looks better than it is: a plan at the very edge would not hold on other text.
    for allowed in (_MARGIN * settings.max_loss, settings.max_loss, math.inf):
        if affordable := [one for one in gaining if one.rise_high <= allowed]:
            return max(affordable, key=lambda one: (one.gain, -one.rise))
    return min(tried, key=lambda one: (one.rise, one.name))


# -- The search -------------------------------------------------------------------------------------------------------


class Search:
    """Measures on training and validation text; knows nothing of the test text."""

    def __init__(
        self, model: LoadedModel, settings: LiftSettings, fits: Fits, schedule: Schedule, records: Records,
        watch: Watch, *, training: Sequence[Window], validation: Sequence[Window], training_keys: Sequence[PassKey],
        validation_keys: Sequence[PassKey], haystacks: Sequence[Haystack], reserves: Mapping[str, float],
    ) -> None:  # fmt: skip
        self.model, self.settings, self.fits, self.schedule, self.records = model, settings, fits, schedule, records
        self.watch, self.validation = watch, validation
        self.training_keys, self.validation_keys = training_keys, validation_keys
        self._reserves = reserves  # seconds that each stage leaves to the later ones
        self.cut: list[str] = []
        self.scan: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self._tuner = Tuner(model, fits, schedule.steps, records.parts, watch, training)
        self._controls: dict[frozenset[int], Plan] = {}  # by layers: softmax there, to be tuned like a plan
        self._haystacks = haystacks
        self._learner = SlopeLearner(model, fits, records.parts, watch, haystacks, max(settings.lengths, default=0))

    def run(self) -> tuple[Tried, Plan]:
        """The plan to judge, with its numbers so far."""
        self._baseline = self._measure_baseline()
        learned = self._learned_plans()
        cells = self._scan(may_be_empty=bool(learned))
        recipes = thinned(nested_recipes(cells, self.settings.goal), self.schedule.plans)
        if not recipes and not learned:  # nothing gains anything: the least harmful cell stands for all
            least = min(
                self.scan, key=lambda row: (math.inf if row["harm"] is None else row["harm"], row["normalizer"])
            )
            recipes = [dict.fromkeys(range(least["first"], least["last"] + 1), least["normalizer"])]
        scanned = [Plan(number, recipe) for number, recipe in enumerate(recipes)]
        for plan in scanned:  # plans of the same layers share a control
            softmax = Plan(_CONTROL_NUMBER + plan.number, dict.fromkeys(plan.recipe, CONTROL_SPEC))
            self._controls.setdefault(frozenset(plan.recipe), softmax)
        plans = {plan.name: plan for plan in (*scanned, *(plan for plan, _ in learned))}
        # One plan is always measured, however little time there is.
        always = scanned[0] if scanned and not learned else None
        tried = [self._try(plan, 0) for plan in scanned if plan is always or not self._is_cut(plan, 0)]
        rounds = [steps for steps in (self.schedule.steps // 2, self.schedule.steps) if steps]
        last = tried
        for steps, slack, count in zip(rounds, _SLACKS, (self.schedule.tuned, _FINAL), strict=False):
            chosen = [plans[one.name] for one in for_next_round(last, count, self.settings, slack)]
            last = [self._try(plan, steps) for plan in chosen if not self._is_cut(plan, steps)] or last
            tried += [one for one in last if one.steps == steps]
        tried += [one for _, one in learned]
        if self.settings.goal == RETRIEVAL and (refined := self._without_heads(plans[best(tried, self.settings).name])):
            plans[refined.name] = refined
            tried.append(self._try(refined, 0))
        winner = best(tried, self.settings)
        for row in self.plans:
            row["chosen"] = (row["plan"], row["steps"]) == (winner.name, winner.steps)
        return winner, plans[winner.name]

    def _learned_plans(self) -> list[tuple[Plan, Tried]]:
        """Candidates with free parameters, learned for all layers and heads at once and measured after each round."""
        measured: list[tuple[Plan, Tried]] = []
        if self.settings.goal != RETRIEVAL or not self._haystacks:
            return measured
        learning = [spec for spec in self.settings.candidates if learns(spec)]
        for number, spec in enumerate(learning):
            plan = Plan(_LEARNED_NUMBER + number, dict.fromkeys(range(len(self.fits.layers)), spec))
            for steps in round_ends(self.settings.steps):
                what = f"{plan.name} with {steps} steps of learning"
                if measured and self._time_is_up(_part(plan, steps), what, LEARNING):
                    break
                measured.append((plan, self._try(plan, steps)))
        return measured

    def _without_heads(self, plan: Plan) -> Plan | None:
        """The plan without the heads that make the pass keys of the training text harder to find.

        A learned plan has its own parameter for each head, so nothing is left out of it.
        """
        if plan.number >= _LEARNED_NUMBER:
            return None
        helping: dict[int, tuple[int, ...]] = {}
        whole = self._head_keys(plan, "all", {})
        for layer in sorted(plan.recipe):
            heads = tuple(range(self.fits.heads[layer]))
            helping[layer] = ()
            for head in heads:
                if self._time_is_up(f"head-{plan.number}-{layer}-{head}", f"head {head} of layer {layer} alone"):
                    return None
                others = tuple(other for other in heads if other != head)
                without = self._head_keys(plan, f"{layer}-{head}", {layer: others}) if others else -math.inf
                helping[layer] += (head,) if without <= whole else ()
        if all(len(heads) == self.fits.heads[layer] for layer, heads in helping.items()):
            return None
        recipe = {layer: spec for layer, spec in plan.recipe.items() if helping[layer]}
        heads_left = {layer: helping[layer] for layer in recipe}
        return Plan(_HEADS_NUMBER + plan.number, recipe, heads_left) if recipe else None

    def _head_keys(self, plan: Plan, which: str, heads: Heads) -> float:
        """Mean log-probability of the pass keys for training, with only these heads of one layer swapped."""

        def make() -> dict[str, Any]:
            with swap(self.model, self.fits.normalizers(plan.recipe, heads)):
                return {"keys": self._log_probabilities(self.training_keys)}

        record = self.records.get_or_make(f"head-{plan.number}-{which}", make)
        self.watch.step(f"heads of {plan.name}")
        return mean(record["keys"])

    # -- The scan -----------------------------------------------------------------------------------------------------

    def _measure_baseline(self) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            losses = window_losses(self.model, self.validation, lambda _: self.watch.step("baseline")).tolist()
            return {"loss": losses, "training_keys": self._log_probabilities(self.training_keys),
                    "keys": self._log_probabilities(self.validation_keys)}  # fmt: skip

        return self.records.get_or_make("baseline", make, "baseline", len(self.validation))

    def _log_probabilities(self, prompts: Sequence[PassKey]) -> list[float]:
        return answers(self.model, prompts)[0] if prompts else []

    def _scan(self, may_be_empty: bool) -> list[Cell]:
        groups = layer_groups(len(self.fits.layers), self.schedule.groups)
        windows = spread(self.validation, self.schedule.scan_windows)
        before = [self._baseline["loss"][self.validation.index(window)] for window in windows]
        cells: list[Cell] = []
        for number, spec in enumerate(self.settings.candidates):
            if self.settings.goal == RETRIEVAL and learns(spec):
                continue
            for place, layers in enumerate(groups):
                name, what = f"scan-{number}-{place}", f"{spec} in layers {spans(layers)} was scanned, and what follows"
                if (cells or may_be_empty) and self._time_is_up(name, what, SCAN):
                    return cells
                record = self._scan_record(name, spec, layers, windows)
                cells.append(self._cell(spec, layers, record, before))
        return cells

    def _scan_record(self, name: str, spec: str, layers: Layers, windows: Sequence[Window]) -> dict[str, Any]:
        step = f"scan: {spec} in layers {spans(layers)}"

        def make() -> dict[str, Any]:
            with swap(self.model, self.fits.normalizers(dict.fromkeys(layers, spec))):
                losses = window_losses(self.model, windows, lambda _: self.watch.step(step)).tolist()
                return {"loss": losses, "keys": self._log_probabilities(self.training_keys)}

        return self.records.get_or_make(name, make, step, len(windows))

    def _cell(self, spec: str, layers: Layers, record: Mapping[str, Any], before: Sequence[float]) -> Cell:
        rise = relative_rise(record["loss"], before, self.settings)
        facts = [self.fits.facts[layer, spec] for layer in layers]
        names = ("zeros", "effective", "effective_baseline", "sensitivity", "error")
        zeros, effective, baseline, sensitive, error = (mean([getattr(one, name) for one in facts]) for name in names)
        gain = zeros
        if self.settings.goal == RETRIEVAL:
            gain = mean(record["keys"]) - mean(self._baseline["training_keys"])
        elif self.settings.goal == LOSS:
            gain = -rise.value
        harm = rise.value if math.isfinite(rise.value) else math.inf
        self.scan.append(
            {"layers": spans(layers), "first": layers[0], "last": layers[-1], "normalizer": spec}
            | rise.columns("harm")
            | {"gain": gain, "zeros": zeros, "effective_tokens": effective, "effective_tokens_baseline": baseline,
               "sensitivity_ratio": sensitive, "output_error": error}
        )  # fmt: skip
        return Cell(layers, spec, harm, gain)

    # -- Plans --------------------------------------------------------------------------------------------------------

    def _is_cut(self, plan: Plan, steps: int) -> bool:
        return self._time_is_up(_part(plan, steps), f"{plan.name} with {steps} steps of tuning")

    def _time_is_up(self, part: str, what: str, stage: str = PLANS) -> bool:
        """Whether too little time is left for a part; a cut is stored, so that a repeated run makes the same one."""
        if self.settings.budget is None or self.records.get(part) is not None:
            return False
        cut = f"cut-{stage}"
        if self.records.get(cut) is None:
            if self.records.spent + self._reserves[stage] <= self.settings.budget:
                return False
            self.records.keep(cut, {"before": part, "spent": self.records.spent})
        self.cut.append(f"{_TIME[stage]} was up before {what}")
        return True

    def _try(self, plan: Plan, steps: int) -> Tried:
        name, half = plan.name, self.schedule.steps // 2

        def make() -> dict[str, Any]:
            with swap(self.model, self.normalizers(plan, steps)) as running:
                reader = SparsityReader(self.model, running, self.settings.reading())
                read = reader.read_all(self.validation, lambda: self.watch.step(name))
                return read | {"keys": self._log_probabilities(self.validation_keys)}

        tuned = steps - (half if steps > half else 0)  # in this round alone
        record = self.records.get_or_make(_part(plan, steps), make, name, len(self.validation) + tuned)
        rise = relative_rise(record["loss"], self._baseline["loss"], self.settings)
        means = {key: mean(record[key]) for key in ("loss", "zeros", "active", "effective_tokens")}
        gain = means["zeros"]
        if self.settings.goal == RETRIEVAL:
            gain = mean(record["keys"]) - mean(self._baseline["keys"])
        elif self.settings.goal == LOSS:
            gain = -rise.value
        rises = {"rise": rise}
        if steps and (control := self._control_of(plan)):  # without tuning, the control is the baseline
            rises["control_rise"] = relative_rise(record["loss"], self._control_losses(control, steps), self.settings)
        self.plans.append(
            {"plan": name, "layers": len(plan.recipe), "steps": steps, "gain": gain, "chosen": False} | means
        )
        for column, estimate in rises.items():
            self.plans[-1] |= estimate.columns(column)
        # For the lowest loss, over the baseline alone: softmax itself has no control, and would always come first.
        over = [rise] if self.settings.goal == LOSS else rises.values()
        worst = max(rise.value if math.isfinite(rise.value) else math.inf for rise in over)
        high = max(math.inf if rise.high is None else rise.high for rise in over)
        return Tried(name, tuple(sorted(plan.recipe.items())), steps, worst, high, gain)

    def _control_of(self, plan: Plan) -> Plan | None:
        """Softmax in the same layers; None if the plan is softmax, and for retrieval, whose control is no plan."""
        plain = all(normalizer(spec).name == CONTROL_SPEC for spec in plan.recipe.values())
        return None if plain or self.settings.goal == RETRIEVAL else self._controls[frozenset(plan.recipe)]

    def _control_losses(self, control: Plan, steps: int) -> list[float | None]:
        name = f"{control.name}, tuned the same way"

        def make() -> dict[str, Any]:
            with swap(self.model, self.normalizers(control, steps)):
                return {"loss": window_losses(self.model, self.validation, lambda _: self.watch.step(name)).tolist()}

        losses: list[float | None] = self.records.get_or_make(_part(control, steps), make, name, len(self.validation))[
            "loss"
        ]
        return losses

    def normalizers(self, plan: Plan, steps: int) -> dict[str, str | Normalizer]:
        """Fitted, then tuned, or learned from pass keys, for so many steps."""
        if plan.number >= _LEARNED_NUMBER:
            ends = round_ends(self.settings.steps)
            return self._learner.normalizers(plan, ends[: ends.index(steps) + 1])
        return self._tuner.normalizers(plan, steps)

    def control(self, winner: Tried, plan: Plan) -> What | None:
        """Softmax, tuned the same way, for `swap`; None if the plan is just that.

        For retrieval it is one temperature for all layers, the best on the prompts that the plan was chosen on.
        """
        if self.settings.goal != RETRIEVAL:
            softmax = self._control_of(plan)
            return None if softmax is None else self.normalizers(softmax, winner.steps)
        specs = set(plan.recipe.values())
        plain = all(normalizer(spec).name == CONTROL_SPEC for spec in specs)
        if plain and len(specs) == 1 and len(plan.recipe) == len(self.fits.layers):
            return None
        means: dict[str, float] = {}
        for number, temperature in enumerate(TEMPERATURES):
            spec = f"{CONTROL_SPEC}:temperature={temperature}"

            def make(spec: str = spec) -> dict[str, Any]:
                with swap(self.model, spec):
                    return {"keys": self._log_probabilities(self.validation_keys)}

            means[spec] = mean(self.records.get_or_make(f"control-{number}", make)["keys"])
        return max(means, key=lambda spec: means[spec])

    def tables(self) -> dict[str, pl.DataFrame]:
        """The scan, and every plan that was measured."""
        rows = {"scan": finite(self.scan), "plans": finite(self.plans)}
        return tables_from(rows, {"scan": SCAN_SCHEMA, "plans": PLANS_SCHEMA})


def _part(plan: Plan, steps: int) -> str:
    return f"plan-{plan.number}-{steps}"
