"""All commands in the order in which help lists them.

Nothing heavy is imported before a command runs: help and completion must answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from .. import __version__
from . import _calibrate, _capacity, _compare, _doctor, _heads, _normalizers, _pull, _reproduce, _train, _verify, _watch
from ._options import Debug
from ._usage import OneLineGroup

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


def _add(panel: str, command: Callable[..., None], examples: Sequence[str]) -> None:
    app.command(epilog=_examples(examples), rich_help_panel=panel)(command)


def _add_to(group: typer.Typer, command: Callable[..., None], examples: Sequence[str]) -> None:
    group.command(epilog=_examples(examples))(command)


_MODEL, _THEORY, _MACHINE = "Measure a model", "Theory and normalizers", "Models and machine"
_add(_MODEL, _heads.report, _heads.REPORT_EXAMPLES)
_add(_MODEL, _reproduce.reproduce, _reproduce.EXAMPLES)
_add(_MODEL, _heads.diagnose, _heads.DIAGNOSE_EXAMPLES)
_add(_MODEL, _capacity.capacity, _capacity.EXAMPLES)
_add(_MODEL, _compare.compare, _compare.EXAMPLES)
_add(_MODEL, _calibrate.calibrate, _calibrate.EXAMPLES)
_add(_MODEL, _watch.watch, _watch.EXAMPLES)
app.add_typer(_train.make_group(_add_to), rich_help_panel=_MODEL)
_add(_THEORY, _verify.verify, _verify.EXAMPLES)
_add(_THEORY, _normalizers.normalizers, _normalizers.EXAMPLES)
_add(_MACHINE, _pull.pull, _pull.EXAMPLES)
_add(_MACHINE, _doctor.doctor, _doctor.EXAMPLES)
