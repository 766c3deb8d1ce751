"""--shard: the command is one of the workers that share its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..._errors import AbbeError
from .._options import setting
from .._shown import print_json

Shard = Annotated[
    str | None,
    setting(
        "Compute one share of the run: I/N such as 3/16, slurm for a task of a job array, or any for whatever no other "
        "worker has taken; then run abbe merge.",
    ),
]


def refuse_with_shard(figures: Path | None, opened: bool, engine: tuple[object, ...], each: str | None) -> None:
    for option, is_set in (("--figures", figures is not None), ("--open", opened)):
        if is_set:
            raise AbbeError(f"a shard makes no page and no figures: leave {option} out, abbe merge has it")
    if any(option is not None for option in engine):
        raise AbbeError("--shard and --engine (--address, --actors) are two ways to share the work: give one of them")
    if each is not None:
        raise AbbeError("--each takes no shard: give every model its own shard, or add --engine ray")


def run_shard(shard: str, folder: Path, measure: Callable[[], object], *, as_json: bool) -> None:
    """Call the study as a worker; the last line shows the progress of all workers."""
    from ... import studies

    with studies.working(folder, shard) as worker:
        measure()
    progress = studies.progress_of(worker, folder)
    for failure in progress.failed:
        typer.echo(f"abbe: {failure}", err=True)
    if progress.stopped:
        typer.echo(f"abbe: {progress.stopped}", err=True)
    if as_json:
        print_json(progress.as_json())
    typer.echo(progress, err=as_json)
    if progress.has_failed:
        raise typer.Exit(1)
