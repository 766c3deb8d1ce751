"""attention: bad input is one line that names the argument."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_problems import make
from attention_reference import near

import abbe
from abbe._attention.attend import attention

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "two dims": (
        {"q": torch.zeros(6, 4)},
        r"q must be a floating tensor \(\.\.\., heads, length, width\); got .*\(6, 4\)",
    ),
    "integers": ({"q": torch.zeros(4, 6, 4, dtype=torch.int64)}, "q must be a floating tensor .* got torch.int64"),
    "a list": ({"v": [1.0]}, r"v must be a floating tensor .* got \[1.0\]"),
    "dtypes": ({"k": torch.zeros(2, 6, 4)}, "q, k and v must have one dtype; got torch.float64, torch.float32"),
    "width": (
        {"q": torch.zeros(4, 6, 3).double()},
        r"q and k must have the same last dim.* got q \(4, 6, 3\), k \(2, 6, 4\)",
    ),
    "no width": ({"q": torch.zeros(4, 6, 0).double(), "k": torch.zeros(2, 6, 0).double()}, "same last dim, at least 1"),
    "lengths": ({"v": torch.zeros(2, 5, 4).double()}, r"k and v must have the same length .* v \(2, 5, 4\)"),
    "no keys": ({"k": torch.zeros(2, 0, 4).double(), "v": torch.zeros(2, 0, 4).double()}, "same length .*at least 1"),
    "heads": ({"q": torch.zeros(3, 6, 4).double()}, r"q a multiple of them; got q \(3, 6, 4\), k \(2, 6, 4\)"),
    "heads of v": ({"v": torch.zeros(4, 6, 4).double()}, "k and v must have the same heads"),
    "no heads": ({"k": torch.zeros(0, 6, 4).double(), "v": torch.zeros(0, 6, 4).double()}, "q a multiple of them"),
    "batch": (
        {"q": torch.zeros(2, 4, 6, 4).double(), "k": torch.zeros(3, 2, 6, 4).double()},
        r"batch dims .* must broadcast; got q \(2, 4, 6, 4\), k \(3, 2, 6, 4\)",
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
        attention(**{"q": q, "k": k, "v": v, **wrong})
    assert "\n" not in str(caught.value)


def test_the_reference_knows_where_queries_are() -> None:
    assert near(2, 4, True, 2).tolist() == [[False, True, True, False], [False, False, True, True]]
    assert near(3, 2, False, 1).tolist() == [[False, False], [True, False], [False, True]]
