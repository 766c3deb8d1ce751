"""What a run folder holds, beside the list of files that the documentation is made from."""

from __future__ import annotations

import json
from pathlib import Path

from abbe.studies import list_results

# With --finetune, with --calibrate, and what commands add to what functions leave.
NOT_ALWAYS = {"tuned.safetensors", "tuning.safetensors", "calibrated/", "figures/"}


def check_files(folder: Path) -> None:
    """A run folder holds what the list says, and nothing else; pages may be missing."""
    study = json.loads((folder / "manifest.json").read_text("utf-8"))["study"]
    listed = set(list_results()[study].list_files())
    there = {path.name + "/" * path.is_dir() for path in folder.iterdir() if path.name[0] != "."}
    assert there <= listed, f"abbe {study} leaves {there - listed}"
    assert {name for name in listed - there if not name.endswith(".html")} <= NOT_ALWAYS, f"abbe {study}"
