"""What a command does, as a function."""

from ._calibrate.result import Calibration
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
from ._report.result import Finding, HeadVerdict, KeyNumber, Report
from ._report.study import report
from ._reproduce.result import FIGURES, Claim, Figure, Reproduction
from ._reproduce.study import reproduce
from ._try_normalizers import NormalizerTrial, try_normalizers
from ._verify import Verdict, verify

__all__ = [
    "FIGURES",
    "Calibration",
    "Capacity",
    "Check",
    "Claim",
    "Comparison",
    "Figure",
    "Finding",
    "HeadVerdict",
    "KeyNumber",
    "NormalizerTrial",
    "Report",
    "Reproduction",
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
