"""The outputs of an exported folder in a fresh process, compared with the swapped model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import AbbeError
from .._load.device import dtype_name
from .._load.load import LoadedModel
from .._load.sources import Choice, one_line
from .._session.selfcheck import main_output, relative_error

SCRIPT = Path(__file__).with_name("fresh.py")
CLOSE = 1e-5  # of the standard deviation of the outputs
NEW_TOKENS = 24
_PROMPT = 16
# Both sides compute in float64, where only the rounding of the fold is left: float32 alone adds 1e-5 in six layers.
# Where this is impossible, they compute in the model's dtype, and may differ by as much as its rounding explains.
LARGE, CLOSE_OTHERWISE = 2e9, 1e-4


class Trial(NamedTuple):
    """The inputs of both sides."""

    inputs: dict[str, Tensor]
    text: str

    @property
    def prompt(self) -> Tensor:
        return self.inputs["input_ids"][:, :_PROMPT]


class Outcome(NamedTuple):
    """The results of one side: logits or hidden states, and greedily generated tokens."""

    output: Tensor
    generated: Tensor | None


@contextmanager
def in_dtype(network: Any, dtype: torch.dtype) -> Iterator[None]:
    """The network in the dtype of the check; float32 numbers survive the way to float64 and back."""
    before = network.dtype
    try:
        network.to(dtype)
        yield
    finally:
        network.to(before)


@torch.no_grad()
def checked_dtype(network: Any, trial: Trial) -> torch.dtype:
    """float64, unless the model is too large for it or has a part without it, such as a mixture of experts."""
    own: torch.dtype = network.dtype
    if sum(parameter.numel() for parameter in network.parameters()) > LARGE:
        return own
    try:
        with in_dtype(network, torch.float64):
            network(**trial.inputs)
    except RuntimeError:
        return own
    return torch.float64


def allowed(dtype: torch.dtype) -> float:
    return CLOSE if dtype == torch.float64 else CLOSE_OTHERWISE


@torch.no_grad()
def outcome(network: Any, trial: Trial) -> Outcome:
    output = main_output(network(**trial.inputs))
    if not network.can_generate():
        return Outcome(output.cpu(), None)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "use_cache": True}
    with one_line(f"{type(network).__name__} cannot generate for the check"):
        generated: Tensor = network.generate(trial.prompt, attention_mask=torch.ones_like(trial.prompt), **options)
    return Outcome(output.cpu(), generated.cpu())


def check(
    folder: Path, wanted: Outcome, trial: Trial, model: LoadedModel, choice: Choice, dtype: torch.dtype, plain: bool
) -> float:
    """The largest difference of the outputs over their standard deviation; an error if it is too large.

    `plain` folders are loaded where abbe cannot be imported.
    """
    with tempfile.TemporaryDirectory(prefix="abbe-export-") as work:
        answer = Path(work) / "answer.safetensors"
        job = {
            "without_abbe": plain, "auto": choice.auto, "dtype": dtype_name(dtype),
            "folder": str(folder.resolve()), "answer": str(answer), "threads": torch.get_num_threads(),
            "inputs": {name: ids.tolist() for name, ids in trial.inputs.items()}, "prompt": trial.prompt.tolist(),
            "new_tokens": 0 if wanted.generated is None else NEW_TOKENS, "text": trial.text,
        }  # fmt: skip
        got = _run(job, answer)
    error = relative_error(wanted.output, got["output"])
    if not error <= allowed(dtype):
        limit = f"allowed {allowed(dtype):g}"
        raise AbbeError(f"its outputs differ by {error:.2g} of their standard deviation ({limit})")
    if wanted.generated is not None and not torch.equal(wanted.generated, got["generated"]):
        raise AbbeError("greedy generation gives other tokens")
    if got["tokens"].tolist() != list(model.tokenizer(trial.text)["input_ids"]):
        raise AbbeError("its tokenizer cuts the text into other tokens")
    return error


def _run(job: dict[str, Any], answer: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    # -P: nothing is imported from the folder of the script.
    run = subprocess.run(
        [sys.executable, "-P", str(SCRIPT)], input=json.dumps(job), capture_output=True, text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    if run.returncode or not answer.is_file():
        last = run.stderr.strip().rpartition("\n")[2] or f"exit code {run.returncode}"
        raise AbbeError(f"a fresh process cannot load it: {last}")
    return load_file(answer)
