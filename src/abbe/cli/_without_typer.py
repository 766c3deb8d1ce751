"""The program where typer or rich are not installed: it says in one line what to install."""

from __future__ import annotations

import sys

from .._later import has
from ._invocation import MISTAKE
from ._names import EXTRA_OF


def main() -> None:
    """The extra of the command, which brings the rest along, or else abbe itself."""
    command = next((word for word in sys.argv[1:] if word in EXTRA_OF), "")
    extra = EXTRA_OF.get(command, "")
    if has(extra):
        print("abbe needs typer and rich, which are not installed: pip install --upgrade abbe", file=sys.stderr)
    else:
        print(f'abbe {command} needs abbe[{extra}]: pip install "abbe[{extra}]"', file=sys.stderr)
    sys.exit(MISTAKE)
