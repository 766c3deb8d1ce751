"""What `main` must know about the running command to report its errors; and `main` without typer."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from .._lazy import has
from ._names import EXTRA_OF

FAILED, MISTAKE, STOPPED, PIPE_CLOSED = 1, 2, 130, 141  # exit codes

FROM_THE_START = "nothing was kept, the same command starts again"
RESUMES = "finished work is kept: run the same command again to resume"


@dataclass
class Invocation:
    """Set by options and commands, read after an error."""

    debug: bool = False
    if_stopped: str = FROM_THE_START
    interrupted: float = -math.inf  # when Ctrl-C was last passed on, by the monotonic clock

    def reset(self) -> None:
        self.debug, self.if_stopped, self.interrupted = False, FROM_THE_START, -math.inf


current = Invocation()


def main_without_typer() -> None:
    """Without typer or rich: one line names the extra of the command, which includes them."""
    command = next((word for word in sys.argv[1:] if word in EXTRA_OF), "")
    extra = EXTRA_OF.get(command, "")
    if has(extra):
        print("abbe needs typer and rich, which are not installed: pip install --upgrade abbe", file=sys.stderr)
    else:
        print(f'abbe {command} needs abbe[{extra}]: pip install "abbe[{extra}]"', file=sys.stderr)
    sys.exit(MISTAKE)
