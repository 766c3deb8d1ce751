"""Wrong usage in one line: a missing option, a value of another kind, an unknown command. Help keeps its boxes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from ._invocation import MISTAKE


class OneLineGroup(TyperGroup):
    """The commands of abbe; what typer would show in a box becomes a line on standard error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(OneLineGroup, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
            return run()
        try:
            code = run()
        except Exception as error:
            # Of click, which some versions of typer bring along under a name of their own: known by what it can do.
            if not callable(getattr(error, "format_message", None)):
                raise
            if type(error).__name__ != "NoArgsIsHelpError":  # help was shown instead
                typer.echo(_line(error), err=True)
            code = MISTAKE
        sys.exit(code if isinstance(code, int) else 0)


def _line(error: Any) -> str:
    said = " ".join(str(error.format_message()).split()).removesuffix(".")
    said = said[:1].lower() + said[1:]
    # A question is a suggestion of its own.
    return f"abbe: {said}" if said.endswith("?") else f"abbe: {said}; see {_command(error)} --help"


def _command(error: Any) -> str:
    """As it is typed, however the program was started."""
    names, context = [], getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.append(context.info_name)
        context = context.parent
    return " ".join(["abbe", *reversed(names)])
