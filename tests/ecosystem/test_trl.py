"""TRL trains a swapped model: its checkpoints keep the plan, and a run that is resumed is the uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import tiny_models
import torch
import transformers
import trl

import abbe

LEARNED, PLAN = "entmax:alpha=1.5,learn=true", "abbe_plan.safetensors"
TEXTS = {"text": [f"To be or not to be, {number}." for number in range(16)]}


def trainer(network: Any, folder: Path, **options: Any) -> Any:
    tokenizer = tiny_models.byte_tokenizer(64)
    tokenizer.pad_token, tokenizer.eos_token = "!", "."
    args = trl.SFTConfig(
        str(folder), max_steps=4, save_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to="none",
        use_cpu=True, bf16=False, disable_tqdm=True, max_length=32, dataloader_pin_memory=False,
    )  # fmt: skip
    data = datasets.Dataset.from_dict(TEXTS)
    return trl.SFTTrainer(network, args=args, train_dataset=data, processing_class=tokenizer, **options)


def test_a_run_is_resumed_and_its_checkpoint_loaded(tmp_path: Path) -> None:
    whole, resumed = (tiny_models.llama(vocab_size=256) for _ in range(2))
    for network, resume in ((whole, None), (resumed, str(tmp_path / "checkpoint-2"))):
        abbe.swap(network, LEARNED)
        callbacks = [] if resume else [abbe.Monitor(every=2)]
        trainer(network, tmp_path, callbacks=callbacks).train(resume_from_checkpoint=resume)
    result: abbe.Result = abbe.open(tmp_path / "abbe")
    assert result.steps["step"].to_list() == [1, 2, 4]  # type: ignore[attr-defined]
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    with torch.no_grad():
        wanted = whole.eval()(input_ids=tiny_models.tokens()).logits
        read: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
        assert torch.equal(read(input_ids=tiny_models.tokens()).logits, wanted)
        loaded = abbe.load(tmp_path / "checkpoint-4")  # TRL writes the tokenizer, too
        assert torch.equal(loaded(input_ids=tiny_models.tokens()).logits, wanted)


def test_an_adapter_that_trl_makes_has_the_plan_beside_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    network = tiny_models.llama(vocab_size=256)
    handle = abbe.swap(network, LEARNED)
    run = trainer(network, tmp_path, peft_config=peft.LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM"))
    before = [parameter.requires_grad_(True).clone() for parameter in handle.parameters()]  # TRL has frozen them
    run.train()
    assert not any(torch.equal(one, other) for one, other in zip(before, handle.parameters(), strict=True))
    again = peft.PeftModel.from_pretrained(tiny_models.llama(vocab_size=256), tmp_path / "checkpoint-4").eval()
    with torch.no_grad(), abbe.swap(again, f"file:{tmp_path / 'checkpoint-4' / PLAN}"):
        wanted = run.model.eval()(input_ids=tiny_models.tokens()).logits
        assert torch.equal(again(input_ids=tiny_models.tokens()).logits, wanted)
