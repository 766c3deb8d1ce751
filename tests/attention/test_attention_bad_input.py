"""attention: bad input is one line that names the argument."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_problems import make
from attention_reference import near

import abbe
from abbe import attention

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "two dims": (
        {"query": torch.zeros(6, 4)},
        r"query must be a floating tensor \(\.\.\., heads, length, width\); got .*\(6, 4\)",
    ),
    "integers": (
        {"query": torch.zeros(4, 6, 4, dtype=torch.int64)},
        "query must be a floating tensor .* got torch.int64",
    ),
    "a list": ({"value": [1.0]}, r"value must be a floating tensor .* got \[1.0\]"),
    "dtypes": (
        {"key": torch.zeros(2, 6, 4)},
        "query, key and value must have one dtype; got torch.float64, torch.float32",
    ),
    "width": (
        {"query": torch.zeros(4, 6, 3).double()},
        r"query and key must have the same last dim.* got query \(4, 6, 3\), key \(2, 6, 4\)",
    ),
    "no width": (
        {"query": torch.zeros(4, 6, 0).double(), "key": torch.zeros(2, 6, 0).double()},
        "same last dim, at least 1",
    ),
    "lengths": (
        {"value": torch.zeros(2, 5, 4).double()},
        r"key and value must have the same length .* value \(2, 5, 4\)",
    ),
    "no keys": (
        {"key": torch.zeros(2, 0, 4).double(), "value": torch.zeros(2, 0, 4).double()},
        "same length .*at least 1",
    ),
    "heads": (
        {"query": torch.zeros(3, 6, 4).double()},
        r"query a multiple of them; got query \(3, 6, 4\), key \(2, 6, 4\)",
    ),
    "heads of v": ({"value": torch.zeros(4, 6, 4).double()}, "key and value must have the same heads"),
    "no heads": (
        {"key": torch.zeros(0, 6, 4).double(), "value": torch.zeros(0, 6, 4).double()},
        "query a multiple of them",
    ),
    "batch": (
        {"query": torch.zeros(2, 4, 6, 4).double(), "key": torch.zeros(3, 2, 6, 4).double()},
        r"batch dims .* must broadcast; got query \(2, 4, 6, 4\), key \(3, 2, 6, 4\)",
    ),
    "float mask": ({"mask": torch.zeros(6, 6)}, r"mask must be a bool \(True = attend\) tensor; got torch.float32"),
    "mask shape": ({"mask": torch.ones(5, 6) > 0}, r"mask must broadcast to .* = \(4, 6, 6\); got shape \(5, 6\)"),
    "mask dims": ({"mask": torch.ones(2, 4, 6, 6) > 0}, r"mask must broadcast to .* got shape \(2, 4, 6, 6\)"),
    "bool bias": ({"position_bias": torch.ones(6, 6) > 0}, "position_bias must be a floating tensor; got torch.bool"),
    "bias shape": ({"position_bias": torch.ones(6, 5)}, r"position_bias must broadcast .* got shape \(6, 5\)"),
    "sink shape": ({"sink": torch.ones(2)}, r"sink must be a number or a floating tensor of shape \(4,\).* \(2,\)"),
    "sink dtype": ({"sink": torch.ones(4, dtype=torch.int64)}, "sink must be .* got torch.int64"),
    "window": ({"window": 0}, "window must be None or an int >= 1; got 0"),
    "half a window": ({"window": 1.5}, "window must be None or an int >= 1; got 1.5"),
    "scale": ({"scale": math.nan}, "scale must be None or a finite number; got nan"),
    "learned scale": ({"scale": torch.ones(())}, "scale must be None or a finite number; got tensor"),
    "softcap": ({"softcap": 0.0}, "softcap must be None or a finite number > 0; got 0.0"),
    "dropout": ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\); got 1.0"),
    "no dropout": ({"dropout": -0.1}, r"dropout must be a number in \[0, 1\); got -0.1"),
    "normalizer": ({"normalizer": "entmx:alpha=1.5"}, "entmax"),
    "normalizer's heads": ({"normalizer": "entmax:alpha=1.5,learn=true,heads=3"}, "3 heads"),
}


@pytest.mark.parametrize(("wrong", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_bad_input_is_named_in_one_line(wrong: dict[str, Any], message: str) -> None:
    q, k, v = make()
    with pytest.raises(abbe.AbbeError, match=message) as caught:
        attention(**{"query": q, "key": k, "value": v, **wrong})
    assert "\n" not in str(caught.value)


def test_the_reference_knows_where_queries_are() -> None:
    assert near(2, 4, True, 2).tolist() == [[False, True, True, False], [False, False, True, True]]
    assert near(3, 2, False, 1).tolist() == [[False, False], [True, False], [False, True]]
