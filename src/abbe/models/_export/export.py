"""export(model, plan, folder): a swapped model as a folder that others can load, checked before it gets its name."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..._errors import AbbeError
from ..._files import finite
from .._load.device import dtype_name
from .._load.kind import Choice, choose
from .._load.load import LoadedModel, load
from .._load.quiet import quiet
from .._session.modules import CARRIED_FILE
from .._swap.file import installed_version
from .._swap.groups import What
from .._swap.layers import FILE_PREFIX
from .._swap.plan import Plan
from .._swap.swap import Swap
from .._text import Text, read_text
from .._unwrap import evaluating
from .._windows import windows
from .card import card, judged_by_lift
from .carried import write_carried
from .check import NEW_TOKENS, Outcome, Trial, allowed, check, checked_dtype, in_dtype, outcome
from .fold import fold
from .plans import as_swapped, not_foldable, plan_path, scales

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
