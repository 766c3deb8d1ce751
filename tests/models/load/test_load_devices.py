"""Devices, precisions and quantised weights: what a model is loaded as, what it is measured as, what is refused."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
from folders import refusal
from torch import Tensor, nn

import abbe
from abbe import AbbeError, load
from abbe.models import as_device, wrap

TEXT = abbe.Text("prose", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(200)))
SMALL: dict[str, Any] = {"lengths": 24, "windows": 2, "queries": 8, "sizes": (1, 2, 5), "progress": False}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine with so many GPUs, as torch says."""

    def have(count: int) -> None:
        for kind in ("cuda", "xpu", "mps"):
            monkeypatch.setattr(getattr(torch, kind), "is_available", lambda kind=kind: kind == "cuda" and count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    have(0)
    return have


def numbers(model: Any, **options: Any) -> Any:
    return abbe.diagnose(model, TEXT, **(SMALL | options)).table.drop("model")


def tiny() -> Any:
    return wrap(tiny_models.llama(vocab_size=256), tiny_models.byte_tokenizer(), "tiny llama")


def test_a_model_is_loaded_as_asked() -> None:
    model = load("embedded", device="cpu", dtype="bfloat16")
    assert (model.device, model.devices, model.precision) == (torch.device("cpu"), "cpu", "bfloat16")
    assert load("embedded").precision == "float32"
    assert load("embedded", dtype=torch.float64).network.dtype == torch.float64
    assert load("embedded", device=torch.device("cpu"), dtype=torch.float16).precision == "float16"


def test_auto_is_an_accelerator_if_there_is_one(gpus: Callable[[int], None]) -> None:
    assert load("embedded", device="auto").devices == "cpu"
    gpus(2)
    assert as_device("auto") == torch.device("cuda:0")
    assert refusal("embedded", device="cuda:7") == "cuda:7 is not available here; there is: cpu, cuda:0, cuda:1"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"device": "gpu"}, "unknown device 'gpu': choose one of auto, cpu, cuda, cuda:1, xpu, mps"),
        ({"device": ""}, "unknown device ''"),
        ({"device": 3}, "device is 3, but must be a name"),
        ({"device": "meta"}, "meta is not available here; there is: cpu"),
        ({"dtype": "float8"}, "unknown dtype 'float8': choose one of float32, bfloat16, float16, float64"),
        ({"dtype": 16}, "dtype is 16, but must be a name"),
        ({"dtype": torch.int64}, "dtype is torch.int64, which torch cannot compute attention in: choose float32"),
        ({"dtype": torch.float8_e4m3fn}, "which torch cannot compute attention in"),
        ({"device_map": "autp"}, "unknown device_map 'autp': choose one of auto"),
        ({"device_map": 3}, "device_map is 3, but must be one of auto"),
        ({"device": "cpu", "device_map": "auto"}, "device is 'cpu' and device_map is given as well"),
        ({"device_map": {"": "cuda:0"}}, "cuda:0 is not available here; there is: cpu"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_what_is_not_there_is_refused_in_one_line(wanted: dict[str, Any], words: str) -> None:
    assert words in refusal("embedded", **wanted)


def test_a_dtype_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Metal has no float64."""
    honest = torch.ones

    def ones(*shape: int, dtype: Any = None, device: Any = None) -> Tensor:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64")
        return honest(*shape, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "ones", ones)
    assert (
        refusal("embedded", dtype="float64")
        == "cpu cannot compute in float64: choose float32 or float16, or another device"
    )


def test_device_map_without_accelerate_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "device_map needs the package accelerate" in refusal("embedded", device_map="auto")


def test_a_network_in_memory_stays_where_and_as_it_is() -> None:
    model = tiny()
    numbers(model, device="cpu", dtype="float32")  # as it is
    for wanted, words in (
        ({"dtype": "bfloat16"}, "in memory already, in float32, and stays so"),
        ({"device_map": "auto"}, "device_map is for models by name"),
    ):
        with pytest.raises(AbbeError, match=words):
            numbers(model, **wanted)
    assert model.precision == "float32"


@pytest.mark.slow
def test_a_spread_model_gives_the_same_table() -> None:
    pytest.importorskip("accelerate")
    for spread in ("auto", {"": "cpu"}):
        assert numbers("embedded", device_map=spread).equals(numbers("embedded"))


@pytest.mark.parametrize("vectors", ["value", "embedding"])
def test_weights_that_accelerate_put_aside_are_measured_where_they_run(vectors: str) -> None:
    """Their parameters are on no device between two passes; hooks bring each layer's to where it runs."""
    accelerate = pytest.importorskip("accelerate")
    plain, aside = tiny(), tiny()
    accelerate.cpu_offload(aside.network, execution_device=torch.device("cpu"))
    assert next(aside.network.parameters()).is_meta
    assert aside.device == torch.device("cpu")
    assert (aside.devices, aside.fingerprint) == ("cpu", plain.fingerprint)
    assert numbers(aside, vectors=vectors).equals(numbers(plain, vectors=vectors))
    with pytest.raises(AbbeError, match="there are no output vectors; use value vectors instead"):
        numbers(aside, vectors="output")


class PackedLinear(nn.Module):
    """A linear map as quantising packages make it: whole numbers and scales in buffers, unpacked in the forward."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (plain.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def unpacked(self) -> Tensor:
        weight, scale = self.get_buffer("weight"), self.get_buffer("scale")
        return weight * scale

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.unpacked())


def packed_and_unpacked() -> tuple[Any, Any]:
    """A model whose linear maps are all quantised, and a plain one with the weights that they unpack."""
    packed = tiny()
    unpacked = copy.deepcopy(packed)
    names = [name for name, part in packed.network.named_modules() if name.endswith(("_proj", "lm_head"))]
    for name in names:
        quantised = PackedLinear(packed.network.get_submodule(name))
        packed.network.set_submodule(name, quantised)
        unpacked.network.get_submodule(name).weight.data = quantised.unpacked()
    return packed, unpacked


def test_a_quantised_network_gives_the_numbers_of_the_unpacked_one() -> None:
    packed, unpacked = packed_and_unpacked()
    before = {name: one.clone() for name, one in packed.network.named_buffers()}
    assert packed.precision == "float32+int8"
    assert numbers(packed).equals(numbers(unpacked))
    assert all(torch.equal(one, before[name]) for name, one in packed.network.named_buffers())


@pytest.mark.slow
def test_a_quantised_network_has_the_capacity_of_the_unpacked_one() -> None:
    small: dict[str, Any] = {"lengths": 24, "windows": 2, "layers": False, "progress": False}
    first, second = (abbe.capacity(one, TEXT, **small).table for one in packed_and_unpacked())
    assert first.equals(second)


def test_quantised_weights_within_a_tensor_count_in_the_fingerprint() -> None:
    """As torchao keeps them: a tensor that holds others."""
    from torch.testing._internal.two_tensor import TwoTensor

    prints = []
    for second in (1.0, 2.0):
        model = tiny()
        weight = model.network.model.layers[0].mlp.up_proj.weight.detach()
        packed = nn.Parameter(TwoTensor(weight, second * weight), requires_grad=False)
        model.network.model.layers[0].mlp.up_proj.weight = packed
        prints.append(model.fingerprint)
    assert prints[0] != prints[1]
    model.network.config.quantization_config = {"quant_method": "gptq"}
    assert model.precision == "float32 (gptq)"
