"""Names that the shell completes, and extras; repeated here, because their own modules load torch. A test compares."""

from __future__ import annotations

import re
from pathlib import Path

# Commands that need more than normalizers, attention and bounds; `all` if their purpose is a page.
EXTRA_OF = {
    "report": "all", "reproduce": "all", "compare": "all", "watch": "all",
    "diagnose": "models", "capacity": "models", "calibrate": "models", "train": "models", "lift": "models",
    "pull": "models", "export": "models", "diff": "models", "merge": "models", "cost": "models",
}  # fmt: skip
FIGURES = ("2a", "2b", "2c", "3", "4")
DEVICES, DTYPES = ("auto", "cpu", "cuda", "mps", "xpu"), ("float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
STATEMENTS = (
    "weight-upper", "weight-lower", "vanishing-paper", "vanishing", "general-weight-paper", "general-weight",
    "top-mass", "entropy-deficit", "entropy-deficit-loose", "effective-number", "log-margin", "entmax-top-weight",
    "entmax-entropy", "theorem-1", "theorem-1-root", "theorem-1-random-paper", "expected-distance-upper",
    "expected-distance-lower", "expected-distance-ceiling", "distance-sandwich-upper", "distance-sandwich-lower",
    "net-distance", "net-distance-moment", "collapse-paper", "theorem-2-lower", "theorem-2-upper", "sphere-lower",
    "sphere-upper", "sphere-estimate", "eighty-percent-paper", "largest-entry", "spectral", "spectral-paper",
    "spectral-row-upper", "spectral-row-lower", "frobenius", "one-norm", "inf-to-one", "change", "change-by-norm",
    "log-derivative-exp", "log-derivative-softplus", "log-derivative-softplus^3", "log-derivative-1+elu",
    "log-derivative-x^2+1", "lipschitz-sigmoid-bias0", "lipschitz-sparsemax", "lipschitz-entmax-alpha1.5",
    "lipschitz-entmax-alpha1.25", "lipschitz-ssmax", "lipschitz-softmax1", "equal-selectivity-entmax",
    "deletion-error", "renormalised-error", "mass-law",
)  # fmt: skip
_NORMALIZERS = Path(__file__).parents[1] / "normalizers"
_EXAMPLE = re.compile(r'^    example = "([^":]+)', re.MULTILINE)  # every class in the registry has one


def normalizer_names() -> list[str]:
    """From the sources: importing them would load torch."""
    return sorted(name for file in _NORMALIZERS.rglob("*.py") for name in _EXAMPLE.findall(file.read_text("utf-8")))
