"""The training result is bit-identical with and without a monitor, and the model is left as it was."""

from __future__ import annotations

import copy
import gc
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from training_cases import batches, gpt2, hooks, llama, one_step, same, train

import abbe


def every_other(network: Any) -> abbe.Monitor:
    return abbe.Monitor(network, every=2)


def checkpointed(reentrant: bool) -> Any:
    made = gpt2()
    made.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return made


@pytest.mark.parametrize(
    ("build", "options"),
    [
        *((partial(gpt2, name), {"padded": padded}) for name in ("sdpa", "eager") for padded in (False, True)),
        *((llama, options) for options in ({"parts": 2}, {"half": True}, {"parts": 3, "padded": True})),
        *((partial(checkpointed, reentrant), {}) for reentrant in (True, False)),
    ],
    # The same in every process.
    ids=lambda value: getattr(value, "__name__", None) or str(getattr(value, "args", value)),
)
def test_weights_and_random_numbers_are_the_same(build: Any, options: dict[str, Any]) -> None:
    """With dropout in the weights and elsewhere, padding, accumulation, mixed precision and checkpointing."""
    plain, _ = train(build(), **options)
    read, monitor = train(build(), monitor=every_other, **options)
    assert same(plain, read)
    assert [record["step"] for record in as_records(monitor)] == [1, 2, 4]


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


def as_records(monitor: abbe.Monitor | None) -> list[dict[str, Any]]:
    """What was recorded, without times."""
    assert monitor is not None
    assert monitor.silent is None
    return [{name: x for name, x in record.items() if "seconds" not in name} for record in monitor.result().records]


@pytest.mark.parametrize("options", [{}, {"parts": 2, "padded": True}, {"half": True}], ids=str)
def test_evaluation_mode_is_read_like_training_mode(options: dict[str, Any]) -> None:
    """Lightning trains what `from_pretrained` gives in evaluation mode; without dropout the two modes are one."""
    _, training = train(gpt2(dropout=0.0), monitor=every_other, **options)
    weights, evaluation = train(gpt2(dropout=0.0).eval(), monitor=every_other, **options)
    plain, _ = train(gpt2(dropout=0.0).eval(), **options)
    assert same(plain, weights)
    assert len(as_records(evaluation)) == 3
    assert as_records(evaluation) == as_records(training)


def evaluate(network: Any, way: str) -> None:
    """As a loop may, on a step that is read; without `no_grad` such passes look like those of training at first."""
    inputs = next(batches(1, length=17))
    network.train(way == "training")
    with torch.inference_mode() if way == "inference" else torch.set_grad_enabled(way != "no_grad"):
        network(**inputs)
    network.generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=3, do_sample=False)
    network.train()


@pytest.mark.parametrize("way", ["no_grad", "inference", "evaluation", "training"])
@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_passes_without_a_backward_pass_are_not_read(way: str, place: str) -> None:
    """The loss is the model's own, as Trainer leaves it to the monitor."""

    def records(watch: bool) -> list[dict[str, Any]]:
        network = gpt2(dropout=0.0)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        with abbe.Monitor(network, every=1, rows=100) as monitor:  # every row: none is drawn by the number of a pass
            for inputs in batches(2):
                for now in ("before", "between", "after"):
                    if watch and now == place:
                        evaluate(network, way)
                    if now != "after":
                        network(**inputs).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.step()
        return as_records(monitor)

    assert records(watch=True) == records(watch=False)


def test_passes_that_share_a_backward_pass_are_all_read() -> None:
    """As in contrastive and preference losses."""
    network, inputs = gpt2(dropout=0.0), list(batches(2))
    with abbe.Monitor(network, every=1) as monitor:
        (network(**inputs[0]).loss + network(**inputs[1]).loss).backward()
        monitor.step()
    with abbe.Monitor(network, every=1) as accumulated:
        network.zero_grad()
        for one in inputs:
            network(**one).loss.backward()
        accumulated.step()
    (shared,), (apart,) = as_records(monitor), as_records(accumulated)
    assert shared["model"] == pytest.approx(apart["model"], rel=1e-5)
    assert shared["loss"] == pytest.approx(apart["loss"])


@pytest.mark.parametrize("trained", ["lm_head", "h.1.mlp", "h.0.attn.c_proj", "transformer.wte"])
@pytest.mark.parametrize("train", [True, False])
def test_models_with_frozen_parts_are_read(trained: str, train: bool) -> None:
    """A head on a frozen model, adapters, prompts: gradients may never come as far as the attention."""
    network = gpt2(dropout=0.0, tie_word_embeddings=False).train(train)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(trained in name)
    (record,) = one_step(network).records
    assert record["layout"] == [4, 4]
    assert record["loss"] is not None


def test_losses_of_hidden_states_and_prompts_of_a_frozen_model_are_those_of_training() -> None:
    hidden: Any = next(batches(1)) | {"output_hidden_states": True}
    (record,) = one_step(gpt2(dropout=0.0), hidden, lambda output: output.hidden_states[1].square().mean()).records
    assert record["layout"] == [4, 4]
    frozen = gpt2(dropout=0.0).eval().requires_grad_(False)
    prompt: Any = {"inputs_embeds": torch.randn(2, 9, 32, requires_grad=True), "return_dict": False}
    (record,) = one_step(frozen, prompt, lambda output: output[0].square().mean()).records
    assert record["layout"] == [4, 4]


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
