"""How plans, normalizers and numbers of a search are called on page and terminal."""

from __future__ import annotations

from ...words.numbers import MISSING, percent

GAINS = {"sparse": "weights of exactly 0", "loss": "fall of the loss", "retrieval": "log-probability of pass keys"}
MIXED = "mixed"
_KEPT = ",learn=false"


def short_spec(spec: str) -> str:
    """That alpha stays as given goes without saying here."""
    return spec.replace(_KEPT, "")


def kind_of(plan: str) -> str:
    """The one normalizer of a plan, or that it mixes several."""
    specs = {part.partition("=")[2] for part in plan.split("; ")}
    return short_spec(specs.pop()) if len(specs) == 1 else MIXED


def rise(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+z.2f} %"


def share(value: float | None) -> str:
    return MISSING if value is None else percent(value)
