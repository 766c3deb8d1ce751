"""What a calibration fits: every learnable parameter of a spec, and a temperature per head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._errors import AbbeError
from ...models import rules_in
from ...normalizers import Normalizer, format_spec, normalizer, parse_spec

# They have a scale already: a temperature would do the same.
_WITH_SCALE = ("learned-temperature", "ssmax", "asentmax", "scaled")
_BEYOND = ("logn",)  # its slope shows beyond `trained` keys, which calibration windows seldom reach
_FIXED_ALPHA = ("entmax", "asentmax")  # a learned alpha drifts to softmax, and would be compared as entmax


def learnable_rules(rules: object) -> str | dict[str, str]:
    """What `swap` takes, for a spec, "PATTERN=SPEC; ..." or a mapping from patterns to specs."""
    rules = rules_in(rules) if isinstance(rules, str) else rules
    if isinstance(rules, Mapping):
        return {pattern: learnable(_checked(spec)) for pattern, spec in rules.items()}
    return learnable(_checked(rules))


def learnable(spec: str) -> str:
    """The spec with learnable parameters, on scaled logits; parts with learn=false stay fixed.

    Examples:
        >>> learnable("entmax:alpha=1.5")
        'scaled:of=(entmax:alpha=1.5,learn=true),t=0,learn=true'
    """
    free = _set_free(spec)
    instance = normalizer(free)
    if not (instance.name in _WITH_SCALE and (instance.learned or instance.name == "scaled")):
        free = format_spec("scaled", {"of": free, "t": 0.0, "learn": True})
    if next(normalizer(free).parameters(), None) is None:
        raise AbbeError(f"{spec} has nothing to fit: leave learn=false out of it")
    return free


def _checked(spec: object) -> str:
    if isinstance(spec, Normalizer):
        raise AbbeError(f"calibrate makes its own normalizers: give the spec {spec.spec!r} instead of an instance")
    if not isinstance(spec, str):
        raise AbbeError(f"calibrate needs a spec such as 'entmax:alpha=1.5', got {type(spec).__name__}")
    if spec.startswith("file:"):
        raise AbbeError(f"{spec} is already calibrated: give the spec of a normalizer, such as entmax:alpha=1.5")
    return spec


def _set_free(spec: str) -> str:
    """learn=true wherever a normalizer can learn and the spec does not say otherwise."""
    instance, (_, options) = normalizer(spec), parse_spec(spec)
    if instance._given.get("heads", 1) > 1 or "heads" in options:
        raise AbbeError(f"{spec}: leave heads= out, every head of a layer gets its own value")
    free: dict[str, Any] = dict(options)
    for option in instance.options:
        if option.kind == "normalizer":
            free[option.name] = _set_free(str(options.get(option.name, option.default)))
    can_learn = "learn" in instance._given and instance.learnable and instance.name not in _BEYOND
    if can_learn and "learn" not in options and not _at_an_edge(instance):
        free["learn"] = True
    return format_spec(instance.name, free)


def _at_an_edge(instance: Normalizer) -> bool:
    """A value on the edge of its range, such as alpha = 2, could not leave it."""
    options = {option.name: option for option in instance.options}
    return any(not options[name].low < instance._given[name] < options[name].high for name in instance.learnable)


def kept_alpha(spec: str) -> str:
    """The spec with learn=false for every entmax that does not say learn.

    Examples:
        >>> kept_alpha("entmax:alpha=1.5")
        'entmax:alpha=1.5,learn=false'
    """
    instance, (_, options) = normalizer(spec), parse_spec(spec)
    fixed: dict[str, Any] = dict(options)
    for option in instance.options:
        if option.kind == "normalizer" and option.name in options:
            fixed[option.name] = kept_alpha(options[option.name])
    if instance.name in _FIXED_ALPHA and "learn" not in options:
        fixed["learn"] = False
    return spec if fixed == options else format_spec(instance.name, fixed)
