"""Checks of everything that runs a network: tap, swap, generation, all studies and the monitor.

The network is moved before abbe sees it. Its attention is torch's plain operations ("eager"), so that the CPU computes
what the device does; where other roundings remain, a check states how far numbers may differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import needle_models
import polars as pl
import tiny_models
import tiny_runs
import torch
import torch.utils._pytree as tree
import training_cases
from device_checks import DEVICE, Checks, moved, same, torch_path
from inside import double_module
from torch import Tensor, nn

import abbe
from abbe.models import LoadedModel, wrap

checks = Checks()
Model = LoadedModel
# Sums of float32 products that torch takes in another order, and what is drawn from their last digits.
ROUNDING = 2e-5


def model(family: str = "gpt2", device: str = DEVICE, dtype: torch.dtype = torch.float32) -> Model:
    made: Any = tiny_runs.model(family).network
    made.set_attn_implementation("eager")
    return wrap(made.to(dtype).to(device), tiny_models.byte_tokenizer(), f"tiny {family}")


def on_both(work: Callable[[Model], Any], make: Callable[[str], Model] = lambda device: model(device=device)) -> Any:
    """What the device and what the CPU without kernels give."""
    with torch_path():
        wanted = work(make("cpu"))
    return work(make(DEVICE)), wanted


def same_tables(
    on_device: pl.DataFrame, on_cpu: pl.DataFrame, rel: float = ROUNDING, skip: str = "^seconds.*$"
) -> None:
    """The same rows, numbers within `rel` of themselves or of 1."""
    a, b = on_device.select(pl.exclude(skip)), on_cpu.select(pl.exclude(skip))
    assert a.schema == b.schema
    assert a.height == b.height > 0
    for name, kind in a.schema.items():
        if not kind.is_float():
            assert a[name].equals(b[name], null_equal=True), name
            continue
        x, y = (torch.tensor(frame[name].fill_null(torch.nan).to_list(), dtype=torch.float64) for frame in (a, b))
        torch.testing.assert_close(x, y, rtol=rel, atol=rel, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


# -- Tap and swap -----------------------------------------------------------------------------------------------------


def moved_network(build: Callable[[], nn.Module], device: str) -> Any:
    made: Any = build()
    made.set_attn_implementation("eager")
    return made.to(device)


def tapped(family: str) -> None:
    """What the tap hands over, its weights of some queries, and its self-check."""
    kind = tiny_models.FAMILIES[family]

    def work(network: Any, inputs: Any) -> Any:
        rows: list[Any] = []
        with abbe.tap(network) as tap:
            tap.check(**inputs)
            tap.listen(
                lambda call: rows.append(
                    (call.weights(torch.tensor([1, 3])), call.value, call.logits(torch.tensor([2])))
                )
            )
            with torch.no_grad():
                network(**inputs)
        return rows

    with torch_path():
        wanted = work(moved_network(kind.build, "cpu"), kind.inputs())
    same(work(moved_network(kind.build, DEVICE), moved(kind.inputs())), wanted, ROUNDING)


def swapped(family: str, what: Any, backward: bool = True) -> None:
    """Outputs and gradients of a network with another normalizer; the swap's self-check."""
    kind = tiny_models.FAMILIES[family]

    def work(network: Any, inputs: Any) -> Any:
        with abbe.swap(network, what) as swap:
            swap.check(**inputs)
            out = network(**inputs)[0]
            learned = [p for p in network.parameters() if p.requires_grad][:3] + list(swap.parameters())
            grads = torch.autograd.grad(out.square().mean(), learned, materialize_grads=True) if backward else ()
        return out, grads

    with torch_path():
        wanted = work(moved_network(kind.build, "cpu"), kind.inputs())
    same(work(moved_network(kind.build, DEVICE), moved(kind.inputs())), wanted, ROUNDING)


for _family in tiny_models.FAMILIES:
    checks.add(f"tap {_family}", _family)(tapped)
    if _family != "t5":
        checks.add(f"swap {_family}", _family, "sparsemax")(swapped)
for _what in (
    "entmax:alpha=1.5,learn=true",
    "ssmax:s=0.4,learn=true",
    "topk:k=3",
    "stick-breaking",
    {"layers.0": "sparsemax", "layers.1.heads.0-1": "entmax:alpha=1.5,learn=true"},
):
    checks.add(f"swap llama {_what}", "llama", _what)(swapped)


def generated(what: str) -> None:
    """Greedy generation under a swap, with a cache: each step is one query."""

    def work(made: Model) -> Any:
        network: Any = made.network
        tokens = torch.arange(2, 14)[None].to(network.device)
        with abbe.swap(network, what):
            return network.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip

    found, wanted = on_both(work, lambda device: model("llama", device))
    same((found.sequences, found.logits), (wanted.sequences, wanted.logits), ROUNDING)


for _spec in ("sparsemax", "entmax:alpha=1.5,learn=true", "topk:k=3", "softmax"):
    checks.add(f"generate {_spec}", _spec)(generated)


@checks.add("generate by the name of an attention")
def generated_by_name() -> None:
    def work(made: Model) -> Any:
        network: Any = made.network
        network.set_attn_implementation("abbe:entmax-1.5")
        tokens = torch.arange(2, 14)[None].to(network.device)
        return network.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, do_sample=False
        )

    same(*on_both(work))


@checks.add("a swap is saved and opened")
def saved_swap() -> None:
    def work(made: Model) -> Any:
        network: Any = made.network
        tokens = torch.arange(2, 14)[None].to(network.device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "swap.safetensors"
            with abbe.swap(network, "entmax:alpha=1.5,learn=true") as swap:
                with torch.no_grad():
                    for parameter in swap.parameters():
                        parameter += 0.3
                swap.save(file)
            with abbe.swap(network, f"file:{file}") as swap, torch.no_grad():
                return network(input_ids=tokens).logits, list(swap.parameters())

    same(*on_both(work), ROUNDING)


# -- Studies ----------------------------------------------------------------------------------------------------------


def diagnosed(family: str, **options: Any) -> None:
    given = {"lengths": [16, 40]} | tiny_runs.QUICK | {"windows": 2} | options

    def work(made: Model) -> pl.DataFrame:
        table = abbe.diagnose(made, tiny_runs.TEXT, **given).table
        # Of two tokens with one embedding, the last digit of a cosine decides which is nearer to a set of one of them.
        return (
            table.filter(~pl.col("measure").str.ends_with("_cosine")) if given.get("vectors") == "embedding" else table
        )

    same_tables(*on_both(work, lambda device: model(family, device)))


for _family in tiny_runs.BUILDERS:
    checks.add(f"diagnose {_family}", _family)(diagnosed)
for _vectors in ("embedding", "hidden", "output"):
    checks.add(f"diagnose {_vectors}s")(lambda vectors=_vectors: diagnosed("llama", vectors=vectors))
checks.add("diagnose as entmax")(lambda: diagnosed("llama", normalizer="entmax:alpha=1.5", temperatures=(0.5, 1.0)))


@checks.add("diagnose in bfloat16", torch.bfloat16)
@checks.add("diagnose in float16", torch.float16)
def half_diagnosis(dtype: torch.dtype) -> None:
    def work(made: Model) -> pl.DataFrame:
        return abbe.diagnose(made, tiny_runs.TEXT, **({"lengths": [24]} | tiny_runs.QUICK | {"windows": 2})).table

    found, wanted = on_both(work, lambda device: model("llama", device, dtype))
    # Later layers are given states that torch's attention kernel of the CPU rounds otherwise.
    same_tables(*(table.filter(pl.col("layer") == 0) for table in (found, wanted)))
    known = "measure", "layer", "head", "n", pl.col("value").is_null()
    same_tables(*(table.select(known) for table in (found, wanted)))


@checks.add("report")
def reported() -> None:
    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            report = abbe.report(
                made, tiny_runs.TEXT, **(tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}),
                folder=Path(folder) / "run",
            )  # fmt: skip
            assert len(report.to_html()) > 10_000
            return report

    found, wanted = on_both(work, lambda device: model("llama", device))
    same_tables(found.run.table, wanted.run.table)
    same_tables(found.alternatives, wanted.alternatives)
    same_tables(found.growth, wanted.growth)
    assert found.sample.tokens == wanted.sample.tokens
    assert [(row.layer, row.head, row.query) for row in found.sample.rows] == [
        (row.layer, row.head, row.query) for row in wanted.sample.rows
    ]


@checks.add("reproduce")
def reproduced() -> None:
    def work(made: Model) -> Any:
        return abbe.reproduce(made, tiny_runs.TEXT, windows=2, queries=6, progress=False)

    found, wanted = on_both(work)
    same_tables(found.table, wanted.table)


@checks.add("capacity")
def capacities() -> None:
    def work(made: Model) -> Any:
        return abbe.capacity(
            made, tiny_runs.TEXT, lengths=[16, 32], windows=2, queries=8, resamples=50, progress=False
        ).table  # fmt: skip

    same_tables(*on_both(work, lambda device: model("llama", device)))


def word_model(device: str, build: Callable[..., nn.Module] = tiny_models.gpt2) -> Model:
    tokenizer = needle_models.word_tokenizer()
    network: Any = build(vocab_size=len(tokenizer))
    network.set_attn_implementation("eager")
    return wrap(network.to(device), tokenizer, "tiny")


def compared(made: Model, normalizers: list[str]) -> pl.DataFrame:
    comparison = abbe.compare(
        made, needle_models.TEXT, normalizers=normalizers, length=40, windows=3, queries=6, needle_lengths=[31, 40],
        prompts=1, resamples=50, progress=False,
    )  # fmt: skip
    return comparison.table.select(pl.exclude("seconds", "time_ratio", "extra_megabytes"))


@checks.add("compare", ["sparsemax", "topk:k=2"])
@checks.add("compare a normalizer that learns", ["entmax:alpha=1.5,learn=true"])
def comparison(normalizers: list[str]) -> None:
    same_tables(*on_both(lambda made: compared(made, normalizers), word_model))


@checks.add("calibrate")
def calibrated() -> None:
    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            found = abbe.calibrate(
                made, tiny_runs.TEXT, normalizer="entmax:alpha=1.5", windows=3, held_out=2, length=32, queries=8,
                steps=2, finetune=2, resamples=50, progress=False, folder=Path(folder) / "run",
            )  # fmt: skip
            with abbe.swap(made, f"file:{found.file}") as swap:
                fitted = [parameter.detach().clone() for parameter in swap.parameters()]
            return found.table, fitted

    (table, fitted), (wanted, wanted_fit) = on_both(work)
    # Steps of Adam go by the signs of gradients, and raw parameters are of the order of 1.
    same_tables(table, wanted, 1e-3)
    same(fitted, wanted_fit, 1e-3)


@checks.add("a calibration is resumed")
def resumed_tuning() -> None:
    """Fine-tuning that ends after its last steps were kept goes on from there."""

    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {
                "normalizer": "sparsemax", "windows": 3, "held_out": 2, "length": 32, "queries": 8, "steps": 1,
                "finetune": 6, "resamples": 50, "progress": False, "folder": Path(folder) / "run",
            }  # fmt: skip
            first = abbe.calibrate(made, tiny_runs.TEXT, **options).table
            again = abbe.calibrate(made, tiny_runs.TEXT, **options).table
            assert first.select(pl.exclude("^seconds.*$")).equals(again.select(pl.exclude("^seconds.*$")))
            return first

    found, wanted = on_both(work)
    same_tables(found, wanted, 1e-3)


# -- Training ---------------------------------------------------------------------------------------------------------


def monitored(build: Callable[..., Any], padded: bool = False) -> None:
    """A few steps with a monitor: the numbers of all steps, and training unchanged."""

    def work(device: str, watched: bool = True) -> Any:
        torch.manual_seed(7)
        network = build("eager", **({"dropout": 0.0} if build is training_cases.gpt2 else {})).to(device)
        monitor = abbe.Monitor(network, every=1) if watched else None
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for inputs in training_cases.batches(3, padded=padded):
            loss = network(**moved(inputs, device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step(loss, 1e-2)
        weights = [parameter.detach() for parameter in network.parameters()]
        if monitor is None:
            return None, weights
        monitor.close()
        assert not monitor.silent, monitor.silent
        return monitor.result().table, weights

    with torch_path():
        wanted, weights = work("cpu")
    found, moved_weights = work(DEVICE)
    # Adam divides by sizes of gradients: after some steps weights differ by more than a rounding.
    same_tables(found, wanted, 1e-3)
    same(moved_weights, weights, 1e-3)
    same(moved_weights, [x.cpu() for x in work(DEVICE, watched=False)[1]])


@checks.add("the monitor of a network on another device leaves random numbers alone")
def monitor_and_dropout() -> None:
    def work(watched: bool) -> list[Tensor]:
        network = training_cases.gpt2("eager").to(DEVICE)  # with dropout
        monitor = abbe.Monitor(network, every=1) if watched else None
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
        torch.manual_seed(7)
        for inputs in training_cases.batches(2):
            loss = network(**moved(inputs)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step(loss, 1e-2)
        if monitor is not None:
            monitor.close()
            assert not monitor.silent, monitor.silent
        return [parameter.detach().cpu() for parameter in network.parameters()]

    same(work(True), work(False), on="cpu")


checks.add("monitor gpt2", training_cases.gpt2)(monitored)
checks.add("monitor llama", training_cases.llama, True)(monitored)


# -- A device without float64 -----------------------------------------------------------------------------------------


def without_double(name: str) -> None:
    """A check, on a device that has no float64: the rows are measured on the CPU."""
    from pretend_device import PretendTensor

    with (
        mock.patch.object(PretendTensor, "has_double", False),
        mock.patch.object(double_module, "has_float64", lambda device: device.type != DEVICE),
        torch_path(),  # of the rows that are on the CPU then
    ):
        checks[name]()


_PATHS = "tap llama", "swap llama", "diagnose gpt-oss", "diagnose outputs", "diagnose as entmax", "monitor llama"
for _name in (*_PATHS, "report", "capacity", "compare", "calibrate"):
    checks.add(f"{_name} without float64", _name)(without_double)


# -- Several devices --------------------------------------------------------------------------------------------------


def sent(given: Any, place: str) -> Any:
    """Tensors in any nesting on another device, with the graph of their gradients."""
    return tree.tree_map_only(Tensor, lambda x: x.to(place), given, is_leaf=lambda x: isinstance(x, Tensor))


def spread(made: Model, places: list[str]) -> Model:
    """Layers on several devices, as transformers' device_map places them: states follow by hooks before each layer."""
    network: Any = made.network
    for layer, place in zip(network.model.layers, places, strict=True):
        layer.to(place)
        layer.register_forward_pre_hook(lambda _, *given, place=place: sent(given, place), with_kwargs=True)
    network.model.norm.register_forward_pre_hook(lambda _, args: sent(args, str(network.device)))
    return made


def spread_diagnosis(places: list[str], first: str) -> None:
    """Every layer is measured where it lives."""
    seen: list[str] = []

    def work(made: Model) -> pl.DataFrame:
        with abbe.tap(made.network) as tap:
            tap.listen(lambda call: seen.append(str(call.weights(torch.tensor([3])).device)))
            with torch.no_grad():
                made.network(input_ids=torch.arange(2, 14)[None].to(made.network.device))
        options = {"lengths": [16]} | tiny_runs.QUICK | {"windows": 2, "queries": 4, "sizes": (1, 3)}
        return abbe.diagnose(made, tiny_runs.TEXT, **options).table

    with torch_path():
        wanted = work(model("llama", "cpu"))
        seen.clear()
        found = work(spread(model("llama", first), places))
    assert seen == places
    same_tables(found, wanted)


checks.add("diagnose a network on two devices", ["pretend:0", "pretend:1"], "pretend:0", quick=True)(spread_diagnosis)
checks.add("diagnose a network on CPU and device", ["pretend:0", "cpu"], "pretend:0")(spread_diagnosis)
checks.add("diagnose a network on device and CPU", ["cpu", "pretend:0"], "cpu")(spread_diagnosis)


def llama(device: str) -> Model:
    return model("llama", device)


def on_two_devices(
    work: Callable[[Model], pl.DataFrame], rel: float = ROUNDING, make: Callable[[str], Model] = llama
) -> None:
    """A study of a network with its second layer on the CPU, which can also be differentiated."""
    with torch_path():
        wanted = work(make("cpu"))
        found = work(spread(make(DEVICE), ["pretend:0", "cpu"]))
    same_tables(found, wanted, rel)


@checks.add("report of a network on CPU and device")
def spread_report() -> None:
    options = tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}
    on_two_devices(lambda made: abbe.report(made, tiny_runs.TEXT, **options).run.table)


@checks.add("capacity of a network on CPU and device")
def spread_capacity() -> None:
    options: dict[str, Any] = {"lengths": [16], "windows": 2, "queries": 8, "resamples": 50, "progress": False}
    on_two_devices(lambda made: abbe.capacity(made, tiny_runs.TEXT, **options).table)


@checks.add("calibrate a network on CPU and device")
def spread_calibration() -> None:
    options: dict[str, Any] = {
        "normalizer": "entmax:alpha=1.5", "windows": 3, "held_out": 2, "length": 32, "queries": 8, "steps": 2,
        "finetune": 2, "resamples": 50, "progress": False,
    }  # fmt: skip
    on_two_devices(lambda made: abbe.calibrate(made, tiny_runs.TEXT, **options).table, 1e-3)


@checks.add("compare normalizers of a network on CPU and device")
def spread_comparison() -> None:
    def words(device: str) -> Model:
        return word_model(device, tiny_models.llama)

    on_two_devices(lambda made: compared(made, ["sparsemax", "entmax:alpha=1.5,learn=true"]), make=words)
