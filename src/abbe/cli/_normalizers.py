"""abbe normalizers"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _complete
from ._options import Debug, json_option, numbers, quiet_option
from ._shown import print_json, print_table

if TYPE_CHECKING:
    from ..normalizers import NormalizerInfo

EXAMPLES = (
    "abbe normalizers",
    "abbe normalizers softmax entmax:alpha=1.5 topk:k=2",
    "abbe normalizers sparsemax --logits 2,1,0.5,-1 --json",
)


def normalizers(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Normalizers to apply to the logits, such as entmax:alpha=1.5; without one, all are listed.",
            autocompletion=_complete.normalizers,
        ),
    ] = None,
    logits: Annotated[str, typer.Option(help="The row of logits.")] = "3,2,1,0,-1",
    as_json: Annotated[bool, json_option("Print a JSON object instead of a table.")] = False,
    quiet: Annotated[bool, quiet_option("Only the names, or only the weights.")] = False,
    debug: Debug = False,
) -> None:
    """List all normalizers with meaning, parameters and paper, or apply some of them to a row of logits."""
    if specs:
        _try(specs, numbers("--logits", logits, float), as_json, quiet)
    else:
        _list(as_json, quiet)


def _list(as_json: bool, quiet: bool) -> None:
    from ..normalizers import list_normalizers

    if as_json:
        print_json({"normalizers": [_described(info) for info in list_normalizers()]})
    elif quiet:
        typer.echo("\n".join(info.name for info in list_normalizers()))
    else:
        from ..views import normalizers_table

        print_table(normalizers_table(list_normalizers()))


def _described(info: NormalizerInfo) -> dict[str, Any]:
    parameters = [
        {"name": option.name, "default": option.default, "allowed": option.allowed, "meaning": option.meaning}
        for option in info.parameters
    ]
    return {
        "name": info.name, "meaning": info.meaning, "parameters": parameters, "paper": info.paper,
        "example": info.example,
    }  # fmt: skip


def _try(specs: list[str], logits: list[float], as_json: bool, quiet: bool) -> None:
    from ..studies import try_normalizers

    trials = try_normalizers(specs, logits)
    if as_json:
        print_json({"trials": [asdict(trial) for trial in trials]})
    elif quiet:
        for trial in trials:
            typer.echo(",".join(f"{weight:.6g}" for weight in trial.weights))
    else:
        from ..views import trials_table

        print_table(trials_table(trials))
