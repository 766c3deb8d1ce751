"""The result of a search: the scan, the plans that were tried, and the one that was tested; and its view."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import Result
from ...views import TextTable, View
from ...words.finding import Finding, Step
from ...words.frames import Cell, Column, column, frame
from ...words.manifest import model_name, part_of, text_name
from ...words.numbers import interval, number
from .rules import share_text, signed

PLAN_FILE, CONTROL_FILE = "plan.safetensors", "softmax.safetensors"
_MOST_PLANS = 12
_SHARED = ("length", "queries", "device", "dtype", "device_map")  # options that `abbe compare` has as well
_CHANGES = "In brackets: change over the baseline and its interval, over the same windows or prompts in pairs."
_WANTED = {"sparse": "be made sparse", "loss": "get a lower loss", "retrieval": "find more pass keys"}
Row = Mapping[str, Any]
_change = partial(column, interval=True)
_ZEROS = column("zeros", float, "share of the visible keys whose weight is exactly 0", share=True)
_ACTIVE = column("active", float, "keys with a weight above 0")
_EFFECTIVE = column("effective_tokens", float, "1 over the sum of squared weights")
_two, _nats = partial(number, digits=2), "{:.3f}".format
_EQUAL = "sensitivity at equal selectivity, over the baseline's"
_SENSITIVITY = column("sensitivity_ratio", float, _EQUAL, label="sensitivity", show=_two)
_LOSS = column("loss", float, "in nats per token", show=_nats)
_CONTENDER = column("contender", str, "the baseline; softmax, tuned the same way; or the plan")
_RISE = _change("rise", float, "relative rise of the loss over the baseline's", show=signed)
_OVER_CONTROL = "relative rise of the loss over that of softmax, tuned the same way"


@dataclass(frozen=True, eq=False, kw_only=True)
class Lift(Result, study="lift", drawn=True):
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
        _CONTENDER, _LOSS, column("longer_loss", float, "the same on the longest windows (goal retrieval)", show=_nats),
        _ZEROS, _ACTIVE, _EFFECTIVE,
        column("lists", float, "share of key-value lists answered"),
        column("sentences", float, "share of sentences found among decoys"),
        column("pass_keys", float, "share of pass keys found"), _SENSITIVITY, _RISE,
        _change("longer_rise", float, "the same of `longer_loss`", show=signed),
        _change("zeros_gain", float, "share of zeros minus the baseline's"),
        _change("needle_gain", float, "accuracy on lists and sentences minus the baseline's"),
        _change("lists_gain", float, "accuracy on lists minus the baseline's"),
        _change("sentences_gain", float, "accuracy on sentences minus the baseline's"),
        _change("key_gain", float, "pass keys found minus the baseline's"),
        _change("control_rise", float, f"{_OVER_CONTROL}; the plan's only"),
        column("time_ratio", float, "of a forward pass, over the baseline's", label="time", show="{:.2f}".format),
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
        _change("control_rise", float, f"{_OVER_CONTROL}; null if it was not tuned, or is softmax itself", show=signed,
                label="over softmax tuned the same way"),
    )  # fmt: skip
    keys: pl.DataFrame = frame(
        "a contender, length and depth (goal retrieval)",
        _CONTENDER, column("length", int, "tokens of the prompt"),
        column("depth", float, "place of the pass key, from 0 to 1"), column("prompts", int, "how many"),
        _change("right", float, "share of pass keys found"),
        column("log_probability", float, "of the five digits, mean", label="log-probability"),
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
        manifest, settings = self.manifest, part_of(self.manifest, "settings")
        windows, goal = part_of(manifest, "windows"), str(settings.get("goal"))
        counts = ", ".join(f"{len(windows.get(name) or ())} {name}" for name in ("training", "validation", "test"))
        longer = "".join(f", and of {n:,} tokens to test the loss" for n in (manifest.get("loss_lengths") or ())[1:])
        return self._view(
            f"Can {model_name(manifest)} {_WANTED.get(goal, '')} with another normalizer?",
            f"on {text_name(manifest)}: windows of {settings.get('length')} tokens, {counts}{longer}",
            steps=self._steps(),
            tables=[*self._tested(), *self._searched()],
        )

    def _tested(self) -> list[TextTable]:
        """What was tested: losses, weights, answers; each fits into a terminal of 80 columns."""
        table, breaks = self.frame(), ("(",)
        losses: list[str | Column] = ["loss", "rise"]
        if self.table["longer_loss"].is_not_null().any():
            lengths = part_of(self.manifest, "settings").get("length") or 0, self.manifest["loss_lengths"][-1]
            losses = [
                replace(table[f"{longer}{name}"], label=f"{name}, {length:,}")
                for length, longer in zip(lengths, ("", "longer_"), strict=True)
                for name in ("loss", "rise")
            ]
        gains = {"lists": "lists_gain", "sentences": "sentences_gain", "pass_keys": "key_gain"}
        answers = [_with_gain(name, gain) for name, gain in gains.items() if self.table[name].is_not_null().any()]
        weights = ("zeros", "active", "sensitivity_ratio", "time_ratio")
        return [
            self._shown("Tested once, on the test text", "contender", *losses, breaks=breaks),
            self._shown("Weights and time", "contender", *weights),
            self._shown("Right answers", "contender", *answers, note=_CHANGES, breaks=breaks),
        ]

    def _searched(self) -> list[TextTable]:
        """Pass keys, plans, and each group of layers, for the page."""
        gain, on = pl.col("gain").fill_null(0), ("page",)
        plans = self.plans.sort("chosen", "steps", gain, descending=True, maintain_order=True).head(_MOST_PLANS)
        left, title = self.plans.height - plans.height, "Plans, on the validation text; the first was tested"
        note = f"{left} more in plans.csv" if left else ""
        return [
            self._shown("Pass keys by length and depth", *_OF_KEYS, table="keys", choose="contender", on=on),
            self._shown(title, *_OF_PLANS, table="plans", rows=plans, note=note, on=on, left=("plan",)),
            self._shown("Each group of layers alone", *_OF_LAYERS, table="scan", on=on),
        ]

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


def _with_gain(name: str, gain: str) -> Cell:
    """A column of "28 % (+12 %: +6 to +14 %)": a share, its gain over the baseline and the gain's interval, if any."""

    def text(row: Row) -> str:
        if row[gain] is None:
            return share_text(row[name])
        ends = interval(row[f"{gain}_low"], row[f"{gain}_high"], _points)
        return f"{share_text(row[name])} ({_points(row[gain])}{f': {ends}' if ends else ''})"

    return name.replace("_", " "), text


def _points(gain: float) -> str:
    return f"{100 * gain:+z.0f} %"


def _effective(row: Row) -> str:
    return f"{number(row['effective_tokens'], 3)} of {number(row['effective_tokens_baseline'], 3)}"


_FOUND: Cell = ("found", lambda row: f"{round(row['right'] * row['prompts'])} of {row['prompts']}")
_HARM: Cell = ("rise", lambda row: signed(row["harm"]))
_OF_LAYERS = ("layers", "normalizer", _HARM, "zeros", ("effective tokens", _effective), "sensitivity_ratio")
_OF_KEYS = ("contender", "length", "depth", _FOUND, "log_probability")
_OF_PLANS = ("plan", "steps", "rise", "control_rise", "zeros", "gain")
