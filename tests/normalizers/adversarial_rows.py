"""float32 rows of logits that break naive kernels: ties, outliers, levels, tiny and huge gaps, masks."""

from __future__ import annotations

import torch
from normalizer_cases import random_logits, random_mask
from torch import Tensor


def adversarial_rows(keys: int, seed: int = 0) -> dict[str, Tensor]:
    """Kinds of rows by name, each of shape (3, 2, keys) so that three heads take them."""
    shape = (3, 2, keys)
    normal = random_logits(*shape, seed=seed + keys, scale=3.0)
    place = torch.arange(keys, dtype=torch.float64)
    hide = ~random_mask(*shape, seed=seed)
    kinds = {
        "normal": normal,
        "equal": torch.full(shape, 1.25, dtype=torch.float64),
        "zeros": torch.zeros(shape, dtype=torch.float64),
        "outlier": torch.where(place == keys // 2, 50.0, normal),
        "low outlier": torch.where(place == keys // 2, -1e30, normal),
        "two-level": torch.where(place % 3 == 0, 0.7, -0.2).expand(shape),
        "geometric": (-0.01 * 1.05 ** (place % 200)).expand(shape),
        "ties at the top": normal.clamp(max=1.0),
        "integers": normal.round(),
        "from zero up": normal.clamp(min=0.0),
        "tiny gaps": 1 + 1.2e-7 * normal.round(),
        "denormal": normal * 1e-39,
        "times 1e4": normal * 1e4,
        "times 1e-4": normal * 1e-4,
        "range of exp": normal.clamp(-1, 1) * 88,
        "far above": normal + 300,
        "far below": normal - 300,
        "masked": normal.masked_fill(hide, -torch.inf),
        "masked integers": normal.round().masked_fill(hide, -torch.inf),
        "mostly masked": normal.masked_fill((place % 50 != 0) | hide, -torch.inf),
    }
    return {name: rows.float().contiguous() for name, rows in kinds.items()}
