"""`abbe export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from tiny_models import byte_tokenizer, llama


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


def test_a_file_of_llama_cpp_needs_a_folder(model: str, tmp_path: Path) -> None:
    (tmp_path / "some.gguf").touch()
    given = ("--plan", "softmax:temperature=0.5", "--out", str(tmp_path), "--gguf", str(tmp_path / "some.gguf"))
    assert "is no folder that `abbe export` wrote" in str(run("export", model, *given).exception)
