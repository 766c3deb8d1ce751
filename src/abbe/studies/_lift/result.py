"""The result of a search: the scan, the plans that were tried, and the one that was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import Result, as_csv, as_rows, as_text, read_content, tables_from
from ...words.finding import Finding, findings_from

SUMMARY, PLAN_FILE, CONTROL_FILE = "lift.json", "plan.safetensors", "softmax.safetensors"
_ENDS = ("", "_low", "_high")
# Changes from the baseline, and of the loss from the control, with columns _low and _high.
_INTERVALS = (
    "rise", "longer_rise", "zeros_gain", "needle_gain", "lists_gain", "sentences_gain", "key_gain", "control_rise",
)  # fmt: skip
_NUMBERS = (
    "loss", "longer_loss", "zeros", "active", "effective_tokens", "lists", "sentences", "pass_keys",
    "sensitivity_ratio",
)  # fmt: skip
SCHEMA: dict[str, Any] = (
    {"contender": pl.String}
    | dict.fromkeys(_NUMBERS, pl.Float64)
    | {f"{name}{end}": pl.Float64 for name in _INTERVALS for end in _ENDS}
    | {"time_ratio": pl.Float64, "seconds": pl.Float64}
)
SCAN_SCHEMA: dict[str, Any] = {
    "layers": pl.String, "first": pl.Int32, "last": pl.Int32, "normalizer": pl.String, "harm": pl.Float64,
    "harm_low": pl.Float64, "harm_high": pl.Float64, "gain": pl.Float64, "zeros": pl.Float64,
    "effective_tokens": pl.Float64, "effective_tokens_baseline": pl.Float64, "sensitivity_ratio": pl.Float64,
    "output_error": pl.Float64,
}  # fmt: skip
PLANS_SCHEMA: dict[str, Any] = {
    "plan": pl.String, "layers": pl.Int32, "steps": pl.Int32, "loss": pl.Float64, "rise": pl.Float64,
    "rise_low": pl.Float64, "rise_high": pl.Float64, "gain": pl.Float64, "zeros": pl.Float64, "active": pl.Float64,
    "effective_tokens": pl.Float64, "chosen": pl.Boolean, "control_rise": pl.Float64, "control_rise_low": pl.Float64,
    "control_rise_high": pl.Float64,
}  # fmt: skip
KEYS_SCHEMA: dict[str, Any] = {
    "contender": pl.String, "length": pl.Int32, "depth": pl.Float64, "prompts": pl.Int32, "right": pl.Float64,
    "right_low": pl.Float64, "right_high": pl.Float64, "log_probability": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Lift(Result):
    """The result of `lift`.

    Attributes:
        lifted: whether the plan passed the rule on the test text.
        plan: patterns and specs of the plan that was judged, in one line that `swap` takes; `file` holds what was
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
        file: the judged plan, for `swap(model, "file:...")`, or None without a folder.
    """

    study: ClassVar[str] = "lift"
    page: ClassVar[str] = "lift.html"
    beside: ClassVar[tuple[str, ...]] = (PLAN_FILE, CONTROL_FILE)

    lifted: bool
    plan: str
    table: pl.DataFrame
    scan: pl.DataFrame
    plans: pl.DataFrame
    keys: pl.DataFrame
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]
    file: Path | None

    def __repr__(self) -> str:
        verdict = "lifted" if self.lifted else "not lifted"
        return f"Lift({self.manifest['model']['name']}: {verdict}, {self.plan!r}, {len(self.plans)} plans tried)"

    def as_json(self) -> dict[str, Any]:
        return {
            "lifted": self.lifted,
            "plan": self.plan,
            "findings": [asdict(finding) for finding in self.findings],
            **as_rows({"table": self.table, "scan": self.scan, "plans": self.plans, "keys": self.keys}),
            "manifest": dict(self.manifest),
            "file": None if self.file is None else str(self.file),
        }

    def _files(self) -> dict[str, bytes | str]:
        tables = as_csv({"table": self.table, "plans": self.plans, "scan": self.scan})
        return tables | {SUMMARY: as_text(self.as_json())}


def opened_lift(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Lift:
    content = read_content(folder / SUMMARY, stored)
    schemas = {"table": SCHEMA, "scan": SCAN_SCHEMA, "plans": PLANS_SCHEMA, "keys": KEYS_SCHEMA}
    file = folder / PLAN_FILE
    return Lift(
        content["lifted"], content["plan"], **tables_from(content, schemas),
        findings=findings_from(content["findings"]), manifest=manifest, file=file if file.is_file() else None,
    )  # fmt: skip
