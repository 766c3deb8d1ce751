"""Loading: embedded, folders of every kind, the hub's cache; what is refused, and in which words."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from folders import IDS, change, refusal, save, weights
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers.utils import logging

from abbe import AbbeError
from abbe.models import load, swap

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SMALL = SHAPE | {"vocab_size": 256}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 256}


def make(architecture: str, **settings: Any) -> Any:
    """A small random network of a class of transformers."""
    kind = getattr(transformers, architecture)
    shape = T5 if "T5" in architecture else SMALL
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind(kind.config_class(**(shape | settings))).eval()


def output(network: Any) -> torch.Tensor:
    more = {"decoder_input_ids": IDS} if network.config.is_encoder_decoder else {}
    with torch.no_grad():
        out: torch.Tensor = network(input_ids=IDS, **more)[0]
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make("LlamaForCausalLM"), tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The small model's folder, to be damaged."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_the_fingerprint_is_the_hash_of_names_shapes_and_bytes(folder: Path) -> None:
    model = load(folder)
    digest = hashlib.sha256()
    for name in sorted(dict(model.network.named_parameters())):
        weight = model.network.get_parameter(name)
        digest.update(f"{name} {tuple(weight.shape)}\n".encode() + weight.numpy().tobytes())
    assert model.fingerprint == digest.hexdigest() == load(folder).fingerprint
    changed = load(folder)
    changed.network.get_parameter("model.norm.weight")[3] += 1e-6
    assert changed.fingerprint != model.fingerprint
    assert load(folder, dtype=torch.bfloat16).fingerprint != model.fingerprint


@pytest.mark.parametrize(
    ("architecture", "settings", "kind"),
    [
        ("LlamaForCausalLM", {}, "decoder"),
        ("GPT2LMHeadModel", {}, "decoder"),
        ("GPT2Model", {}, "decoder"),
        ("LlamaForSequenceClassification", {}, "decoder"),
        ("BertModel", {}, "encoder"),
        ("BertForMaskedLM", {}, "encoder"),
        ("BertForSequenceClassification", {}, "encoder"),
        ("BertLMHeadModel", {"is_decoder": True}, "decoder"),
        ("T5ForConditionalGeneration", {}, "encoder-decoder"),
        ("T5EncoderModel", {}, "encoder"),
    ],
)
def test_every_kind_loads_as_it_was_saved(
    tmp_path: Path, architecture: str, settings: dict[str, Any], kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    original = make(architecture, **settings)
    capfd.readouterr()
    model = load(save(original, tmp_path))
    assert model.kind == kind
    assert (model.name, model.source) == (str(tmp_path), str(tmp_path))
    assert type(model.network).__name__ in model.about
    # A head of another task is left away; the body must be the same.
    base = original.base_model if "Classification" in architecture else original
    torch.testing.assert_close(output(model.network), output(base), rtol=0, atol=0)
    assert not model.network.training
    assert "Loading" not in capfd.readouterr().err


def test_a_loaded_model_behaves_like_its_network(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    assert torch.equal(model(IDS).logits, model.network(IDS).logits)
    inputs = model.tokenizer("Hello", return_tensors="pt")
    ids = {"input_ids": inputs["input_ids"], "max_new_tokens": 5, "do_sample": False}
    plain = model.generate(**ids)
    assert torch.equal(plain, model.network.generate(**ids))  # type: ignore[operator]
    assert plain.shape == (1, 10)
    with swap(model, "topk:k=1"):
        torch.testing.assert_close(model(IDS).logits, model.network(IDS).logits)
        assert not torch.equal(model(IDS).logits, load(folder)(IDS).logits)
        assert model.generate(**ids).shape == (1, 10)
    assert torch.equal(model.generate(**ids), plain)
    encoder = load(save(make("BertModel"), tmp_path))
    with pytest.raises(AbbeError, match=r"cannot generate: BertModel does not predict the next token$"):
        encoder.generate(IDS)


def test_contexts(tmp_path: Path, folder: Path) -> None:
    assert load(folder).context == 2048
    assert load(save(make("T5ForConditionalGeneration"), tmp_path / "t5")).context is None
    roberta = make("RobertaForMaskedLM", max_position_embeddings=66, pad_token_id=1)
    model = load(save(roberta, tmp_path / "roberta"))
    assert model.context == 64
    longest = torch.full((1, 64), 5)
    assert model.network(input_ids=longest)[0].shape[1] == 64
    with pytest.raises((IndexError, RuntimeError)):
        model.network(input_ids=torch.full((1, 65), 5))


def test_loading_is_silent_and_settings_come_back(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.set_verbosity(logging.INFO)
    try:
        load(folder)
        refusal(folder.parent)
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
        assert not huggingface_hub.utils.are_progress_bars_disabled()
    finally:
        logging.set_verbosity_warning()


def test_a_user_who_hides_progress_bars_keeps_them_hidden(request: pytest.FixtureRequest) -> None:
    logging.disable_progress_bar()
    request.addfinalizer(logging.enable_progress_bar)
    load("embedded")
    assert not logging.is_progress_bar_enabled()
    assert huggingface_hub.utils.are_progress_bars_disabled()


class Bomb:
    """A pickle that leaves a trace when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_never_opened(copy: Path, name: str) -> None:
    torch.save(Bomb(copy / "exploded"), copy / name)
    assert load(copy).kind == "decoder"
    (copy / "model.safetensors").unlink()
    assert "a pickle" in refusal(copy)
    assert name in refusal(copy)
    assert not (copy / "exploded").exists()


def test_code_of_others_never_runs(copy: Path) -> None:
    (copy / "evil.py").write_text(f"open({str(copy / 'exploded')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    assert "cannot read the model" in refusal(change(copy, model_type="evil", auto_map=code))
    assert not (copy / "exploded").exists()


def test_missing_weights_are_not_drawn_at_random(copy: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    weights(copy, lambda stored: {key: weight for key, weight in stored.items() if key != name})
    assert f"1 are missing, such as {name}" in refusal(copy)


def test_a_missing_pooler_is_harmless_and_reproducible(tmp_path: Path) -> None:
    network = make("BertModel")
    weights(save(network, tmp_path), lambda stored: {key: one for key, one in stored.items() if "pooler" not in key})
    model = load(tmp_path)
    assert torch.equal(output(model.network), output(network))
    torch.manual_seed(99)
    assert load(tmp_path).fingerprint == model.fingerprint


def test_models_of_images_are_refused_by_name(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    save(transformers.ViTModel(config), tmp_path)
    assert "holds a ViTModel, which is not a text model" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" + bytes(99)), "cannot read the model"),
        (lambda folder: [(folder / f"tokenizer{end}.json").unlink() for end in ("", "_config")], "the tokenizer"),
    ],
)
def test_damaged_folders(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    assert message in refusal(copy)


def test_names_that_are_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path))
    assert refusal("smolm2") == "unknown model 'smolm2'. Did you mean 'smollm2'?"
    assert "Did you mean 'embedded'" in refusal("Embeded")
    assert "no folder './nowhere'" in refusal("./nowhere")
    assert "abbe knows embedded, smollm2" in refusal("a/b/c")
    assert "run `abbe pull smollm2`" in refusal("smollm2")
    (tmp_path / "weights.safetensors").touch()
    assert "is a file" in refusal(tmp_path / "weights.safetensors")
    assert "there is no file" in refusal("nowhere.gguf")
    for name in (tmp_path, "embedded"):
        assert "for hub ids only" in refusal(name, revision="main")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A hub that answers every question in the same way, and an empty cache."""
    answer: dict[str, Any] = {"status": 404, "code": "RepoNotFound", "asked": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer["asked"].append(self.path)
            self.send_response(answer["status"])
            self.send_header("X-Error-Code", answer["code"])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *parts: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield answer
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "not known to abbe, not a folder here, and not on the hub"),
        (403, "GatedRepo", "is gated on the hub"),
        (404, "RevisionNotFound", "has no revision 'v9' on the hub"),
    ],
)
def test_what_the_hub_answers(hub: dict[str, Any], status: int, code: str, message: str) -> None:
    hub |= {"status": status, "code": code}
    assert message in refusal("acme/small", revision="v9")
    assert any("acme/small" in path and "v9" in path for path in hub["asked"])


def test_only_a_hub_id_touches_the_network(hub: dict[str, Any], folder: Path) -> None:
    load("embedded")
    load(folder)
    refusal("smolm2")
    refusal("./nowhere")
    assert hub["asked"] == []


def in_the_cache(folder: Path, cache: Path, revision: str = "main") -> None:
    """Put a model where the hub library keeps the models that it has fetched."""
    commit = "0123456789" * 4
    repository = cache / "models--acme--small"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(commit)


def test_without_a_network_the_cache_is_used(
    hub: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refusal("acme/small")
    assert "not in the offline cache, and the hub cannot be reached" in message
    in_the_cache(folder, tmp_path / "hub", "v2")
    assert "at revision 'v1' is not a folder here" in refusal("acme/small", revision="v1")
    model = load("acme/small", revision="v2")
    assert (model.name, model.source) == ("acme/small", "acme/small@v2")
    assert model.fingerprint == load(folder).fingerprint


def test_a_snapshot_that_another_program_began_is_enough(
    hub: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub library refuses a snapshot that lacks files of its listing, such as a second vocabulary."""

    def refuse(*args: Any, **more: Any) -> str:
        raise LocalEntryNotFoundError("some of the files are not there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    assert "not in the offline cache" in refusal("acme/small")
    in_the_cache(folder, tmp_path / "hub")
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", partial(try_to_load_from_cache, cache_dir=tmp_path / "hub")
    )
    assert load("acme/small").fingerprint == load(folder).fingerprint


def test_offline_mode_asks_nobody(
    hub: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("acme/small")
    in_the_cache(folder, tmp_path / "hub")
    assert load("acme/small").fingerprint == load(folder).fingerprint
    assert hub["asked"] == []
