"""The memory that a run announces, against the peak of a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import real

TESTS = Path(__file__).resolve().parents[2]

# Two layers with the vocabulary of Gemma 3: the logits of its self-check, over 640 tokens, would take 1.3 GB.
LARGE_VOCABULARY = """
import transformers
from tiny_models import byte_tokenizer
config = transformers.Gemma3TextConfig(
    vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=2048,
    layer_types=["sliding_attention", "full_attention"],
)
model = wrap(transformers.Gemma3ForCausalLM(config).eval(), byte_tokenizer(), "large vocabulary")
"""

RUN = """
import abbe
from abbe.models import load, wrap
{model}
run = abbe.diagnose(model, "line of text\\n" * 4000, lengths={lengths}, windows=1, queries={queries!r})
print(run.manifest["peak_extra_megabytes"])
"""


def announced_and_measured(model: str, lengths: list[int], queries: int | str = 64) -> tuple[float, float]:
    """Megabytes of `abbe.diagnose` in a fresh process: what its line says, and its peak beyond the model."""
    code = RUN.format(model=model, lengths=lengths, queries=queries)
    path = os.pathsep.join([str(TESTS / "models"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    announced = re.search(r"([0-9]+) MB on top of the model", done.stderr.replace("\n", " "))
    assert announced is not None, done.stderr
    return float(announced[1]), float(done.stdout)


def assert_close(announced: float, measured: float) -> None:
    assert measured / 1.5 <= announced <= measured * 1.5, f"announced {announced:.0f} MB, measured {measured:.0f}"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the memory of a process")
@pytest.mark.parametrize(("lengths", "queries"), [([64], 64), ([256], "all")], ids=str)
def test_the_embedded_model(lengths: list[int], queries: int | str) -> None:
    assert_close(*announced_and_measured("model = load('embedded')", lengths, queries))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the memory of a process")
def test_a_large_vocabulary() -> None:
    announced, measured = announced_and_measured(LARGE_VOCABULARY, [1024])
    assert_close(announced, measured)
    assert measured < 400


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the memory of a process")
@pytest.mark.parametrize("name", ["stories15M", "smollm2"])
def test_real_models(name: str) -> None:
    model = real.pulled(name) if name == "smollm2" else str(real.shared_model(name))
    assert_close(*announced_and_measured(f"model = load({model!r})", [256]))
