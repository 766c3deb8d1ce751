"""float16 and bfloat16 models: sums in full precision, what the manifest says, and whose folder it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch

import abbe
from abbe import AbbeError
from abbe.models import wrap

SMALL: dict[str, Any] = {"lengths": 64, "windows": 3, "queries": 16, "resamples": 20, "progress": False}


def half(dtype: torch.dtype) -> Any:
    network = tiny_models.llama(vocab_size=256).to(dtype)
    return wrap(network, tiny_models.byte_tokenizer(), "tiny llama")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_a_low_precision_model_are_those_of_its_rounded_weights(dtype: torch.dtype) -> None:
    """The same rounded weights, computed in float32, differ by the activations' rounding alone."""
    low = half(dtype)
    rounded = wrap(half(dtype).network.float(), tiny_models.byte_tokenizer(), "tiny llama")
    mine, other = (abbe.diagnose(one, tiny_runs.TEXT, **SMALL).table for one in (low, rounded))
    keys = ["layer", "head", "length", "n", "measure"]
    both = mine.join(other, on=keys, nulls_equal=True, suffix="_float32").filter(pl.col("measure") == "entropy")
    assert both.height > 0
    error = (both["value"] - both["value_float32"]).abs().max()
    assert isinstance(error, float)
    assert 0 < error < 100 * torch.finfo(dtype).eps
    # The mean of many weights, summed in the model's precision, would be off by far more than this.
    assert mine.filter((pl.col("measure") == "top_mass") & (pl.col("value") > 1 + 1e-6)).is_empty()


def test_the_manifest_says_device_and_dtype_and_a_folder_belongs_to_one(tmp_path: Path) -> None:
    small = SMALL | {"folder": tmp_path / "run"}
    run = abbe.diagnose("embedded", tiny_runs.TEXT, dtype="bfloat16", **small)
    assert {"device": "cpu", "dtype": "bfloat16"}.items() <= run.manifest["model"].items()
    assert run.manifest["identity"]["dtype"] == "bfloat16"
    with pytest.raises(AbbeError, match=r"holds another run \(different: model, dtype\)"):
        abbe.diagnose("embedded", tiny_runs.TEXT, **small)


def test_the_line_of_the_self_check_allows_for_the_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    for dtype, allowed in ((torch.float32, "1e-3"), (torch.bfloat16, "0.39"), (torch.float16, "0.049")):
        abbe.diagnose(half(dtype), tiny_runs.TEXT, **(SMALL | {"windows": 1, "progress": True}))
        assert f"(allowed {allowed})" in capsys.readouterr().err


@pytest.mark.slow
def test_the_report_says_the_precision_and_its_commands_keep_it() -> None:
    quick = tiny_runs.QUICK | {"lengths": [16, 64], "temperatures": (1.0,)}
    low = abbe.report("embedded", dtype="bfloat16", **quick)
    assert "docs/explanation/precision.md" in low.to_html()
    assert any("--dtype bfloat16" in step.command for step in low.next_steps())
    full = abbe.report("embedded", **quick)
    assert "docs/explanation/precision.md" not in full.to_html()
    assert not any("--dtype" in step.command for step in full.next_steps())
