"""The model card of an export: what was changed, how it was checked, what can run it, and the command."""

from __future__ import annotations

from typing import Any

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
    """Markdown; `table` is the plan's, `judged` what a lift measured on text that it had not seen."""
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
