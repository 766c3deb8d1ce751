"""What the docstring of a public name must have, and its examples as doctests."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import pytest
import torch
from site_pages import reference_pages
from torch import nn

import abbe

_PAGES = (re.fullmatch(r"reference/python/(?!abbe)(.+)\.md", path) for path in reference_pages())
PACKAGES = [page[1] for page in _PAGES if page]
# Those that mkdocstrings renders; with another one it would show plain text.
SECTIONS = {"Args", "Attributes", "Commands", "Examples", "Raises", "Returns", "Yields"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# They work in place on the buffers of `abbe.attention`, whose example runs them.
WITHOUT_EXAMPLE = {"abbe.normalizers.find_support", "abbe.normalizers.differentiate_support"}
_HEADING = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)


class Documented(NamedTuple):
    """A public class or function with the name by which it is imported, or a method with its class."""

    name: str
    made: Any
    owner: type | None = None


def public_names() -> list[Documented]:
    """Every class and function that a package exports, once: `abbe` itself first."""
    named: dict[int, Documented] = {}
    for package in (abbe, *(importlib.import_module(f"abbe.{name}") for name in PACKAGES)):
        for name in getattr(package, "__all__", None) or _defined_in(package):
            made = getattr(package, name)
            if inspect.isclass(made) or inspect.isroutine(made):
                named.setdefault(id(made), Documented(f"{package.__name__}.{name}", made))
    return list(named.values())


def _defined_in(module: ModuleType) -> list[str]:
    """The public names of a module without a list of them."""
    return [name for name, made in vars(module).items() if getattr(made, "__module__", "") == module.__name__]


def public_methods(documented: Documented) -> Iterator[Documented]:
    """What a class of abbe's defines or inherits from one: methods and properties."""
    for name, member in inspect.getmembers_static(documented.made):
        owners = [base for base in documented.made.__mro__ if name in vars(base)]
        is_ours = owners and owners[0].__module__.startswith("abbe")
        # A method of another library's class means what it means there.
        is_theirs = any(not base.__module__.startswith("abbe") for base in owners if base is not nn.Module)
        if name.startswith("_") or not is_ours or is_theirs:
            continue
        # A property of a normalizer's parameter is made from its option, which explains it.
        is_property = isinstance(member, property) and inspect.isfunction(member.fget)
        if inspect.isroutine(member) or is_property or hasattr(member, "func"):
            yield Documented(f"{documented.name}.{name}", member, documented.made)


def sections(text: str) -> dict[str, str]:
    """Sections of a docstring by heading; what stands before the first is ""."""
    start, *rest = _HEADING.split(text)
    return {"": start} | dict(zip(rest[::2], rest[1::2], strict=True))


def faults(documented: Documented) -> list[str]:
    """What is wrong with a docstring, one line each."""
    return [f"{documented.name}: {fault}" for fault in _faults(documented)]


def _faults(documented: Documented) -> Iterator[str]:
    made, text = documented.made, text_of(documented)
    if not text:
        yield "has no docstring"
        return
    if not text.split("\n\n")[0].rstrip().endswith((".", "?", ":")) or "\n" in text.split("\n\n")[0]:
        yield "its summary is not one line that ends in a full stop"
    parts = sections(text)
    if unknown := parts.keys() - SECTIONS - {""}:
        yield f"section {', '.join(sorted(unknown))} is unknown, known are {', '.join(sorted(SECTIONS))}"
    explained, takes = _named(parts.get("Args", "") + parts.get("Attributes", "")), parameters(made)
    yield from (f"does not explain {name}" for name in takes if name not in explained)
    in_args = _named(parts.get("Args", ""))
    yield from (f"explains {name}, which it does not take" for name in in_args if name not in takes)
    if needs_example(documented) and ">>> " not in parts.get("Examples", ""):
        yield "has no example"


def _named(section: str) -> list[str]:
    """The names that a section explains, one or several to an entry: `a, b: as for ...`."""
    entries = re.findall(r"^    (\w+(?:, \w+)*):", section, re.MULTILINE)
    return [name for entry in entries for name in entry.split(", ")]


def text_of(documented: Documented) -> str:
    """Its docstring, or that of the class of abbe's from which it inherits; "" if Python made it."""
    made = documented.made
    if not inspect.isclass(made):
        text = inspect.getdoc(made) or _inherited(documented)
    else:
        text = inspect.cleandoc(vars(made).get("__doc__") or "")
    is_made = inspect.isclass(made) and text.startswith((f"{made.__name__}(", "Alias for field"))
    return "" if is_made else text


def _inherited(documented: Documented) -> str:
    """Docstring of an overridden method, from the classes of abbe's that have it."""
    name = documented.name.rpartition(".")[2]
    bases = () if documented.owner is None else documented.owner.__mro__
    ours = (vars(base)[name] for base in bases if base.__module__.startswith("abbe") and name in vars(base))
    return next((text for method in ours if (text := inspect.getdoc(method))), "")


def parameters(made: Any) -> list[str]:
    """What it is called with: fields of a record, or parameters of the signature."""
    if isinstance(made, property) or hasattr(made, "func"):
        return []
    if dataclasses.is_dataclass(made):
        return [one.name for one in dataclasses.fields(made) if not one.name.startswith("_")]
    if inspect.isclass(made):
        if hasattr(made, "_fields"):
            return list(made._fields)
        start = next((vars(base)["__init__"] for base in made.__mro__ if "__init__" in vars(base)), None)
        if start is None or not getattr(start, "__module__", "").startswith("abbe") or is_protocol(made):
            return []
        made = start
    if isinstance(made, staticmethod | classmethod):
        made = made.__func__
    return [name for name in inspect.signature(made).parameters if name not in ("self", "cls")]


def needs_example(documented: Documented) -> bool:
    """Functions, and classes that are called: records are what functions return, protocols what they take."""
    made = documented.made
    if documented.name in WITHOUT_EXAMPLE or documented.owner is not None:
        return False
    is_record = dataclasses.is_dataclass(made) or hasattr(made, "_fields")
    return not (inspect.isclass(made) and (is_record or is_protocol(made) or inspect.isabstract(made)))


def is_protocol(made: Any) -> bool:
    return inspect.isclass(made) and Protocol in made.__mro__


def examples(documented: Documented) -> doctest.DocTest | None:
    """All examples of a docstring; None without any."""
    text = text_of(documented)
    if ">>> " not in text:
        return None
    return doctest.DocTestParser().get_doctest(text, {"abbe": abbe, "torch": torch}, documented.name, None, 0)


def run(test: doctest.DocTest) -> str:
    """What differs from what is shown; "" if nothing does."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append)
    return "".join(said)


# -- Tests ------------------------------------------------------------------------------------------------------------


NAMES = public_names()
ALL = [*NAMES, *(method for one in NAMES if isinstance(one.made, type) for method in public_methods(one))]
CHEAP = ("bounds", "entmax", "measures", "normalizers")  # in the quick tier: no model, small tensors


def test_every_public_name_and_method_is_documented() -> None:
    assert len(NAMES) > 150
    assert [fault for one in ALL for fault in faults(one)] == []


def test_a_gap_would_be_seen() -> None:
    def forgetful(logits: object, temperature: float) -> None:
        """A summary.

        Args:
            logits: of some shape.
            other: which is not there.

        Example:
            >>> 1 + 1
        """

    said = " ".join(faults(Documented("abbe.forgetful", forgetful)))
    for part in ("does not explain temperature", "explains other", "section Example is unknown", "has no example"):
        assert part in said
    wrong = Documented("abbe.wrong", type("Wrong", (), {"__doc__": "One.\n\nExamples:\n    >>> 1 + 1\n    3\n"}))
    test = examples(wrong)
    assert test is not None
    assert "Expected:\n    3\nGot:\n    2" in run(test)


@pytest.mark.parametrize("package", CHEAP)
def test_examples_of_small_functions_run(package: str) -> None:
    tests = [test for one in ALL if one.name.split(".")[1] == package and (test := examples(one)) is not None]
    assert len(tests) > 10
    assert "".join(map(run, tests)) == ""


ONCE = ("calibrate", "capacity", "compare", "diagnose", "diff", "lift", "report", "reproduce", "train_recall")
WITH_MODELS = [one for one in ALL if one.name.split(".")[1] not in CHEAP and examples(one) is not None]


@pytest.fixture(scope="module")
def made_once() -> Iterator[None]:
    """A study that many examples call with the same arguments, and that keeps no folder, runs once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ONCE:
            patch.setattr(abbe, name, remembering(getattr(abbe, name)))
        yield


def remembering(study: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if "folder" in kwargs:
            return study(*args, **kwargs)
        asked = repr((args, sorted(kwargs.items())))
        if asked not in made:
            made[asked] = study(*args, **kwargs)
        return made[asked]

    return call


@pytest.mark.slow
@pytest.mark.usefixtures("made_once")
@pytest.mark.parametrize("documented", WITH_MODELS, ids=lambda one: one.name)
def test_examples_with_models_run(documented: Documented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in this process, each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    test = examples(documented)
    assert test is not None
    assert run(test) == ""
