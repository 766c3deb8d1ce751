"""What a command does, as a function."""

from ._calibrate import calibrate
from ._calibrate_parts import Calibration
from ._capacity import capacity
from ._capacity_parts import Capacity
from ._compare import compare
from ._compare_parts import Comparison
from ._diagnose import diagnose
from ._doctor import doctor
from ._doctor_check import Check
from ._progress import watching
from ._report import report
from ._report_parts import Finding, HeadVerdict, KeyNumber, Report
from ._reproduce import reproduce
from ._reproduction import FIGURES, Claim, Figure, Reproduction
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
    "report",
    "reproduce",
    "try_normalizers",
    "verify",
    "watching",
]
