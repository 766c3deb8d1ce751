"""What a command does, as a function."""

import typing as _typing

from .._lazy import later as _on_first_use
from ..words.finding import Finding, KeyNumber
from ..words.paper import FIGURES

if _typing.TYPE_CHECKING:
    from ..lab import Experiment, train_length, train_recall, train_temperature, train_text
    from ..runs.watch import watching
    from ._calibrate.result import Calibration
    from ._calibrate.study import calibrate
    from ._capacity.result import Capacity
    from ._capacity.study import capacity
    from ._compare.result import Comparison
    from ._compare.study import compare
    from ._cost.result import Costs
    from ._cost.study import cost
    from ._diagnose.study import diagnose
    from ._diff.result import Difference
    from ._diff.study import diff
    from ._doctor.check import Check
    from ._doctor.study import doctor
    from ._each import Reports, report_each
    from ._engine.sharing.board import Failure
    from ._lift.result import Lift
    from ._lift.study import lift
    from ._merge import merge
    from ._open import open
    from ._ray.on_ray import on_ray
    from ._report.heads import HeadVerdict
    from ._report.result import Report
    from ._report.sample import Ball, Sample, SampleRow
    from ._report.study import report
    from ._reproduce.result import Claim, Figure, Reproduction
    from ._reproduce.study import reproduce
    from ._try_normalizers import NormalizerTrial, try_normalizers
    from ._verify import Verdict, verify
    from ._work import Progress, progress, progress_of, work, working

__all__ = [
    "FIGURES",
    "Ball",
    "Calibration",
    "Capacity",
    "Check",
    "Claim",
    "Comparison",
    "Costs",
    "Difference",
    "Experiment",
    "Failure",
    "Figure",
    "Finding",
    "HeadVerdict",
    "KeyNumber",
    "Lift",
    "NormalizerTrial",
    "Progress",
    "Report",
    "Reports",
    "Reproduction",
    "Sample",
    "SampleRow",
    "Verdict",
    "calibrate",
    "capacity",
    "compare",
    "cost",
    "diagnose",
    "diff",
    "doctor",
    "lift",
    "merge",
    "on_ray",
    "open",
    "progress",
    "progress_of",
    "report",
    "report_each",
    "reproduce",
    "train_length",
    "train_recall",
    "train_temperature",
    "train_text",
    "try_normalizers",
    "verify",
    "watching",
    "work",
    "working",
]

_NAMES = {
    "": {
        "._doctor.check": ("Check",),
        "._doctor.study": ("doctor",),
        "._engine.watch": ("watching",),
        "._try_normalizers": ("NormalizerTrial", "try_normalizers"),
        "._verify": ("Verdict", "verify"),
    },
    "models": {
        "._calibrate.result": ("Calibration",),
        "._calibrate.study": ("calibrate",),
        "._capacity.result": ("Capacity",),
        "._capacity.study": ("capacity",),
        "._compare.result": ("Comparison",),
        "._cost.result": ("Costs",),
        "._cost.study": ("cost",),
        "._diagnose.study": ("diagnose",),
        "._engine.sharing.board": ("Failure",),
        "._merge": ("merge",),
        "._lift.result": ("Lift",),
        "._lift.study": ("lift",),
        "._diff.result": ("Difference",),
        "._diff.study": ("diff",),
        "._open": ("open",),
        "._ray.on_ray": ("on_ray",),
        "._report.heads": ("HeadVerdict",),
        "._report.result": ("Report",),
        "._report.sample": ("Ball", "Sample", "SampleRow"),
        "._reproduce.result": ("Claim", "Figure", "Reproduction"),
        "..lab": ("Experiment", "train_length", "train_recall", "train_temperature", "train_text"),
        "._work": ("Progress", "progress", "progress_of", "work", "working"),
    },
    "all": {  # they write pages
        "._compare.study": ("compare",),
        "._each": ("Reports", "report_each"),
        "._report.study": ("report",),
        "._reproduce.study": ("reproduce",),
    },
}
if not _typing.TYPE_CHECKING:  # types are those of the imports above
    __getattr__, __dir__ = _on_first_use(__name__, _NAMES)
