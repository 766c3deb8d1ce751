"""`abbe.export`: folders that others load, checked before they are called done, and one line where they cannot be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run
from folders import save
from real import pulled, shared_model
from safetensors.torch import load_file, save_file
from small_gguf import small_llama, write_gguf
from tiny_models import GROUPED, SMALL, bert, byte_tokenizer, llama, make, t5, text_pair, tokens
from transformers import AutoConfig, AutoModelForCausalLM

import abbe
from abbe import AbbeError
from abbe.models import gguf_error, read_export, wrap

pytestmark = pytest.mark.usefixtures("no_grad")
SHARPER = "layers.0.heads.1=softmax:temperature=0.6; layers.1=learned-temperature:t=0.5/-0.3/0.2/0.1"
SPARSE = "layers.0.heads.0,2=topk:k=3; layers.1=entmax:alpha=1.5,learn=true"
Made = Callable[..., Any]


def tiny(**settings: Any) -> Any:
    return wrap(llama(vocab_size=256, **settings), byte_tokenizer(64), "tiny")


@pytest.mark.slow
def test_the_check_runs_in_a_fresh_process_without_abbe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a plan is refused there, a plain one is not."""
    jobs: list[dict[str, Any]] = []
    run = subprocess.run

    def noted(*command: Any, input: str, **options: Any) -> Any:
        jobs.append(json.loads(input))
        return run(*command, input=json.dumps(jobs[-1] | {"without_abbe": True}), **options)

    assert abbe.export(tiny(), SHARPER, tmp_path / "before").error < 1e-5
    monkeypatch.setattr(subprocess, "run", noted)
    assert abbe.export(tiny(), SHARPER, tmp_path / "sharper").error < 1e-5
    with pytest.raises(AbbeError, match="a fresh process cannot load it"):
        abbe.export(tiny(), SPARSE, tmp_path / "sparse")
    assert [job["without_abbe"] for job in jobs] == [True, False]


@pytest.mark.usefixtures("same_process")
def test_temperatures_become_a_plain_checkpoint(tmp_path: Path) -> None:
    model = tiny()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    made = abbe.export(model, SHARPER, tmp_path / "sharper")
    assert made.plain
    assert made.error < 1e-5
    for name, value in model.network.state_dict().items():
        assert torch.equal(value, before[name])
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "sharper").eval()
    with abbe.swap(model, SHARPER):
        wanted = model(input_ids=tokens()).logits
    torch.testing.assert_close(read(input_ids=tokens()).logits, wanted, atol=1e-4, rtol=1e-4)
    facts = json.loads((tmp_path / "sharper" / "abbe_export.json").read_text())
    assert facts["kind"] == "folded"
    assert "abbe" not in json.loads((tmp_path / "sharper" / "config.json").read_text())
    card = (tmp_path / "sharper" / "README.md").read_text()
    assert "in which abbe cannot be imported" in card
    assert re.search(r"^0 +1 +softmax:temperature=0\.6", card, re.MULTILINE)
    assert "abbe export tiny --plan" in card
    assert str(tmp_path) not in card
    assert str(tmp_path) not in json.dumps(facts)
    assert [path.name for path in tmp_path.iterdir()] == ["sharper"]


@pytest.mark.usefixtures("same_process")
def test_other_normalizers_are_carried(tmp_path: Path) -> None:
    model = tiny()
    made = abbe.export(model, SPARSE, tmp_path / "sparse")
    assert not made.plain
    assert made.error < 1e-12
    with abbe.swap(model, SPARSE):
        wanted = model(input_ids=tokens()).logits
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "sparse").eval()
    torch.testing.assert_close(read(input_ids=tokens()).logits, wanted, atol=1e-5, rtol=1e-5)
    assert [name for name in read.state_dict() if "abbe" in name] == [
        "abbe_normalizers._extra_state",
        "abbe_normalizers.1.0.learned.alpha.raw",
    ]
    read.save_pretrained(tmp_path / "again")  # the plan goes along
    byte_tokenizer(64).save_pretrained(tmp_path / "again")
    loaded = abbe.load(tmp_path / "again")
    torch.testing.assert_close(loaded(input_ids=tokens()).logits, wanted, atol=1e-5, rtol=1e-5)
    read.set_attn_implementation("sdpa")
    torch.testing.assert_close(read(input_ids=tokens()).logits, model(input_ids=tokens()).logits)
    assert set(made_speeds := abbe.models.read_export(tmp_path / "sparse").facts["tokens_per_second"]) == {
        "original", "swapped", "export"
    }  # fmt: skip
    assert all(speed > 0 for speed in made_speeds.values())
    card = (tmp_path / "sparse" / "README.md").read_text()
    assert "Tokens per second of a forward pass over them" in card
    assert "Engines without abbe (vLLM, llama.cpp, TGI) cannot run it" in card


RENAMED = {  # what lies in the files has other names, or other shapes
    "gpt-neox": lambda: make("GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=256, **SMALL),
    "mixtral": lambda: make(
        "MixtralForCausalLM", "MixtralConfig", vocab_size=256, num_local_experts=4, head_dim=8, **GROUPED
    ),
}


@pytest.mark.parametrize("family", RENAMED)
@pytest.mark.usefixtures("same_process")
def test_weights_that_transformers_renames_in_its_files_are_carried(family: str, tmp_path: Path) -> None:
    model = wrap(RENAMED[family](), byte_tokenizer(64), family)
    assert set(load_weights(model.network, tmp_path / "plain")) != set(model.network.state_dict())
    for number, plan in enumerate(("topk:k=3", "entmax:alpha=1.5", "sink:b=2")):
        made = abbe.export(model, plan, tmp_path / str(number))
        assert not made.plain
        assert made.error < 1e-4
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "0").eval()
    read.save_pretrained(tmp_path / "again")  # in the same layout
    added = {"abbe_normalizers._extra_state"}
    assert (
        set(load_file(tmp_path / "again" / "model.safetensors")) == set(load_weights(model.network, tmp_path)) | added
    )


def load_weights(network: Any, folder: Path) -> dict[str, torch.Tensor]:
    network.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.usefixtures("same_process")
def test_a_folder_with_a_plan_is_never_taken_for_softmax(tmp_path: Path) -> None:
    abbe.export(tiny(), SPARSE, tmp_path / "sparse")
    settings = json.loads((tmp_path / "sparse" / "config.json").read_text())
    assert settings["model_type"] == "abbe"
    assert settings["architectures"] == ["AbbeLlamaForCausalLM"]
    with pytest.raises(AbbeError, match=r"not with attn_implementation='eager'"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "sparse", attn_implementation="eager")
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "sparse"))
    with pytest.raises(AbbeError, match="has no plan: load the model with from_pretrained"):
        made(input_ids=tokens())
    with pytest.raises(AbbeError, match="has no plan"):
        made.save_pretrained(tmp_path / "other")
    (tmp_path / "sparse" / "abbe_plan.safetensors").unlink()
    with pytest.raises(AbbeError, match="there is no file"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "sparse")


@pytest.mark.parametrize("entry", [None, {}, {"format": 2}, {"format": 1, "plan": "abbe_plan.safetensors"}])
@pytest.mark.usefixtures("same_process")
def test_a_damaged_entry_is_one_line(entry: Any, tmp_path: Path) -> None:
    settings = {"model_type": "abbe", "abbe": entry}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(AbbeError, match=r"config\.json"):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("same_process")
def test_plans_from_files_folders_and_plans(tmp_path: Path) -> None:
    model = tiny()
    run = tmp_path / "run"
    run.mkdir()
    given = abbe.plan(model, SHARPER)
    given.save(run / "tuned.safetensors")
    judged = [
        {"contender": "baseline", "loss": 3.25, "rise": None, "rise_low": None, "rise_high": None, "keys": None},
        {"contender": "plan", "loss": 3.125, "rise": -0.04, "rise_low": -0.05, "rise_high": -0.03, "keys": None},
    ]
    summary = {"findings": [{"sentence": "Lifted."}], "table": judged}
    (run / "lift.json").write_text(json.dumps(summary))
    for number, what in enumerate((given, run, run / "tuned.safetensors", f"file:{run / 'tuned.safetensors'}")):
        made = abbe.export(model, what, tmp_path / str(number))
        assert made.plain
        card = (made.folder / "README.md").read_text()
        assert ("Lifted.\n\n| contender | loss | rise |" in card) == bool(number)
        assert ("| plan | 3.125 | -0.04 (-0.05 to -0.03) |" in card) == bool(number)
    with pytest.raises(AbbeError, match="holds no plan"):
        abbe.export(model, tmp_path / "0", tmp_path / "none")


@pytest.mark.slow
@pytest.mark.usefixtures("same_process")
def test_encoder_decoders_and_encoders(tmp_path: Path) -> None:
    pair = wrap(t5(vocab_size=256), byte_tokenizer(64), "pair")
    assert abbe.export(pair, "softmax:temperature=0.8", tmp_path / "pair").plain
    sparse = abbe.export(pair, "*encoder*=sparsemax", tmp_path / "sparse")
    assert not sparse.plain
    encoder = wrap(bert(vocab_size=256), byte_tokenizer(64), "encoder")
    assert abbe.export(encoder, "layers.0.heads.1=softmax:temperature=0.5", tmp_path / "folded").plain
    assert not abbe.export(encoder, "sparsemax", tmp_path / "encoder").plain
    assert abbe.load(tmp_path / "encoder").kind == "encoder"
    read: Any = abbe.load(tmp_path / "sparse")
    with abbe.swap(pair, "*encoder*=sparsemax"):
        wanted = pair(**text_pair()).logits
    torch.testing.assert_close(read(**text_pair()).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.usefixtures("same_process")
def test_what_fails_its_check_is_removed(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def damaged(*command: Any, **options: Any) -> Any:
        done, path = run(*command, **options), json.loads(options["input"])["answer"]
        got = load_file(path)
        save_file(got | ({"output": got["output"] * 1.001} if kept else {"generated": got["generated"] + 1}), path)
        return done

    monkeypatch.setattr(subprocess, "run", damaged)
    why = "its outputs differ by" if kept else "greedy generation gives other tokens"
    with pytest.raises(AbbeError, match=f"was not written, because the check failed: {why}"):
        abbe.export(tiny(), SHARPER, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_cannot_load_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\n  a line\nKeyError: 'that'\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: failed)
    with pytest.raises(AbbeError, match="a fresh process cannot load it: KeyError: 'that'"):
        abbe.export(tiny(), SHARPER, tmp_path / "out")


def test_mistakes(tmp_path: Path) -> None:
    model = tiny()
    endless = wrap(t5(vocab_size=256, decoder_start_token_id=None, bos_token_id=None), byte_tokenizer(64))
    with pytest.raises(AbbeError, match=r"T5ForConditionalGeneration cannot generate for the check: `decoder_start"):
        abbe.export(endless, "sparsemax", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for what, folder, error in (
        (SHARPER, "full", "is not empty: name a new folder"),
        (SHARPER, "full/file", "is a file"),
        ("softmax", "new", "the plan changes nothing"),
        ("entmx", "new", "Did you mean"),
        ("missing.safetensors", "new", "there is no file"),
        ("layers.7=softmax:temperature=2", "new", "there is no layer 7"),
    ):
        with pytest.raises(AbbeError, match=error):
            abbe.export(model, what, tmp_path / folder)
    with pytest.raises(AbbeError, match=r"abbe\.models\.wrap\(network, tokenizer\)"):
        abbe.export(model.network, SHARPER, tmp_path / "new")
    half = wrap(llama(vocab_size=256).bfloat16(), byte_tokenizer(64))
    with pytest.raises(AbbeError, match="too coarse to check an export: load it in float32"):
        abbe.export(half, SHARPER, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_carried_folder_is_measured_and_its_plan_compared_in_the_original(tmp_path: Path) -> None:
    folder = abbe.export(tiny(), SPARSE, tmp_path / "sparse").folder
    text = abbe.Text("prose", "To be or not to be, that is the question. " * 40)
    run = abbe.diagnose(folder, text, lengths=16, windows=2, progress=False)
    assert "entmax:alpha=1.5,learn=true,heads=4 in layers 1" in str(run.manifest["model"])
    assert abbe.diff(tiny(), folder, text, lengths=16, windows=2, progress=False).table.height
    made = abbe.compare(
        tiny(), text, normalizers=f"file:{folder}/abbe_plan.safetensors", length=32, windows=2, needle_lengths=32,
        prompts=1, progress=False,
    )  # fmt: skip
    assert made.table.height == 2
    carried = abbe.load(folder)
    carried.network.set_attn_implementation("sdpa")
    with abbe.tap(carried) as tapped:
        assert tapped.check(input_ids=torch.arange(20)[None]) < 1e-3


@pytest.mark.usefixtures("same_process")
def test_learned_slopes_are_carried(tmp_path: Path) -> None:
    model = tiny()
    spec = "logn:trained=4,slope=-2/0/3/9,beyond=true,learn=true"
    with abbe.swap(model, {"layers.1": spec}) as swapped:
        swapped.save(tmp_path / "plan.safetensors")
        wanted = model(input_ids=tokens()).logits
    made = abbe.export(model, f"file:{tmp_path / 'plan.safetensors'}", tmp_path / "carried")
    assert not made.plain
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "carried").eval()
    torch.testing.assert_close(read(input_ids=tokens()).logits, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wanted, model(input_ids=tokens()).logits, atol=1e-5)


@pytest.mark.slow
def test_a_file_of_the_folded_model_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    source = write_gguf(small_llama(), tmp_path / "small.gguf")
    written = abbe.export(source, "*.heads.0,3=softmax:temperature=0.5", tmp_path / "sharper")
    assert written.plain
    assert read_export(tmp_path / "sharper") == written
    back = write_gguf(abbe.load(tmp_path / "sharper").network, tmp_path / "sharper.gguf")
    assert gguf_error(written, back) < 1e-5
    half = write_gguf(abbe.load(tmp_path / "sharper").network, tmp_path / "half.gguf", half=True)
    assert 1e-5 < gguf_error(written, half) < 0.1  # a coarser file is reported, not refused
    with pytest.raises(AbbeError, match=r"small\.gguf differs from .*sharper by"):
        gguf_error(written, source)
    with pytest.raises(AbbeError, match=r"is written; abbe makes no GGUF itself: run llama\.cpp's `python convert_hf_"):
        gguf_error(written, tmp_path / "none.gguf")
    with pytest.raises(AbbeError, match="was not written by `abbe export`"):
        read_export(tmp_path)
    sparse = abbe.export(source, "sparsemax", tmp_path / "sparse")
    with pytest.raises(AbbeError, match=r"needs abbe, so llama\.cpp cannot run it"):
        gguf_error(sparse, back)


ALONE = """
import sys, torch
from transformers import AutoModelForCausalLM
if len(sys.argv) > 2:
    import abbe
try:
    print(AutoModelForCausalLM.from_pretrained(sys.argv[1])(input_ids=torch.arange(9)[None]).logits.shape)
except ValueError as error:
    print("refused", str(error).partition("\\n")[0])
"""


@pytest.mark.slow
def test_without_abbe_a_carried_folder_is_refused(tmp_path: Path) -> None:
    abbe.export(tiny(), SPARSE, tmp_path / "sparse")
    folder = str(tmp_path / "sparse")
    for arguments, shown in (([folder], "refused The checkpoint"), ([folder, "abbe"], "torch.Size([1, 9, 256])")):
        run = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, timeout=300)
        assert shown in run.stdout, run.stderr


@pytest.mark.slow
def test_the_embedded_model(tmp_path: Path) -> None:
    """Positions that are learned."""
    assert abbe.export("embedded", "*.heads.0-2=softmax:temperature=0.8", tmp_path / "folded").error < 1e-5
    assert abbe.export("embedded", "layers.2-5=entmax:alpha=1.5", tmp_path / "carried").error < 1e-5


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "plan"),
    [("stories15M", "layers.0,3=learned-temperature:t=-0.2"), ("smollm2", "layers.0-9=softmax:temperature=0.8")],
)
def test_real_models(name: str, plan: str, tmp_path: Path) -> None:
    """Rotary positions; grouped queries and thirty layers."""
    made = abbe.export(pulled(name) if name == "smollm2" else shared_model(name), plan, tmp_path / "folded")
    assert made.plain
    assert made.error < 1e-5


# -- The command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save(llama(vocab_size=256), tmp_path_factory.mktemp("model")))


@pytest.mark.slow
def test_a_folder_and_its_lines(model: str, tmp_path: Path) -> None:
    out = tmp_path / "sharper"
    result = run("export", model, "--plan", "softmax:temperature=0.5", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "a plain checkpoint: it runs without abbe" in result.output
    assert result.output.rstrip().endswith(f"folder: {out}")
    result = run("export", model, "--plan", "sparsemax", "--out", str(tmp_path / "sparse"), "--json")
    assert json.loads(result.stdout)["kind"] == "carried"
    result = run("export", model, "--plan", "softmax:temperature=0.5", "--out", str(out), "--quiet")
    assert "is not empty" in str(result.exception)


@pytest.mark.slow
def test_a_file_of_llama_cpp_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the same command: the first writes the folder and says how llama.cpp converts it."""
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    source, out, file = write_gguf(small_llama(), tmp_path / "small.gguf"), tmp_path / "sharper", tmp_path / "new.gguf"
    given = ("export", str(source), "--plan", "softmax:temperature=0.5", "--out", str(out), "--gguf", str(file))
    assert f"python convert_hf_to_gguf.py {out} --outfile {file} --outtype f32" in str(run(*given).exception)
    write_gguf(abbe.load(out).network, file)
    result = run(*given)
    assert result.exit_code == 0, result.output
    assert f"{file} differs from the folder by " in result.output.replace("\n", "")
    assert json.loads(run(*given, "--json").stdout)["gguf"] < 1e-5


def test_a_file_of_llama_cpp_needs_a_folder(model: str, tmp_path: Path) -> None:
    (tmp_path / "some.gguf").touch()
    given = ("--plan", "softmax:temperature=0.5", "--out", str(tmp_path), "--gguf", str(tmp_path / "some.gguf"))
    assert "was not written by `abbe export`" in str(run("export", model, *given).exception)
