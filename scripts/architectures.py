"""Which architectures of transformers abbe measures: a tiny random model of every model type is built and tried.

    python scripts/architectures.py                 # all, in three minutes; writes docs/reference/architectures.md
    python scripts/architectures.py llama gpt_neox  # some, printed only

Every number is compared with an independent one: the weights that the tap captures with those that the model itself
returns when it computes eagerly, logits under a swap to softmax with the model's own (also for padded texts), and
logits under entmax with those of the model whose eager function calls the package entmax instead of softmax.
"""

from __future__ import annotations

import copy
import multiprocessing
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import configuration_auto, modeling_auto

import abbe

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "architectures.md"
MEASURED, REFUSED, NOT_TEXT, NOT_BUILT, WRONG = "measured", "refused", "not text", "not built", "wrong"
SECONDS = 120  # for one model; most take less than one
TOKENS, BATCH, LENGTH = 260, 2, 16  # one token a byte, and a few that mean something
LIMIT = 1e-3  # of the standard deviation: rounding of float32 in a few layers, as in abbe's own check
LARGEST = 8e6  # parameters

# The first pattern that matches the name of a setting gives its size, or less if the default is smaller.
SIZES = {
    r".*vocab_size(_per_layer_input)?": TOKENS,
    r"(num_)?(hidden_|encoder_|decoder_)?layers|n_layers?|depth|num_layers_per_stack|num_(encoder|decoder)_layers": 2,
    r"(en|de)coder_num_hidden_layers|num_mem_blocks": 2,
    r".*(num_key_value_heads|num_kv_heads)": 2,
    r".*(attention_heads|num_heads|n_heads?|linear_num_(key|value)_heads|index_topk)": 4,
    r"mamba_d_head": 16,
    r".*(head_dim|d_kv|dim_head|rotary_dim)": 8,
    r".*lora_rank": 16,
    r".*(hidden_size|d_model|n_embd|emb_dim|embed_dim|embedding_size|embedding_dim|hidden_dim|proj_dim|output_dim)": 32,
    r"dim|projection_dim|hidden_size_per_layer_input": 32,
    r".*(intermediate_size|ffn_dim|d_ff|d_inner|ffn_hidden_size|intermediate_dim|n_inner|ffn_size)|hidden_dim": 48,
    r".*(experts_per_tok(en)?|moe_topk|top_k_experts|moe_top_k|moe_k|num_experts_per_token)": 2,
    r".*(num_experts|routed_experts|local_experts)": 4,
    r"n_group|topk_group|num_expert_group": 1,
    r"sliding_window|local_attention|.*chunk_size|attention_window|window_size": 8,
    r"max_position_embeddings|n_positions|max_sequence_length|seq_length|max_seq_len": 160,
    r"image_size": 32,
    r"patch_size": 16,
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 0}
# Settings of single model types that the patterns do not reach.
DEFAULT = object()
_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_SECTIONS: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}, "head_dim": 8
}  # fmt: skip
_HALF = {"rope_parameters": _SECTIONS["rope_parameters"] | {"partial_rotary_factor": 0.5}, "head_dim": 16}
_SHARED = {
    "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_head_dim": 16,
    "attention_hidden_size": 64,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cosmos3_edge_text": _SECTIONS,
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {
        "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2,
        "intermediate_size": [48, 48], "activation_sparsity_pattern": [0.5, 0.0],
    },
    "glm4v_moe_text": _HALF,
    "glm4v_text": _SECTIONS,
    "glm5_next_text": {"index_topk": 4, "index_kpool": 2},
    "glm_image_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "granitemoehybrid": _HYBRID,
    "hrm_text": {"num_hidden_layers": DEFAULT},
    "hunyuan_vl_text": _SECTIONS,
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 8]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"qk_head_dim": 16, "num_layers": 1, "num_hidden_layers": DEFAULT, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8},
    "mistral4": {"head_dim": 16, "qk_head_dim": 16},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32},
    "nemotron_h": {"n_groups": 1},
    "neomme": {"head_dim": 16},
    "nllb-moe": {"encoder_sparse_step": 1, "decoder_sparse_step": 1},
    "paddleocr_vl_text": _SECTIONS,
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "xmod": {"default_language": "en_XX"},
    "zamba": _SHARED,
    "zamba2": _SHARED,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What became of a model type; `compared` names what was compared with an independent result."""

    model_type: str
    network: str
    outcome: str
    reason: str = ""
    compared: tuple[str, ...] = ()


def model_types() -> list[str]:
    """Every language model, and every other model whose file names the attention interface."""
    root = Path(transformers.__file__).parent / "models"
    routed = {
        path.parent.name for path in root.glob("*/modeling_*.py") if "ALL_ATTENTION_FUNCTIONS" in path.read_text()
    }
    known = [kind for kind in configuration_auto.CONFIG_MAPPING_NAMES if class_of(kind)]
    return sorted(
        kind
        for kind in known
        if class_of(kind)[0] != "AutoModel" or configuration_auto.model_type_to_module_name(kind) in routed
    )


def class_of(kind: str) -> tuple[str, str] | None:
    """The auto class of a model type, and the name of its network."""
    for task, auto in (
        ("SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM"), ("MASKED_LM", "AutoModelForMaskedLM"),
        ("CAUSAL_LM", "AutoModelForCausalLM"), ("", "AutoModel"),
    ):  # fmt: skip
        names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES")
        if kind in names:
            return auto, names[kind] if isinstance(names[kind], str) else names[kind][0]
    return None


def tiny_config(kind: str) -> Any:
    default = transformers.AutoConfig.for_model(kind)
    special = {name: value for name, value in SPECIAL.items() if hasattr(default, name)}
    return type(default)(**_without_defaults(_smaller(default) | special | OWN.get(kind, {})))


def _without_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_defaults(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not DEFAULT
    }


def _smaller(config: Any) -> dict[str, Any]:
    """Settings of a config like this one that make a tiny network; one entry per layer for each kind of layer."""
    smaller: dict[str, Any] = {}
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for name, value in values.items():
        if isinstance(value, transformers.PreTrainedConfig):
            smaller[name] = {"model_type": value.model_type} | _smaller(value) | OWN.get(value.model_type, {})
        elif name == "vocab_size" or (value is None and name in ("head_dim", "num_key_value_heads")):
            smaller[name] = _size(name)
        elif isinstance(value, int) and not isinstance(value, bool):
            if name.endswith(("token_id", "token_index")):
                if value >= TOKENS:  # not among the tokens of the trial
                    smaller[name] = 200 + zlib.crc32(name.encode()) % 50
            elif (size := _size(name) or value) < value:
                smaller[name] = size
    if values.get("num_key_value_heads") == values.get("num_attention_heads"):
        smaller["num_key_value_heads"] = smaller.get("num_attention_heads", values.get("num_attention_heads"))
    depth = next((values[name] for name in LAYERS if isinstance(values.get(name), int)), 0)
    by_layer = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == depth > 1}
    if by_layer:
        rows = list(zip(*by_layer.values(), strict=True))
        first = [place for place, row in enumerate(rows) if row not in rows[:place]][:4]
        first = first if len(first) > 1 else [0, 1]
        smaller |= {name: [value[place] for place in first] for name, value in by_layer.items()}
        smaller |= {name: len(first) for name in LAYERS if name in values}
    return {name: value for name, value in smaller.items() if value is not None}


def _size(name: str) -> int | None:
    return next((size for pattern, size in SIZES.items() if re.fullmatch(pattern, name)), None)


def build(kind: str) -> nn.Module:
    config, (auto, _) = tiny_config(kind), class_of(kind) or ("", "")
    make = getattr(transformers, auto).from_config
    with torch.device("meta"):
        size = sum(one.numel() for one in make(copy.deepcopy(config)).parameters())
    if size > LARGEST:
        raise ValueError(f"it has {size / 1e6:.0f} million parameters with small settings")
    torch.manual_seed(0)
    network: nn.Module = make(config)
    enlarge(network)
    return network.eval()


@torch.no_grad()
def enlarge(network: nn.Module) -> None:
    """Random weights so large that attention is far from uniform, and biases and sinks other than zero."""
    for name, weight in network.named_parameters():
        if weight.dim() >= 2:
            weight.normal_(0, 1.0 if "emb" in name or "wte" in name else 1.2 * max(weight.shape[-2:]) ** -0.5)
        elif "norm" not in name.lower() and "ln" not in name.lower():
            weight.add_(0.2 * torch.randn_like(weight))


def inputs_of(network: Any, padded: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(2, 150, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids}
    pair = network.config.is_encoder_decoder
    if padded:
        causal = any(getattr(part, "is_causal", False) for part in network.modules()) and not pair
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][0, slice(0, 5) if causal else slice(-5, None)] = 0
    return inputs | ({"decoder_input_ids": ids[:, :11].flip(0)} if pair else {})


def output_of(network: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Logits or states of the tokens that are no padding."""
    result = network(**inputs)
    main = next(getattr(result, name) for name in ("logits", "last_hidden_state") if hasattr(result, name))
    kept = inputs.get("attention_mask")
    return main if kept is None or kept.shape != main.shape[:2] else main[kept.bool()]


def difference(wanted: Tensor, got: Tensor) -> float:
    finite = wanted.isfinite()
    return float((wanted - got)[finite].abs().max() / wanted[finite].std())


def eager(network: Any) -> Any:
    """A copy that computes its attention eagerly."""
    twin = copy.deepcopy(network)
    twin.set_attn_implementation("eager")
    return twin


@contextmanager
def softmax_replaced(by: Callable[[Tensor], Tensor], calls: list[str]) -> Iterator[None]:
    """Changes eager attention functions only: routers of experts and others keep theirs."""
    owners = [(owner, "softmax", owner.softmax) for owner in (nn.functional, torch)]

    def replaced(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def softmax(logits: Tensor, *args: Any, **options: Any) -> Tensor:
            code = sys._getframe(1).f_code
            # A sink that scales the output by the sum of exponentials is another rule with other weights.
            if "eager" not in code.co_name or "logsumexp" in code.co_names:
                return own(logits, *args, **options)
            calls.append(code.co_name)
            return by(logits)

        return softmax

    try:
        for owner, name, own in owners:
            setattr(owner, name, replaced(own))
        yield
    finally:
        for owner, name, own in owners:
            setattr(owner, name, own)


def own_weights(network: Any, inputs: dict[str, Tensor], names: set[str]) -> dict[tuple[str, int], Tensor]:
    """What attention modules return beside their outputs when they compute eagerly, by path and call."""
    weights: dict[str, list[Tensor]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(_part: nn.Module, _args: Any, output: Any) -> None:
            shown = (
                [one for one in output if isinstance(one, Tensor) and one.dim() == 4]
                if isinstance(output, tuple)
                else []
            )
            weights.setdefault(name, []).extend(shown[-1:])

        return hook

    for name, part in network.named_modules():
        if name in names:
            part.register_forward_hook(note(name))
    network(**inputs)
    return {(name, place): one for name, several in weights.items() for place, one in enumerate(several)}


@torch.no_grad()
def tried(kind: str) -> Row:
    """Build the model type and compare; an error that is not an AbbeError, or a difference, is a defect and raised."""
    auto, name = class_of(kind) or ("", "")
    if not hasattr(transformers, name):
        return Row(kind, name, NOT_BUILT, "transformers does not export it")
    if auto == "AutoModel" and (reads := getattr(transformers, name).main_input_name) != "input_ids":
        return Row(kind, name, NOT_TEXT, f"reads {reads}")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            network: Any = build(kind)
            name = type(network).__name__
        except Exception as error:
            return Row(kind, name, NOT_BUILT, _line(error))
        try:
            return Row(kind, name, MEASURED, compared=tuple(_compared(network)))
        except abbe.AbbeError as error:
            needs = "fails on tokens alone" in str(error) and auto == "AutoModel"
            return Row(kind, name, NOT_TEXT if needs else REFUSED, _line(error).removeprefix(f"{name}: "))


def _compared(network: Any) -> Iterator[str]:
    from entmax import entmax15

    run = abbe.diagnose(
        network, _text(), tokenizer=_tokenizer(), lengths=LENGTH, windows=2, queries=8, sizes=(1, 3), resamples=20,
        temperatures=(), progress=False,
    )  # fmt: skip
    assert run.table.height
    plain = inputs_of(network)
    weights: dict[tuple[str, int], Tensor] = {}

    def note(call: abbe.models.AttentionCall) -> None:
        weights[call.name, sum(name == call.name for name, _ in weights)] = _shares(call.weights())

    with abbe.tap(network) as tap:
        tap.check(**plain)
        tap.listen(note)
        output_of(network, plain)
    own = own_weights(eager(network), plain, {name for name, _ in weights})
    shared = [key for key in own if key in weights and own[key].shape == weights[key].shape]
    for key in shared:
        _close(f"weights of {key}", _shares(own[key]), weights[key], 1e-4)
    if shared:
        yield "weights"
    for padded in (False, True):
        inputs = inputs_of(network, padded)
        wanted = output_of(network, inputs)
        with abbe.swap(network, "softmax") as swapped:
            _apart(f"softmax swapped in, padded={padded}", wanted, output_of(network, inputs))
            swapped.check(**inputs)
    yield "softmax"
    calls: list[str] = []
    with softmax_replaced(lambda logits: entmax15(logits.float(), dim=-1), calls):
        wanted = output_of(eager(network), plain)
    with abbe.swap(network, "entmax:alpha=1.5"):
        got = output_of(network, plain)
    if len(calls) == len(weights):
        _apart("entmax swapped in", wanted, got)
        yield "entmax"


def _shares(weights: Tensor) -> Tensor:
    """Weights as shares of what the keys get: some models return them without the share of their sink."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


def _close(what: str, wanted: Tensor, got: Tensor, limit: float) -> None:
    if not (error := float((wanted - got).abs().max())) <= limit:
        raise ArithmeticError(f"{what} differ by {error:.2g}")


def _apart(what: str, wanted: Tensor, got: Tensor) -> None:
    if not (error := difference(wanted, got)) <= LIMIT:
        raise ArithmeticError(f"{what}: outputs differ by {error:.2g} of their standard deviation")


def _line(error: Exception) -> str:
    line = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
    return line.partition("ValueError: ")[2] or line


def _text() -> abbe.Text:
    return abbe.Text("prose", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(60)))


def _tokenizer() -> Any:
    from tiny_models import byte_tokenizer

    return byte_tokenizer(160)


def _work(pipe: Any) -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    while kind := pipe.recv():
        try:
            row = tried(kind)
        except Exception as error:
            row = Row(kind, (class_of(kind) or ("", ""))[1], WRONG, f"{type(error).__name__}: {_line(error)}")
        pipe.send(asdict(row))


def rows_of(kinds: list[str]) -> Iterator[Row]:
    """One process tries one model type after another; one that hangs or dies is replaced."""
    process: Any = None
    for kind in kinds:
        if process is None:
            pipe, other = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=_work, args=(other,), daemon=True)
            process.start()
        pipe.send(kind)
        if pipe.poll(SECONDS):
            yield Row(**pipe.recv())
        else:
            process.kill()
            process = None
            yield Row(kind, (class_of(kind) or ("", ""))[1], NOT_BUILT, f"it takes more than {SECONDS} seconds")
    if process is not None:
        pipe.send("")
        process.join()


HEADINGS = {
    MEASURED: "Measured",
    REFUSED: "Refused, and why",
    NOT_TEXT: "Not models of text",
    NOT_BUILT: "Not built here, and why",
}


def page(rows: list[Row]) -> str:
    parts = [_HEAD.format(version=transformers.__version__, count=len(rows))]
    for outcome, heading in HEADINGS.items():
        own = [row for row in rows if row.outcome == outcome]
        column = "compared" if outcome == MEASURED else "why"
        lines = [
            f"| `{row.model_type}` | {row.network} | {', '.join(row.compared) or _cell(row.reason)} |" for row in own
        ]
        parts.append(
            "\n".join([f"## {heading} ({len(own)})\n", f"| model type | network | {column} |", "|---|---|---|", *lines])
        )
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([|<*\[])", r"\\\1", text)


def read_page(text: str) -> list[Row]:
    """The rows of the page."""
    rows, outcome = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            outcome = next(key for key, heading in HEADINGS.items() if line.startswith(f"## {heading} ("))
        elif line.startswith("| `"):
            kind, network, last = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            compared = tuple(last.split(", ")) if outcome == MEASURED else ()
            reason = "" if compared else re.sub(r"\\(.)", r"\1", last)
            rows.append(Row(kind.strip("`"), network, outcome, reason, compared))
    return rows


_HEAD = """# Architectures

Which models of transformers abbe measures. `python scripts/architectures.py` writes this page: it builds a tiny random model
of each of {count} model types of transformers {version}, all language models and all others whose file names the attention
interface. Each one that reads text is diagnosed, tapped and swapped. What is measured is compared with independent numbers:

- **weights** of the tap with those that the model returns when it computes eagerly;
- logits with **softmax** swapped in with the model's own, also for padded texts;
- logits with **entmax** swapped in with those of the model whose eager function calls the package entmax.

What is refused is refused by the line beside it, before anything is measured."""  # noqa: E501


def main(chosen: list[str]) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "models"))  # for its tokenizer
    rows = []
    for row in rows_of(chosen or model_types()):
        rows.append(row)
        print(row.model_type, row.outcome, row.reason or ", ".join(row.compared), sep=": ", flush=True)
    if wrong := [row.model_type for row in rows if row.outcome == WRONG]:
        sys.exit(f"raw errors or silent differences: {', '.join(wrong)}")
    if not chosen:
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
