"""Checkpoints of a swapped model: they keep the plan with what was learned, and give the same logits, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from cli_runs import run_main
from folders import change, save
from safetensors.torch import load_file
from tiny_models import FAMILIES, byte_tokenizer, gpt2, llama, tokens
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import abbe
from abbe import AbbeError, normalizer

LEARNED = "entmax:alpha=1.5,learn=true"
MIXED = {"layers.0.heads.0,2": "topk:k=3", "layers.1": LEARNED}
PLAN = "abbe_plan.safetensors"


OPEN: list[abbe.Swap] = []


def swap(network: Any, what: Any) -> abbe.Swap:
    """Restored at the end of the test, if not before."""
    OPEN.append(abbe.swap(network, what))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().restore()


def logits(network: Any) -> Tensor:
    """Without gradients and in evaluation mode, whichever the mode of the model is."""
    with torch.no_grad(), abbe.models.evaluating(network):
        output: Tensor = network(input_ids=tokens()).logits
        return output


def moved(handle: Any) -> Any:
    """The swap after its learned values have moved."""
    with torch.no_grad():
        for number, weight in enumerate(handle.parameters()):
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return handle


def read(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **options)


def mark(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text()).get("abbe")


# -- save_pretrained and from_pretrained ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [LEARNED, MIXED, normalizer(LEARNED)], ids=["learned", "mixed", "shared"])
@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_folder_gives_the_same_logits(build: Any, what: Any, tmp_path: Path) -> None:
    network = build(vocab_size=256)
    plain, settings = logits(network), network.config.to_dict()
    with moved(swap(network, what)):
        wanted, state = logits(network), network.state_dict()
        save(network, tmp_path)
        assert torch.equal(logits(network), wanted)
    assert not torch.equal(wanted, plain)
    assert torch.equal(logits(network), plain)
    assert network.config.to_dict() | {"architectures": None} == settings | {"architectures": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, report = read(tmp_path, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    assert torch.equal(logits(again), wanted)
    assert torch.equal(logits(abbe.load(tmp_path).network), wanted)
    assert again.state_dict().keys() == state.keys()
    again.save_pretrained(tmp_path / "again")
    for file in ("config.json", "model.safetensors", PLAN):
        assert (tmp_path / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    with swap(network, f"file:{tmp_path / PLAN}"):
        assert torch.equal(logits(network), wanted)


@pytest.mark.parametrize("family", ["gemma2", "t5", "gpt-oss", "qwen3"])
def test_other_families(family: str, tmp_path: Path) -> None:
    build, inputs, _ = FAMILIES[family]
    network: Any = build()
    with torch.no_grad(), moved(swap(network, LEARNED)):
        wanted = network(**inputs()).logits
        network.save_pretrained(tmp_path)
    auto: Any = __import__("transformers").AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    with torch.no_grad():
        assert torch.equal(auto.from_pretrained(tmp_path)(**inputs()).logits, wanted)


ALONE = """
import sys, torch
if sys.argv[2] == "abbe":
    import abbe
from transformers import AutoModelForCausalLM
try:
    network = AutoModelForCausalLM.from_pretrained(sys.argv[1])
except Exception as error:
    sys.exit(f"refused: {error}")
with torch.no_grad():
    torch.save(network(input_ids=torch.arange(9)[None]).logits, sys.argv[3])
"""


@pytest.mark.slow
def test_in_a_new_process_and_without_abbe(tmp_path: Path) -> None:
    network = llama()
    with torch.no_grad(), moved(swap(network, MIXED)):
        network.save_pretrained(tmp_path)
        wanted = network(input_ids=torch.arange(9)[None]).logits
    runs = [
        subprocess.run(
            [sys.executable, "-c", ALONE, tmp_path, who, tmp_path / "logits"], capture_output=True, text=True
        )
        for who in ("abbe", "nobody")
    ]
    assert runs[0].returncode == 0, runs[0].stderr
    assert torch.equal(torch.load(tmp_path / "logits"), wanted)
    assert runs[1].returncode == 1
    assert "model type `abbe`" in runs[1].stderr


def test_many_files_and_a_state_dict_that_is_given(tmp_path: Path) -> None:
    network = llama()
    with moved(swap(network, MIXED)) as handle:
        wanted = logits(network)
        network.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
        given = {name: value.clone() for name, value in network.state_dict().items()}
        with torch.no_grad():
            for weight in handle.parameters():
                weight += 1  # of another moment, such as an average
        network.save_pretrained(tmp_path / "given", state_dict=given)
        network.save_pretrained(tmp_path / "other", is_main_process=False)
        assert not torch.equal(logits(network), wanted)
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(read(tmp_path / "parts")), wanted)
    assert torch.equal(logits(read(tmp_path / "given")), wanted)
    assert not list((tmp_path / "other").iterdir())


def test_the_body_alone_is_saved_with_its_part_of_the_plan(tmp_path: Path) -> None:
    network: Any = llama()
    with torch.no_grad(), moved(swap(network, MIXED)):
        network.model.save_pretrained(tmp_path)
        wanted = network.model(input_ids=tokens()).last_hidden_state
    with torch.no_grad():
        assert torch.equal(AutoModel.from_pretrained(tmp_path)(input_ids=tokens()).last_hidden_state, wanted)


def test_half_precision(tmp_path: Path) -> None:
    """The normalizers stay in float32, unless the network was moved during the swap."""
    for moves in (False, True):
        network = gpt2().bfloat16()
        with moved(swap(network, LEARNED)):
            if moves:
                network.bfloat16()
            wanted = logits(network)
            network.save_pretrained(tmp_path)
        assert torch.equal(logits(read(tmp_path, dtype="auto")), wanted)


def test_what_is_uploaded_has_plan_and_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is a folder here; transformers uploads the files that were written since its save began."""

    class Hub:
        def create_repo(self, repo_id: str, **_: Any) -> Any:
            return type("Repository", (), {"repo_id": repo_id})

    def upload(self: Any, working_dir: str, repo_id: str, files_timestamps: dict[str, float], **_: Any) -> None:
        (tmp_path / repo_id).mkdir(parents=True, exist_ok=True)
        for path in Path(working_dir).iterdir():
            if path.name not in files_timestamps or os.path.getmtime(path) > files_timestamps[path.name]:
                shutil.copy(path, tmp_path / repo_id)

    network, card = llama(), type("Card", (), {"save": lambda self, path: Path(path).write_text("card")})()
    for module in ("modeling_utils", "utils.hub"):
        monkeypatch.setattr(f"transformers.{module}.hf_api", Hub)
        monkeypatch.setattr(f"transformers.{module}.create_and_tag_model_card", lambda *_, **__: card)
    monkeypatch.setattr(type(network), "_upload_modified_files", upload)
    with moved(swap(network, MIXED)):
        wanted = logits(network)
        network.save_pretrained(tmp_path / "local", push_to_hub=True, repo_id="saved")
        network.save_pretrained(tmp_path / "local", push_to_hub=True, repo_id="twice")
        network.push_to_hub("pushed")
    for repo in ("saved", "twice", "pushed"):
        assert mark(tmp_path / repo)["plan"] == PLAN
        assert torch.equal(logits(read(tmp_path / repo)), wanted)


def test_after_softmax_was_asked_for_it_is_not_saved_with_a_plan(tmp_path: Path) -> None:
    network = llama()
    with moved(swap(network, MIXED)):
        network.save_pretrained(tmp_path / "first")
        wanted = logits(network)
    again = read(tmp_path / "first")
    again.set_attn_implementation("sdpa")
    with pytest.raises(AbbeError, match=r"has no plan: .* call set_attn_implementation\('abbe:plan'\) before"):
        again.save_pretrained(tmp_path / "second")
    again.set_attn_implementation("abbe:plan")
    again.save_pretrained(tmp_path / "second")
    assert torch.equal(logits(read(tmp_path / "second")), wanted)


def test_nothing_is_left_behind_when_saving_fails(tmp_path: Path) -> None:
    class Mine(type(normalizer("sparsemax"))):  # type: ignore[misc]
        name = "mine"

    network = llama()
    with swap(network, Mine()):
        kind = type(network.config)
        with pytest.raises(AbbeError, match="cannot save Mine"):
            network.save_pretrained(tmp_path)
        assert type(network.config) is kind
    network.save_pretrained(tmp_path)
    assert mark(tmp_path) is None
    assert "save_pretrained" not in vars(network)


# -- state_dict -------------------------------------------------------------------------------------------------------


def test_a_state_of_the_same_plan_is_loaded_and_that_of_another_refused_by_name() -> None:
    network, other = llama(), llama()
    with moved(swap(network, MIXED)):
        state, wanted = network.state_dict(), logits(network)
    with swap(other, MIXED):
        other.load_state_dict(state)
        assert torch.equal(logits(other), wanted)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with swap(other, "*=sparsemax"), pytest.raises(AbbeError) as refused:
        other.load_state_dict(
            {name: value + 1 for name, value in state.items() if value.is_floating_point()}
            | {name: value for name, value in state.items() if not value.is_floating_point()}
        )
    assert str(refused.value).startswith(
        "the checkpoint has topk:k=3 in layers 0, heads 0,2; entmax:alpha=1.5,learn=true,heads=4 in layers 1, heads "
        "0-3, but this model has sparsemax in layers 0-1, heads 0-3: swap it to the plan of the checkpoint first"
    )
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())  # nothing was loaded
    with swap(other, MIXED), pytest.raises(AbbeError, match="the checkpoint's plan cannot be read"):
        other.load_state_dict(state | {"abbe_normalizers._extra_state": torch.zeros(3, dtype=torch.uint8)})


def test_a_plain_state_is_a_start_if_it_need_not_be_complete() -> None:
    network = llama(vocab_size=61)
    plain = {name: value + 0.01 for name, value in network.state_dict().items()}
    with swap(network, LEARNED):
        with pytest.raises(RuntimeError, match="abbe_normalizers"):
            network.load_state_dict(plain)
        missing = network.load_state_dict(plain, strict=False).missing_keys
    assert {name.partition(".")[0] for name in missing} == {"abbe_normalizers"}
    with swap(network, LEARNED):
        state = network.state_dict()
    with pytest.raises(RuntimeError, match="abbe_normalizers"):
        network.load_state_dict(state)


def test_a_state_dict_survives_torch_save(tmp_path: Path) -> None:
    network = llama()
    with moved(swap(network, MIXED)):
        torch.save(network.state_dict(), tmp_path / "state.pt")
        wanted = logits(network)
    with swap(network, MIXED):
        network.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert torch.equal(logits(network), wanted)


def test_accelerate_saves_and_loads_it(tmp_path: Path) -> None:
    def prepared(what: Any) -> Any:
        accelerator, network = Accelerator(cpu=True), llama()
        swap(network, what)
        model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=1e-2))

        def train(steps: int) -> dict[str, Tensor]:
            for _ in range(steps):
                accelerator.backward(model(input_ids=tokens(), labels=tokens()).loss)
                optimizer.step()
                optimizer.zero_grad()
            return dict(network.state_dict())

        return accelerator, model, train

    accelerator, model, train = prepared(LEARNED)
    train(2)
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.save_model(model, str(tmp_path / "model"))
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(tmp_path / "folder", state_dict=accelerator.get_state_dict(model))
    at_two, whole = logits(model), train(2)
    again, resumed, train_on = prepared(LEARNED)
    again.load_state(str(tmp_path / "state"))
    assert torch.equal(logits(resumed), at_two)
    assert same(train_on(2), whole)
    assert torch.equal(logits(read(tmp_path / "folder")), at_two)
    with swap(network := llama(), LEARNED):
        network.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
        assert torch.equal(logits(network), at_two)
    other, _, _ = prepared("sparsemax")
    with pytest.raises(AbbeError, match=r"the checkpoint has entmax:alpha=1\.5,learn=true"):
        other.load_state(str(tmp_path / "state"))


@pytest.mark.parametrize("way", ["compiled", "gradient checkpointing"])
def test_it_is_saved_however_it_is_called(way: str, tmp_path: Path) -> None:
    def trained(changed: bool) -> Any:
        network: Any = llama()
        swap(network, LEARNED)
        if changed and way == "gradient checkpointing":
            network.gradient_checkpointing_enable()
        model = torch.compile(network, backend="eager") if changed and way == "compiled" else network
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model.train()(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    plain, model = trained(False), trained(True)
    model.save_pretrained(tmp_path)
    again = read(tmp_path)
    assert torch.equal(logits(again), logits(getattr(model, "_orig_mod", model)))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value)


# -- Going on with training -------------------------------------------------------------------------------------------


class Stop(TrainerCallback):  # type: ignore[misc]
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.at


TEXTS = [{"input_ids": row, "labels": row} for row in tokens(batch=64, seed=1)]


def trainer(network: Any, folder: Path, stop: int | None = None, **options: Any) -> Any:
    settings = {
        "max_steps": 60, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 20, "seed": 3,
        "logging_steps": 5, "report_to": "none", "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **(settings | options))
    callbacks = [] if stop is None else [Stop(stop)]
    return Trainer(network, args, train_dataset=TEXTS, eval_dataset=TEXTS[:8], callbacks=callbacks)


def dropping(**options: Any) -> Any:
    """With dropout, so that the state of the random numbers counts, too."""
    return llama(attention_dropout=0.1, **options)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], Tensor, Path]:
    """State and logits after 60 steps, and the folder of a run that was stopped after 33."""
    folder, whole, stopped = tmp_path_factory.mktemp("runs"), dropping(), dropping()
    with swap(whole, LEARNED), swap(stopped, LEARNED):
        before = {name: value.clone() for name, value in whole.state_dict().items()}
        trainer(whole, folder / "whole").train()
        trainer(stopped, folder / "part", 33).train()
        state = whole.state_dict()
        learned = [name for name in state if name.endswith("raw")]
        assert len(learned) == 2
        assert not any(torch.equal(state[name], before[name]) for name in learned)
        return state, logits(whole), folder / "part"


@pytest.mark.parametrize("way", ["swapped", "loaded", "sharded"])
def test_a_run_that_was_stopped_and_resumed_is_the_uninterrupted_one(way: str, runs: Any, tmp_path: Path) -> None:
    state, wanted, stopped = runs
    part = Path(shutil.copytree(stopped, tmp_path / "part"))
    checkpoint = part / "checkpoint-20"
    assert mark(checkpoint)["plan"] == PLAN
    if way == "sharded":
        again = read(checkpoint)
        (checkpoint / "model.safetensors").unlink()
        again.save_pretrained(checkpoint, max_shard_size="4KB")
    resumed = read(checkpoint) if way == "loaded" else dropping()
    if way != "loaded":
        swap(resumed, LEARNED)
    trainer(resumed, part).train(resume_from_checkpoint=str(checkpoint))
    assert same(resumed.state_dict(), state)
    assert torch.equal(logits(read(part / "checkpoint-60")), wanted)


KILLED = """
import os, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
import test_checkpoints as here
from transformers import TrainerCallback

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 33:
            os._exit(9)

network = here.dropping()
here.swap(network, here.LEARNED)
run = here.trainer(network, Path(sys.argv[1]))
run.add_callback(Kill())
run.train()
"""


@pytest.mark.slow
def test_a_run_that_was_killed_is_resumed(tmp_path: Path) -> None:
    paths = [str(path) for path in (Path(__file__).parent, *Path(__file__).parents[1:3])]
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "part", *paths], capture_output=True, text=True)
    assert killed.returncode == 9, killed.stderr
    whole, resumed = dropping(), dropping()
    for network, folder, resume in ((whole, "whole", None), (resumed, "part", True)):
        swap(network, LEARNED)
        trainer(network, tmp_path / folder).train(resume_from_checkpoint=resume)
    assert same(resumed.state_dict(), whole.state_dict())


def test_a_checkpoint_of_another_plan_is_not_resumed(tmp_path: Path) -> None:
    network = llama()
    with swap(network, LEARNED):
        trainer(network, tmp_path, max_steps=2, save_steps=2).train()
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=r"the checkpoint has entmax:alpha=1\.5,learn=true"):
        trainer(network, tmp_path, max_steps=4).train(resume_from_checkpoint=True)


def test_the_best_model_is_loaded_at_the_end_with_its_values(tmp_path: Path) -> None:
    network = llama()
    with swap(network, LEARNED):
        run = trainer(
            network, tmp_path, max_steps=6, save_steps=2, eval_strategy="steps", eval_steps=2, learning_rate=0.1,
            load_best_model_at_end=True, greater_is_better=True,
        )  # fmt: skip
        run.add_callback(abbe.Monitor(every=2))
        run.train()
        best = run.state.best_model_checkpoint
        assert not best.endswith("checkpoint-6")  # greater is better, and the loss falls
        assert same(load_file(Path(best) / "model.safetensors"), saved_part(network))
        run.save_model(str(tmp_path / "final"))
        wanted = logits(network)
    assert torch.equal(logits(read(tmp_path / "final")), wanted)
    result: Any = abbe.open(tmp_path / "abbe")
    assert result.steps["step"].to_list() == [1, 2, 4, 6]


def saved_part(network: Any) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in network.state_dict().items()
        if name != "lm_head.weight" or not network.config.tie_word_embeddings
    }


def test_a_loaded_model_learns_on_as_the_swapped_one_would(tmp_path: Path) -> None:
    swapped = llama()
    swap(swapped, LEARNED)
    swapped.save_pretrained(tmp_path)
    loaded = read(tmp_path)
    for network in (swapped, loaded):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for _ in range(3):
            network(input_ids=tokens(), labels=tokens()).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(loaded.state_dict(), swapped.state_dict())
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(read(tmp_path / "again")), logits(swapped))
    frozen = abbe.load("embedded").network
    assert not any(parameter.requires_grad for parameter in frozen.parameters())  # as all that `load` gives


def test_a_checkpoint_is_measured_like_the_swapped_model(tmp_path: Path) -> None:
    network, tokenizer = llama(vocab_size=256), byte_tokenizer()
    text = abbe.Text("prose", "To be or not to be, that is the question. " * 40)
    options: dict[str, Any] = {"lengths": 24, "windows": 2, "queries": 4, "progress": False}
    with moved(swap(network, MIXED)):
        save(network, tmp_path)
        one = abbe.diagnose(network, text, tokenizer=tokenizer, **options)
    other = abbe.diagnose(tmp_path, text, **options)
    assert one.table.drop("model", strict=False).equals(other.table.drop("model", strict=False))


# -- Bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    network = llama(vocab_size=256)
    with swap(network, LEARNED):
        return save(network, tmp_path / "checkpoint")


def test_a_plan_that_is_not_there_cut_short_or_of_another_model(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = checkpoint / PLAN, (checkpoint / PLAN).read_bytes()
    with swap(gpt2(), LEARNED) as handle:
        handle.save(tmp_path / "other")
    for content, message in (
        (None, f"there is no file {path}"),
        (good[:-9], f"{path} is not a safetensors file"),
        (good[:90], f"{path} is not a safetensors file"),
        ((tmp_path / "other").read_bytes(), "is for a GPT2LMHeadModel, and this model is a LlamaForCausalLM"),
    ):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        for load in (abbe.load, read):
            with pytest.raises(AbbeError, match=message) as refused:
                load(checkpoint)
            assert "\n" not in str(refused.value)
        assert run_main(monkeypatch, "diagnose", checkpoint, "--quiet") == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
        path.touch()


def test_a_mark_without_an_architecture_is_one_line(checkpoint: Path) -> None:
    change(checkpoint, abbe=mark(checkpoint) | {"architectures": []})
    with pytest.raises(AbbeError, match=r"config\.json is damaged"):
        abbe.load(checkpoint)
