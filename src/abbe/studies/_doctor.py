"""doctor: what on this machine keeps abbe from working, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Literal

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from .. import models
from .._errors import AbbeError
from .._kernels import calls
from ..normalizers import normalizer
from ..words.finding import Answer

if TYPE_CHECKING:
    from ..views import View

State = Literal["ok", "warning", "missing", "broken"]
Found = tuple[State, str, str]  # state, detail, advice

_SPECS = ("softmax", "entmax:alpha=1.5", "topk:k=8")
_ROWS, _KEYS = 1024, 128  # enough for the kernels to be used
_CLOSE = 1e-5  # float32 weights against the float64 reference
_LITTLE_MEMORY = 2e9  # bytes: a model of 135 M parameters with its measures, and the libraries


@dataclass(frozen=True)
class Check:
    """What was checked, its state, and what to do if that is not ok.

    Attributes:
        name: what was checked.
        state: "ok", "warning" (costs time or room), "missing" (can be installed) or "broken" (nothing works).
        detail: what was found.
        advice: what to do; empty if nothing.
    """

    name: str
    state: State
    detail: str
    advice: str = ""

    @property
    def failed(self) -> bool:
        """Whether abbe cannot work because of it."""
        return self.state == "broken"


class Checks(list[Check]):
    """The checks of `abbe.doctor`, with a view for the terminal.

    Examples:
        >>> checks = abbe.studies.Checks([abbe.studies.Check("lamp", "warning", "dim", "turn it up")])
        >>> checks.view().answer.sentence
        'Everything abbe needs is installed; check lamp.'
    """

    def view(self) -> View:
        """One line per check with advice where it is not ok, and one sentence."""
        from ..views import TextTable, View  # with rich, without which the checks themselves work

        failed, warned = ([x.name for x in self if x.state == state] for state in ("broken", "warning"))
        sentence = "Everything abbe needs is installed" + (f"; check {', '.join(warned)}." if warned else ".")
        if failed:
            sentence = f"abbe will not work properly: fix {', '.join(failed)}."
        grade = "bad" if failed else "look" if warned else "good"
        rows = [(x.name, x.state, f"{x.detail} -> {x.advice}" if x.advice else x.detail) for x in self]
        columns = ("check", "state", "what was found")
        table = TextTable("", columns, rows, breaks=("->",), left=columns, whole=columns[:2])
        answer = Answer(grade, sentence, "a check is broken")
        return View(study="doctor", question="Can abbe work here?", answer=answer, tables=(table,))


def doctor() -> Checks:
    """Is this installation complete, and can it work on this machine?

    Returns:
        All checks, in the order in which a user would act on them: each is ok, or says what to do.

    Examples:
        >>> [check.name for check in abbe.doctor() if check.failed]
        []
    """
    return Checks(Check(name, *_found(look)) for name, look in _CHECKS.items())


def _found(look: Callable[[], Found]) -> Found:
    """A check that crashes is a result, too, and must not hide the others."""
    try:
        return look()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return "broken", reason, "this part does not work: install abbe again"


def _python() -> Found:
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return ("broken", version, "install Python 3.11 or newer") if sys.version_info < (3, 11) else ("ok", version, "")


def _packages(extra: str) -> Found:
    """The versions, or else everything wrong with them. Only required packages, those of extra "", can be broken."""
    try:
        lines = metadata.requires("abbe") or []
    except metadata.PackageNotFoundError:
        advice = "pip install --editable . in its folder, so that the packages it needs are known"
        return "warning", "abbe is not installed as a package", advice
    requirements = map(Requirement, lines)
    found = [_package(x) for x in requirements if (x.marker.evaluate({"extra": extra}) if x.marker else not extra)]
    wrong = [each for each in found if each[0] != "ok"]
    detail, states = ", ".join(detail for _, detail, _ in wrong or found), {state for state, *_ in wrong}
    if extra and wrong:
        return "missing" if "missing" in states else "warning", detail, f"pip install --upgrade 'abbe[{extra}]'"
    state: State = "broken" if states - {"warning"} else "warning" if wrong else "ok"
    return state, detail, "; ".join(advice for *_, advice in wrong)


def _package(requirement: Requirement) -> Found:
    name, install = requirement.name, f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing", f"{name} is not installed", install
    release = Version(installed).base_version  # a candidate such as 2.6rc1 counts as 2.6
    violated = {bound.operator for bound in requirement.specifier if not bound.contains(release)}
    if ">=" in violated:
        return "broken", f"{name} {installed} is too old", install
    if violated:
        return "warning", f"{name} {installed} is newer than any that was tested", install
    return "ok", f"{name} {installed}", ""


def _kernels() -> Found:
    """They compile, and agree with the float64 reference."""
    if not calls.switched_on():
        return "warning", f"{calls.VARIABLE}=off", f"unset {calls.VARIABLE}: it is slower"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return "broken", "NUMBA_DISABLE_JIT is set", "unset it: it is hundreds of times slower"
    logits = torch.randn(_ROWS, _KEYS, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        maps = {spec: normalizer(spec) for spec in _SPECS}
        errors = {spec: float((x(logits) - x(logits.double())).abs().max()) for spec, x in maps.items()}
    if not calls.usable():
        why = next((str(one.message) for one in caught if one.category is RuntimeWarning), "they could not be compiled")
        return "broken", why.partition(" (")[0], "set NUMBA_CACHE_DIR to an empty folder of yours"
    if wrong := [spec for spec, error in errors.items() if not error <= _CLOSE]:
        advice = f"set {calls.VARIABLE}=off, and report it with the versions of numba and llvmlite"
        return "broken", f"wrong weights of {', '.join(wrong)}", advice
    return "ok", f"compiled; largest error {max(errors.values()):.0e}", ""


def _threads() -> Found:
    """More threads than cores wait for each other; cores are those that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    detail, many = f"{torch.get_num_threads()} on {cores} cores", torch.get_num_threads() > cores
    return ("warning", detail, f"set OMP_NUM_THREADS={cores}") if many else ("ok", detail, "")


def _memory() -> Found:
    free = models.free_memory(torch.device("cpu"))
    if free is None:
        return "ok", "not known on this system", ""
    detail, advice = f"{max(0.0, free) / 1e9:.1f} GB free", "close other programs, or measure shorter windows"
    return ("warning", detail, advice) if free < _LITTLE_MEMORY else ("ok", detail, "")


def _embedded() -> Found:
    """All files are there, and the weights have their full length."""
    try:
        from safetensors import SafetensorError, safe_open  # of the extra `models`
    except ImportError:
        return "missing", "cannot be read without safetensors", "pip install 'abbe[models]'"
    try:
        folder = models.embedded_folder()
        for file in models.EMBEDDED_FILES:
            if file.endswith(".json"):
                json.loads((folder / file).read_text(encoding="utf-8"))
        safe_open(folder / "model.safetensors", framework="pt")
        models.read_text()
        return "ok", models.embedded_about().partition(", trained")[0], ""
    except (AbbeError, OSError, ValueError, SafetensorError) as error:
        return "broken", str(error), "install abbe again: pip install --force-reinstall abbe"


def _cache() -> Found:
    """Where pulled models go: tested by writing, since permissions say nothing about a read-only disk."""
    folder = models.cache_folder()
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        return "warning", f"{folder}: {error.strerror or error}", "set ABBE_CACHE to a folder that you may write to"
    return "ok", str(folder), ""


_CHECKS: dict[str, Callable[[], Found]] = {
    "Python": _python, "packages": partial(_packages, ""), "abbe[models]": partial(_packages, "models"),
    "abbe[report]": partial(_packages, "report"), "kernels": _kernels, "threads": _threads, "memory": _memory,
    "embedded model": _embedded, "cache": _cache,
}  # fmt: skip
