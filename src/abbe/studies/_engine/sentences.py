"""How counts and shares are told in sentences."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """ "74 %", "0.3 %", "below 0.1 %"; whole numbers from 1 % on."""
    if share is None:
        return "an unknown share"
    if 0 < share < 0.001:
        return "below 0.1 %"
    digits = 1 if 0 < share < 0.01 else 0
    return f"{100 * share:.{digits}f} %"


def count_of(found: int, total: int, singular: str, plural: str) -> str:
    """Heads with their verb: "no head is", "1 of 48 heads is", "5 of 48 heads are", "all 48 heads are"."""
    if found == 0:
        return f"no head {singular}"
    if found == total:
        return f"the only head {singular}" if total == 1 else f"all {total} heads {plural}"
    return f"{found} of {total} heads {singular if found == 1 else plural}"


def sentence(words: str) -> str:
    """With a capital letter."""
    return words[:1].upper() + words[1:]


def tokens(number: float) -> str:
    """ "1 token", "20 tokens", "26.9 tokens"."""
    return f"{number:.3g} token{'' if number == 1 else 's'}"


def power_of_n(decay: float) -> str:
    """How a weight goes with n: "n^-0.19"; "n^0.05" for one that grows."""
    return f"n^{-decay:.2f}"
