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
_LIFT = "lift.json"  # beside the plan of a lift: what it found, and the judged table
_ENDS = ("_low", "_high")


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
    """What the lift that made the plan found on the judged part, as Markdown; empty where there is none."""
    path = _path(plan)
    summary = path.parent / _LIFT if path is not None else None
    if summary is None or not summary.is_file():
        return ""
    try:
        content = json.loads(summary.read_text("utf-8"))
        sentence, rows = str(content["findings"][0]["sentence"]), list(content["table"])
        return f"{sentence}\n\n{_markdown(rows)}"
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""  # no lift that this version knows: the card does without


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
    """Columns that hold something; a number with its interval is one."""
    names = [name for name in rows[0] if not name.endswith(_ENDS) and any(row.get(name) is not None for row in rows)]
    lines = [names, ["---"] * len(names), *([_cell(row, name) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(row: dict[str, Any], name: str) -> str:
    value, ends = row.get(name), [row.get(name + end) for end in _ENDS]
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value).replace("|", "\\|")
    return f"{value:.4g}" if None in ends else f"{value:.4g} ({ends[0]:.4g} to {ends[1]:.4g})"
