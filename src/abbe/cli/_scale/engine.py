"""--engine, --address and --actors: what runs the study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from ..._errors import AbbeError
from .._options import setting

RAY = "ray"
Engine = Annotated[
    str | None,
    setting("ray: run on actors, each with a copy of the model; on this machine, or with --address on a cluster."),
]
Address = Annotated[str | None, setting("The Ray cluster: auto, HOST:6379 or ray://HOST:10001.")]
Actors = Annotated[int | None, setting("Number of actors; by default one per core, or per GPU with --device cuda.")]


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
