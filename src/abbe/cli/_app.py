"""All commands in the order in which help lists them.

Nothing heavy is imported before a command runs: help and completion must answer at once.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .._declared import studies
from ._commands import commands
from ._options import MISTAKE, Debug
from .study import command_of

FIRST, MORE = "Commands", "More"
# What a newcomer needs, in this order; all other commands follow under More.
_FIRST = (
    *("report", "reproduce", "capacity", "compare", "diff", "lift", "export", "eval", "watch", "verify"),
    *("normalizers", "pull", "doctor"),
)
_GROUPS = {
    "train": "Train small transformers to test claims about training attention. Nothing is downloaded. --quick takes "
    "about a minute on 2 cores, the defaults 1 to 15; each prints its cost before it starts. Every seed of every run "
    "is kept, and a stopped experiment resumes from its folder."
}


class OneLineGroup(TyperGroup):
    """The commands of abbe; an error that typer would show in a box becomes a line on standard error."""

    def main(self, *args: Any, **extra: Any) -> Any:
        # Named as it is typed, however the program was started.
        run = partial(super().main, *args, **extra | {"standalone_mode": False, "prog_name": "abbe"})
        if not extra.get("standalone_mode", True):
            return run()
        try:
            code = run()
        except Exception as error:
            # An error of click, which some versions of typer vendor under another name: recognised by its method.
            if not callable(getattr(error, "format_message", None)):
                raise
            if type(error).__name__ != "NoArgsIsHelpError":  # help was shown instead
                typer.echo(_line(error), err=True)
            code = MISTAKE
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="abbe",
    cls=OneLineGroup,
    help="The resolution limit of attention: what can be proved, measured and lifted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Debug = False,
) -> None:
    if version:
        typer.echo(f"abbe {__version__}")
        raise typer.Exit


def _add_commands() -> None:
    of_group: dict[str, dict[str, Any]] = {"": commands()}
    for study in studies().values():
        if not study.command.endswith("--each"):  # an option of report
            group, _, name = study.command.rpartition(" ")
            of_group.setdefault(group, {})[name] = command_of(study)
    for group, listed in of_group.items():
        where = typer.Typer(name=group, help=_GROUPS.get(group), no_args_is_help=True) if group else app
        for name in sorted(listed, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
            function, examples = listed[name]
            shown = "\n".join(["Examples:", *(f"[bold]{example}[/]" for example in examples)])
            panel = (FIRST if name in _FIRST else MORE) if where is app else None
            where.command(epilog=shown, rich_help_panel=panel)(function)
        if where is not app:
            app.add_typer(where, rich_help_panel=MORE)


_add_commands()


def _line(error: Any) -> str:
    text = " ".join(str(error.format_message()).split()).removesuffix(".")
    text = text[:1].lower() + text[1:]
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "abbe"
    # A question is already a suggestion.
    return f"abbe: {text}" if text.endswith("?") else f"abbe: {text}; see {command} --help"
