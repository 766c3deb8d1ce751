"""A new normalizer takes the edits that CONTRIBUTING.md lists, and no other: here a file and a line in the registry."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from cli_runs import run
from inside import normalizers_registry as _registry
from inside import normalizers_row_map as _row_map
from normalizer_cases import Case, random_logits
from tiny_models import gpt2, tokens

import abbe
from abbe import measures
from abbe.cli import complete as _complete
from abbe.models import attention_names
from abbe.normalizers import kernels_from

ROOT = Path(__file__).parents[2]

# The file. Its row map has no kernels: those are a second step.
SOURCE = '''
"""Weights that fall with the square of the distance to the top."""

from __future__ import annotations

from torch import Tensor

from ._base import Normalizer
from ._options import PER_HEAD, Option
from ._row_map import RowMap, row_map
from ._rows import below_top, diagonal_minus_outer, finish


def cauchy_reference(logits: Tensor, params: Tensor) -> Tensor:
    """1 / (1 + (gap / width)^2) over its sum, params (width,)."""
    gap, visible, top = below_top(logits)
    raw = visible / (1 + (gap / params) ** 2)
    return finish(raw / raw.sum(-1, keepdim=True).clamp(min=1), logits, params, visible, top)


CAUCHY = row_map("cauchy", cauchy_reference)


class Cauchy(Normalizer):
    """1 / (1 + ((top - l) / width)^2) over its sum.

    Jacobian -w (2 gap/width^2) raw, less its share of the sum. The Lipschitz constant is not known. As n grows the
    weights disperse.
    """

    name = "cauchy"
    aliases = ("lorentz",)
    meaning = "heavy tails; high width means flat weights, low width means sharp ones"
    paper = "none"
    example = "cauchy:width=2"
    options = (
        Option("width", 1.0, "gap at which a weight has halved", low=0, shown=True),
        *PER_HEAD,
    )
    learnable = ("width",)
    usual = (0.5, 2)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return CAUCHY, self._value("width", logits)

    def _jacobian(self, logits: Tensor) -> Tensor:
        gap, width = below_top(logits)[0], self._value("width", logits)
        weights = self._weights(logits)
        slope = weights * -2 * gap / width**2 / (1 + (gap / width) ** 2)
        return diagonal_minus_outer(slope, weights, slope)

    def _lipschitz(self, keys: int) -> float:
        return float("inf")
'''


@pytest.fixture(autouse=True)
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[abbe.Normalizer]:
    """The edits, for the time of a test: the file, and the line in the registry."""
    file = tmp_path / "_cauchy.py"
    file.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("abbe.normalizers._cauchy", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setattr(_row_map, "MAPS", dict(_row_map.MAPS))
    spec.loader.exec_module(module)
    classes = (*_registry.CLASSES, module.Cauchy)
    monkeypatch.setattr(_registry, "CLASSES", classes)
    monkeypatch.setattr(_registry, "_BY_NAME", _registry._by_name(classes))  # follows from it at import
    monkeypatch.setattr(_complete, "_NORMALIZERS", tmp_path)
    kind: type[abbe.Normalizer] = module.Cauchy
    return kind


def test_the_edits_are_those_that_are_listed() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Adding a normalizer")[2]
    steps = re.findall(r"^\d\. (.+?)(?=^\d\. |^$)", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    files = [re.findall(r"`([\w./]+\.(?:py|md)|[\w./]+/)`", step) for step in steps]
    assert files == [
        ["src/abbe/normalizers/"],
        ["src/abbe/normalizers/_registry.py"],
        ["tests/normalizer_cases.py"],
        ["README.md"],
    ]
    assert all((ROOT / file).exists() for named in files for file in named)


def test_specs_and_lists(added: type[abbe.Normalizer]) -> None:
    made = abbe.normalizer("cauchy:width=2")
    assert type(made) is type(abbe.normalizer("Lorentz")) is added
    assert (str(made), str(abbe.normalizer("cauchy"))) == ("cauchy:width=2", "cauchy:width=1")
    assert [info.name for info in abbe.list_normalizers()][-1] == "cauchy"
    with pytest.raises(abbe.AbbeError, match=r"unknown normalizer 'cauchi'\. Did you mean 'cauchy'\?"):
        abbe.normalizer("cauchi")
    with pytest.raises(abbe.AbbeError, match="cauchy: width must be a number > 0, got -1"):
        abbe.normalizer("cauchy", width=-1)


@pytest.mark.parametrize("spec", ["cauchy", "cauchy:width=0.7,learn=true,heads=3", "hybrid:a=cauchy,b=softmax,mix=0.3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_and_derivatives_without_kernels(spec: str, dtype: torch.dtype) -> None:
    """Also where kernels would be taken, alone and in a blend with a map that has some."""
    case = Case(spec, smooth=False)
    made, logits = case.make(dtype), random_logits(2, 3, 4, 9, dtype=dtype).requires_grad_()
    with kernels_from(1):
        weights = made(logits)
        (grad,) = torch.autograd.grad(weights.square().sum(), logits)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    wanted = (2 * weights.detach().unsqueeze(-2) @ made.jacobian(logits.detach())).squeeze(-2)
    torch.testing.assert_close(grad, wanted, atol=1e-5, rtol=1e-4)
    assert not made(logits, torch.zeros(1, dtype=torch.bool)).any()


def test_attention_and_measures() -> None:
    q, k, v = (random_logits(2, 4, 6, 8, seed=seed) for seed in range(3))
    output, weights = abbe.attention(q, k, v, "cauchy:width=0.5", causal=True, return_weights=True)
    logits = (q @ k.mT / 8**0.5).masked_fill(~torch.ones(6, 6).tril().bool(), float("-inf"))
    torch.testing.assert_close(weights, abbe.normalizer("cauchy:width=0.5")(logits))
    torch.testing.assert_close(output, weights @ v)
    made = abbe.normalizer("cauchy")
    rows = measures.Rows(logits[0], made(logits[0]), v[0])
    assert measures.sensitivity(rows, made, (1.0,), torch.Generator())["sensitivity_worst"].value.isfinite().all()


@torch.no_grad()
def test_swaps_and_names(tmp_path: Path) -> None:
    network, ids, file = gpt2(), tokens(), tmp_path / "swap.safetensors"
    plain = network(input_ids=ids).logits
    with abbe.swap(network, {"layers.0": "cauchy:learn=true", "*": "scaled:of=cauchy,t=0.5"}) as swapped:
        assert swapped.check(input_ids=ids) < 1e-4
        other = network(input_ids=ids).logits
        grown = network.generate(ids[:1, :5], max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
        swapped.save(file)
    assert grown.shape == (1, 8)
    assert not torch.allclose(plain, other, atol=1e-2)
    with abbe.swap(network, f"file:{file}"):
        assert torch.equal(network(input_ids=ids).logits, other)
    assert "cauchy:width=2" in repr(abbe.plan(network, "cauchy:width=2"))
    names = attention_names()
    assert (names["abbe:cauchy"], names["abbe:cauchy-0.5"]) == ("cauchy", "cauchy:width=0.5")


def test_the_command_line() -> None:
    assert run("normalizers", "--quiet").stdout.split()[-1] == "cauchy"
    assert "gap at which a weight has halved" in run("normalizers", "cauchy", columns=200).stdout
    (tried,) = json.loads(run("normalizers", "cauchy", "--logits", "1,0", "--json").stdout)["trials"]
    assert tried["weights"] == pytest.approx([2 / 3, 1 / 3])
    assert _complete.normalizers("cau") == ["cauchy"]
