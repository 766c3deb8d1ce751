"""Run by `check` in a process of its own, as a script: what a folder computes there. It knows nothing of abbe.

A job comes as JSON on standard input. Where the folder must do without abbe, importing it is an error.
"""

import json
import sys


class Forbidden:
    """Refuses to import abbe."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] == "abbe":
            raise ImportError("abbe is forbidden here")


def main() -> None:
    job = json.load(sys.stdin)
    if job["without_abbe"]:
        sys.meta_path.insert(0, Forbidden())  # type: ignore[arg-type]
    else:
        __import__("abbe")
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.set_num_threads(job["threads"])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    auto = getattr(transformers, job["auto"])
    dtype = getattr(torch, job["dtype"])
    network = auto.from_pretrained(job["folder"], dtype=dtype, use_safetensors=True, trust_remote_code=False).eval()
    inputs = {name: torch.tensor(ids) for name, ids in job["inputs"].items()}
    with torch.no_grad():
        result = network(**inputs)
        tensors = {"output": getattr(result, "logits", None) if "logits" in result else result.last_hidden_state}
        if job["new_tokens"]:
            prompt = torch.tensor(job["prompt"])
            options = {"do_sample": False, "max_new_tokens": job["new_tokens"], "use_cache": True}
            tensors["generated"] = network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"], trust_remote_code=False)
    tensors["tokens"] = torch.tensor(tokenizer(job["text"])["input_ids"], dtype=torch.int64)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, job["answer"])


main()
