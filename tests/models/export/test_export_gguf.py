"""GGUF files that were made of an export are read back; abbe makes none."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_gguf import small_llama, write_gguf

import abbe
from abbe import AbbeError
from abbe.models import gguf_error, read_export

pytestmark = pytest.mark.slow


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
