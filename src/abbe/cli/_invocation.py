"""What `main` must know about the command that is going on, to report its errors."""

from __future__ import annotations

from dataclasses import dataclass

FAILED, MISTAKE, STOPPED, PIPE_CLOSED = 1, 2, 130, 141  # exit codes

FROM_THE_START = "nothing was kept, the same command starts again"
RESUMES = "finished work is kept: run the same command again to resume"


@dataclass
class Invocation:
    """Set by options and commands, read when something went wrong."""

    debug: bool = False
    if_stopped: str = FROM_THE_START

    def reset(self) -> None:
        self.debug, self.if_stopped = False, FROM_THE_START


current = Invocation()
