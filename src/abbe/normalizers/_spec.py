"""Spec strings: ``name`` or ``name:key=value,key=value``.

A value may itself be a spec. Commas always belong to the outermost spec, so a nested spec with more than one
parameter is put in brackets: ``hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5``; with at most one it
needs none: ``hybrid:a=softmax,b=topk:k=32,mix=0.5``. One value per head is written ``alpha=1.2/1.5/1.4``.
"""

from __future__ import annotations

from typing import Any

from .._errors import AbbeError

MOST_NESTED = 32  # specs inside each other


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec string into name and parameters.

    Args:
        spec: "name" or "name:key=value,key=value".

    Returns:
        Name and parameters; values are still text, without the brackets around them.

    Raises:
        AbbeError: it is not a spec; the message says why.

    Examples:
        >>> abbe.normalizers.parse_spec("hybrid:a=softmax,b=(entmax:alpha=1.5),mix=0.5")
        ('hybrid', {'a': 'softmax', 'b': 'entmax:alpha=1.5', 'mix': '0.5'})
    """
    _check_nesting(spec)
    name, colon, rest = spec.strip().partition(":")
    if not name.strip():
        raise AbbeError(f"spec {spec!r} has no name, write it like 'entmax:alpha=1.5'")
    parameters: dict[str, str] = {}
    for part in _split_commas(rest, spec) if colon else []:
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not (equals and key and value):
            raise AbbeError(f"spec {spec!r}: {part.strip()!r} is not key=value")
        if key in parameters:
            raise AbbeError(f"spec {spec!r} gives {key} twice")
        parameters[key] = value[1:-1].strip() if value.startswith("(") and value.endswith(")") else value
    return name.strip(), parameters


def format_spec(name: str, parameters: dict[str, Any]) -> str:
    """Build a spec string; `parse_spec` reads it back.

    Args:
        name: of the normalizer.
        parameters: values by name.

    Returns:
        The spec.

    Examples:
        >>> abbe.normalizers.format_spec("entmax", {"alpha": 1.5, "learn": True})
        'entmax:alpha=1.5,learn=true'
    """
    if not parameters:
        return name
    return f"{name}:" + ",".join(f"{key}={_format_value(value)}" for key, value in parameters.items())


def _check_nesting(spec: str) -> None:
    """Before anything is built: a colon opens a spec, a comma closes all but the outermost within its brackets."""
    depth, outer = 0, [0]
    for character in spec:
        if character == ":":
            depth += 1
        elif character == "(":
            outer.append(depth)
        elif character == ")" and len(outer) > 1:
            depth = outer.pop()
        elif character == ",":
            depth = outer[-1] + 1
        if depth > MOST_NESTED:
            raise AbbeError(
                f"spec '{spec[:40]}...' is nested too deeply: at most {MOST_NESTED} specs inside each other"
            )


def _split_commas(text: str, spec: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth != 0:
        raise AbbeError(f"spec {spec!r} has unbalanced brackets")
    return parts


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        # Up to 1e15 every whole number is a float64, so all digits are exact.
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, tuple):
        return "/".join(map(_format_value, value))
    text = str(value)
    return f"({text})" if "," in text else text
