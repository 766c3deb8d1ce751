"""What a command does, as a function."""

from ._diagnose import diagnose
from ._reproduce import reproduce
from ._reproduction import FIGURES, Claim, Figure, Reproduction
from ._verify import Verdict, verify

__all__ = ["FIGURES", "Claim", "Figure", "Reproduction", "Verdict", "diagnose", "reproduce", "verify"]
