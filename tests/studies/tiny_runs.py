"""Tiny models on a short text: diagnoses, and one quick call of every study."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models

import abbe
from abbe.models import LoadedModel, wrap
from abbe.runs.inputs import Settings, settings_for

TEXT = abbe.Text("prose", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(400)))
QUICK: dict[str, Any] = {"windows": 3, "queries": 8, "resamples": 50, "sizes": (1, 2, 5), "progress": False}
BUILDERS = {
    "gpt2": tiny_models.gpt2,
    "llama": tiny_models.llama,
    "mistral": tiny_models.mistral,
    "gemma2": tiny_models.gemma2,
    "gpt-oss": tiny_models.gpt_oss,
    "bert": tiny_models.bert,
    "t5": tiny_models.t5,
}


def model(family: str = "gpt2") -> LoadedModel:
    return wrap(BUILDERS[family](vocab_size=256), tiny_models.byte_tokenizer(), f"tiny {family}")


def passes_of(loaded: LoadedModel) -> list[int]:
    """Tokens of every pass through the model from now on."""
    passes: list[int] = []
    network: Any = loaded.network
    network.base_model.register_forward_pre_hook(
        lambda _module, args, given: passes.append((given.get("input_ids", *args[:1])).shape[1]), with_kwargs=True
    )
    return passes


def claimed(loaded: LoadedModel, folder: Path, call: Callable[[], object]) -> dict[str, Any]:
    """The settings of a study that is stopped at the first pass after the folder became its own."""

    def stop(*_: object) -> None:
        if (folder / "manifest.json").exists():
            raise KeyboardInterrupt

    network: Any = loaded.network
    network.base_model.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        call()
    return dict(json.loads((folder / "manifest.json").read_text())["identity"]["settings"])


def run(family: str = "gpt2", **options: Any) -> abbe.Run:
    return abbe.diagnose(model(family), TEXT, **({"lengths": [16, 40]} | QUICK | options))


def settings(context: int | None = None, **options: Any) -> Settings:
    """How windows are read."""
    usual = {"lengths": [40], "windows": 3, "queries": 8, "sizes": None, "vectors": "value", "normalizer": None}
    usual |= {"temperatures": (), "seed": 0, "level": 0.95, "resamples": 50}
    return settings_for(context, **(usual | options))


_RUNS: dict[str, abbe.Run] = {}


def shared_run(family: str = "gpt2", **options: Any) -> abbe.Run:
    """As `run`, but measured once for all tests that only read it."""
    key = f"{family} {sorted(options.items())}"
    if key not in _RUNS:
        _RUNS[key] = run(family, **options)
    return _RUNS[key]


def pick(heads: pl.DataFrame, measure: str, length: int | None, of_heads: bool = True) -> pl.DataFrame:
    """The rows of single heads, or those of all heads together."""
    of_length = pl.col("length").is_null() if length is None else pl.col("length") == length
    single = pl.col("head").is_not_null() if of_heads else pl.col("head").is_null()
    return heads.filter((pl.col("measure") == measure) & of_length & single)


# -- One quick call of every study of a model, for tests of what all of them share ------------------------------------

_FEW: dict[str, Any] = {"windows": 2, "queries": 2, "resamples": 10, "progress": False}
_HEADS = _FEW | {"lengths": 16, "sizes": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "diagnose": _HEADS | {"temperatures": 1},
    "report": _HEADS | {"temperatures": 1},
    "reproduce": {"figures": "3", "windows": 1, "queries": 2, "quick": True, "progress": False},
    "capacity": _FEW | {"lengths": 16, "tau": 0.1, "way": "deletion", "layers": False},
    "compare": _FEW | {"normalizers": "sparsemax", "length": 16, "needle_lengths": 60, "prompts": 1},
    "calibrate": _FEW | {"normalizer": "sparsemax", "length": 16, "windows": 1, "held_out": 1, "steps": 1},
    "diff": _HEADS,
    "lift": _FEW | {"normalizers": "sparsemax", "length": 16, "steps": 2, "prompts": 1, "budget": None},
}
COSTS = ("seconds", "time_ratio", "extra_megabytes")  # of a table: other numbers in every run


def quick(study: str, model: Any, text: Any, **more: Any) -> Any:
    """The result of a study; a model is compared with itself."""
    models = (model, model) if study == "diff" else (model,)
    return getattr(abbe, study)(*models, text, **(OPTIONS[study] | more))
