"""What the plan of an export may be: all that `swap` takes, a file without its prefix, or the folder of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..._errors import AbbeError
from .._swap.groups import What
from .._swap.patterns import FILE_PREFIX
from .._swap.plan import Plan

# In a run's folder, the most finished first.
_FILES = ("plan.safetensors", "tuned.safetensors", "calibrated.safetensors")
_MANIFEST = "manifest.json"


def plan_given(plan: object) -> What:
    """As `swap` takes it."""
    if isinstance(plan, Plan):
        return {
            f"{path}.heads.{','.join(map(str, group.heads))}": group.normalizer
            for path, groups in plan.items()
            for group in groups
            if group.normalizer is not None
        }
    path = _path(plan)
    return plan if path is None else f"{FILE_PREFIX}{path}"  # type: ignore[return-value]


def judged_in(plan: object) -> str:
    """The judged table of the run that made the plan, as Markdown; empty where there is none."""
    path = _path(plan)
    manifest = path.parent / _MANIFEST if path is not None else None
    if manifest is None or not manifest.is_file():
        return ""
    try:
        content = json.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    rows = content.get("judged") if isinstance(content, dict) and content.get("study") == "lift" else None
    return _markdown(rows) if isinstance(rows, list) and rows and all(isinstance(one, dict) for one in rows) else ""


def _path(plan: object) -> Path | None:
    """The file that is meant, None if the plan is a spec or made of normalizers."""
    if isinstance(plan, str) and plan.startswith(FILE_PREFIX):
        return Path(plan.removeprefix(FILE_PREFIX)).expanduser()
    if not isinstance(plan, (str, os.PathLike)):
        return None
    path = Path(plan).expanduser()
    if path.is_dir():
        inside = next((path / name for name in _FILES if (path / name).is_file()), None)
        if inside is None:
            raise AbbeError(f"{path} holds no plan ({', '.join(_FILES)}): name the file, or a spec")
        return inside
    return path if path.suffix == ".safetensors" or path.is_file() else None


def _markdown(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value).replace("|", "\\|")
