"""The search on training and validation text: scan, nested plans, rounds of tuning, one plan chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...models import AttentionCall, LoadedModel, Swap, Window, swap
from ...results import finite
from ...runs.loss import window_losses
from .._shared.estimates import mean
from .._shared.prompts import PassKey, answers
from .._shared.swapped import Reader, spread
from . import fits
from .fits import Fits, Heads, Plan, Tuner, What, Work, learns, round_ends, spans
from .result import Lift
from .rules import CONTROL_SPEC, LOSS, RETRIEVAL, LiftSettings, relative_rise

HAYSTACKS = 4  # each with a question for every sentence in it
TEMPERATURES = (0.7, 0.8, 0.9, 1.1)  # of the control of retrieval
MEANS = ("zeros", "active", "effective_tokens")
_LEAST_GAIN = 1e-6  # below, harm over gain would be noise over noise
_MARGIN = 0.5  # of the allowed loss: the upper end on the validation text should stay below
_SLACKS = (16.0, 4.0)  # of the allowed loss, before the first and before the second round of tuning
_FINAL = 2  # plans in the last round
_TIME = {fits.LEARNING: "the time for learning", fits.SCAN: "the time for the scan", fits.PLANS: "time"}

Layers = tuple[int, ...]


def sparsity_reader(model: LoadedModel, swapped: Swap, settings: LiftSettings) -> Reader:
    """Adds to the loss of a window the means over all queries of all heads."""

    def note(call: AttentionCall, _: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]) -> Tensor:
        visible, weights = call.logits(positions)[0] > -torch.inf, weights_of(positions).float()
        zeros = ((weights == 0) & visible).sum(-1) / visible.sum(-1).clamp(min=1).float()
        squares = weights.square().sum(-1)
        effective = weights.sum(-1).square() / torch.where(squares > 0, squares, torch.nan)
        columns = (zeros, (weights > 0).sum(-1).float(), effective)
        return torch.stack([column.nanmean(-1) for column in columns], -1).cpu()

    def means(noted: Sequence[Tensor]) -> dict[str, float]:
        # Every head of every layer counts the same.
        return dict(zip(MEANS, torch.cat(list(noted)).nanmean(0).tolist(), strict=True))

    return Reader(model, swapped, settings.reading(), note, means)


# -- Plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """A plan with its numbers on the validation text.

    The rise of the loss is that over the baseline or over its control, whichever is larger; if the goal is the loss,
    over the baseline.
    """

    plan: Plan
    steps: int
    rise: float
    rise_high: float  # upper end of the interval
    gain: float

    @property
    def order(self) -> tuple[float, str]:
        """The least loss first."""
        return self.rise, self.plan.name


def layer_groups(layers: int, most: int) -> list[Layers]:
    """At most this many groups of neighbouring layers, as equal in size as possible."""
    count = min(layers, most)
    edges = [round(place * layers / count) for place in range(count + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(edges)]


def price(cell: Mapping[str, Any], goal: str) -> float:
    """Harm per gain of a row of the scan, the cheapest first; if the goal is the loss, only the harm."""
    gain: float = cell["gain"]
    harm: float = math.inf if cell["harm"] is None else cell["harm"]
    if goal == LOSS:
        return harm
    if gain <= _LEAST_GAIN:
        return math.inf
    # A harm below 0 is luck of the windows or a true gain; dividing it would put the smallest gains first.
    return harm / gain if harm > 0 else harm * gain


def nested_recipes(scan: Sequence[Mapping[str, Any]], goal: str) -> list[dict[int, str]]:
    """Each candidate in the cheapest group, the cheapest two, ...; then the same with each group's best candidate."""
    by_spec, by_group = (
        [[cell for cell in scan if cell[key] == value] for value in dict.fromkeys(cell[key] for cell in scan)]
        for key in ("normalizer", "first")
    )
    mixed = [min(cells, key=lambda cell: price(cell, goal)) for cells in by_group]
    recipes: list[dict[int, str]] = []
    for cells in (*by_spec, mixed):
        recipe: dict[int, str] = {}
        for cell in sorted(cells, key=lambda cell: (price(cell, goal), cell["first"])):
            if math.isinf(price(cell, goal)):
                break
            recipe = recipe | _recipe(cell)
            if recipe not in recipes:
                recipes.append(recipe)
    return recipes


def _recipe(cell: Mapping[str, Any]) -> dict[int, str]:
    return dict.fromkeys(range(cell["first"], cell["last"] + 1), cell["normalizer"])


def thinned(recipes: Sequence[dict[int, str]], most: int) -> list[dict[int, str]]:
    """At most this many, evenly over the list: every candidate keeps small and large sets."""
    if len(recipes) <= most:
        return list(recipes)
    return [recipes[round((place + 0.5) * len(recipes) / most - 0.5)] for place in range(most)]


def for_next_round(tried: Sequence[Tried], count: int, settings: LiftSettings, slack: float) -> list[Tried]:
    """This many plans for the next round.

    Tuning regains part of the loss, and nobody knows beforehand how much. So there is a ladder of allowed rises, from
    the final limit to `slack` times that limit, and each rung sends the plan of largest gain.
    """
    lowest = sorted(tried, key=lambda each: each.order)
    if settings.goal == LOSS:
        if any(each.steps for each in tried):
            return lowest[:count]
        # Before the first tuning, half of them with the most layers, where there is most to tune.
        largest = sorted(lowest, key=lambda each: -len(each.plan.recipe))[: count - count // 2]
        return [*largest, *(each for each in lowest if each not in largest)][:count]
    chosen: list[Tried] = []
    for rung in range(count):
        allowed = settings.max_loss * slack ** (rung / max(1, count - 1))
        left = [each for each in tried if each not in chosen]
        affordable = [each for each in left if each.rise <= allowed]
        if affordable:
            chosen.append(max(affordable, key=lambda each: (each.gain, -each.rise)))
        elif left:
            chosen.append(min(left, key=lambda each: each.order))
    return chosen


def best(tried: Sequence[Tried], settings: LiftSettings) -> Tried:
    """The plan to test: the largest gain within the allowed loss, else the least loss."""
    gaining = [each for each in tried if each.gain > 0 and each.rise <= settings.max_loss]
    # The best of many looks better than it is: a plan at the very edge would not hold on other text.
    for allowed in () if settings.goal == LOSS else (_MARGIN * settings.max_loss, settings.max_loss, math.inf):
        if affordable := [each for each in gaining if each.rise_high <= allowed]:
            return max(affordable, key=lambda each: (each.gain, -each.rise))
    return min(tried, key=lambda each: each.order)


# -- The search -------------------------------------------------------------------------------------------------------


class Search:
    """Measures on training and validation text; knows nothing of the test text."""

    def __init__(self, work: Work, fitted: Fits, schedule: Any, reserves: Mapping[str, float]) -> None:
        """`reserves` are the seconds that each stage leaves to the later ones."""
        self.work, self.settings, self.fits, self.schedule = work, work.settings, fitted, schedule
        self._reserves = reserves
        self.cut: list[str] = []
        self.scan: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.tuner = Tuner(work, fitted, schedule.steps)
        self._controls: dict[frozenset[int], Plan] = {}  # by layers: softmax there, to be tuned like a plan

    def run(self) -> Tried:
        """The plan to test, with its numbers so far."""
        read = self.work
        self._baseline = self._losses("baseline", None, read.validation, read.validation_keys, fits.BASELINE_STAGE)
        self._training_keys = self._mean_key("baseline-keys", None, read.training_keys)
        self.work.stages.end(fits.BASELINE_STAGE)
        learned = self._learned_plans()
        self._scan(may_be_empty=bool(learned))
        self.work.stages.end(fits.SCAN)
        recipes = thinned(nested_recipes(self.scan, self.settings.goal), self.schedule.plans)
        if not recipes and not learned:  # nothing gains anything: the least harmful cell stands for all
            recipes = [_recipe(min(self.scan, key=lambda cell: (price(cell, LOSS), cell["normalizer"])))]
        scanned = [Plan(number, recipe) for number, recipe in enumerate(recipes)]
        for each in scanned:  # plans of the same layers share a control
            softmax = Plan(fits.CONTROL_NUMBER + each.number, dict.fromkeys(each.recipe, CONTROL_SPEC))
            self._controls.setdefault(frozenset(each.recipe), softmax)
        # One plan is always measured, however little time there is.
        always = scanned[0] if scanned and not learned else None
        last = [self._try(each, 0) for each in scanned if each is always or not self._is_cut(each, 0)]
        tried = [*last]
        rounds = [steps for steps in (self.schedule.steps // 2, self.schedule.steps) if steps]
        for steps, slack, count in zip(rounds, _SLACKS, (self.schedule.tuned, _FINAL), strict=False):
            chosen = [each.plan for each in for_next_round(last, count, self.settings, slack)]
            tuned = [self._try(each, steps) for each in chosen if not self._is_cut(each, steps)]
            tried, last = tried + tuned, tuned or last
        self.work.stages.end(fits.PLANS)
        tried += learned
        if self.settings.goal == RETRIEVAL and (refined := self._without_heads(best(tried, self.settings).plan)):
            tried.append(self._try(refined, 0))
        self.work.stages.end(fits.HEADS)
        winner = best(tried, self.settings)
        for row in self.plans:
            row["chosen"] = (row["plan"], row["steps"]) == (winner.plan.name, winner.steps)
        return winner

    def tables(self) -> dict[str, pl.DataFrame]:
        """The scan, and every plan that was measured."""
        return {name: Lift.frame(name).of(finite(rows)) for name, rows in (("scan", self.scan), ("plans", self.plans))}

    def control(self, winner: Tried) -> What | None:
        """Softmax, tuned the same way, for `swap`; None if the plan is just that.

        For retrieval it is one temperature for all layers, the best on the prompts that the plan was chosen on.
        """
        chosen = winner.plan
        if self.settings.goal != RETRIEVAL:
            softmax = self._control_of(chosen)
            return None if softmax is None else self.tuner.normalizers(softmax, winner.steps)
        alone = len(set(chosen.recipe.values())) == 1 and len(chosen.recipe) == len(self.fits.layers)
        if chosen.is_softmax and alone:
            return None
        specs = [f"{CONTROL_SPEC}:temperature={temperature}" for temperature in TEMPERATURES]
        keys = self.work.validation_keys
        means = {spec: self._mean_key(f"control-{number}", spec, keys) for number, spec in enumerate(specs)}
        return max(means, key=lambda spec: means[spec])

    def _learned_plans(self) -> list[Tried]:
        """Candidates with free parameters, learned for all layers and heads at once and measured after each round."""
        measured: list[Tried] = []
        specs = self.settings.candidates if self.settings.goal == RETRIEVAL and self.work.haystacks else ()
        for number, spec in enumerate(filter(learns, specs)):
            each = Plan(fits.LEARNED_NUMBER + number, dict.fromkeys(range(len(self.fits.layers)), spec))
            for steps in round_ends(self.settings.steps):
                what = f"{each.name} with {steps} steps of learning"
                if measured and self._time_is_up(each.part(steps), what, fits.LEARNING):
                    break
                measured.append(self._try(each, steps))
        self.work.stages.end(fits.LEARNING)
        return measured

    def _without_heads(self, chosen: Plan) -> Plan | None:
        """The plan without the heads that make the pass keys of the training text harder to find.

        A learned plan has its own parameter for each head, so nothing is left out of it.
        """
        if chosen.is_learned:
            return None
        helping: dict[int, tuple[int, ...]] = {}
        whole = self._head_keys(chosen, "all", {})
        for layer in sorted(chosen.recipe):
            heads = tuple(range(self.fits.heads[layer]))
            helping[layer] = ()
            for head in heads:
                if self._time_is_up(f"head-{chosen.number}-{layer}-{head}", f"head {head} of layer {layer} alone"):
                    return None
                others = tuple(other for other in heads if other != head)
                without = self._head_keys(chosen, f"{layer}-{head}", {layer: others}) if others else -math.inf
                helping[layer] += (head,) if without <= whole else ()
        if all(len(heads) == self.fits.heads[layer] for layer, heads in helping.items()):
            return None
        recipe = {layer: spec for layer, spec in chosen.recipe.items() if helping[layer]}
        left = {layer: helping[layer] for layer in recipe}
        return Plan(fits.HEADS_NUMBER + chosen.number, recipe, left) if recipe else None

    def _head_keys(self, chosen: Plan, which: str, heads: Heads) -> float:
        """Mean log-probability of the pass keys for training, with only these heads of one layer swapped."""
        what, keys = self.fits.normalizers(chosen.recipe, heads), self.work.training_keys
        found = self._mean_key(f"head-{chosen.number}-{which}", what, keys)
        self.work.stages.step(fits.HEADS, f"heads of {chosen.name}")
        return found

    def _mean_key(self, part: str, what: What | None, keys: Sequence[PassKey]) -> float:
        """Mean log-probability of pass keys under a swap."""
        return mean(self._losses(part, what, (), keys, fits.BASELINE_STAGE)["keys"])

    def _losses(
        self, part: str, what: What | Callable[[], What] | None, windows: Sequence[Window], keys: Sequence[PassKey],
        stage: str, words: str = "baseline",
    ) -> dict[str, Any]:  # fmt: skip
        """Losses of windows and log-probabilities of pass keys, under a swap or of the unchanged model.

        A swap that takes time to make is made as part of it, so that its time counts as spent.
        """

        def make() -> dict[str, Any]:
            made = what() if callable(what) else what
            with nullcontext() if made is None else swap(self.work.model, made):
                step = self.work.step(stage, words)
                losses = window_losses(self.work.model, windows, step).tolist() if windows else []
                return {"loss": losses, "keys": answers(self.work.model, keys)[0]}

        return self.work.get_or_make(part, make)

    def _scan(self, may_be_empty: bool) -> None:
        groups = layer_groups(len(self.fits.layers), self.schedule.groups)
        windows = spread(self.work.validation, self.schedule.scan_windows)
        before = [self._baseline["loss"][self.work.validation.index(window)] for window in windows]
        for number, spec in enumerate(self.settings.candidates):
            if self.settings.goal == RETRIEVAL and learns(spec):
                continue
            for place, layers in enumerate(groups):
                part, where = f"scan-{number}-{place}", f"{spec} in layers {spans(layers)}"
                may_end = self.scan or may_be_empty
                if may_end and self._time_is_up(part, f"{where} was scanned, and what follows", fits.SCAN):
                    return
                what = self.fits.normalizers(dict.fromkeys(layers, spec))
                record = self._losses(part, what, windows, self.work.training_keys, fits.SCAN, f"scan: {where}")
                rise = relative_rise(record["loss"], before, self.settings)
                means = {fact: mean([self.fits.facts[layer, spec][fact] for layer in layers]) for fact in fits.FACTS}
                gain = self._gain(means["zeros"], rise.value, record["keys"], self._training_keys)
                cell = {"layers": spans(layers), "first": layers[0], "last": layers[-1], "normalizer": spec}
                self.scan.append(cell | rise.columns("harm") | {"gain": gain} | means)

    def _gain(self, zeros: float, rise: float, keys: Sequence[float], before: float) -> float:
        """What the goal wants more of; `before` is the mean log-probability of the pass keys without a swap."""
        if self.settings.goal == RETRIEVAL:
            return mean(keys) - before
        return -rise if self.settings.goal == LOSS else zeros

    def _is_cut(self, chosen: Plan, steps: int) -> bool:
        return self._time_is_up(chosen.part(steps), f"{chosen.name} with {steps} steps of tuning")

    def _time_is_up(self, part: str, what: str, stage: str = fits.PLANS) -> bool:
        """Whether too little time is left for a part; a cut is stored, so that a repeated run makes the same one."""
        work, budget = self.work, self.settings.budget
        if budget is None or work.get(part) is not None:
            return False
        cut = f"cut-{stage}"
        if work.get(cut) is None and work.spent + self._reserves[stage] <= budget:
            return False
        work.keep(cut, {"before": part, "spent": work.spent})
        self.cut.append(f"{_TIME[stage]} was up before {what}")
        return True

    def _try(self, chosen: Plan, steps: int) -> Tried:
        name, stage = chosen.name, fits.LEARNING if chosen.is_learned else fits.PLANS

        def make() -> dict[str, Any]:
            with swap(self.work.model, self.tuner.normalizers(chosen, steps)) as running:
                reader = sparsity_reader(self.work.model, running, self.settings)
                read = reader.read_all(self.work.validation, self.work.step(stage, name))
                return read | {"keys": answers(self.work.model, self.work.validation_keys)[0]}

        record = self.work.get_or_make(chosen.part(steps), make)
        rises = {"rise": relative_rise(record["loss"], self._baseline["loss"], self.settings)}
        means = {key: mean(record[key]) for key in ("loss", *MEANS)}
        gain = self._gain(means["zeros"], rises["rise"].value, record["keys"], mean(self._baseline["keys"]))
        if steps and (control := self._control_of(chosen)):  # without tuning, the control is the baseline
            what, words = partial(self.tuner.normalizers, control, steps), f"{control.name}, tuned the same way"
            alike = self._losses(control.part(steps), what, self.work.validation, (), fits.PLANS, words)
            rises["control_rise"] = relative_rise(record["loss"], alike["loss"], self.settings)
        row = {"plan": name, "layers": len(chosen.recipe), "steps": steps, "gain": gain, "chosen": False} | means
        for column, estimate in rises.items():
            row |= estimate.columns(column)
        self.plans.append(row)
        # For the lowest loss, over the baseline alone: softmax itself has no control, and would always come first.
        over = [rises["rise"]] if self.settings.goal == LOSS else rises.values()
        worst = max(rise.value if math.isfinite(rise.value) else math.inf for rise in over)
        high = max(math.inf if rise.high is None else rise.high for rise in over)
        return Tried(chosen, steps, worst, high, gain)

    def _control_of(self, chosen: Plan) -> Plan | None:
        """Softmax in the same layers; None if the plan is softmax, and for retrieval, whose control is no plan."""
        if chosen.is_softmax or self.settings.goal == RETRIEVAL:
            return None
        return self._controls[frozenset(chosen.recipe)]
