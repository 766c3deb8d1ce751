"""A stand-in for lm-evaluation-harness, which the environment of the quick tests does not have.

Two tasks on a tiny model: whether the last token of a line gets more than its share, and the likelihood of a line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

VERSION = "0.0"
LINES = [f"line {i} says that {i * i % 13} and {i % 3} are numbers" for i in range(12)]
HARNESS = "abbe.studies._eval.harness"


class Model(SimpleNamespace):
    def __init__(self, model: Any, *, batch_size: int, on_batch: Callable[[], object]) -> None:
        super().__init__(model=model, batch_size=batch_size, on_batch=on_batch)


class Task:
    def __init__(self, name: str, limit: int | None) -> None:
        self.name, self.requests = name, LINES[:limit]
        self.documents, self.text = len(self.requests), "\n".join([name, *self.requests])
        self.chance = 0.25 if name == "last" else None
        self.facts = {"digest": name, "documents": self.documents, "requests": self.documents}

    def answered(self, model: Any) -> dict[str, Any]:
        values: list[Any] = []
        for line in self.requests:
            ids = torch.tensor([model.model.tokenizer(line)["input_ids"]])
            with torch.no_grad():
                chances = model.model(input_ids=ids).logits[0].log_softmax(-1)
            likelihood = chances[:-1].gather(1, ids[0, 1:, None])
            if self.name == "last":
                values.append(float(likelihood[-1] > -math.log(chances.shape[-1])))
            else:
                values.append([float(likelihood.sum()), len(line.split())])
            model.on_batch()
        key = "acc,none" if self.name == "last" else "word_perplexity,none"
        return {"values": {key: values}, "scores": {key: self.aggregate(key)(values)}, "truncated": 0}

    def aggregate(self, key: str) -> Callable[[Sequence[Any]], float]:
        if key == "acc,none":
            return lambda values: sum(values) / len(values)
        return lambda values: math.exp(-sum(one[0] for one in values) / sum(one[1] for one in values))

    def higher_is_better(self, key: str) -> bool:
        return key == "acc,none"


def load_tasks(names: Sequence[str], limit: int | None, num_fewshot: int | None, seed: int) -> list[Task]:
    return [Task(name, limit) for name in names]


def install(patch: pytest.MonkeyPatch) -> None:
    """As if lm-eval were there, with what documents use of it."""
    modules = {
        HARNESS: {"AbbeLM": Model, "VERSION": VERSION, "load_tasks": load_tasks},
        "lm_eval": {"simple_evaluate": lambda *given, **more: {"results": {}}},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": SimpleNamespace},
        "lm_eval.tasks": {"TaskManager": lambda **more: SimpleNamespace(all_subtasks=["last"])},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)


@contextmanager
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        yield


OPTIONS: dict[str, Any] = {"plans": "sparsemax", "tasks": ["last", "likelihood"], "resamples": 20, "progress": False}
