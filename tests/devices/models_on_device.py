"""Checks of everything that runs inside a network: tap, swap, generation and the monitor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tiny_models
import torch
import training_cases
from device_checks import DEVICE, Checks, has_double, moved, same, torch_path
from device_models import ROUNDING, Model, model, on_both, same_tables
from torch import Tensor

import abbe

checks = Checks()
SOME = torch.tensor([1, 3])  # queries


# -- Tap and swap -----------------------------------------------------------------------------------------------------


def on_both_networks(family: str, work: Callable[[Any, Any], Any]) -> Any:
    """What a network of this family gives on the device and on the CPU without kernels."""

    def on(device: str) -> Any:
        made: Any = tiny_models.FAMILIES[family].build()
        made.set_attn_implementation("eager")
        return work(made.to(device), moved(tiny_models.FAMILIES[family].inputs(), device))

    with torch_path():
        wanted = on("cpu")
    return on(DEVICE), wanted


def tapped(family: str) -> None:
    """What the tap hands over, its weights of some queries, and its self-check."""

    def work(network: Any, inputs: Any) -> Any:
        rows: list[Any] = []
        with abbe.tap(network) as tap:
            tap.check(**inputs)
            tap.listen(lambda call: rows.append((call.weights(SOME), call.value, call.logits(SOME[:1]))))
            with torch.no_grad():
                network(**inputs)
        return rows

    same(*on_both_networks(family, work), ROUNDING, on=DEVICE if has_double() else "cpu")


def swapped(family: str, what: Any) -> None:
    """Outputs and gradients of a network with another normalizer; the swap's self-check."""

    def work(network: Any, inputs: Any) -> Any:
        with abbe.swap(network, what) as swap:
            swap.check(**inputs)
            out = network(**inputs)[0]
            learned = [p for p in network.parameters() if p.requires_grad][:3] + list(swap.parameters())
            return out, torch.autograd.grad(out.square().mean(), learned, materialize_grads=True)

    same(*on_both_networks(family, work), ROUNDING)


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


def generated(what: str | None) -> None:
    """Greedy generation under a swap, or by the name of an attention, with a cache: each step is one query."""

    def work(made: Model) -> Any:
        network: Any = made.network
        tokens = torch.arange(2, 14)[None].to(network.device)
        if what is None:
            network.set_attn_implementation("abbe:entmax-1.5")
        with abbe.swap(network, what) if what is not None else nullcontext():
            result = network.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        return result.sequences, result.logits

    same(*on_both(work, lambda device: model("llama", device)), ROUNDING)


for _spec in ("sparsemax", "entmax:alpha=1.5,learn=true", "topk:k=3", "softmax"):
    checks.add(f"generate {_spec}", _spec)(generated)
checks.add("generate by the name of an attention", None)(generated)


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


# -- Training ---------------------------------------------------------------------------------------------------------


def trained(network: Any, batches: Any, optimizer: Any, watched: bool) -> Any:
    """The weights after some steps, and what a monitor has measured in each."""
    monitor = abbe.Monitor(network, every=1) if watched else None
    optimizer = optimizer(network.parameters(), lr=1e-2)
    torch.manual_seed(7)
    for inputs in batches:
        loss = network(**moved(inputs, network.device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step(loss, 1e-2)
    if monitor is not None:
        monitor.close()
        assert not monitor.silent, monitor.silent
    weights = [parameter.detach() for parameter in network.parameters()]
    return weights, None if monitor is None else monitor.result().table


def monitored(build: Callable[..., Any], padded: bool = False) -> None:
    """A few steps with a monitor: the numbers of all steps, and training unchanged."""

    def work(device: str, watched: bool = True) -> Any:
        torch.manual_seed(7)
        network = build("eager", **({"dropout": 0.0} if build is training_cases.gpt2 else {})).to(device)
        return trained(network, training_cases.batches(3, padded=padded), torch.optim.AdamW, watched)

    with torch_path():
        weights, wanted = work("cpu")
    moved_weights, result = work(DEVICE)
    # Adam divides by sizes of gradients: after some steps weights differ by more than a rounding.
    same_tables(result, wanted, 1e-3)
    same(moved_weights, weights, 1e-3)
    same(moved_weights, [x.cpu() for x in work(DEVICE, watched=False)[0]])


@checks.add("the monitor of a network on another device leaves random numbers alone")
def monitor_and_dropout() -> None:
    def work(watched: bool) -> list[Tensor]:
        network = training_cases.gpt2("eager").to(DEVICE)  # with dropout
        weights, _ = trained(network, training_cases.batches(2), torch.optim.SGD, watched)
        return [weight.cpu() for weight in weights]

    same(work(True), work(False), on="cpu")


checks.add("monitor gpt2", training_cases.gpt2)(monitored)
checks.add("monitor llama", training_cases.llama, True)(monitored)
