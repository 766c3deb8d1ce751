"""Models of PEFT: measured and swapped as the network with its adapters, against the same with merged weights."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
import transformers
from tiny_runs import QUICK, TEXT
from torch import Tensor

import abbe

peft = pytest.importorskip("peft")

TOKENIZER = tiny_models.byte_tokenizer()
SHORT = {"lengths": 24, "windows": 4, "queries": 8, "tokenizer": TOKENIZER, "progress": False}
STUDIES: dict[str, Callable[[Any], pl.DataFrame]] = {
    "diagnose": lambda model: abbe.diagnose(model, TEXT, lengths=24, tokenizer=TOKENIZER, **QUICK).table,
    "calibrate": lambda model: (
        abbe.calibrate(
            model, TEXT, length=24, windows=2, held_out=2, steps=5, resamples=50, tokenizer=TOKENIZER, progress=False
        ).table
    ),
    "diff": lambda model: abbe.diff(model, tiny_models.llama(vocab_size=256), TEXT, **SHORT).table.select(
        "measure", "layer", "head", "length", "n", "first", "second"
    ),
}


def adapted(network: Any = None, targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj")) -> Any:
    """A LoRA whose adapter is far from zero."""
    config = peft.LoraConfig(target_modules=list(targets), r=4, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = peft.get_peft_model(network or tiny_models.llama(vocab_size=256), config)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def merged(model: Any) -> Any:
    return copy.deepcopy(model).merge_and_unload()


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


@torch.no_grad()
def test_tap_swap_and_plan_are_those_of_the_merged_network() -> None:
    model, ids = adapted(), tiny_models.tokens()
    twin = merged(model)
    plain = model(input_ids=ids).logits
    base = model.get_base_model()
    with model.disable_adapter():
        assert float((model(input_ids=ids).logits - plain).abs().max()) > 0.1
    assert repr(abbe.plan(model, "layers.1=sparsemax")) == repr(abbe.plan(twin, "layers.1=sparsemax"))
    heard: dict[Any, list[Tensor]] = {model: [], twin: []}
    for one, weights in heard.items():
        with abbe.tap(one) as t:
            assert t.check(input_ids=ids) < 1e-5
            t.listen(lambda call, weights=weights: weights.append(call.weights()))
            close(one(input_ids=ids).logits, plain)
    for mine, other in zip(*heard.values(), strict=True):
        close(mine, other)
    with abbe.swap(model, "sparsemax") as one, abbe.swap(twin, "sparsemax"):
        assert one.network is base
        assert one.check(input_ids=ids) < 1e-5
        swapped = model(input_ids=ids).logits
        close(swapped, twin(input_ids=ids).logits)
    assert float((swapped - plain).abs().max()) > 0.1
    assert torch.equal(model(input_ids=ids).logits, plain)


@torch.no_grad()
def test_output_vectors_behind_an_adapter_are_refused() -> None:
    """They would be those of the weights beneath it, or of a part of the adapter."""
    calls: list[abbe.models.AttentionCall] = []
    for targets in (["q_proj"], ["q_proj", "o_proj"]):
        model = adapted(targets=targets)
        with abbe.tap(model) as t:
            t.check(input_ids=tiny_models.tokens())
            t.listen(calls.append)
            model(input_ids=tiny_models.tokens())
    weight = model.get_base_model().model.layers[0].self_attn.o_proj.base_layer.weight
    torch.testing.assert_close(calls[0].value_to_output().flatten(0, 1), weight.T)
    with pytest.raises(abbe.AbbeError, match=r"its output projection was not found, so there are no output vectors"):
        calls[2].value_to_output()


@pytest.mark.parametrize("study", STUDIES)
def test_studies_measure_the_merged_network(study: str) -> None:
    model = adapted()
    one, other = STUDIES[study](model), STUDIES[study](merged(model))
    if "measure" in one.columns:
        # Without positions in values, repeated bytes have the same vectors in layer 0: rounding breaks the ties.
        one, other = (table.filter(~pl.col("measure").str.contains("cosine")) for table in (one, other))
    floats = [name for name, kind in one.schema.items() if kind.is_float()]
    keys = [name for name in one.columns if name not in floats]
    one, other = (table.sort(keys, maintain_order=True) for table in (one, other))
    assert one.select(keys).equals(other.select(keys))
    for name in floats:
        a, b = (torch.tensor(table[name].fill_null(0).to_list(), dtype=torch.float64) for table in (one, other))
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


def test_what_peft_adds_from_outside_is_refused_by_studies() -> None:
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny_models.llama(vocab_size=256), prompts).eval()
    with pytest.raises(
        abbe.AbbeError, match=r"PeftModelForCausalLM \(PROMPT_TUNING\) adds to its network from outside"
    ):
        STUDIES["diagnose"](model)
    keys: list[int] = []
    with torch.no_grad(), abbe.tap(model) as t:
        t.listen(lambda call: keys.append(call.key.shape[-2]))
        model(input_ids=tiny_models.tokens())
    assert keys == [22, 22]  # with the prompt


def test_a_swap_that_get_peft_model_freezes_says_so() -> None:
    network: Any = tiny_models.llama(vocab_size=256)
    ids = tiny_models.tokens()
    with abbe.swap(network, "entmax:alpha=1.5,learn=true") as swapped:
        model = adapted(network).train()
        with pytest.warns(UserWarning, match="parameters of this swap were frozen .* as get_peft_model does"):
            model(input_ids=ids)
        for parameter in swapped.parameters():
            parameter.requires_grad_(True)
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None for parameter in swapped.parameters())


def test_a_swap_after_get_peft_model_learns_beside_the_adapter() -> None:
    model, ids = adapted().train(), tiny_models.tokens()
    with abbe.swap(model, "entmax:alpha=1.5,learn=true") as swapped:
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None for parameter in swapped.parameters())
    assert not any("abbe" in name for name in model.state_dict())


# -- Saved: the plan lies beside the adapter --------------------------------------------------------------------------

LEARNED, PLAN = "entmax:alpha=1.5,learn=true", "abbe_plan.safetensors"


def learned(order: str) -> tuple[Any, Any]:
    """A model with an adapter under a swap that began before or after it, both far from their start."""
    network: Any = tiny_models.llama(vocab_size=256)
    swapped = abbe.swap(network, LEARNED) if order == "before" else None
    model = adapted(network)
    swapped = swapped or abbe.swap(model, LEARNED)
    with torch.no_grad():
        for number, parameter in enumerate(swapped.parameters()):
            parameter.requires_grad_(True).add_(0.1 * number - 0.3)
    return model, swapped


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        output: Tensor = model.eval()(input_ids=tiny_models.tokens()).logits
        return output


@pytest.mark.parametrize("order", ["before", "after"])
def test_an_adapter_has_its_plan_beside_it(order: str, tmp_path: Path) -> None:
    model, swapped = learned(order)
    wanted = logits(model)
    model.save_pretrained(tmp_path)
    swapped.restore()
    assert not torch.equal(logits(model), wanted)
    model.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / PLAN).exists()  # nothing is left in the settings of PEFT
    with pytest.warns(UserWarning, match=r"Unexpected keyword arguments \['abbe'\]"):  # never silently softmax
        again = peft.PeftModel.from_pretrained(tiny_models.llama(vocab_size=256), tmp_path)
    with abbe.swap(again, f"file:{tmp_path / PLAN}"):
        assert torch.equal(logits(again), wanted)
    with pytest.raises(abbe.AbbeError, match=rf"is a PEFT adapter .* then abbe\.swap\(model, 'file:.*{PLAN}'\)"):
        abbe.load(tmp_path)


def test_the_example_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "lora_entmax.py"
    command = [sys.executable, str(script), "--out", "here", "--steps", "8", "--length", "64"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for one in ("adapter", "merged"):
        assert f"{one}: loaded again, the same logits: True" in done.stdout


def test_a_merged_model_is_saved_with_the_plan(tmp_path: Path) -> None:
    model, _ = learned("after")
    network = model.merge_and_unload()
    network.save_pretrained(tmp_path)
    again: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(network))


def test_an_adapter_on_a_checkpoint_with_a_plan(tmp_path: Path) -> None:
    network = tiny_models.llama(vocab_size=256)
    with abbe.swap(network, LEARNED):
        network.save_pretrained(tmp_path / "base")
    model = adapted(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    wanted = logits(model)
    model.save_pretrained(tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match="an adapter has no values of normalizers that learn"):
        again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert torch.equal(logits(again), wanted)


def test_trainer_resumes_an_adapter_with_the_values_of_its_plan(tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in tiny_models.tokens(batch=16)]

    def trained(what: str, folder: str, resume: str | None = None) -> dict[str, Tensor]:
        model = adapted()
        swapped = abbe.swap(model, what)
        args = transformers.TrainingArguments(
            str(tmp_path / folder), max_steps=6, save_steps=3, per_device_train_batch_size=2, learning_rate=1e-2,
            report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        callbacks = [] if resume else [abbe.Monitor(every=2)]
        transformers.Trainer(model, args, train_dataset=rows, callbacks=callbacks).train(resume_from_checkpoint=resume)
        assert all(parameter.requires_grad for parameter in swapped.parameters())
        return dict(model.state_dict())

    whole = trained(LEARNED, "whole")
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    with pytest.warns(UserWarning, match="an adapter has no values of normalizers that learn"):
        resumed = trained(f"file:{checkpoint / PLAN}", "part", str(checkpoint))
    result: Any = abbe.open(tmp_path / "whole" / "abbe")
    assert result.steps["step"].to_list() == [1, 2, 4, 6]
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
