"""Export: a model with other normalizers as a folder that others can load."""

from __future__ import annotations

import json
import math
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._errors import AbbeError
from ..._files import finite
from ...normalizers import Normalizer, Softmax
from .._load.device import dtype_name
from .._load.load import LoadedModel, load
from .._load.sources import Choice, choose, quiet
from .._session.modules import CARRIED_FILE
from .._session.selfcheck import main_output, relative_error
from .._swap.attention import What
from .._swap.layers import FILE_PREFIX, Layer
from .._swap.plan import Plan, installed_version
from .._swap.swap import Swap
from .._text import Text, read_text, windows
from .._unwrap import evaluating
from .carried import write_carried
from .check import NEW_TOKENS, Outcome, Trial, allowed, check, checked_dtype, in_dtype, outcome
from .fold import fold

# In a run's folder, the most finished first.
_FILES = ("plan.safetensors", "tuned.safetensors", "calibrated.safetensors")


def as_swapped(plan: object) -> What:
    """The plan as `swap` takes it: a file needs no prefix here, and may be the folder of a run."""
    if isinstance(plan, Plan):
        return {
            f"{path}.heads.{','.join(map(str, group.heads))}": group.normalizer
            for path, groups in plan.items()
            for group in groups
            if group.normalizer is not None
        }
    path = plan_path(plan)
    return plan if path is None else f"{FILE_PREFIX}{path}"  # type: ignore[return-value]


def plan_path(plan: object) -> Path | None:
    """The file of the plan, None if it is a spec or consists of normalizers."""
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


def scales(plan: Plan) -> dict[Layer, Tensor] | None:
    """One factor of the logits per head (float64) by layer; None if a head gets more than a softmax temperature."""
    by_layer: dict[Layer, Tensor] = {}
    for layer, groups in plan.by_layer.items():
        by_layer[layer] = torch.ones(layer.heads, dtype=torch.float64)
        for group in groups:
            factor = (1.0,) if group.normalizer is None else _factor(group.normalizer)
            if factor is None:
                return None
            by_layer[layer][list(group.heads)] = torch.tensor(factor, dtype=torch.float64)
    return by_layer


def not_foldable(plan: Plan) -> list[str]:
    """The specs of the plan that are no factor of the logits, each once."""
    normalizers = (group.normalizer for groups in plan.values() for group in groups)
    return sorted({str(one) for one in normalizers if one is not None and _factor(one) is None})


def _factor(normalizer: Normalizer) -> tuple[float, ...] | None:
    """softmax(factor * logits): one number, or one per head of the group; None if the normalizer is another map."""
    if type(normalizer) is Softmax:
        return (1 / normalizer.temperature,)
    if normalizer.name == "learned-temperature":
        return _exponentials(normalizer.t)
    of = normalizer.of if normalizer.name == "scaled" else None
    inner = _factor(of) if isinstance(of, Normalizer) else None
    if inner is None:
        return None
    outer = _exponentials(normalizer.t)
    most = max(len(outer), len(inner))
    return tuple(a * b for a, b in zip(_repeated(outer, most), _repeated(inner, most), strict=True))


def _exponentials(logarithms: object) -> tuple[float, ...]:
    several = logarithms if isinstance(logarithms, tuple) else (logarithms,)
    return tuple(math.exp(float(one)) for one in several)


def _repeated(numbers: tuple[float, ...], most: int) -> tuple[float, ...]:
    return numbers * most if len(numbers) == 1 else numbers


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


FACTS, CARD = "abbe_export.json", "README.md"
_TOKENS = 128  # of real text, on which outputs are compared


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        folder: where model, tokenizer and card are.
        plain: whether it is a plain checkpoint, which runs without abbe.
        error: largest difference of its outputs to those of the swapped model, over their standard deviation.
        facts: what `abbe_export.json` says.
    """

    folder: Path
    plain: bool
    error: float
    facts: dict[str, Any]


def export(
    model: str | os.PathLike[str] | LoadedModel,
    plan: str | os.PathLike[str] | What | Plan,
    folder: str | os.PathLike[str],
    *,
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
) -> Export:
    """Write a model with other normalizers as a folder that `from_pretrained` loads.

    Where the plan only changes temperatures of softmax, they are folded into the weights, and the folder is a plain
    checkpoint. Other normalizers lie beside the weights, and are used once abbe is imported. The folder is loaded in a
    fresh process (for a fold one without abbe), and its outputs and greedy text must be those of the swapped model;
    otherwise nothing is left of it.

    Args:
        model: a name for `load`, or what it gave, in float32 or float64.
        plan: what `swap` takes, a file that `calibrate`, `lift` or `Swap.save` wrote, or the folder of such a run.
        folder: a new or empty folder.
        text: real text for the check; the sample that comes with abbe if None.

    Returns:
        What was written, and how far its outputs are from those of the swapped model.

    Raises:
        AbbeError: the plan changes nothing, the folder is not empty, or the outputs differ.

    Examples:
        >>> written = abbe.export("embedded", "layers.0-2=softmax:temperature=0.9", "sharper")
        >>> written.plain, written.error < 1e-4
        (True, True)
    """
    target = Path(folder).expanduser()
    if target.exists() and not target.is_dir():
        raise AbbeError(f"{target} is a file: name a folder for the export")
    if target.is_dir() and any(target.iterdir()):
        raise AbbeError(f"{target} is not empty: name a new folder for the export")
    loaded = model if isinstance(model, LoadedModel) else _load(model)
    network: Any = loaded.network
    if network.dtype not in (torch.float32, torch.float64):
        raise AbbeError(f"the model is in {network.dtype}, too coarse to check an export: load it in float32")
    what = as_swapped(plan)
    planned = Plan(network, what)
    choice = choose(network.config, loaded.name, saved=type(network).__name__)
    factors = scales(planned)
    if factors is not None and not any(bool((one != 1).any()) for one in factors.values()):
        raise AbbeError("the plan changes nothing: every head keeps softmax at temperature 1")
    content = text if isinstance(text, Text) else read_text(text)
    with evaluating(network), quiet():
        trial = trial_on(loaded, content)
        changes = None if factors is None else fold(network, factors, trial.inputs)
        dtype = checked_dtype(network, trial)
        with in_dtype(network, dtype), Swap(network, what):
            wanted = outcome(network, trial)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=_parent(target)) as work:
            written = Path(work) / "model"
            if changes is not None:
                with changes.applied():
                    network.save_pretrained(written)
            else:
                write_carried(network, planned, written)
            loaded.tokenizer.save_pretrained(written)
            facts = _checked(written, target, wanted, trial, loaded, choice, dtype, changes is not None)
            facts |= {
                "plan": repr(planned).splitlines(), "carried": not_foldable(planned), "text": content.name,
                "command": _command(loaded, plan, target),
            }  # fmt: skip
            (written / FACTS).write_text(json.dumps(finite(facts), indent=1) + "\n", encoding="utf-8")
            (written / CARD).write_text(card(facts, repr(planned), judged_by_lift(plan_path(plan))), encoding="utf-8")
            if target.is_dir():
                target.rmdir()  # empty, as was checked
            written.rename(target)
    return Export(target, changes is not None, float(facts["error"]), facts)


def trial_on(model: LoadedModel, text: Text) -> Trial:
    """A window of real tokens as inputs of the model, and its text."""
    length = min(_TOKENS, model.context or _TOKENS)
    window = windows(text, length, 1, 0, tokenizer=model.tokenizer, context=model.context)[0]
    network: Any = model.network
    inputs = {"input_ids": window.tokens[None].to(network.device)}
    if model.kind == "encoder-decoder":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    return Trial(inputs, text.content[window.start : window.end])


def _load(model: object) -> LoadedModel:
    if not isinstance(model, (str, os.PathLike)):
        raise AbbeError(
            f"export needs a name or what `abbe.load` gives, with its tokenizer; got {type(model).__name__}: "
            "abbe.models.wrap(network, tokenizer) makes it"
        )
    return load(model)


def _parent(target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbbeError(f"cannot make the folder {target.parent}: {error.strerror}") from None
    return target.parent


def _checked(
    written: Path, target: Path, wanted: Outcome, trial: Trial, model: LoadedModel, choice: Choice,
    dtype: torch.dtype, plain: bool,
) -> dict[str, Any]:  # fmt: skip
    """Facts about the folder, if its outputs are right."""
    try:
        error = check(written, wanted, trial, model, choice, dtype, plain)
    except AbbeError as failed:
        raise AbbeError(f"{target} was not written, because the check failed: {failed}") from None
    network: Any = model.network
    return {
        "format": 1, "kind": "folded" if plain else "carried", "model": _without_folders(model.name),
        "fingerprint": model.fingerprint, "architecture": type(network).__name__, "auto": choice.auto, "error": error,
        "allowed": allowed(dtype), "dtype": dtype_name(dtype), "tokens": trial.inputs["input_ids"].shape[1],
        "new_tokens": NEW_TOKENS if wanted.generated is not None else 0, "plan_file": CARRIED_FILE,
    } | {package: installed_version(package) for package in ("abbe", "transformers", "torch")}  # fmt: skip


def _command(model: LoadedModel, plan: object, target: Path) -> str:
    if isinstance(plan, (str, os.PathLike)):
        option = _without_folders(os.fspath(plan))
    elif isinstance(plan, Plan):
        option = f"{FILE_PREFIX}PLAN"
    elif isinstance(plan, Mapping):
        option = "; ".join(f"{pattern}={spec}" for pattern, spec in plan.items())
    else:
        option = str(plan)
    source = _without_folders(model.source)
    return shlex.join(["abbe", "export", source, "--plan", option, "--out", _without_folders(str(target))])


def _without_folders(path: str) -> str:
    """The card is shared, so it must not name the folders of this machine."""
    prefix = FILE_PREFIX if path.startswith(FILE_PREFIX) else ""
    bare = Path(path.removeprefix(prefix))
    return prefix + (bare.name if bare.is_absolute() else str(bare))


def read_export(folder: str | os.PathLike[str]) -> Export:
    """An export that was written before.

    Args:
        folder: that `export` wrote.

    Returns:
        What is in it.

    Raises:
        AbbeError: it is not such a folder.

    Examples:
        >>> abbe.models.read_export("elsewhere")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: elsewhere was not written by `abbe export`: it has no abbe_export.json
    """
    path = Path(folder)
    try:
        facts = json.loads((path / FACTS).read_text("utf-8"))
        return Export(path, facts["kind"] == "folded", float(facts["error"]), facts)
    except (OSError, ValueError, KeyError, TypeError):
        raise AbbeError(f"{path} was not written by `abbe export`: it has no {FACTS}") from None


def gguf_error(
    written: Export,
    path: str | os.PathLike[str],
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
) -> float:
    """Read a GGUF file that llama.cpp's script made of an export: how far its outputs are from the folder's.

    Args:
        written: a plain export.
        path: of the file.
        text: real text to compare on; the sample that comes with abbe if None.

    Returns:
        Largest difference of the outputs over their standard deviation; high means a coarse or a wrong file.

    Raises:
        AbbeError: there is no such file, or a file of float32 does not agree with the folder.

    Examples:
        >>> written = abbe.models.Export("folder", plain=False, error=0.0, facts={})
        >>> abbe.models.gguf_error(written, "model.gguf")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: folder needs abbe, so llama.cpp cannot run it: fold softmax temperatures
    """
    if not written.plain:
        raise AbbeError(f"{written.folder} needs abbe, so llama.cpp cannot run it: fold softmax temperatures")
    file = Path(path).expanduser()
    if not file.is_file():
        raise AbbeError(
            f"{written.folder} is written; abbe makes no GGUF itself: run llama.cpp's `python convert_hf_to_gguf.py "
            f"{written.folder} --outfile {file} --outtype f32`, then the same command again reads it back"
        )
    folder, back = load(written.folder), load(file)
    content = text if isinstance(text, Text) else read_text(text)
    with quiet():
        trial = trial_on(folder, content)
        inputs, dtype = trial.inputs, checked_dtype(folder.network, trial)
        if trial_on(back, content).inputs["input_ids"].tolist() != inputs["input_ids"].tolist():
            raise AbbeError(f"{file} cuts the text into other tokens than {written.folder}")
        outputs = []
        for model in (folder, back):
            network: Any = model.network
            with in_dtype(network, dtype), torch.no_grad():
                outputs.append(main_output(network(**inputs)))
    error = relative_error(*outputs)
    if _is_float32(file) and not error <= allowed(dtype):
        limit = f"allowed {allowed(dtype):g}"
        raise AbbeError(f"{file} differs from {written.folder} by {error:.2g} of the outputs' deviation ({limit})")
    return error


def _is_float32(file: Path) -> bool:
    from gguf import GGMLQuantizationType, GGUFReader

    return all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in GGUFReader(file).tensors)
