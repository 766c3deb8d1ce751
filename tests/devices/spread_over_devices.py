"""A program: a model spread over two devices that are not the CPU, and its numbers beside those of the CPU.

`python spread_over_devices.py [no-float64]` prints a line per study: "same", or what is wrong. The parts of the model
are put on their devices and their inputs are moved by hooks, as accelerate does on devices that it knows; abbe only
sees the outcome.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pretend_device
import tiny_models
import tiny_runs
import torch
import torch.utils._pytree as tree
from torch import Tensor

import abbe
from abbe.models import LoadedModel, wrap

QUICK: dict[str, Any] = {"windows": 2, "resamples": 20, "progress": False}
HEADS = QUICK | {"queries": 4, "lengths": [24], "sizes": (1, 5)}
WITHOUT = "no-float64"


def compared(model: LoadedModel) -> pl.DataFrame:
    some: dict[str, Any] = {"normalizers": ["sparsemax"], "length": 24, "prompts": 1, "needle_lengths": [64]}
    table = abbe.compare(model, tiny_runs.TEXT, **some, **QUICK).table
    return table.select("normalizer", "loss", "effective_tokens", "zeros", "distance_per_token")


STUDIES: dict[str, Callable[[LoadedModel], pl.DataFrame]] = {
    "diagnose": lambda model: abbe.diagnose(model, tiny_runs.TEXT, **HEADS).table,
    "embedding": lambda model: abbe.diagnose(model, tiny_runs.TEXT, **HEADS, vectors="embedding").table.filter(
        pl.col("measure").is_in(["entropy", "top_mass", "distance"])  # equal tokens are ties, which rounding decides
    ),
    "output": lambda model: abbe.diagnose(model, tiny_runs.TEXT, **HEADS, vectors="output").table,
    "report": lambda model: abbe.report(model, tiny_runs.TEXT, **HEADS).alternatives,
    "capacity": lambda model: (
        abbe.capacity(model, tiny_runs.TEXT, lengths=24, way="deletion", layer_windows=2, **QUICK).table
    ),
    "compare": compared,
    "calibrate": lambda model: abbe.calibrate(model, tiny_runs.TEXT, length=24, held_out=2, steps=2, **QUICK).table,
}


def spread(model: LoadedModel) -> LoadedModel:
    """Embedding and first layer on one device, the other layer and the head on the other."""
    first, second = "pretend:0", "pretend:1"
    places = {"model.embed_tokens": first, "model.rotary_emb": first, "model.layers.0": first}
    places |= {"model.layers.1": second, "model.norm": second, "lm_head": second}
    for name, device in places.items():
        part = model.network.get_submodule(name).to(device)
        part.register_forward_pre_hook(_moving_inputs(device), with_kwargs=True)
    return model


def _moving_inputs(device: str) -> Callable[..., Any]:
    def move(part: Any, args: Any, kwargs: Any) -> Any:
        return tree.tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, (args, kwargs))

    return move


def forbid_float64() -> None:
    """As on Metal."""
    made = pretend_device.PretendTensor.__new__

    def checked(cls: Any, raw: Tensor, device: torch.device) -> Any:
        if raw.dtype == torch.float64:
            raise TypeError(f"Cannot convert a tensor to float64 on {device}")
        return made(cls, raw, device)

    pretend_device.PretendTensor.__new__ = staticmethod(checked)  # type: ignore[method-assign, assignment, unused-ignore]


def main(*more: str) -> None:
    if WITHOUT in more:
        forbid_float64()
    for study in STUDIES:
        try:
            check(study)
            print(f"{study}: same", flush=True)
        except Exception as error:  # the others shall run
            print(f"{study}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)


def check(study: str) -> None:
    models = []
    for _ in range(2):
        network: Any = tiny_models.llama(vocab_size=256)
        network.set_attn_implementation("eager")
        models.append(wrap(network, tiny_models.byte_tokenizer(), "tiny llama"))
    plain, moved = models[0], spread(models[1])
    assert (str(moved.device), moved.devices) == ("pretend:0", "pretend:0+pretend:1")
    assert moved.fingerprint == plain.fingerprint
    result, wanted = STUDIES[study](moved), STUDIES[study](plain)
    assert result.schema == wanted.schema
    for name, kind in result.schema.items():
        if kind.is_float():
            x, y = (torch.tensor(table[name].fill_null(torch.nan).to_list()) for table in (result, wanted))
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3, equal_nan=True)
        else:
            assert result[name].equals(wanted[name], null_equal=True), name


if __name__ == "__main__":
    main(*sys.argv[1:])
