"""The test, once: baseline, control (softmax, tuned the same way) and plan on the same windows and prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import polars as pl

from ...models import LoadedModel, Window, plan, swap
from ...results import finite
from ...runs.loss import window_losses
from ...runs.watch import Watch
from ...words.names import BASELINE
from .._shared.estimates import mean, mean_estimate, share_right, window_numbers, with_nan
from .._shared.prompts import KINDS, PassKey, PassKeyMaker, Prompt, PromptMaker, answers, margins
from .._shared.swapped import ROUNDS, at_equal_selectivity, baseline_logits, costs
from .result import KEYS_SCHEMA, SCHEMA
from .rule import CONTROL, PLAN, Judged, gain_in_answers, of_kind, relative_rise
from .search import Records, SparsityReader, What
from .settings import CONTROL_SPEC, LiftSettings
from .text_parts import TextPart, longer_windows, windows_of

_KINDS = dict(zip(KINDS, ("lists", "sentences"), strict=True))
_READ = ("zeros", "active", "effective_tokens")


class Judging:
    """Measures each contender on all of the opened test text."""

    def __init__(
        self, model: LoadedModel, settings: LiftSettings, part: TextPart, contenders: Mapping[str, What | None],
        records: Records, watch: Watch, longer: Sequence[int],
    ) -> None:  # fmt: skip
        """`longer` are further lengths at which the loss is judged."""
        self.model, self.settings, self.contenders = model, settings, contenders
        self.records, self.watch = records, watch
        self.windows = windows_of(model, part, settings)
        self.longer = {length: longer_windows(model, part, settings, length) for length in longer}
        maker = PromptMaker(model.tokenizer, part.text, part.seed)
        self.prompts: list[Prompt] = maker.make(settings.needle_lengths, settings.prompts)
        self.keys: list[PassKey] = PassKeyMaker(model.tokenizer, part.text, part.seed, for_test=True).pass_keys(
            settings.lengths, settings.prompts
        )
        more = [line for windows in self.longer.values() for line in windows.skipped]
        self.skipped = [*self.windows.skipped, *more, *maker.skipped]

    def run(self) -> tuple[Judged, pl.DataFrame, pl.DataFrame]:
        """Numbers for the rule, the table, and the pass keys by length and depth."""
        windows = len(self.windows) + sum(map(len, self.longer.values()))
        records = {
            name: self.records.get_or_make(f"judged-{place}", partial(self._record, name, what), _step(name), windows)
            for place, (name, what) in enumerate(self.contenders.items())
        }
        sensitivity = self.records.get_or_make("judged-sensitivity", self._sensitivities)["ratios"]
        speed = self.records.get_or_make("judged-speed", self._speed)["best"]
        judged = Judged(
            {name: with_nan(record["loss"]) for name, record in records.items()},
            {name: with_nan(record["zeros"]) for name, record in records.items()},
            {name: [(margin or 0.0) > 0 for margin in record["margins"]] for name, record in records.items()},
            {name: record["right"] for name, record in records.items()},
            [_KINDS[prompt.kind] for prompt in self.prompts],
            {
                length: {name: with_nan(record["longer"][str(length)]) for name, record in records.items()}
                for length in self.longer
            },
        )
        rows = [self._row(name, judged, record, sensitivity, speed) for name, record in records.items()]
        return judged, pl.DataFrame(rows, schema=SCHEMA, orient="row"), self._keys_table(records)

    def _record(self, name: str, what: What | None) -> dict[str, Any]:
        """By window and by prompt; the loss of the baseline is measured without a swap."""
        with swap(self.model, CONTROL_SPEC if what is None else what) as running:
            reader = SparsityReader(self.model, running, self.settings.reading())
            record: dict[str, Any] = reader.read_all(self.windows, lambda: self.watch.step(_step(name)))
        with nullcontext() if what is None else swap(self.model, what):
            if what is None:
                record["loss"] = window_losses(self.model, self.windows).tolist()
            record["longer"] = {str(length): self._losses(name, windows) for length, windows in self.longer.items()}
            record["margins"] = margins(self.model, self.prompts)
            record["log_probability"], record["right"] = answers(self.model, self.keys)
        return record

    def _losses(self, name: str, windows: Sequence[Window]) -> list[float]:
        if not windows:
            return []
        losses: list[float] = window_losses(self.model, windows, lambda _: self.watch.step(_step(name))).tolist()
        return losses

    def _sensitivities(self) -> dict[str, Any]:
        """At equal selectivity, relative to the baseline, on the logits of the unchanged model."""
        logits = baseline_logits(self.model, self.windows, self.settings.reading())
        ratios: dict[str, float | None] = {}
        for name, what in self.contenders.items():
            if what is None:
                continue
            equal = at_equal_selectivity(logits, plan(self.model, what), self.settings.reading(), self.windows[0])
            ratios[name] = sum(equal["alternative"]) / sum(equal["baseline"]) if equal["matched"] else None
        return {"ratios": ratios}

    def _speed(self) -> dict[str, Any]:
        best = costs(self.model, self.windows[0].tokens, self.contenders, lambda: None)["seconds"]
        return {"best": best, "rounds": ROUNDS}

    def _row(
        self, name: str, judged: Judged, record: Mapping[str, Any], sensitivity: Mapping[str, Any],
        speed: Mapping[str, float],
    ) -> dict[str, Any]:  # fmt: skip
        losses, zeros = (of[name] for of in (judged.losses, judged.zeros))
        row: dict[str, Any] = {"contender": name, "loss": mean(losses)}
        row |= {key: mean(record[key]) for key in _READ}
        by_kind: dict[str, Mapping[str, Sequence[bool]]] = {kind: of_kind(judged, kind) for kind in _KINDS.values()}
        row |= {kind: mean(right[name]) for kind, right in by_kind.items()}
        for of_length in judged.longer.values():
            row["longer_loss"] = mean(of_length[name])
        row |= {"pass_keys": mean(judged.keys[name]), "time_ratio": speed[name] / speed[BASELINE]}
        row |= {"seconds": speed[name], "sensitivity_ratio": sensitivity.get(name)}
        if name != BASELINE:
            more_zeros = window_numbers(zeros) - window_numbers(judged.zeros[BASELINE])
            row |= relative_rise(losses, judged.losses[BASELINE], self.settings).columns("rise")
            row |= mean_estimate(more_zeros, self.settings).columns("zeros_gain")
            for of_length in judged.longer.values():
                row |= relative_rise(of_length[name], of_length[BASELINE], self.settings).columns("longer_rise")
            for kind, right in (by_kind | {"needle": judged.needles, "key": judged.keys}).items():
                row |= gain_in_answers(right, name, BASELINE, self.settings.level).columns(f"{kind}_gain")
        if name == PLAN and CONTROL in judged.losses:
            row |= relative_rise(losses, judged.losses[CONTROL], self.settings).columns("control_rise")
        shown: dict[str, Any] = finite(row)
        return shown

    def _keys_table(self, records: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
        rows = []
        cells = list(dict.fromkeys((prompt.length, prompt.depth) for prompt in self.keys))
        for name, record in records.items():
            for length, depth in cells:
                of_cell = [i for i, key in enumerate(self.keys) if (key.length, key.depth) == (length, depth)]
                right = share_right(sum(record["right"][i] for i in of_cell), len(of_cell), self.settings.level)
                digits = mean([record["log_probability"][i] for i in of_cell])
                rows.append((name, length, depth, len(of_cell), right.value, right.low, right.high, digits))
        return pl.DataFrame(rows, schema=KEYS_SCHEMA, orient="row")


def _step(name: str) -> str:
    return f"judging: {name}"
