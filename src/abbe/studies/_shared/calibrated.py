"""What a calibration fits: a temperature per head, and every parameter of a spec with learn=true."""

from __future__ import annotations

from collections.abc import Mapping

from ..._errors import AbbeError
from ...models import rules_in
from ...normalizers import Normalizer, format_spec, normalizer, parse_spec

_TEMPERATURE = "scaled"
# If they learn, they learn a scale: a temperature would do the same.
_WITH_SCALE = ("learned-temperature", "ssmax", "asentmax")


def learnable_rules(rules: object) -> str | dict[str, str]:
    """What `swap` takes, for a spec, "PATTERN=SPEC; ..." or a mapping from patterns to specs."""
    rules = rules_in(rules) if isinstance(rules, str) else rules
    if isinstance(rules, Mapping):
        return {pattern: learnable(_checked(spec)) for pattern, spec in rules.items()}
    return learnable(_checked(rules))


def learnable(spec: str) -> str:
    """The spec on logits with a learned scale; its parameters stay as written, except those with learn=true.

    A free parameter would turn into softmax, whose outputs are the target, and still be named after the spec.

    Examples:
        >>> learnable("entmax:alpha=1.5")
        'scaled:of=entmax:alpha=1.5,t=0,learn=true'
    """
    instance, (_, options) = normalizer(spec), parse_spec(spec)
    parts = [part for part in instance.modules() if isinstance(part, Normalizer)]
    if "heads" in spec or any(part._given.get("heads", 1) > 1 for part in parts):
        raise AbbeError(f"{spec}: leave heads= out, every head of a layer gets its own value")
    if instance.name == _TEMPERATURE:
        if "learn" in options and not instance.learned:
            raise AbbeError(f"{spec} has nothing to fit: leave learn=false out of it")
        return format_spec(_TEMPERATURE, {**options, "learn": True})
    as_written = format_spec(instance.name, options)
    if instance.name in _WITH_SCALE and instance.learned:
        return as_written
    return format_spec(_TEMPERATURE, {"of": as_written, "t": 0.0, "learn": True})


def _checked(spec: object) -> str:
    if isinstance(spec, Normalizer):
        raise AbbeError(f"calibrate makes its own normalizers: give the spec {spec.spec!r} instead of an instance")
    if not isinstance(spec, str):
        raise AbbeError(f"calibrate needs a spec such as 'entmax:alpha=1.5', got {type(spec).__name__}")
    if spec.startswith("file:"):
        raise AbbeError(f"{spec} is already calibrated: give the spec of a normalizer, such as entmax:alpha=1.5")
    return spec
