"""Checks of everything that runs inside a network: tap, swap, generation and the monitor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_models
import torch
import training_cases
from device_checks import DEVICE, Checks, moved, same, torch_path
from device_models import ROUNDING, Model, model, on_both, same_tables
from torch import Tensor, nn

import abbe

checks = Checks()


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

    result, wanted = on_both(work, lambda device: model("llama", device))
    same((result.sequences, result.logits), (wanted.sequences, wanted.logits), ROUNDING)


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
    result, moved_weights = work(DEVICE)
    # Adam divides by sizes of gradients: after some steps weights differ by more than a rounding.
    same_tables(result, wanted, 1e-3)
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
