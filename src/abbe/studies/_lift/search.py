"""The search on the first two parts of the text: scan, plans, rounds of tuning, one plan chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ...models import LoadedModel, Window, swap
from ...normalizers import Normalizer, normalizer
from ...results import tables_from
from .._engine.loss import window_losses
from .._engine.swapped.sensitivity import spread
from .._engine.watch import Watch
from .fits import Fits, Heads, spans
from .pass_keys import Haystack, PassKey, answers
from .reading import SparsityReader
from .recipes import Cell, Layers, Tried, best, for_next_round, layer_groups, nested_recipes, thinned
from .records import Records, mean, with_ends, with_nan, without_nan
from .result import PLANS_SCHEMA, SCAN_SCHEMA
from .rule import relative_rise
from .schedule import LEARNING, PLANS, SCAN, Schedule
from .settings import CONTROL_SPEC, LOSS, RETRIEVAL, LiftSettings
from .slopes import SlopeLearner, learns, round_ends
from .tuning import Plan, Tuner

_SLACKS = (16.0, 4.0)  # of the allowed loss, before the first and before the second round of tuning
_FINAL = 2  # plans in the last round
_TIME = {LEARNING: "the time for learning", SCAN: "the time for the scan", PLANS: "time"}
_CONTROL_NUMBER, _HEADS_NUMBER, _LEARNED_NUMBER = 1000, 2000, 3000  # added to the number of a plan
TEMPERATURES = (0.7, 0.8, 0.9, 1.1)

What = str | Mapping[str, str | Normalizer]


class Search:
    """Measures on the parts to fit and to choose on; knows nothing of the judged one."""

    def __init__(
        self, model: LoadedModel, settings: LiftSettings, fits: Fits, schedule: Schedule, records: Records,
        watch: Watch, *, fit: Sequence[Window], choose: Sequence[Window], fit_keys: Sequence[PassKey],
        choose_keys: Sequence[PassKey], haystacks: Sequence[Haystack], reserves: Mapping[str, float],
    ) -> None:  # fmt: skip
        self.model, self.settings, self.fits, self.schedule, self.records = model, settings, fits, schedule, records
        self.watch, self.choose = watch, choose
        self.fit_keys, self.choose_keys = fit_keys, choose_keys
        self._reserves = reserves  # seconds that each stage leaves to the later ones
        self.cut: list[str] = []
        self.scan: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self._tuner = Tuner(model, fits, schedule.steps, records.parts, watch, fit)
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
            least = min(self.scan, key=lambda row: (row["harm"], row["normalizer"]))
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
        """The plan without the heads that make the pass keys of the part to fit on harder to find.

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
        """Mean log-probability of the pass keys to fit on, with only these heads of one layer swapped."""

        def make() -> dict[str, Any]:
            with swap(self.model, self.fits.normalizers(plan.recipe, heads)):
                return {"keys": self._log_probabilities(self.fit_keys)}

        record = self.records.get_or_make(f"head-{plan.number}-{which}", make)
        self.watch.step(f"heads of {plan.name}")
        return mean(with_nan(record["keys"]))

    # -- The scan -----------------------------------------------------------------------------------------------------

    def _measure_baseline(self) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            losses = window_losses(self.model, self.choose, lambda _: self.watch.step("baseline")).tolist()
            return {"loss": losses, "fit_keys": self._log_probabilities(self.fit_keys),
                    "keys": self._log_probabilities(self.choose_keys)}  # fmt: skip

        return self.records.get_or_make("baseline", make, "baseline", len(self.choose))

    def _log_probabilities(self, prompts: Sequence[PassKey]) -> list[float]:
        return answers(self.model, prompts)[0] if prompts else []

    def _scan(self, may_be_empty: bool) -> list[Cell]:
        groups = layer_groups(len(self.fits.layers), self.schedule.groups)
        windows = spread(self.choose, self.schedule.scan_windows)
        before = [self._baseline["loss"][self.choose.index(window)] for window in windows]
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
                return {"loss": losses, "keys": self._log_probabilities(self.fit_keys)}

        return self.records.get_or_make(name, make, step, len(windows))

    def _cell(self, spec: str, layers: Layers, record: Mapping[str, Any], before: Sequence[float]) -> Cell:
        rise = relative_rise(with_nan(record["loss"]), before, self.settings)
        facts = [self.fits.facts[layer, spec] for layer in layers]
        names = ("zeros", "effective", "effective_baseline", "sensitivity", "error")
        zeros, effective, baseline, sensitive, error = (mean([getattr(one, name) for one in facts]) for name in names)
        gain = zeros
        if self.settings.goal == RETRIEVAL:
            gain = mean(with_nan(record["keys"])) - mean(self._baseline["fit_keys"])
        elif self.settings.goal == LOSS:
            gain = -rise[0]
        harm = rise[0] if math.isfinite(rise[0]) else math.inf
        self.scan.append(
            {"layers": spans(layers), "first": layers[0], "last": layers[-1], "normalizer": spec}
            | with_ends("harm", rise)
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
                read = reader.read_all(self.choose, lambda: self.watch.step(name))
                return read | {"keys": self._log_probabilities(self.choose_keys)}

        tuned = steps - (half if steps > half else 0)  # in this round alone
        record = self.records.get_or_make(_part(plan, steps), make, name, len(self.choose) + tuned)
        rise = relative_rise(with_nan(record["loss"]), self._baseline["loss"], self.settings)
        means = {key: mean(with_nan(record[key])) for key in ("loss", "zeros", "active", "effective_tokens")}
        gain = means["zeros"]
        if self.settings.goal == RETRIEVAL:
            gain = mean(with_nan(record["keys"])) - mean(self._baseline["keys"])
        elif self.settings.goal == LOSS:
            gain = -rise[0]
        rises = {"rise": rise}
        if steps and (control := self._control_of(plan)):  # without tuning, the control is the baseline
            rises["control_rise"] = relative_rise(
                with_nan(record["loss"]), self._control_losses(control, steps), self.settings
            )
        self.plans.append(
            {"plan": name, "layers": len(plan.recipe), "steps": steps, "gain": gain, "chosen": False} | means
        )
        for column, estimate in rises.items():
            self.plans[-1] |= with_ends(column, estimate)
        # For the lowest loss, over the baseline alone: softmax itself has no control, and would always come first.
        over = [rise] if self.settings.goal == LOSS else rises.values()
        worst = max(one[0] if math.isfinite(one[0]) else math.inf for one in over)
        high = max(math.inf if one[2] is None else one[2] for one in over)
        return Tried(name, tuple(sorted(plan.recipe.items())), steps, worst, high, gain)

    def _control_of(self, plan: Plan) -> Plan | None:
        """Softmax in the same layers; None if the plan is softmax, and for retrieval, whose control is no plan."""
        plain = all(normalizer(spec).name == CONTROL_SPEC for spec in plan.recipe.values())
        return None if plain or self.settings.goal == RETRIEVAL else self._controls[frozenset(plan.recipe)]

    def _control_losses(self, control: Plan, steps: int) -> list[float]:
        name = f"{control.name}, tuned the same way"

        def make() -> dict[str, Any]:
            with swap(self.model, self.normalizers(control, steps)):
                return {"loss": window_losses(self.model, self.choose, lambda _: self.watch.step(name)).tolist()}

        return with_nan(self.records.get_or_make(_part(control, steps), make, name, len(self.choose))["loss"])

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
                    return {"keys": self._log_probabilities(self.choose_keys)}

            means[spec] = mean(with_nan(self.records.get_or_make(f"control-{number}", make)["keys"]))
        return max(means, key=lambda spec: means[spec])

    def tables(self) -> dict[str, pl.DataFrame]:
        """The scan, and every plan that was measured."""
        rows = {"scan": list(map(without_nan, self.scan)), "plans": list(map(without_nan, self.plans))}
        return tables_from(rows, {"scan": SCAN_SCHEMA, "plans": PLANS_SCHEMA})


def _part(plan: Plan, steps: int) -> str:
    return f"plan-{plan.number}-{steps}"
