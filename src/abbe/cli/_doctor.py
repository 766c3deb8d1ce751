"""abbe doctor"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ._options import Debug, json_option, quiet_option
from ._shown import print_json

EXAMPLES = ("abbe doctor", "abbe doctor --quiet", "abbe doctor --json")


def doctor(
    as_json: Annotated[bool, json_option("Print all checks as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("Only what needs your attention.")] = False,
    debug: Debug = False,
) -> None:
    """Check this installation and say what to fix: versions, kernels, threads, memory, embedded model, cache.

    Exit code 0 if everything that abbe needs works, else 1.
    """
    from .. import studies

    checks = studies.doctor()
    failed = any(check.failed for check in checks)
    if as_json:
        print_json({"fine": not failed, "checks": [asdict(check) for check in checks]})
    else:
        from rich.console import Console

        from ..views import doctor_table

        shown = [check for check in checks if check.failed or check.state == "warning"] if quiet else checks
        if shown:
            Console().print(doctor_table(shown))
    raise typer.Exit(1 if failed else 0)
