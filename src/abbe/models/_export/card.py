"""The model card of an export: what was changed, how it was checked, what can run it, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LIFT = "lift.json"  # next to the plan of a lift: its findings and its judged table
_ENDS = ("_low", "_high")
_FRONT = "---\nlibrary_name: transformers\ntags:\n- abbe\n---\n"

_PLAIN = """Temperatures of softmax were folded into the weights of the query projections. This is a plain checkpoint:
it runs wherever {architecture} does, and abbe is not needed.

```python
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
```
"""

_CARRIED = """The weights are those of the original; the map from logits to attention weights is another one, and the
plan lies beside them in `{plan_file}`. transformers loads the folder once abbe is imported:

```python
import abbe
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
```

**Engines without abbe (vLLM, llama.cpp, TGI) cannot run it**: they know softmax only. The config names the model type
`abbe`, so they refuse the folder instead of computing with softmax.
"""

_CHECKED = """The folder was loaded in a fresh process {how}. On {tokens} tokens of {text} its outputs differ from those
of the swapped model by {error:.1e} of their standard deviation at most
(allowed {allowed:g}, computed in {dtype}){generated}.
"""


def card(facts: dict[str, Any], table: str, judged: str = "") -> str:
    """Markdown; `table` shows the plan, `judged` the results of a lift on text that it had not seen."""
    body = (_PLAIN if facts["kind"] == "folded" else _CARRIED).format(**facts)
    how = "in which abbe cannot be imported" if facts["kind"] == "folded" else "in which abbe is imported"
    generated = f", and {facts['new_tokens']} tokens of greedy text are the same" if facts["new_tokens"] else ""
    sections = [
        f"{_FRONT}\n# {facts['model']}, with other attention weights\n",
        body,
        f"## What was changed\n\n```text\n{table}\n```\n",
        *([f"## What it gains\n\n{judged}\n"] if judged else []),
        "## How it was checked\n\n" + _CHECKED.format(how=how, generated=generated, **facts),
        f"## The command\n\n```bash\n{facts['command']}\n```\n",
        f"Made by abbe {facts['abbe']} with transformers {facts['transformers']} and torch {facts['torch']}, from the "
        f"model with sha256 `{facts['fingerprint'][:16]}…` over its weights.\n",
    ]
    return "\n".join(sections)


def judged_by_lift(plan: Path | None) -> str:
    """The results of the lift that wrote this plan, on its test text, as Markdown; empty for others."""
    summary = plan.parent / _LIFT if plan is not None else None
    if summary is None or not summary.is_file():
        return ""
    try:
        content = json.loads(summary.read_text("utf-8"))
        sentence, rows = str(content["findings"][0]["sentence"]), list(content["table"])
        return f"{sentence}\n\n{_markdown(rows)}"
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""  # no lift that this version can read: the card does without


def _markdown(rows: list[dict[str, Any]]) -> str:
    """A table of the columns that are not empty; a number and its interval share a column."""
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
