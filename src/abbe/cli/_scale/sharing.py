"""--shard, --engine, --address and --actors: share the work among workers of a folder, or run it on an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..._errors import AbbeError
from .._options import setting
from .._shown import print_json

RAY = "ray"
Shard = Annotated[
    str | None,
    setting(
        "Compute one share of the run: I/N such as 3/16, slurm for a task of a job array, or any for whatever no other "
        "worker has taken; then run abbe merge.",
    ),
]
Engine = Annotated[
    str | None,
    setting("ray: run on actors, each with a copy of the model; on this machine, or with --address on a cluster."),
]
Address = Annotated[str | None, setting("The Ray cluster: auto, HOST:6379 or ray://HOST:10001.")]
Actors = Annotated[int | None, setting("Number of actors; by default one per core, or per GPU with --device cuda.")]


def refuse_with_shard(figures: Path | None, opened: bool, engine: tuple[object, ...], each: str | None) -> None:
    for option, is_set in (("--figures", figures is not None), ("--open", opened)):
        if is_set:
            raise AbbeError(f"a shard makes no page and no figures: give {option} to abbe merge instead")
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


@contextmanager
def run_by(
    engine: str | None, address: str | None, actors: int | None, device: str | None, device_map: str | None
) -> Iterator[None]:
    """Studies called within run on the engine."""
    if engine is None:
        if address is not None or actors is not None:
            raise AbbeError("--address and --actors are for an engine: add --engine ray")
        yield
        return
    if engine != RAY:
        raise AbbeError(f"there is no engine {engine!r}: choose {RAY}, or leave --engine out")
    from ...studies import on_ray

    if device_map is not None:
        raise AbbeError("--device-map needs several GPUs per actor: use abbe.on_ray(gpus=...) in Python, or --shard")
    if (device or "").startswith("cuda:"):
        raise AbbeError(f"--device is {device}, but Ray gives every actor its own GPU: give --device cuda")
    with on_ray(address, actors=actors, gpus={"cuda": 1, "auto": None}.get(device or "", 0)):
        yield
