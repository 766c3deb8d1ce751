"""Memory of this process, where the system tells."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Largest memory of the process since this was made, in MB beyond what it had then; None where unknown."""

    def __init__(self) -> None:
        _give_back()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._before = _megabytes("VmRSS")

    def extra(self) -> float | None:
        peak = _megabytes("VmHWM")
        return None if peak is None or self._before is None else max(0.0, round(peak - self._before, 1))


def _give_back() -> None:
    """Return freed memory to the system: used again, it would not count as extra. GNU's C library can, others skip."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _megabytes(entry: str) -> float | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(entry)), None)
