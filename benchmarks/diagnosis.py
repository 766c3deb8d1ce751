"""Speed and memory of a diagnosis on the shape of GPT-2 (12 layers, 12 heads of width 64), random weights.

Ratios in one run: against the plain forward passes that it contains, and against the straightforward way
(`tests/measures/plain.py`: output_attentions=True, loops over heads, queries and N).
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import abbe
from abbe.measures import DEFAULT_GRID
from abbe.models import wrap

Row = dict[str, object]

# A process of its own for each length, so that the peak of one does not hide that of the next.
_ONE_LENGTH = """
import json, sys
sys.path.insert(0, sys.argv[2])
from diagnosis import gpt2_shape, measured
length = int(sys.argv[1])
model = gpt2_shape(context=length)
measured(model, min(length, 1024), 1)  # loads and compiles everything
print(json.dumps(measured(model, length, 1)))
"""


def gpt2_shape(context: int = 1024) -> Any:
    """A random GPT-2 of the usual size, with weights large enough that attention is not uniform."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = abbe.load("embedded").tokenizer
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=context)
    network = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for layer in network.transformer.h:
        layer.attn.c_attn.weight.mul_(4)
    return wrap(network, tokenizer, "GPT-2 shape")


def sample_text(characters: int) -> abbe.Text:
    """The embedded sample, repeated until it is long enough."""
    sample = abbe.read_text().content
    return abbe.Text("sample", sample * (1 + characters // len(sample)))


def measured(model: Any, length: int, windows: int) -> dict[str, float]:
    """Seconds of the windows, of the whole call, and peak extra memory, of one default diagnosis."""
    text = sample_text(5 * length * windows)
    start = time.perf_counter()
    run = abbe.diagnose(model, text, lengths=[length], windows=windows, progress=False)
    whole = time.perf_counter() - start
    inside = run.manifest["seconds"]["windows"][str(length)]
    return {"windows": inside / windows, "whole": whole, "MB": run.manifest["peak_extra_megabytes"]}


def seconds(model: Any, tokens: torch.Tensor, passes: int) -> float:
    """Of so many forward passes without the language-model head, as a diagnosis makes them."""
    start = time.perf_counter()
    for _ in range(passes):
        model.network.base_model(input_ids=tokens, use_cache=False)
    return time.perf_counter() - start


def diagnosis_rows(emit: Callable[[Row], None], rounds: int) -> None:
    """A default diagnosis over its forward passes, and the straightforward way over it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from measures.plain import plain_diagnosis

    model, length, windows = gpt2_shape(), 1024, 8
    tokens = torch.randint(0, 256, (1, length))
    measured(model, length, 1)
    forward, checks, inside, whole = [], [], [], []
    for _ in range(rounds):
        forward.append(seconds(model, tokens, windows))
        checks.append(seconds(model, tokens[:, :128], 2))  # the self-check is two passes on 128 tokens
        run = measured(model, length, windows)
        inside.append(windows * run["windows"])
        whole.append(run["whole"])
    eager = copy.deepcopy(model.network)
    eager.set_attn_implementation("eager")
    start = time.perf_counter()
    plain_diagnosis(eager, tokens[0], DEFAULT_GRID, list(range(8, length, 16)))
    plain = time.perf_counter() - start
    shape = f"12x12x64, L={length}"
    for name, ratio in (
        ("windows / their forward passes", min(inside) / min(forward)),
        ("whole call / all its forward passes", min(whole) / (min(forward) + min(checks))),
        ("straightforward way / whole call", windows * plain / min(whole)),
    ):
        emit({"part": "diagnose", "name": name, "shape": shape, "ratio": ratio})


def scaling_rows(emit: Callable[[Row], None], lengths: tuple[int, ...]) -> None:
    """Time and extra memory of one window at growing length, and the exponents fitted to them."""
    here = str(Path(__file__).parent)
    windows = []
    for length in lengths:
        command = [sys.executable, "-c", _ONE_LENGTH, str(length), here]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        one = json.loads(out.splitlines()[-1])
        windows.append(one)
        emit(
            {
                "part": "scaling",
                "name": "one window",
                "shape": f"L={length}",
                "seconds": one["windows"],
                "MB": one["MB"],
            }
        )
    slopes = [
        float(np.polyfit(np.log(lengths), np.log([one[key] for one in windows]), 1)[0]) for key in ("windows", "MB")
    ]
    emit({"part": "scaling", "name": "fitted exponent in L", "shape": "", "seconds": slopes[0], "MB": slopes[1]})
