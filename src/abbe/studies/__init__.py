"""What a command does, as a function."""

from ._diagnose import diagnose
from ._doctor import doctor
from ._doctor_check import Check
from ._report import report
from ._report_parts import Finding, HeadVerdict, KeyNumber, Report
from ._reproduce import reproduce
from ._reproduction import FIGURES, Claim, Figure, Reproduction
from ._try_normalizers import NormalizerTrial, try_normalizers
from ._verify import Verdict, verify

__all__ = [
    "FIGURES",
    "Check",
    "Claim",
    "Figure",
    "Finding",
    "HeadVerdict",
    "KeyNumber",
    "NormalizerTrial",
    "Report",
    "Reproduction",
    "Verdict",
    "diagnose",
    "doctor",
    "report",
    "reproduce",
    "try_normalizers",
    "verify",
]
