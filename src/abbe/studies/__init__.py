"""What a command does, as a function."""

from ._verify import Verdict, verify

__all__ = ["Verdict", "verify"]
