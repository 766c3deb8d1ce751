"""What a command does, as a function."""

from ..words.finding import Finding, KeyNumber
from ..words.paper import FIGURES
from ._calibrate.result import Calibration, Interval
from ._calibrate.study import calibrate
from ._capacity.result import Capacity
from ._capacity.study import capacity
from ._compare.result import Comparison
from ._compare.study import compare
from ._diagnose.study import diagnose
from ._doctor.check import Check
from ._doctor.study import doctor
from ._engine.watch import watching
from ._open import open
from ._report.result import Ball, HeadVerdict, Report, Sample, SampleRow
from ._report.study import report
from ._reproduce.result import Claim, Figure, Reproduction
from ._reproduce.study import reproduce
from ._try_normalizers import NormalizerTrial, try_normalizers
from ._verify import Verdict, verify

__all__ = [
    "FIGURES",
    "Ball",
    "Calibration",
    "Capacity",
    "Check",
    "Claim",
    "Comparison",
    "Figure",
    "Finding",
    "HeadVerdict",
    "Interval",
    "KeyNumber",
    "NormalizerTrial",
    "Report",
    "Reproduction",
    "Sample",
    "SampleRow",
    "Verdict",
    "calibrate",
    "capacity",
    "compare",
    "diagnose",
    "doctor",
    "open",
    "report",
    "reproduce",
    "try_normalizers",
    "verify",
    "watching",
]
