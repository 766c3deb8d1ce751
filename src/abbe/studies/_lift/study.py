"""lift: search for a plan that helps a model, and judge it once.

text -> training, validation and test text -> every candidate fitted in every layer -> scan -> nested plans -> rounds of
tuning on the training text, measured on the validation text -> one plan, tested once on the test text beside its
control: softmax, tuned the same way.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..._arguments import between, whole
from ..._errors import AbbeError
from ..._locks import held
from ...models import DeviceLike, DeviceMap, DtypeLike, evaluating, plan, swap
from ...runs.cost import estimate
from ...runs.folder import claim_folder
from ...runs.inputs import FolderLike, Job, ModelLike, Placed, TextLike, load_inputs
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import finished_manifest, manifest_facts, window_places
from ...runs.settings import MOST_RESAMPLES, checked_seed
from ...runs.study import study
from ...runs.watch import watching
from ...runs.window import allowed_error, check_tokens, model_inputs
from ...words.names import BASELINE
from .._shared.prompts import PassKeyMaker
from .judging import Judging
from .result import CONTROL_FILE, PLAN_FILE, Lift, opened_lift
from .rule import CONTROL, PLAN, decide, findings, rule_text
from .schedule import CONTENDERS, Load, Schedule, fitting, passes, reserves, seconds_of_a_pass, what_was_cut
from .search import TEMPERATURES, Records, Search, Tried, What
from .settings import (
    CONTROL_SPEC,
    RETRIEVAL,
    LiftSettings,
    candidates_for,
    checked_goal,
    needle_lengths_for,
    pass_key_lengths,
    seconds,
    share,
)
from .text_parts import TEST, TRAINING, VALIDATION, Sealed, cut, judged_lengths, usual_length, windows_of
from .tuning import HAYSTACKS, ROUNDS, ROWS_FROM, Fits, Plan, learns

_KINDS, _DEPTHS = 2, 5  # of the needle test
_SPEED_PASSES = 6
_SCHEDULE = "parts/schedule.json"


@study(Lift, named_by="goal", shared="no", opened=opened_lift)
def lift(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    goal: str = "sparse", max_loss: float | str = "0.5%", budget: float | str | None = "20m",
    normalizers: str | Sequence[str] | None = None, length: int | None = None, windows: int = 12, queries: int = 16,
    steps: int = 48, lengths: int | Sequence[int] | None = None, prompts: int = 4,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Lift:  # fmt: skip
    """Search for layers that do better with another normalizer, then test the best plan once on held-out text.

    The text is cut into training, validation and test text. Temperatures are fitted and tuned on the first, plans are
    chosen on the second, and one plan is tested on the third, once, by a rule that was fixed before. Its control is
    softmax, tuned the same way: the loss must hold against the model and against the control.

    Args:
        model, text: as for `diagnose`.
        goal: "sparse" (exact zeros at little loss), "loss" (a lower loss), or "retrieval" (pass keys at `lengths`
            tokens).
        max_loss: allowed relative rise of the loss over the model's and over the control's, such as "0.5%" or 0.005.
        budget: time that the search may take, such as "20m"; None for no limit. One that is not reached changes
            nothing; the manifest lists what it cut.
        normalizers: specs to try; by default entmax, sparsemax, top-p and top-k (for retrieval: temperatures, and
            temperatures that fall with the visible keys). For retrieval, specs with learn=true are learned from pass
            keys, for all heads at once; the others are scanned group by group.
        length: of the windows, in tokens; by default 512, or the model's context if that is shorter; 256 or 128 if
            the text is too short for so many windows.
        windows: how many of the validation and of the test text; twice as many for training. Fewer than 6 never lift.
        queries: how many queries per window are fitted, and used to count zeros.
        steps: of tuning, for the plans of the last round, or of learning from pass keys; 0 for none. The same steps
            give the same result.
        lengths: of the pass keys, for retrieval; by default the three longest of 256 to 4096 in the context.
        prompts: per kind, length and depth.
        seed: random seed: the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: for all measurements, the plan `plan.safetensors` and the page; an interrupted search is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        Whether the plan passed the rule, the plan, and everything that was tried. A low loss, and high shares of zeros
        and of pass keys found, are good.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe lift
        abbe lift smollm2 --text book.txt --max-loss 0.5% --budget 30m --out lifted
        abbe lift smollm2 --text book.txt --goal loss --with softmax --with entmax:alpha=1.25
        abbe lift smollm2 --text book.txt --goal retrieval --lengths 2048,4096,7900 --max-loss 0.2% --budget 3h

    Examples:
        >>> small = {"length": 64, "windows": 2, "queries": 4, "steps": 0, "prompts": 1, "progress": False}
        >>> result = abbe.lift("embedded", normalizers="topk:k=16", **small)
        >>> result.lifted  # from two windows nothing is lifted
        False
        >>> result.table["contender"].to_list()
        ['baseline', 'softmax, tuned the same way', 'plan']
    """
    goal, max_loss, budget = checked_goal(goal), share("max_loss", max_loss), seconds("budget", budget)
    candidates_for(goal, normalizers, ())  # a mistake is reported before a model is loaded
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    check_causal(loaded, "lifting a model")
    windows = whole("windows", windows, least=2)
    key_lengths = pass_key_lengths(goal, lengths, loaded.context)
    settings = LiftSettings(
        goal=goal, max_loss=max_loss, budget=budget,
        candidates=candidates_for(goal, normalizers, key_lengths),
        length=usual_length(loaded, source, windows) if length is None else whole("length", length),
        windows=windows, queries=whole("queries", queries, least=1), steps=whole("steps", steps, least=0),
        needle_lengths=needle_lengths_for(loaded.context), lengths=key_lengths,
        prompts=whole("prompts", prompts, least=1, most=10_000), seed=checked_seed(seed),
        level=between("level", level, 0, 1, 0.95),
        resamples=whole("resamples", resamples, least=1, most=MOST_RESAMPLES),
    )  # fmt: skip
    with watching(progress) as watch, evaluating(loaded.network):
        return _Job(loaded, source, settings, place, watch).run()


class _Job(Job[LiftSettings]):
    """One search, from the parts of the text to the result."""

    def __post_init__(self) -> None:
        model, text, settings = self.model, self.text, self.settings
        self.text_parts = cut(text, settings.seed)
        self.sealed = Sealed(self.text_parts.pop(TEST))
        parts = [self.text_parts[name] for name in (TRAINING, VALIDATION)]
        self.training, self.validation = (windows_of(model, part, settings) for part in parts)
        makers = [PassKeyMaker(model.tokenizer, part.text, part.seed) for part in parts if settings.lengths]
        self.training_keys, self.validation_keys = (
            [maker.pass_keys(settings.lengths, 1) for maker in makers] if makers else ([], [])
        )
        self.haystacks = makers[0].haystacks(settings.lengths[-1], HAYSTACKS) if makers else []
        self._check_learning()
        self.loss_lengths, self.left_out = judged_lengths(model, self.text_parts[VALIDATION], settings)
        self.rule = rule_text(settings.goal, settings.max_loss, settings.level, self.loss_lengths)
        self.facts = manifest_facts(Lift.study, model, text, settings.as_json() | {"rule": self.rule}) | {
            "loss_lengths": list(self.loss_lengths)
        }

    def _check_learning(self) -> None:
        """Refuse a search in which nothing can be learned and nothing else is left to try."""
        s = self.settings
        if s.goal != RETRIEVAL or (s.steps and self.haystacks) or not all(map(learns, s.candidates)):
            return
        why = f"its first half has no room for {s.lengths[-1]} tokens" if s.steps else "steps is 0"
        raise AbbeError(f"{s.candidates[0]} cannot be learned, {why}: give more text or steps, or another normalizer")

    def run(self) -> Lift:
        with held(self.folder):
            with swap(self.model, CONTROL_SPEC) as trial:  # must reproduce the model
                error = trial.check(**model_inputs(self.model, check_tokens(self.model, self.validation)))
            load = self._load()
            # Before the folder is claimed: a budget that is too small leaves nothing behind.
            again = self.folder is not None and (self.folder / _SCHEDULE).exists()
            first = None if again else self._first_schedule(load)
            parts = claim_folder(
                self.folder, Lift.study, self.model, self.text, self.facts["settings"], self.watch.announce
            )
            self.records = Records(parts, self.watch)
            self.fits = Fits(self.model, self.settings, parts, self.watch)
            # Fixed by the first call together with the seconds of a pass, which vary from call to call.
            scheduled = self.records.get("schedule") or first or self._first_schedule(load)
            schedule, a_pass = Schedule(**scheduled["schedule"]), scheduled["a_pass"]
            self.watch.say_checked(self.model.name, error, allowed_error(self.model))
            self._say_cost(schedule, load, a_pass)
            begun = time.perf_counter()
            self.fits.make(self.training)
            self.records.spent += time.perf_counter() - begun
            if self.records.get("schedule") is None:  # only now, since the fits do not depend on it
                self.records.keep("schedule", scheduled)
            search = Search(
                self.model, self.settings, self.fits, schedule, self.records, self.watch,
                training=self.training, validation=self.validation, training_keys=self.training_keys,
                validation_keys=self.validation_keys, haystacks=self.haystacks,
                reserves={} if self.settings.budget is None else reserves(schedule, load, a_pass, self.settings.budget),
            )  # fmt: skip
            winner, which = search.run()
            contenders = self._contenders(search, winner, which)
            return self._judged(search, winner, contenders, error, [*what_was_cut(schedule, load), *search.cut])

    def _load(self) -> Load:
        s = self.settings
        needles = _KINDS * _DEPTHS * s.prompts * sum(s.needle_lengths) / s.length
        keys = sum(len(prompt.tokens) for prompt in self.validation_keys) / s.length
        learned = sum(map(learns, s.candidates)) if s.goal == RETRIEVAL else 0
        read = sum(len(haystack.body) for haystack in self.haystacks) / s.length
        rounds = ROUNDS * (read + len(self.validation) + keys) + s.steps * len(self.haystacks)
        longer = s.windows * sum(self.loss_lengths[1:]) / s.length
        judged = CONTENDERS * (s.windows + longer + needles + 2 * s.prompts * keys + _SPEED_PASSES) + 2 * s.windows
        judged += len(TEMPERATURES) * keys  # for the control of retrieval, which no lack of time makes weaker
        scanned = len(s.candidates) - learned
        return Load(
            layers=len(plan(self.model, CONTROL_SPEC)), candidates=scanned, windows=len(self.validation),
            steps=0 if s.goal == RETRIEVAL else s.steps, fit_passes=min(ROWS_FROM, len(self.training)),
            prompt_passes=keys, judged_passes=judged, learned_passes=learned * rounds,
        )  # fmt: skip

    def _first_schedule(self, load: Load) -> dict[str, Any]:
        a_pass = seconds_of_a_pass(lambda: window_losses(self.model, [self.validation[0]]), self.model.devices == "cpu")
        return {"schedule": vars(fitting(load, a_pass, self.settings.budget)), "a_pass": a_pass}

    def _say_cost(self, schedule: Schedule, load: Load, a_pass: float) -> None:
        s = self.settings
        cost = estimate(self.model, [s.length] * round(passes(schedule, load)), s.length, a_pass, 1.0, losses=True)
        groups = f"{schedule.groups} groups of {load.layers} layers"
        learned = len(s.candidates) - load.candidates
        also = f", {learned} learned for all heads from {len(self.haystacks)} texts" if learned else ""
        self.watch.say(f"{load.candidates} normalizers in {groups}, {schedule.plans} plans{also}: {cost}")
        if lines := what_was_cut(schedule, load):
            self.watch.say(f"the budget cuts {'; '.join(lines)}")
        scan = schedule.groups * load.candidates * schedule.scan_windows
        plans = (schedule.plans + 2 * (schedule.tuned + 2)) * load.windows
        tuning = 2 * (schedule.steps // 2 * schedule.tuned + schedule.steps)
        heads = 1 + sum(self.fits.heads) if s.goal == RETRIEVAL and load.candidates else 0
        rounds = learned * (ROUNDS * (load.windows + len(self.haystacks)) + s.steps)
        judged = CONTENDERS * s.windows * len(self.loss_lengths)
        self.watch.expect(len(self.fits.layers) + load.windows + scan + plans + tuning + heads + rounds + judged)

    def _contenders(self, search: Search, winner: Tried, which: Plan) -> dict[str, What | None]:
        """Fixes the plan, and with it the rule, before the test text is opened."""
        contenders: dict[str, What | None] = {BASELINE: None}
        control = search.control(winner, which)
        if control is not None:
            contenders[CONTROL] = control
        contenders[PLAN] = search.normalizers(which, winner.steps)
        if self.records.get("chosen") is None:
            self.records.keep("chosen", {"plan": winner.name, "steps": winner.steps, "rule": self.rule})
        return contenders

    def _judged(
        self, search: Search, winner: Tried, contenders: Mapping[str, What | None], error: float, cuts: list[str]
    ) -> Lift:
        with ExitStack() as stack:
            folder = self.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, file in ((PLAN, PLAN_FILE), (CONTROL, CONTROL_FILE)):
                if (what := contenders.get(name)) is not None:
                    plan(self.model, what).save(folder / file)
        judging = Judging(
            self.model, self.settings, self.sealed.open(), contenders, self.records, self.watch, self.loss_lengths[1:]
        )
        judged, table, keys = judging.run()
        decision = decide(judged, self.settings)
        tables = search.tables()
        facts = self.facts | {
            "self_check": {"error": error, "tokens": len(check_tokens(self.model, self.validation))},
            "rule": self.rule,
            "lifted": decision.lifted,
            "cut": cuts,
            "windows": {
                TRAINING: window_places(self.training, self.text_parts[TRAINING].start),
                VALIDATION: window_places(self.validation, self.text_parts[VALIDATION].start),
                TEST: window_places(judging.windows, self.sealed.start),
            },
            "skipped": [*self.left_out, *self.training.skipped, *self.validation.skipped, *judging.skipped],
        }
        sentences = findings(decision, winner.name, winner.steps, table, tables["scan"], self.settings, self.rule, cuts)
        manifest = finished_manifest(facts, self.records.parts, {"total": time.perf_counter() - self.started})
        return Lift(
            decision.lifted, winner.name, table, **tables, keys=keys, findings=sentences, manifest=manifest,
            file=None if self.folder is None else self.folder / PLAN_FILE,
        )  # fmt: skip
