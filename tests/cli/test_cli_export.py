"""`abbe export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from small_gguf import small_llama, write_gguf
from tiny_models import byte_tokenizer, llama

import abbe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    llama(vocab_size=256).save_pretrained(folder)  # type: ignore[operator]
    byte_tokenizer(64).save_pretrained(folder)
    return str(folder)


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
