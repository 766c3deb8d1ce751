"""Run by `check` as a script in a separate process: the outputs of a folder there. It does not use abbe.

A job comes as JSON on standard input. If the folder must work without abbe, importing it is an error, so that all
other imports follow that ban.
"""

import json
import sys
from typing import Any


class Forbidden:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "abbe":
            raise ImportError("abbe is forbidden here")


def inputs_of(network: Any, job: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {name: torch.tensor(ids, device=network.device) for name, ids in job["inputs"].items()}


def outputs_of(network: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Logits or hidden states, and the tokens of greedy generation; on both sides of the check."""
    import torch

    with torch.no_grad():
        result = network(**inputs_of(network, job))
        tensors = {"output": result.logits if "logits" in result else result.last_hidden_state}
        if job["new_tokens"]:
            prompt = torch.tensor(job["prompt"], device=network.device)
            options = {"do_sample": False, "max_new_tokens": job["new_tokens"], "use_cache": True}
            tensors["generated"] = network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def main() -> None:
    """Load the folder, and write outputs, greedy text and tokens."""
    job = json.load(sys.stdin)
    if job["without_abbe"]:
        sys.meta_path.insert(0, Forbidden())
    else:
        __import__("abbe")
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(job["threads"])
    transformers: Any = __import__("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    auto, dtype = getattr(transformers, job["auto"]), getattr(torch, job["dtype"])
    network = auto.from_pretrained(job["folder"], dtype=dtype, use_safetensors=True, trust_remote_code=False).eval()
    tensors = outputs_of(network, job)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"], trust_remote_code=False)
    tensors["tokens"] = torch.tensor(tokenizer(job["text"])["input_ids"], dtype=torch.int64)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, job["answer"])


if __name__ == "__main__":
    main()
