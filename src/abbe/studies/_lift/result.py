"""The result of a search: the scan, the plans that were tried, and the one that was tested; and its view."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import Result
from ...views import TextTable, View
from ...words.finding import Finding, Step
from ...words.frames import column, frame
from ...words.manifest import model_name, part_of, text_name
from ...words.numbers import MISSING, interval, number, with_interval
from .rules import share_text, signed

PLAN_FILE, CONTROL_FILE = "plan.safetensors", "softmax.safetensors"
_MOST_PLANS = 12
_SHARED = ("length", "queries", "device", "dtype", "device_map")  # options that `abbe compare` has as well
_CHANGES = "In brackets: change over the baseline and its interval, over the same windows or prompts in pairs."
_WANTED = {"sparse": "be made sparse", "loss": "get a lower loss", "retrieval": "find more pass keys"}
Row = Mapping[str, Any]
_change = partial(column, interval=True)
_ZEROS = column("zeros", float, "share of the visible keys whose weight is exactly 0")
_ACTIVE = column("active", float, "keys with a weight above 0")
_EFFECTIVE = column("effective_tokens", float, "1 over the sum of squared weights")
_SENSITIVITY = column("sensitivity_ratio", float, "sensitivity at equal selectivity, over the baseline's")
_LOSS = column("loss", float, "in nats per token")
_CONTENDER = column("contender", str, "the baseline; softmax, tuned the same way; or the plan")
_RISE = _change("rise", float, "relative rise of the loss over the baseline's")
_OVER_CONTROL = "relative rise of the loss over that of softmax, tuned the same way"


@dataclass(frozen=True, eq=False, kw_only=True)
class Lift(Result, study="lift"):
    """The result of `lift`.

    Attributes:
        lifted: whether the plan passed the rule on the test text.
        plan: patterns and specs of the plan that was tested, in one line that `swap` takes; `file` holds what was
            fitted.
        table: on the test text: rows for the baseline, the control (softmax, tuned the same way) and the plan, with
            paired intervals of their changes over the baseline, and of the plan's loss over the control's
            (`control_rise`). `longer_loss` is the loss in windows of
            `loss_lengths[-1]` tokens (in the manifest), for retrieval if text and context have room for them.
        scan: each candidate in each group of layers separately: harm (relative rise of the loss), gain and zeros.
        plans: every plan that was measured on the validation text, with its steps of tuning.
        keys: pass keys found by length and depth; empty unless the goal is retrieval.
        findings: what it means; the first says whether the model was lifted, with the rule.
        manifest: on what, how, how long, the rule, what the budget cut, and what was skipped.
        file: the tested plan, for `swap(model, "file:...")`, or None without a folder.
    """

    beside: ClassVar[tuple[str, ...]] = (PLAN_FILE, CONTROL_FILE)
    offers: ClassVar[str] = "plan"
    files: ClassVar[Mapping[str, str]] = {
        PLAN_FILE: 'the plan, for `abbe.swap(model, "file:...")` and `abbe compare --with file:...`',
        CONTROL_FILE: "its control (softmax, tuned the same way), used the same way",
        "parts/": "what an interrupted run resumes from",
        "tuning/": "what an interrupted run resumes from",
    }
    lifted: bool
    plan: str
    table: pl.DataFrame = frame(
        "a contender on the test text: the baseline; softmax, tuned the same way; the plan",
        _CONTENDER, _LOSS, column("longer_loss", float, "the same on the longest windows (goal retrieval)"),
        _ZEROS, _ACTIVE, _EFFECTIVE,
        column("lists", float, "share of key-value lists answered"),
        column("sentences", float, "share of sentences found among decoys"),
        column("pass_keys", float, "share of pass keys found"), _SENSITIVITY, _RISE,
        _change("longer_rise", float, "the same of `longer_loss`"),
        _change("zeros_gain", float, "share of zeros minus the baseline's"),
        _change("needle_gain", float, "accuracy on lists and sentences minus the baseline's"),
        _change("lists_gain", float, "accuracy on lists minus the baseline's"),
        _change("sentences_gain", float, "accuracy on sentences minus the baseline's"),
        _change("key_gain", float, "pass keys found minus the baseline's"),
        _change("control_rise", float, f"{_OVER_CONTROL}; the plan's only"),
        column("time_ratio", float, "of a forward pass, over the baseline's"),
        column("seconds", float, "of a forward pass"),
    )  # fmt: skip
    scan: pl.DataFrame = frame(
        "a group of layers alone under a candidate",
        column("layers", str, "of the group"), column("first", int, "its first layer"),
        column("last", int, "its last layer"), column("normalizer", str, "the candidate"),
        _change("harm", float, "relative rise of the loss"),
        column("gain", float, "what the goal gains: a share of zeros, a lower loss, or log-probability of pass keys"),
        _ZEROS, _EFFECTIVE, column("effective_tokens_baseline", float, "the same of the unchanged model"), _SENSITIVITY,
        column("output_error", float, "squared change of the outputs over their size, after fitting"),
    )  # fmt: skip
    plans: pl.DataFrame = frame(
        "a plan measured on the validation text",
        column("plan", str, "patterns and specs, in one line"), column("layers", int, "how many are changed"),
        column("steps", int, "of tuning"), _LOSS, _RISE, column("gain", float, "what the goal gains"), _ZEROS, _ACTIVE,
        _EFFECTIVE, column("chosen", bool, "whether it went on to be tested"),
        _change("control_rise", float, f"{_OVER_CONTROL}; null if it was not tuned, or is softmax itself"),
    )  # fmt: skip
    keys: pl.DataFrame = frame(
        "a contender, length and depth (goal retrieval)",
        _CONTENDER, column("length", int, "tokens of the prompt"),
        column("depth", float, "place of the pass key, from 0 to 1"), column("prompts", int, "how many"),
        _change("right", float, "share of pass keys found"),
        column("log_probability", float, "of the five digits, mean"),
    )  # fmt: skip
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]
    file: Path | None

    def __repr__(self) -> str:
        verdict = "lifted" if self.lifted else "not lifted"
        return f"Lift({self.manifest['model']['name']}: {verdict}, {self.plan!r}, {len(self.plans)} plans tried)"

    def _content(self) -> dict[str, Any]:
        file = None if self.file is None else str(self.file)
        return {"lifted": self.lifted, "plan": self.plan, "file": file} | super()._content()

    @classmethod
    def _from_content(cls, content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        file = folder / PLAN_FILE
        kept = {"lifted": content["lifted"], "plan": content["plan"], "file": file if file.is_file() else None}
        return kept | super()._from_content(content, folder)

    def view(self) -> View:
        def charts(theme: Any) -> Any:
            from .charts import charts_of  # altair belongs to the extra `report`

            return charts_of(self, theme)

        manifest, settings = self.manifest, part_of(self.manifest, "settings")
        windows, goal = part_of(manifest, "windows"), str(settings.get("goal"))
        counts = ", ".join(f"{len(windows.get(name) or ())} {name}" for name in ("training", "validation", "test"))
        longer = "".join(f", and of {n:,} tokens to test the loss" for n in (manifest.get("loss_lengths") or ())[1:])
        return View(
            study=self.study,
            question=f"Can {model_name(manifest)} {_WANTED.get(goal, '')} with another normalizer?",
            about=[f"on {text_name(manifest)}: windows of {settings.get('length')} tokens, {counts}{longer}"],
            findings=self.findings,
            steps=self._steps(),
            tables=[*self._tested(), self._found_keys(), self._tried(), self._scanned()],
            charts=charts,
            manifest=manifest,
        )

    def _tested(self) -> list[TextTable]:
        """What was tested: losses, weights, answers; each fits into a terminal of 80 columns."""
        rows, settings = self.table.to_dicts(), part_of(self.manifest, "settings")
        losses = {"loss": ("loss", "rise")}
        if self.table["longer_loss"].is_not_null().any():
            longest = (self.manifest.get("loss_lengths") or (0,))[-1]
            losses = {
                f"{settings.get('length') or 0:,}": ("loss", "rise"),
                f"{longest:,}": ("longer_loss", "longer_rise"),
            }
        columns = [f"{name}, {n}" if len(losses) > 1 else name for n in losses for name in ("loss", "rise")]
        kinds = {"lists": "lists_gain", "sentences": "sentences_gain"}
        if self.table["pass_keys"].is_not_null().any():
            kinds["pass_keys"] = "key_gain"

        def of(title: str, columns: Sequence[str], cells: Callable[[Row], list[str]], note: str = "") -> TextTable:
            named = [[row["contender"], *cells(row)] for row in rows]
            return TextTable(title, ["contender", *columns], named, note, breaks=("(",))

        return [
            of("Tested once, on the test text", columns,
               lambda row: [text for loss, rise in losses.values() for text in (_loss(row[loss]), _risen(row, rise))]),
            of("Weights and time", ("zeros", "active", "sensitivity", "time"),
               lambda row: [share_text(row["zeros"]), number(row["active"], 3), number(row["sensitivity_ratio"], 2),
                            f"{row['time_ratio']:.2f}"]),
            of("Right answers", [name.replace("_", " ") for name in kinds],
               lambda row: [_with_gain(row, *pair) for pair in kinds.items()], _CHANGES),
        ]  # fmt: skip

    def _found_keys(self) -> TextTable:
        rows = [
            (row["contender"], f"{row['length']:,}", f"{row['depth']:g}",
             f"{round(row['right'] * row['prompts'])} of {row['prompts']}", number(row["log_probability"], 3))
            for row in self.keys.to_dicts()
        ]  # fmt: skip
        columns = ("contender", "length", "depth", "found", "log-probability")
        return TextTable("Pass keys by length and depth", columns, rows, choose="contender", on=("page",))

    def _tried(self) -> TextTable:
        plans = self.plans.to_dicts()
        ordered = sorted(plans, key=lambda row: (not row["chosen"], -row["steps"], -(row["gain"] or 0.0)))
        rows = [
            (row["plan"], str(row["steps"]), _risen(row, "rise"), _risen(row, "control_rise"),
             share_text(row["zeros"]), number(row["gain"], 3))
            for row in ordered[:_MOST_PLANS]
        ]  # fmt: skip
        left = len(ordered) - len(rows)
        columns = ("plan", "steps", "rise", "over softmax tuned the same way", "zeros", "gain")
        title, note = "Plans, on the validation text; the first was tested", f"{left} more in plans.csv"
        return TextTable(title, columns, rows, note if left > 0 else "", on=("page",), left=("plan",))

    def _scanned(self) -> TextTable:
        rows = [
            (row["layers"], row["normalizer"], signed(row["harm"]), share_text(row["zeros"]),
             f"{number(row['effective_tokens'], 3)} of {number(row['effective_tokens_baseline'], 3)}",
             number(row["sensitivity_ratio"], 2))
            for row in self.scan.to_dicts()
        ]  # fmt: skip
        columns = ("layers", "normalizer", "rise", "zeros", "effective tokens", "sensitivity")
        return TextTable("Each group of layers alone", columns, rows, on=("page",))

    def _steps(self) -> list[Step]:
        """Commands that use the plan and repeat the search, with what was given; none for a model or text in memory."""
        call = part_of(self.manifest, "call")
        given = dict(part_of(call, "arguments"))
        model, texts = str(given.pop("model", "embedded")), given.pop("text", None) or []
        if not call or call.get("absent") or isinstance(texts, dict):
            return []
        shared, searched = _options("--text", texts), _options("--with", given.pop("normalizers", []))
        for name, value in given.items():
            word = ",".join(map(str, value)) if isinstance(value, list) else value
            (shared if name in _SHARED else searched).extend(_options(f"--{name.replace('_', '-')}", word))
        steps = [Step("To repeat the search:", shlex.join(["abbe", "lift", model, *shared, *searched]))]
        if self.file is not None:
            use = ["abbe", "compare", model, "--with", f"file:{self.file}", *shared]
            save = ["abbe", "export", model, "--plan", str(self.file), "--out", f"{Path(model).name}-lifted"]
            steps.insert(0, Step("To compare the plan with the model as it is, in every number:", shlex.join(use)))
            steps.insert(1, Step("To save a model that holds the plan:", shlex.join(save)))
        return steps


def _options(name: str, values: Any) -> list[str]:
    listed = values if isinstance(values, list) else [values]
    return [word for value in listed for word in (name, "none" if value is None else str(value))]


def _loss(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _risen(row: Row, name: str) -> str:
    """A change over the baseline with its interval."""
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return MISSING if value is None else with_interval(value, low, high, signed)


def _with_gain(row: Row, column: str, gain: str) -> str:
    """ "28 % (+12 %: +6 to +14 %)": a share, its gain over the baseline and the gain's interval, if any."""
    if row[gain] is None:
        return share_text(row[column])
    ends = interval(row[f"{gain}_low"], row[f"{gain}_high"], _points)
    return f"{share_text(row[column])} ({_points(row[gain])}{f': {ends}' if ends else ''})"


def _points(gain: float) -> str:
    return f"{100 * gain:+z.0f} %"
