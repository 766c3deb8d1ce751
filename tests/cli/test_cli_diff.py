"""`abbe diff` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run
from tiny_models import byte_tokenizer, llama

QUICK = ("--windows", "6", "--queries", "8", "--lengths", "24", "--sizes", "1,5")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints in a folder, of which the second has a sharper head."""
    folder = tmp_path_factory.mktemp("checkpoints")
    network: Any = llama(vocab_size=256)
    for step in (9, 10):
        network.save_pretrained(folder / f"checkpoint-{step}")
        byte_tokenizer(64).save_pretrained(folder / f"checkpoint-{step}")
        with torch.no_grad():
            network.model.layers[1].self_attn.q_proj.weight[8:16] *= 3
    return folder


@pytest.mark.slow
def test_tables_page_and_json(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "book.txt"
    book.write_text(" ".join(f"word {i * i % 97} and {i % 13};" for i in range(400)))
    sides = (models / "checkpoint-9", models / "checkpoint-10")
    result = run("diff", *sides, "--text", book, *QUICK)
    assert result.exit_code == 0, result.exception
    assert "1 of 8 heads changes beyond chance" in result.output
    assert "layer 1, head 1" in result.output
    page = tmp_path / "abbe-diff-checkpoint-9-checkpoint-10" / "diff.html"
    assert "What changes from checkpoint-9 to checkpoint-10?" in page.read_text(encoding="utf-8")
    again = run("diff", models, "--text", book, *QUICK, "--json", "--quiet", "--out", "over")
    assert again.exit_code == 0, again.exception
    content = json.loads(again.stdout)
    assert [one["name"] for one in content["manifest"]["models"]] == ["checkpoint-9", "checkpoint-10"]
    assert content["table"][0]["changed"]
