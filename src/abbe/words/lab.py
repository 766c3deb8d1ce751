"""Names that the lab and its pages share: the columns of a choice, and published results."""

from __future__ import annotations

CHOICE = (
    "normalizer",
    "temperature",
    "compensated",
    "qk_norm",
    "optimizer",
)  # what defines a run, except its rate
# Accuracy by number of items in maximum retrieval, trained on up to 16 (arXiv 2410.01104, table 1).
HARD_MAXIMUM = "topk:k=1"  # in `train_length`, only at test time
HARD_MAXIMUM_NAME = "hard maximum on the trained softmax logits"
PUBLISHED_PAPER = "arXiv 2410.01104"
PUBLISHED: dict[str, dict[int, float]] = {
    "softmax": {16: 0.986, 64: 0.943, 256: 0.813, 1024: 0.538, 4096: 0.226, 16384: 0.124},
    "adaptive-temperature": {16: 0.986, 64: 0.945, 256: 0.821, 1024: 0.577, 4096: 0.249, 16384: 0.140},
}
