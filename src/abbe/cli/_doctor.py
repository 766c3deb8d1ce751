"""abbe doctor"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ._options import Debug, json_option, quiet_option
from ._shown import print_json, print_table

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
        from ..views import doctor_table

        listed = [check for check in checks if check.failed or check.state == "warning"] if quiet else checks
        if listed:
            print_table(doctor_table(listed))
    raise typer.Exit(1 if failed else 0)
