"""All commands in the order in which help lists them.

Nothing heavy is imported before a command runs: help and completion must answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from . import _calibrate, _capacity, _compare, _doctor, _heads, _normalizers, _pull, _reproduce, _verify, _watch
from ._invocation import MISTAKE
from ._lift import diff as _diff
from ._lift import export as _export
from ._lift import lift as _lift
from ._options import Debug
from ._scale import cost as _cost
from ._scale import merge as _merge
from ._train import make_group


class OneLineGroup(TyperGroup):
    """The commands of abbe; an error that typer would show in a box becomes a line on standard error."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, complete_var: str | None = None,
        standalone_mode: bool = True, windows_expand_args: bool = True, **extra: Any,
    ) -> Any:  # fmt: skip
        def run() -> Any:
            return super(OneLineGroup, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
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


def _examples(examples: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"[bold]{example}[/]" for example in examples)])


def _add_to(group: typer.Typer, command: Callable[..., None], examples: Sequence[str]) -> None:
    group.command(epilog=_examples(examples))(command)


_MODEL, _CHANGE = "Measure a model", "Change and train models"
_THEORY, _MACHINE = "Theory and normalizers", "Models and machines"
_COMMANDS: dict[str, dict[Callable[..., None], Sequence[str]]] = {
    _MODEL: {
        _heads.report: _heads.REPORT_EXAMPLES,
        _reproduce.reproduce: _reproduce.EXAMPLES,
        _heads.diagnose: _heads.DIAGNOSE_EXAMPLES,
        _capacity.capacity: _capacity.EXAMPLES,
        _compare.compare: _compare.EXAMPLES,
        _diff.diff: _diff.EXAMPLES,
    },
    _CHANGE: {
        _calibrate.calibrate: _calibrate.EXAMPLES,
        _lift.lift: _lift.EXAMPLES,
        _export.export: _export.EXAMPLES,
        _watch.watch: _watch.EXAMPLES,
    },
    _THEORY: {_verify.verify: _verify.EXAMPLES, _normalizers.normalizers: _normalizers.EXAMPLES},
    _MACHINE: {
        _pull.pull: _pull.EXAMPLES,
        _cost.cost: _cost.EXAMPLES,
        _merge.merge: _merge.EXAMPLES,
        _doctor.doctor: _doctor.EXAMPLES,
    },
}
for _panel, _commands in _COMMANDS.items():
    for _command, _command_examples in _commands.items():
        app.command(epilog=_examples(_command_examples), rich_help_panel=_panel)(_command)
app.add_typer(make_group(_add_to), rich_help_panel=_CHANGE)


def _line(error: Any) -> str:
    text = " ".join(str(error.format_message()).split()).removesuffix(".")
    text = text[:1].lower() + text[1:]
    # A question is already a suggestion.
    return f"abbe: {text}" if text.endswith("?") else f"abbe: {text}; see {_typed(error)} --help"


def _typed(error: Any) -> str:
    """As it is typed, however the program was started."""
    names, context = [], getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.append(context.info_name)
        context = context.parent
    return " ".join(["abbe", *reversed(names)])
