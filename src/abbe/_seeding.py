"""Random numbers that depend only on a name: a generator per name, never torch's global one."""

from __future__ import annotations

import hashlib

import torch


def generator_named(name: str) -> torch.Generator:
    """The same name gives the same numbers, so that draws do not depend on the order of the work."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return torch.Generator("cpu").manual_seed(number & (2**63 - 1))  # torch takes seeds of 63 bits
