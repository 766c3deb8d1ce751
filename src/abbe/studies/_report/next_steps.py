"""What to do next: at most three steps, in order of worth, each with the command that tests it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...words.finding import NOT_LEARNED
from ...words.manifest import part_of
from ...words.numbers import heads_of, many, percent, sentence
from .._engine.lookup import Lookup
from .advice import KEPT, best_served, gaining, top_masses
from .alternatives import SPARSE
from .answer import Answer
from .result import Report

MOST = 3
ENOUGH_WINDOWS = 8  # of each length: intervals of 95 % from 8 windows hold 93 % of the time, from 4 only 87 %
_CAN_RAISE = "swapped in without calibration it can raise the loss"
_FILE = re.compile(r"[^/\\]+\.\w{1,8}")


@dataclass(frozen=True)
class Step:
    """A possible gain or an open question, and the command that settles it."""

    words: str
    command: str


def next_steps(report: Report, answer: Answer, manifest: Mapping[str, Any] | None = None) -> tuple[Step, ...]:
    """In order of worth; `manifest` replaces that of the run to keep paths out of the commands."""
    command = _Commands(report.run.manifest if manifest is None else manifest, report.run.table["length"].max())
    if answer.topic == NOT_LEARNED:
        words = "Check that the model is trained, and on this kind of text. For comparison, a trained model:"
        return (Step(words, "abbe report embedded"),)
    steps = []
    if _has_loss(report):
        steps = [_for_topic(answer, command), _sparse(report, command), _capacity(report, command)]
    steps.append(_windows(report, command))
    return tuple(step for step in steps if step is not None)[:MOST]


class _Commands:
    """Command lines for the model and the text of a run."""

    def __init__(self, manifest: Mapping[str, Any], longest: Any) -> None:
        self.model = _model_argument(part_of(manifest, "model"))
        self.placed = _placed_options(part_of(manifest, "model"))
        self.text = _text_options(str(part_of(manifest, "text").get("name") or ""))
        self.longest = longest

    def compare(self, spec: str) -> str:
        length = ["--length", str(self.longest)] if self.longest else []
        return self._line("compare", "--with", spec, "--calibrate", *length)

    def capacity(self) -> str:
        lengths = ["--lengths", str(self.longest)] if self.longest else []
        return self._line("capacity", *lengths, "--no-layers")

    def report(self, windows: int) -> str:
        return self._line("report", "--windows", str(windows), "--out", f"abbe-report-{windows}-windows")

    def _line(self, command: str, *options: str) -> str:
        return shlex.join(["abbe", command, self.model, *options, *self.placed, *self.text])


def _model_argument(model: Mapping[str, Any]) -> str:
    """As `abbe` takes it; a network that was in memory is known by its class alone, so the reader must name it."""
    if model.get("source") == "embedded":
        return "embedded"
    name = str(model.get("name") or "")
    return "MODEL" if not name or name == model.get("class") else name


def _placed_options(model: Mapping[str, Any]) -> list[str]:
    """Device and precision, where they are not the defaults and have an option."""
    device, dtype = str(model.get("device") or "cpu"), str(model.get("dtype") or "float32")
    placed = ["--device-map", "auto"] if "+" in device else ["--device", device] if device != "cpu" else []
    return [*placed, *(["--dtype", dtype] if dtype in ("bfloat16", "float16") else [])]


def _text_options(name: str) -> list[str]:
    """Files are known by their names alone; the reader must name a text that was in memory."""
    if name in ("", "embedded sample"):
        return []
    if name == "standard input":
        return ["--text", "-"]
    files = name.split(" + ")
    if not all(_FILE.fullmatch(file) for file in files):
        files = ["TEXT.txt"]
    return [part for file in files for part in ("--text", file)]


def _has_loss(report: Report) -> bool:
    """Whether the model predicts the next token, so that a swap can be judged by its loss."""
    if report.sample is not None:
        return report.sample.loss is not None
    return part_of(report.run.manifest, "model").get("kind") == "decoder"


def _for_topic(answer: Answer, command: _Commands) -> Step | None:
    if answer.topic == "sinks":
        return Step(
            "Keep the first token in every cache or active set. softmax1, which lets a head attend to nothing, might "
            f"do without it; {_CAN_RAISE}. Test it:",
            command.compare("softmax1"),
        )
    if answer.topic in ("dispersing", "fading"):
        return Step(
            f"Logits scaled by ln n (ssmax) might hold the weights together in long texts; {_CAN_RAISE}. Test it:",
            command.compare("ssmax"),
        )
    return None


def _sparse(report: Report, command: _Commands) -> Step | None:
    if "gain" not in report.alternatives.columns:
        return None
    best = gaining(report.alternatives, SPARSE)
    if best.is_empty():
        return None
    heads = report.alternatives.select("layer", "head").unique().height
    spec = str(best_served(best)["normalizer"][0])
    counted = sentence(heads_of(best.height, heads, "might gain", "might gain"))
    return Step(f"{counted} from a sparse normalizer; {_CAN_RAISE}. Test it:", command.compare(spec))


def _capacity(report: Report, command: _Commands) -> Step | None:
    masses = top_masses(Lookup(report.run))
    if not masses:
        return None
    size = next((n for n, cell in masses.items() if cell.value >= KEPT), max(masses))
    held = f"{'holds' if size == 1 else 'hold'} {percent(masses[size].value)} of the weight on average"
    return Step(f"{many(size, 'key')} {held}; how many the loss needs:", command.capacity())


def _windows(report: Report, command: _Commands) -> Step | None:
    windows = part_of(report.run.manifest, "settings").get("windows")
    if not isinstance(windows, int) or windows >= ENOUGH_WINDOWS:
        return None
    counted = "1 window gives no intervals" if windows == 1 else f"Intervals from {windows} windows are too narrow"
    return Step(f"{counted}; use {ENOUGH_WINDOWS}:", command.report(ENOUGH_WINDOWS))
