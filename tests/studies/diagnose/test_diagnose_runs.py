"""diagnose: run folders and resuming, the manifest, what is shown, bad input."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from tiny_runs import QUICK, TEXT, model, run

import abbe
from abbe.models import wrap
from abbe.runs import parts as _parts

# Resuming


def test_a_folder_of_a_version_with_other_measures_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_parts, "_MEASURES", "fewer")
        run(folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: measures\): name a new folder"):
        run(folder=tmp_path)


def test_resumed_run_remembers_reasons_and_times(tmp_path: Path) -> None:
    first = run("t5", vectors="hidden", folder=tmp_path).manifest
    again = run("t5", vectors="hidden", folder=tmp_path).manifest
    assert len(first["skipped"]) == 2
    assert again["skipped"] == first["skipped"]
    assert again["seconds"]["windows"] == first["seconds"]["windows"]


def test_same_weights_with_other_settings_are_another_model(tmp_path: Path) -> None:
    """The base of the rotary positions is no parameter."""
    for theta, refused in ((1e4, False), (1e4, False), (10.0, True)):
        tiny = tiny_models.llama(vocab_size=256, rope_parameters={"rope_type": "default", "rope_theta": theta})
        loaded = wrap(tiny, tiny_models.byte_tokenizer(), "llama")
        options = {"lengths": [16], "folder": tmp_path} | QUICK
        if refused:
            with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: configuration\)"):
                abbe.diagnose(loaded, TEXT, **options)
        else:
            abbe.diagnose(loaded, TEXT, **options)


def test_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(abbe.AbbeError, match="not empty and holds no run"):
        run(folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match="is a file: name a folder"):
        run(folder=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# The manifest, and what is shown


def test_manifest_says_all(tmp_path: Path) -> None:
    manifest = run(folder=tmp_path).manifest
    assert manifest == abbe.open_run(tmp_path).manifest
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["model"]["fingerprint"] == model().fingerprint
    assert manifest["text"]["fingerprint"] == TEXT.fingerprint
    assert manifest["settings"]["seed"] == 0
    assert manifest["seconds"]["total"] > 0
    assert manifest["peak_extra_megabytes"] is None or manifest["peak_extra_megabytes"] >= 0
    spans = [(one["start"], one["end"]) for one in manifest["windows"] if one["length"] == 40]
    assert len(spans) == 3
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_model_is_left_as_it_was() -> None:
    tiny = model()
    before = tiny.network.config._attn_implementation  # type: ignore[union-attr]
    abbe.diagnose(tiny, TEXT, lengths=[16], **QUICK)
    assert tiny.network.config._attn_implementation == before  # type: ignore[union-attr]
    assert not any(module._forward_pre_hooks for module in tiny.network.modules())


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [80]}, "above the model's context of 64"),
        ({"lengths": []}, "must be a list of window lengths"),
        ({"vectors": "keys"}, "vectors is 'keys', but must be one of embedding, hidden, value, output"),
        ({"queries": 0}, "queries is 0, but must be a whole number >= 1, or 'all'"),
        ({"sizes": (2, 1)}, "sizes must hold whole numbers >= 1 in rising order"),
        ({"temperatures": (1.0, 1.0)}, "temperatures has duplicates"),
        ({"normalizer": "entmx"}, "Did you mean 'entmax'"),
        ({"seed": 10**23}, "but must be a whole number from 0"),
    ],
)
def test_bad_options_are_named_and_leave_nothing(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=message) as caught:
        run(folder=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        (abbe.Text("note", "too short"), "note has 9 tokens, too few"),
        ("no-such-file.txt", "no text file no-such-file.txt"),
    ],
)
def test_bad_text(text: Any, message: str) -> None:
    with pytest.raises(abbe.AbbeError, match=message):
        abbe.diagnose(model(), text, lengths=[16], **QUICK)


def test_network_without_tokenizer() -> None:
    with pytest.raises(abbe.AbbeError, match="give tokenizer"):
        abbe.diagnose(tiny_models.gpt2(), TEXT, **QUICK)


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    bloom = tiny_models.make("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4, vocab_size=256)
    with pytest.raises(abbe.AbbeError, match="unsupported: BloomForCausalLM"):
        abbe.diagnose(bloom, TEXT, lengths=[16], tokenizer=model().tokenizer, folder=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_nan_activations_are_named(tmp_path: Path) -> None:
    tiny = model()
    tiny.network.transformer.h[1].attn.c_attn.weight.data[0, 0] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(abbe.AbbeError, match=r"tiny gpt2: .*transformer\.h\.1\.attn"):
        abbe.diagnose(tiny, TEXT, lengths=[16], folder=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_failing_self_check_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = abbe.models.AttentionCall.weights
    monkeypatch.setattr(abbe.models.AttentionCall, "weights", lambda call, queries: 0 * weights(call, queries))
    with pytest.raises(abbe.AbbeError, match="self-check failed"):
        run(folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
