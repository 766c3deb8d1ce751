"""Names that the shell completes, written down here because their own modules load torch. A test compares them."""

from __future__ import annotations

FIGURES = ("2a", "2b", "2c", "3", "4")
VECTORS = ("value", "output", "hidden", "embedding")
NORMALIZERS = (
    "softmax", "learned-temperature", "adaptive-temperature", "ssmax", "logn", "sparsemax", "entmax", "asentmax",
    "softmax1", "sink", "clipped", "sigmoid", "relu", "softpick", "self-adjusted", "topk", "topp", "threshold",
    "elastic", "norm-softmax", "stick-breaking", "hybrid", "scaled",
)  # fmt: skip
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
