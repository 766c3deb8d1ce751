"""What a command does, as a function."""

from ._diagnose import diagnose
from ._verify import Verdict, verify

__all__ = ["Verdict", "diagnose", "verify"]
