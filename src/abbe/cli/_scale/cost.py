"""abbe cost"""

from __future__ import annotations

from typing import Annotated

import typer

from ..._errors import AbbeError
from ..._lazy import need
from .._names import EXTRA_OF
from .._options import (
    Debug,
    Lengths,
    Model,
    Queries,
    Windows,
    count_or_all,
    json_option,
    numbers,
    quiet_option,
    setting,
)
from .._shown import print_table

EXAMPLES = (
    "abbe cost",
    "abbe cost ./my-model --lengths 128,1024 --study report",
    "abbe cost --shape layers=80,heads=64,kv_heads=8,width=8192,mlp=28672,vocabulary=128256 "
    "--lengths 131072 --dtype bfloat16 --flops 400e12 --bandwidth 3e12 --devices 8",
)


def _device_option(help: str) -> typer.models.OptionInfo:
    return setting(help, panel="Another device")


def cost(
    model: Model = "embedded",
    shape: Annotated[
        str | None,
        typer.Option(
            help="Sizes of a Llama-like model, instead of a model: layers=32,heads=32,width=4096,mlp=11008,..."
        ),
    ] = None,
    lengths: Lengths = None,
    windows: Windows = 8,
    queries: Queries = "64",
    study: Annotated[str, setting("diagnose, report, or pass (forward passes alone).")] = "diagnose",
    dtype: Annotated[str, setting("Weights and activations: float32, bfloat16 or float16.")] = "float32",
    flops: Annotated[float | None, _device_option("Floating-point operations per second that it sustains.")] = None,
    bandwidth: Annotated[float | None, _device_option("Memory bandwidth in bytes per second.")] = None,
    devices: Annotated[int, _device_option("Number of devices; the layers of a model are spread over them.")] = 1,
    memory: Annotated[float | None, _device_option("Bytes per device; as many copies as fit share the work.")] = None,
    as_json: Annotated[bool, json_option("Print the estimate as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No progress bar and no table; only a one-line summary.")] = False,
    debug: Debug = False,
) -> None:
    """Estimate the time and memory of a study from the model's shape alone: per window, head and token.

    Weights are not read. The speed of this machine is measured in a few seconds, unless another device is described.
    """
    need("abbe cost", EXTRA_OF["cost"])
    from ... import studies

    result = studies.cost(
        model if shape is None else _sizes(shape), lengths=numbers("--lengths", lengths, int), windows=windows,
        queries=count_or_all(queries), study=study, dtype=dtype, flops=flops, bandwidth=bandwidth, devices=devices,
        memory=memory, progress=not quiet,
    )  # fmt: skip
    if as_json:
        typer.echo(result.to_json())
    elif quiet:
        typer.echo(str(result))
    else:
        from ...views import cost_table

        print_table(cost_table(result))


def _sizes(shape: str) -> dict[str, int]:
    """layers=80,heads=64 as a dictionary."""
    try:
        pairs = [part.split("=") for part in shape.split(",")]
        return {name.strip(): int(value) for name, value in pairs}
    except ValueError:
        example = "layers=32,heads=32,width=4096,mlp=11008,vocabulary=32000"
        raise AbbeError(f"--shape is {shape!r}, but must be sizes such as {example}") from None
