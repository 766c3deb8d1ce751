"""Export: a model with other normalizers as a folder that others can load.

Temperatures of softmax are folded into plain weights (`fold`); other normalizers lie beside them (`_carried`). The
folder is loaded in a fresh process (`fresh`), and its outputs are compared with the swapped model.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._errors import AbbeError, one_line
from ..._files import finite
from .._load import LoadedModel, load
from .._load.sources import choose, quiet
from .._network import dtype_name, evaluating
from .._plan import FILE_PREFIX, Plan, What
from .._session.modules import CARRIED_FILE
from .._session.selfcheck import relative_error
from .._swap import Swap
from .._text import Text, read_text, windows
from .fold import fold, not_foldable, scales
from .fresh import inputs_of, outputs_of

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


_LIFT = "lift.json"  # next to the plan of a lift: its findings and its judged table
_ENDS = ("_low", "_high")


def card(facts: dict[str, Any], table: str, judged: str = "") -> str:
    """Markdown; `table` shows the plan, `judged` the results of a lift on text that it had not seen."""
    whole, body = (Path(__file__).with_name(f"card{x}.md").read_text("utf-8") for x in ("", f"_{facts['kind']}"))
    return whole.format(
        **facts,
        body=body.format(**facts),
        table=table,
        gains=f"\n## What it gains\n\n{judged}\n" if judged else "",
        how="in which abbe cannot be imported" if facts["kind"] == "folded" else "in which abbe is imported",
        speeds=", ".join(f"{name} {speed:,.0f}" for name, speed in facts["tokens_per_second"].items()),
        generated=f", and {facts['new_tokens']} tokens of greedy text are the same" if facts["new_tokens"] else "",
    )


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
    if not isinstance(model, (str, os.PathLike, LoadedModel)):
        raise AbbeError(
            f"export needs a name or what `abbe.load` gives, with its tokenizer; got {type(model).__name__}: "
            "abbe.models.wrap(network, tokenizer) makes it"
        )
    loaded = model if isinstance(model, LoadedModel) else load(model)
    network: Any = loaded.network
    if network.dtype not in (torch.float32, torch.float64):
        raise AbbeError(f"the model is in {network.dtype}, too coarse to check an export: load it in float32")
    what = as_swapped(plan)
    planned = Plan(network, what)
    auto, _ = choose(network.config, loaded.name, saved=type(network).__name__)
    factors = scales(planned)
    if factors is not None and not any(bool((one != 1).any()) for one in factors.values()):
        raise AbbeError("the plan changes nothing: every head keeps softmax at temperature 1")
    content = text if isinstance(text, Text) else read_text(text)
    with evaluating(network), quiet():
        job = job_on(loaded, content) | {"auto": auto, "without_abbe": factors is not None}
        changes = None if factors is None else fold(network, factors, inputs_of(network, job))
        failure = f"{type(network).__name__} cannot generate for the check"
        with in_dtype(network, job["dtype"]), Swap(network, what), one_line(failure):
            wanted = outputs_of(network, job)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=_parent(target)) as work:
            written = Path(work) / "model"
            if changes is not None:
                with changes.applied():
                    network.save_pretrained(written)
            else:
                with Swap(network, what):
                    network.save_pretrained(written)
            loaded.tokenizer.save_pretrained(written)
            try:
                error = check(written, wanted, job, loaded.tokenizer)
            except AbbeError as failed:
                raise AbbeError(f"{target} was not written, because the check failed: {failed}") from None
            speeds = tokens_per_second(network, what, getattr(import_module("transformers"), auto), written, job)
            facts = {
                "format": 1, "kind": "carried" if changes is None else "folded",
                "model": _without_folders(loaded.name), "fingerprint": loaded.fingerprint,
                "architecture": type(network).__name__, "error": error, "tokens_per_second": speeds,
                **{name: job[name] for name in ("auto", "allowed", "dtype", "new_tokens")},
                "tokens": len(job["inputs"]["input_ids"][0]), "plan_file": CARRIED_FILE,
                **{package: import_module(package).__version__ for package in ("abbe", "transformers", "torch")},
                "plan": repr(planned).splitlines(), "carried": not_foldable(planned), "text": content.name,
                "command": _command(loaded, plan, target),
            }  # fmt: skip
            (written / FACTS).write_text(json.dumps(finite(facts), indent=1) + "\n", encoding="utf-8")
            (written / CARD).write_text(card(facts, repr(planned), judged_by_lift(plan_path(plan))), encoding="utf-8")
            if target.is_dir():
                target.rmdir()  # empty, as was checked
            written.rename(target)
    return Export(target, changes is not None, error, facts)


def _parent(target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbbeError(f"cannot make the folder {target.parent}: {error.strerror}") from None
    return target.parent


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
        job = job_on(folder, content) | {"new_tokens": 0}
        if job_on(back, content)["inputs"] != job["inputs"]:
            raise AbbeError(f"{file} cuts the text into other tokens than {written.folder}")
        outputs = []
        for network in (folder.network, back.network):
            with in_dtype(network, job["dtype"]):
                outputs.append(outputs_of(network, job)["output"])
    error = relative_error(*outputs)
    if _is_float32(file) and not error <= job["allowed"]:
        limit = f"allowed {job['allowed']:g}"
        raise AbbeError(f"{file} differs from {written.folder} by {error:.2g} of the outputs' deviation ({limit})")
    return error


def _is_float32(file: Path) -> bool:
    from gguf import GGMLQuantizationType, GGUFReader

    return all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in GGUFReader(file).tensors)


# -- The check in a fresh process -------------------------------------------------------------------------------------

SCRIPT = Path(__file__).with_name("fresh.py")
NEW_TOKENS = 24
ROUNDS = 9  # of the timing
_TOKENS, _PROMPT = 128, 16  # of real text on which outputs are compared, and which generation continues
# Both sides compute in float64, where only the rounding of the fold is left: float32 alone adds 1e-5 in six layers.
# Where this is impossible, they compute in the model's dtype, and may differ by as much as its rounding explains.
CLOSE, CLOSE_OTHERWISE = 1e-5, 1e-4  # of the standard deviation of the outputs
LARGE = 2e9  # parameters


def job_on(model: LoadedModel, text: Text) -> dict[str, Any]:
    """What both sides compute: a window of real tokens as inputs of the model, its text, a prompt, and the dtype."""
    length = min(_TOKENS, model.context or _TOKENS)
    window = windows(text, length, 1, 0, tokenizer=model.tokenizer, context=model.context)[0]
    network: Any = model.network
    tokens, names = window.tokens.tolist(), ("input_ids", "decoder_input_ids")
    job = {
        "inputs": {name: [tokens] for name in (names if model.kind == "encoder-decoder" else names[:1])},
        "prompt": [tokens[:_PROMPT]], "text": text.content[window.start : window.end],
        "threads": torch.get_num_threads(), "new_tokens": 0,
    }  # fmt: skip
    dtype, allowed = dtype_name(network.dtype), CLOSE_OTHERWISE
    if sum(parameter.numel() for parameter in network.parameters()) <= LARGE:
        with suppress(RuntimeError), in_dtype(network, "float64"):  # a mixture of experts has no float64
            outputs_of(network, job)
            dtype, allowed = "float64", CLOSE
    new_tokens = NEW_TOKENS if network.can_generate() else 0
    return job | {"dtype": dtype, "allowed": allowed, "new_tokens": new_tokens}


@contextmanager
def in_dtype(network: Any, dtype: str) -> Iterator[None]:
    """The network in the dtype of the check; float32 numbers survive the way to float64 and back."""
    before = network.dtype
    try:
        network.to(getattr(torch, dtype))
        yield
    finally:
        network.to(before)


@torch.no_grad()
def tokens_per_second(network: Any, what: What, auto: Any, folder: Path, job: dict[str, Any]) -> dict[str, float]:
    """Of forward passes of the original, the swapped model and the export over the checked tokens: best of rounds.

    They take turns, so that a machine that is busy for a while slows down all of them; what is left is the best.
    """
    inputs, exported = inputs_of(network, job), auto.from_pretrained(folder, dtype=network.dtype).eval()
    exported.to(network.device)
    best = dict.fromkeys(("original", "swapped", "export"), math.inf)
    for number in range(ROUNDS + 1):
        for name in best:
            with Swap(network, what) if name == "swapped" else nullcontext():
                started = time.perf_counter()
                (exported if name == "export" else network)(**inputs)
                if number:  # the first round warms up
                    best[name] = min(best[name], time.perf_counter() - started)
    return {name: round(inputs["input_ids"].numel() / seconds, 1) for name, seconds in best.items()}


def check(folder: Path, wanted: dict[str, Tensor], job: dict[str, Any], tokenizer: Any) -> float:
    """The largest difference of the outputs over their standard deviation; an error if it is too large."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory(prefix="abbe-export-") as work:
        answer = Path(work) / "answer.safetensors"
        # -P: nothing is imported from the folder of the script.
        run = subprocess.run(
            [sys.executable, "-P", str(SCRIPT)], capture_output=True, text=True, check=False,
            input=json.dumps(job | {"folder": str(folder.resolve()), "answer": str(answer)}),
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        )  # fmt: skip
        if run.returncode or not answer.is_file():
            last = run.stderr.strip().rpartition("\n")[2] or f"exit code {run.returncode}"
            raise AbbeError(f"a fresh process cannot load it: {last}")
        got = load_file(answer)
    error = relative_error(wanted["output"], got["output"])
    if not error <= job["allowed"]:
        raise AbbeError(f"its outputs differ by {error:.2g} of their standard deviation (allowed {job['allowed']:g})")
    if job["new_tokens"] and not torch.equal(wanted["generated"], got["generated"]):
        raise AbbeError("greedy generation gives other tokens")
    if got["tokens"].tolist() != list(tokenizer(job["text"])["input_ids"]):
        raise AbbeError("its tokenizer cuts the text into other tokens")
    return error
