"""What the lab refuses, in one line that says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import abbe
from abbe.studies import train_length, train_recall, train_temperature, train_text

QUIET: dict[str, Any] = {"progress": False, "workers": 1}
CASES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (train_temperature, {"temperatures": 0}, r"temperature is '0', but must be a number > 0"),
    (train_temperature, {"task": "chess"}, r"no task 'chess': choose one of recall, mqar, maximum, text"),
    (train_recall, {"temperature": 0}, r"temperature is '0', but must be a number > 0"),
    (train_recall, {"task": "maximum"}, r"no recall task 'maximum': choose one of recall, mqar"),
    (train_recall, {"optimizers": "adagrad"}, r"no optimizer 'adagrad': choose one of sgd, adamw, muon"),
    (train_recall, {"normalizers": "softmx"}, r"softmx"),
    (train_recall, {"normalizers": []}, r"no normalizer to train"),
    (train_recall, {"normalizers": ["softmax", "softmax"]}, r"named twice"),
    (train_recall, {"normalizers": "stick-breaking"}, r"stick-breaking needs keys in causal order, which recall does"),
    (train_length, {"normalizers": "stick-breaking"}, r"needs keys in causal order, which maximum does not have"),
    (train_length, {"normalizers": "hybrid:a=softmax,b=stick-breaking"}, r"needs keys in causal order"),
    (train_recall, {"seeds": 0}, r"seeds is 0, but must be a whole number >= 1"),
    (train_recall, {"seed": -1}, r"seed is -1"),
    (train_recall, {"workers": 0}, r"workers is 0, but must be a whole number >= 1"),
    (train_recall, {"steps": 0}, r"steps is 0, but must be a whole number >= 10"),
    (train_recall, {"rates": 0}, r"rates must be numbers > 0"),
    (train_recall, {"rates": [0.1, 0.1]}, r"rates has duplicates"),
    (train_recall, {"pairs": 0}, r"pairs is 0, but must be a whole number >= 1"),
    (train_recall, {"symbols": 23}, r"symbols is 23, but must be a whole number >= 24"),
    (train_recall, {"length": 64}, r"task recall has no size length: leave it out"),
    (train_recall, {"task": "mqar", "symbols": 8}, r"symbols is 8, but must be a whole number >= 9"),
    (train_recall, {"task": "mqar", "symbols": 10**9}, r"symbols is 1000000000, .* <= 131,072"),
    (train_recall, {"task": "mqar", "length": 11}, r"length is 11, but must be a whole number >= 12"),
    (train_recall, {"task": "mqar", "pairs": 11}, r"length is 32, but must be a whole number >= 33"),
    (train_recall, {"width": 0}, r"width is 0, but must be a whole number >= 1"),
    (train_length, {"normalizers": ["topk:k=1", "top-k:k=1"]}, r"named twice: topk:k=1, topk:k=1"),
    (train_recall, {"qk_norm": "yes"}, r"qk_norm is 'yes', but must be True or False"),
    (train_length, {"quick": 1}, r"quick is 1, but must be True or False"),
    (train_length, {"lengths": 0}, r"lengths must be whole numbers from 1 to 131,072"),
    (train_length, {"lengths": []}, r"lengths must be whole numbers from 1"),
    (train_length, {"lengths": 10**9}, r"lengths must be whole numbers from 1"),
    (train_text, {"text": abbe.Text("note", "too short")}, r"note has 9 characters, too few .* at least 1,940"),
    (train_recall, {"device": "cuda:99"}, r"cuda:99 is not available here; there is: cpu"),
    (train_length, {"device": "gpu"}, r"unknown device 'gpu': choose one of auto, cpu, cuda"),
    (train_text, {"folder": ""}, r"folder is '', but must be the path of a folder"),
]


@pytest.mark.parametrize(("study", "asked", "says"), CASES)
def test_refused_in_one_line(study: Callable[..., Any], asked: dict[str, Any], says: str) -> None:
    with pytest.raises(abbe.AbbeError, match=says) as refused:
        study(**(QUIET | asked))
    assert "\n" not in str(refused.value)


def test_tasks_in_causal_order_take_what_needs_it() -> None:
    sizes = {"pairs": 2, "symbols": 16, "length": 16, "width": 8}
    result = train_recall(task="mqar", normalizers="stick-breaking", rates=0.01, seeds=1, steps=10, **sizes, **QUIET)
    assert result.summary["normalizer"].to_list() == ["stick-breaking"]
