"""What a calibration fits: a spec with every parameter that can learn set free, and a temperature for each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._errors import AbbeError
from ...models import rules_in
from ...normalizers import Normalizer, format_spec, normalizer, parse_spec

# They have a scale of their own: a temperature beside it would do the same.
_WITH_SCALE = ("learned-temperature", "ssmax", "asentmax", "scaled")
_BEYOND = ("logn",)  # its slope shows beyond `trained` keys, where windows to calibrate on seldom reach
_KEPT = ("entmax", "asentmax")  # a learned alpha goes to softmax, and would be compared under the name of entmax


def learnable_rules(asked: object) -> str | dict[str, str]:
    """What `swap` takes, for a spec, "PATTERN=SPEC; ..." or a mapping from patterns to specs."""
    asked = rules_in(asked) if isinstance(asked, str) else asked
    if isinstance(asked, Mapping):
        return {pattern: learnable(_checked(spec)) for pattern, spec in asked.items()}
    return learnable(_checked(asked))


def learnable(spec: str) -> str:
    """The spec with its parameters free, on scaled logits; what says learn=false stays as it is.

    Examples:
        >>> learnable("entmax:alpha=1.5")
        'scaled:of=(entmax:alpha=1.5,learn=true),t=0,learn=true'
    """
    free = _set_free(spec)
    made = normalizer(free)
    if made.name in _WITH_SCALE and (made.learned or made.name == "scaled"):
        wanted = free
    else:
        wanted = format_spec("scaled", {"of": free, "t": 0.0, "learn": True})
    if not any(True for _ in normalizer(wanted).parameters()):
        raise AbbeError(f"{spec} has nothing to fit: leave learn=false out of it")
    return wanted


def _checked(spec: object) -> str:
    if isinstance(spec, Normalizer):
        raise AbbeError(f"calibrate makes its own normalizers: give the spec {spec.spec!r} instead of an instance")
    if not isinstance(spec, str):
        raise AbbeError(f"calibrate needs a spec such as 'entmax:alpha=1.5', got {type(spec).__name__}")
    if spec.startswith("file:"):
        raise AbbeError(f"{spec} is calibrated already: give the spec of a normalizer, such as entmax:alpha=1.5")
    return spec


def _set_free(spec: str) -> str:
    """learn=true wherever a normalizer can learn and the spec does not say otherwise."""
    made, (_, given) = normalizer(spec), parse_spec(spec)
    if made._given.get("heads", 1) > 1 or "heads" in given:
        raise AbbeError(f"{spec}: leave heads= out, every head of a layer gets a value of its own")
    filled: dict[str, Any] = dict(given)
    for option in made.options:
        if option.kind == "normalizer":
            filled[option.name] = _set_free(str(given.get(option.name, option.default)))
    can_learn = "learn" in made._given and made.learnable and made.name not in _BEYOND
    if can_learn and "learn" not in given and not _at_an_edge(made):
        filled["learn"] = True
    return format_spec(made.name, filled)


def _at_an_edge(made: Normalizer) -> bool:
    """A value on the edge of its range could not leave it, such as alpha = 2."""
    known = {option.name: option for option in made.options}
    return any(not known[name].low < made._given[name] < known[name].high for name in made.learnable)


def kept_alpha(spec: str) -> str:
    """The spec with learn=false for every entmax in it that does not say learn.

    Examples:
        >>> kept_alpha("entmax:alpha=1.5")
        'entmax:alpha=1.5,learn=false'
    """
    made, (_, given) = normalizer(spec), parse_spec(spec)
    filled: dict[str, Any] = dict(given)
    for option in made.options:
        if option.kind == "normalizer" and option.name in given:
            filled[option.name] = kept_alpha(given[option.name])
    if made.name in _KEPT and "learn" not in given:
        filled["learn"] = False
    return spec if filled == given else format_spec(made.name, filled)
