"""The training result is bit-identical with and without a monitor, and the model is left as it was."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from training_cases import batches, gpt2, hooks, llama, same, train

import abbe


def every_other(network: Any) -> abbe.Monitor:
    return abbe.Monitor(network, every=2)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_weights_and_random_numbers_are_the_same(implementation: str, padded: bool) -> None:
    """With dropout, in the weights and elsewhere."""
    plain, _ = train(gpt2(implementation), padded=padded)
    read, monitor = train(gpt2(implementation), monitor=every_other, padded=padded)
    assert same(plain, read)
    assert monitor is not None
    assert monitor.silent is None
    assert monitor.result().steps["step"].to_list() == [1, 2, 4]


@pytest.mark.parametrize("options", [{"parts": 2}, {"half": True}, {"parts": 3, "padded": True}])
def test_with_accumulation_and_mixed_precision(options: dict[str, Any]) -> None:
    plain, _ = train(llama(), **options)
    read, monitor = train(llama(), monitor=every_other, **options)
    assert same(plain, read)
    assert monitor is not None
    assert monitor.silent is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_with_gradient_checkpointing(reentrant: bool) -> None:
    def network() -> Any:
        made = gpt2()
        made.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return made

    plain, _ = train(network())
    read, monitor = train(network(), monitor=every_other)
    assert same(plain, read)
    assert monitor is not None
    assert monitor.silent is None


def test_between_read_steps_the_model_is_plain() -> None:
    network = gpt2()
    monitor = abbe.Monitor(network, every=10)
    assert hooks(network) > 0
    assert type(network.config._attn_implementation) is not str
    for inputs in batches(2):
        network(**inputs).loss.backward()
        monitor.step()
        assert hooks(network) == 0
        assert type(network.config._attn_implementation) is str
    monitor.close()


def unlucky(gradient: Tensor) -> None:
    raise RuntimeError("out of luck")


def test_hooks_are_gone_after_an_exception() -> None:
    network = gpt2()
    loss = network(**next(batches(1))).loss
    loss.register_hook(unlucky)
    with pytest.raises(RuntimeError, match="out of luck"), abbe.Monitor(network):
        loss.backward()
    assert hooks(network) == 0
    with pytest.raises(IndexError), abbe.Monitor(network):
        network(input_ids=torch.full((1, 8), 10_000))
    assert hooks(network) == 0
    assert network.config._attn_implementation == "sdpa"
    assert type(network.config._attn_implementation) is str
    from transformers import AttentionInterface

    assert all(type(name) is str for name in AttentionInterface._global_mapping)


def test_a_loop_that_handles_an_exception_of_the_model_is_read_on() -> None:
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1) as monitor:
        with pytest.raises(IndexError):
            network(input_ids=torch.full((1, 8), 10_000))
        assert type(network.config._attn_implementation) is str  # at once, not only when the monitor is closed
        network(**next(batches(1))).loss.backward()
        monitor.step()  # not complete: left out
        network(**next(batches(1))).loss.backward()
        monitor.step()
        assert monitor.silent is None
        assert monitor.result().steps["step"].to_list() == [2]


def test_a_monitor_that_is_forgotten_leaves_the_model() -> None:
    network = gpt2()
    abbe.Monitor(network)  # kept by nobody
    gc.collect()
    assert hooks(network) == 0
    assert type(network.config._attn_implementation) is str
    abbe.Monitor(network).close()


def test_short_sequences_have_what_can_be_measured() -> None:
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1) as monitor:
        for length in (2, 5):
            network(**next(batches(1, length=length))).loss.backward()
            monitor.step()
        assert monitor.silent is None
        measures = set(monitor.result().table["measure"])
    assert "entropy" in measures
    assert "separability@N=20" not in measures  # no row sees more than 20 keys


def test_evaluation_and_generation_on_a_read_step_are_not_read() -> None:
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1) as monitor:
        network.eval()
        with torch.no_grad():
            network(**next(batches(1)))
        network.generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=3, do_sample=False)
        network.train()
        with torch.no_grad():
            network(**next(batches(1)))
        network(**next(batches(1))).loss.backward()
        reading = monitor._reading
        assert reading is not None
        assert reading.passes == 1
        monitor.step()
        assert monitor.silent is None


def test_copies_of_a_model_that_is_read_are_plain() -> None:
    network = gpt2(dropout=0.0)
    inputs = next(batches(1))
    with abbe.Monitor(network, every=1):
        copied = copy.deepcopy(network)
        thawed = pickle.loads(pickle.dumps(network))
        other = gpt2(dropout=0.0)
        other.config = network.config  # shared settings
        for name, part in other.named_modules():
            if hasattr(part, "config"):
                part.config = network.get_submodule(name).config
        shared = other(**inputs).logits
    for model in (copied, thawed):
        assert type(model.config._attn_implementation) is str
        assert torch.equal(model(**inputs).logits, shared)


def test_a_model_with_eager_weights_still_gives_them() -> None:
    network = gpt2("eager", dropout=0.0)
    inputs = next(batches(1))
    plain = network(**inputs, output_attentions=True).attentions
    with abbe.Monitor(network, every=1) as monitor:
        read = network(**inputs, output_attentions=True)
        read.loss.backward()
        monitor.step()
        assert monitor.silent is None
    assert all(torch.equal(a, b) for a, b in zip(plain, read.attentions, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo looks at .grad of everything
def test_compiled_models_are_read_eagerly_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    network = gpt2(dropout=0.0)
    compiled = torch.compile(network, backend="eager")
    with abbe.Monitor(compiled, every=2) as monitor:
        for inputs in batches(3):
            compiled(**inputs).loss.backward()
            monitor.step()
        assert monitor.silent is None
        assert monitor.result().steps["step"].to_list() == [1, 2]
    assert sum("compiled" in line for line in caplog.messages) == 1
