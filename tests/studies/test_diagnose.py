"""diagnose: the whole way from text to table, against the straightforward way; resuming; bad input."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
from plain import plain_diagnosis
from polars.testing import assert_frame_equal

import abbe
from abbe.models import LoadedModel, wrap
from abbe.results import SCHEMA
from abbe.studies import _diagnose, _window
from abbe.studies._folder import RunFolder

TEXT = abbe.Text("prose", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(400)))
QUICK: dict[str, Any] = {"windows": 3, "queries": 8, "resamples": 50, "grid": (1, 2, 5), "progress": False}
BUILDERS = {
    "gpt2": tiny_models.gpt2,
    "llama": tiny_models.llama,
    "mistral": tiny_models.mistral,
    "gemma2": tiny_models.gemma2,
    "gpt-oss": tiny_models.gpt_oss,
    "bert": tiny_models.bert,
    "t5": tiny_models.t5,
}


def model(family: str = "gpt2") -> LoadedModel:
    return wrap(BUILDERS[family](vocab_size=256), abbe.load("embedded").tokenizer, f"tiny {family}")


def run(family: str = "gpt2", **options: Any) -> abbe.Run:
    return abbe.diagnose(model(family), TEXT, **({"lengths": [16, 40]} | QUICK | options))


def pick(heads: pl.DataFrame, measure: str, length: int | None) -> pl.DataFrame:
    of_length = pl.col("length").is_null() if length is None else pl.col("length") == length
    return heads.filter((pl.col("measure") == measure) & of_length)


# Against the straightforward way


@pytest.fixture(scope="module")
def compared() -> tuple[pl.DataFrame, list[dict[str, torch.Tensor]]]:
    """All queries of two windows, and the same by loops over an eager model."""
    tiny = model()
    found = abbe.diagnose(tiny, TEXT, lengths=[40], **(QUICK | {"queries": "all", "windows": 2}))
    twin = tiny_models.eager_twin(tiny.network)
    cut = abbe.windows(TEXT, [40], 2, 0, tokenizer=tiny.tokenizer)
    return found.heads, [plain_diagnosis(twin, one.tokens, (1, 2, 5), range(40)) for one in cut]


ROWS = ["entropy", "effective_tokens", "max_weight", "sink_mass"]
SETS = [
    *("top_mass", "selected_divergence", "distance", "distance_per_token", "net_distance"),
    *("separability", "recall", "precision", "f_score", "separability_cosine", "precision_cosine"),
]


@pytest.mark.parametrize("measure", ROWS)
def test_measures_of_rows(compared: Any, measure: str) -> None:
    heads, plain = compared
    found = pick(heads, measure, 40).sort("layer", "head")["value"].to_list()
    want = torch.stack([one[measure] for one in plain]).double().mean(0).flatten()
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("measure", SETS)
def test_measures_of_sets(compared: Any, measure: str) -> None:
    heads, plain = compared
    found = pick(heads, measure, 40).sort("layer", "head", "n")["value"].to_list()
    want = torch.stack([one[measure] for one in plain]).double().mean(0).flatten()
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), want, rtol=2e-4, atol=1e-5)


def test_worst_sensitivity(compared: Any) -> None:
    """Thirty steps of power iteration come from below, and near."""
    heads, plain = compared
    found = torch.tensor(pick(heads, "sensitivity_worst_mean", 40).sort("layer", "head")["value"].to_list()).double()
    want = torch.stack([one["sensitivity_worst_mean"] for one in plain]).double().mean(0).flatten()
    assert bool((found > want - 1e-6).all())
    assert bool((found < 1.02 * want + 1e-6).all())


def test_random_control_has_the_mean_of_another_random_control(compared: Any) -> None:
    """Averaged over all heads, queries and windows: two draws of the same expectation."""
    heads, plain = compared
    for i, size in enumerate((1, 2, 5)):
        found = pick(heads, "distance", 40).filter(pl.col("n") == size)["control"].mean()
        want = torch.stack([one["distance/control"] for one in plain])[..., i].mean()
        assert found == pytest.approx(float(want), rel=0.15)


# The table


@pytest.mark.parametrize("family", BUILDERS)
def test_every_family_gives_a_whole_table(family: str) -> None:
    found = run(family)
    heads = found.heads
    assert dict(heads.schema) == SCHEMA
    assert heads["model"].unique().to_list() == [f"tiny {family}"]
    assert found.manifest["self_check"]["error"] < 1e-4
    layers = found.manifest["layers"]
    assert len(layers) == {"gemma2": 3, "t5": 6}.get(family, 2)
    per_head = heads.filter(pl.col("head").is_not_null())
    assert per_head.select("layer", "head").unique().height == 4 * len(layers)
    assert not heads["value"].is_nan().any()
    assert heads["value"].is_not_null().sum() > 0.95 * len(heads)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_no_value_is_above_its_limit(family: str) -> None:
    found = run(family, temperatures=(1.0, 0.25)).heads.filter(pl.col("limit").is_not_null())
    over = found.filter(
        (pl.col("value") > pl.col("limit") * (1 + 1e-5) + 1e-6) & (pl.col("measure") != "decay_exponent")
    )
    assert over.is_empty(), over
    limited = {"entropy", "effective_tokens", "max_weight", "logit_range", "top_mass", "distance", "net_distance"}
    assert limited | {"sensitivity_worst_max@T=0.25"} <= set(found["measure"])


def test_intervals_hold_the_value_and_one_window_has_none() -> None:
    several = run().heads.filter(pl.col("low").is_not_null() & pl.col("layer").is_not_null())
    mean = several.filter(~pl.col("measure").str.contains("_max"))
    assert mean.filter((pl.col("low") > pl.col("value") + 1e-9) | (pl.col("high") < pl.col("value") - 1e-9)).is_empty()
    entropy = pick(several, "entropy", 40)
    assert (entropy["high"] > entropy["low"]).all()
    one = run(windows=1, lengths=[40]).heads
    assert one["low"].is_null().all()
    assert one["high"].is_null().all()


def test_sinks_take_what_the_weights_leave() -> None:
    heads = run("gpt-oss").heads
    taken = pick(heads, "learned_sink_mass", 40)["value"]
    assert taken.min() > 0.01
    assert taken.max() < 1
    assert pick(heads, "entropy_floor", 40).is_empty()  # a bound for softmax without a sink


def test_another_normalizer() -> None:
    plain, sparse, same = run().heads, run(normalizer="sparsemax").heads, run(normalizer="softmax").heads
    assert pick(sparse, "entropy", 40)["value"].mean() < 0.5 * pick(plain, "entropy", 40)["value"].mean()
    assert_frame_equal(plain, same)
    with_sinks = run("gpt-oss", normalizer="entmax:alpha=1.5")
    assert "learned sinks: entmax:alpha=1.5 replaces softmax together with its sink" in with_sinks.manifest["skipped"]
    assert pick(with_sinks.heads, "learned_sink_mass", 40).is_empty()


def test_encoder_rows_see_all_keys() -> None:
    heads = run("bert").heads
    assert pick(heads, "effective_tokens", 40)["limit"].unique().to_list() == [40.0]
    decoder = run().heads
    assert pick(decoder, "effective_tokens", 40)["limit"].max() < 40


def test_a_window_of_keys_bounds_the_effective_number() -> None:
    """Mistral's queries see 5 keys."""
    heads = run("mistral").heads
    assert pick(heads, "effective_tokens", 40)["limit"].max() <= 5
    assert pick(heads, "distance", 40).filter(pl.col("n") == 5).is_empty()


def test_sizes_that_no_query_has_are_listed() -> None:
    found = run(lengths=[4], grid=(1, 2, 8, 16))
    assert sorted(pick(found.heads, "distance", 4)["n"].unique()) == [1, 2]
    assert any("length 4: sets of 8, 16" in why for why in found.manifest["skipped"])


def test_windows_without_long_rows_do_not_stop_the_table() -> None:
    """With few queries, some windows (and resamples of them) have no query that sees more than N keys."""
    for seed in range(12):
        found = run(lengths=[40], windows=2, queries=4, grid=(1, 35), seed=seed).heads
        assert not pick(found, "ks_statistic", 40).filter(pl.col("n") == 1).is_empty()


def test_test_of_small_sets_does_not_depend_on_the_other_sizes() -> None:
    """Half of Gemma-2's layers see 5 keys only."""
    some, more = (pick(run("gemma2", grid=grid).heads, "ks_statistic", 40) for grid in ((1, 2), (1, 2, 20)))
    assert some["value"].to_list() == more.filter(pl.col("n") <= 2)["value"].to_list()


def test_sizes_far_beyond_the_window_cost_nothing() -> None:
    found = run(lengths=[16], grid=(1, 2, 10**9)).heads
    assert found["n"].max() == 2


def test_decay_exponent_of_uniform_attention_is_one() -> None:
    tiny = model()
    for block in tiny.network.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn.weight.data[:, :32] = 0
        block.attn.c_attn.bias.data[:32] = 0
    heads = abbe.diagnose(tiny, TEXT, lengths=[16, 40], **QUICK).heads
    found = pick(heads, "decay_exponent", None)
    assert found["value"].to_list() == pytest.approx([1.0] * 8, abs=1e-5)
    assert pick(heads, "entropy", 40)["value"].to_list() == pytest.approx(pick(heads, "entropy", 40)["limit"].to_list())


# Vectors


def test_output_vectors_have_the_distances_of_projected_values() -> None:
    from abbe.models import tap
    from abbe.studies._vectors import token_vectors

    for family in ("gpt2", "llama", "bert"):
        tiny = model(family)
        ids = torch.randint(2, 256, (1, 12), generator=torch.Generator().manual_seed(0))
        calls: list[Any] = []
        with torch.no_grad(), tap(tiny.network) as t:
            t.check(input_ids=ids)
            t.listen(calls.append)
            tiny.network(input_ids=ids)
        small = token_vectors("output", calls[0], tiny.network, ids)
        shared = calls[0].value[0].repeat_interleave(4 // calls[0].value.shape[1], 0)
        full = torch.einsum("hkd,hdo->hko", shared, calls[0].value_to_output())
        assert small.shape == (4, 12, 8)
        torch.testing.assert_close(torch.cdist(small, small), torch.cdist(full, full), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(small.norm(dim=-1), full.norm(dim=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vectors", ["embedding", "hidden", "output"])
def test_vectors_change_the_geometry_only(vectors: str) -> None:
    plain, other = run().heads, run(vectors=vectors).heads
    same = pl.col("measure").is_in(["entropy", "top_mass", "sensitivity_worst_mean", "selected_divergence"])
    assert_frame_equal(plain.filter(same), other.filter(same))
    assert pick(plain, "distance", 40)["value"].to_list() != pick(other, "distance", 40)["value"].to_list()


def test_embeddings_have_length_one() -> None:
    """N = 1: the sum is a token of that length, times its weight."""
    heads = run(vectors="embedding", grid=(1,), lengths=[16]).heads
    assert pick(heads, "net_distance", 16)["value"].max() <= 2


def test_cross_attention_has_no_embeddings_and_says_so() -> None:
    found = run("t5", vectors="embedding")
    crossing = [why for why in found.manifest["skipped"] if "cross attention" in why]
    assert len(crossing) == 2
    assert found.heads["layer"].drop_nulls().n_unique() == 4


# Queries and blocks


@pytest.mark.parametrize("block", [1, 700])
def test_blocks_of_queries_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(queries=13).heads
    monkeypatch.setattr(_window, "BLOCK", block)
    assert_frame_equal(run(queries=13).heads, whole, rel_tol=1e-5, abs_tol=1e-6)


def test_one_query_from_each_stretch() -> None:
    settings = _diagnose.settings_for(
        None, lengths=[100], windows=1, queries=8, grid=None, vectors="value", normalizer=None, temperatures=(),
        seed=0, level=0.95, resamples=10,
    )  # fmt: skip
    seen = set()
    for index in range(40):
        window = abbe.Window(100, index, torch.zeros(100, dtype=torch.int64), 0, 1)
        positions = _window.query_positions(100, settings, window)
        assert all(100 * i // 8 <= place < 100 * (i + 1) // 8 for i, place in enumerate(positions.tolist()))
        assert positions.tolist() == _window.query_positions(100, settings, window).tolist()
        seen |= set(positions.tolist())
    assert len(seen) > 90
    assert _window.query_positions(5, settings, window).tolist() == [0, 1, 2, 3, 4]


def test_seed_decides_and_lengths_do_not_disturb_each_other() -> None:
    assert_frame_equal(run().heads, run().heads)
    assert not run(seed=1).heads.equals(run().heads)
    together, alone = run().heads, run(lengths=[40]).heads
    of_length = pl.col("length") == 40
    assert_frame_equal(together.filter(of_length), alone.filter(of_length))


# Resuming


class Stop(Exception):
    pass


def test_stopped_run_goes_on_and_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(folder=tmp_path / "whole")
    keep, kept = RunFolder.keep, []

    def stop_after_two(self: RunFolder, window: abbe.Window, *rest: Any) -> None:
        if len(kept) == 2:
            raise Stop
        kept.append((window.length, window.index))
        keep(self, window, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep", stop_after_two)
        with pytest.raises(Stop):
            run(folder=tmp_path / "stopped")
    with pytest.raises(abbe.AbbeError, match="not finished"):
        abbe.open_run(tmp_path / "stopped")
    measured: list[Any] = []

    def count(self: RunFolder, window: abbe.Window, *rest: Any) -> None:
        measured.append((window.length, window.index))
        keep(self, window, *rest)

    monkeypatch.setattr(RunFolder, "keep", count)
    again = run(folder=tmp_path / "stopped")
    assert len(measured) == 4
    assert not set(measured) & set(kept)
    assert again.heads.equals(whole.heads, null_equal=True)
    assert abbe.open_run(tmp_path / "stopped").heads.equals(abbe.open_run(tmp_path / "whole").heads)
    finished = run(folder=tmp_path / "stopped")
    assert len(measured) == 4
    assert finished.heads.equals(whole.heads)


def test_damaged_window_is_measured_again(tmp_path: Path) -> None:
    whole = run(folder=tmp_path)
    (tmp_path / "windows" / "16-1.safetensors").write_bytes(b"cut off")
    assert run(folder=tmp_path).heads.equals(whole.heads)


def test_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(folder=tmp_path, lengths=[16])
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: seed\): name a new folder"):
        run(folder=tmp_path, lengths=[16], seed=1)
    with pytest.raises(abbe.AbbeError, match=r"different: model"):
        run("llama", folder=tmp_path, lengths=[16])
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


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
        loaded = wrap(tiny, abbe.load("embedded").tokenizer, "llama")
        options = {"lengths": [16], "folder": tmp_path} | QUICK
        if refused:
            with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: configuration\)"):
                abbe.diagnose(loaded, TEXT, **options)
        else:
            abbe.diagnose(loaded, TEXT, **options)


def test_malformed_manifest_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"identity": [1]}')
    with pytest.raises(abbe.AbbeError, match="holds another run"):
        run(folder=tmp_path)


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


def test_cost_and_self_check_are_printed_first(capsys: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny gpt2: self-check error" in shown.err
    assert "6 windows, 168 tokens: about" in shown.err


def test_quiet_run_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run()
    assert capfd.readouterr() == ("", "")


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
        ({"queries": "some"}, "or 'all'"),
        ({"windows": 0}, "count is 0"),
        ({"grid": (2, 1)}, "grid must hold whole numbers >= 1 in rising order"),
        ({"grid": ()}, "grid must hold"),
        ({"temperatures": (0.0,)}, "temperatures must be numbers > 0"),
        ({"temperatures": (1.0, 1.0)}, "temperatures has duplicates"),
        ({"normalizer": "entmx"}, "Did you mean 'entmax'"),
        ({"level": 1.0}, "level is 1.0"),
        ({"resamples": 0}, "resamples is 0"),
        ({"seed": -1}, "seed is -1"),
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


def test_model_without_a_name() -> None:
    with pytest.raises(abbe.AbbeError, match="the model has no name"):
        abbe.diagnose(" ", TEXT, **QUICK)


def test_network_without_tokenizer() -> None:
    with pytest.raises(abbe.AbbeError, match="give tokenizer"):
        abbe.diagnose(tiny_models.gpt2(), TEXT, **QUICK)


def test_not_a_transformers_model() -> None:
    with pytest.raises(abbe.AbbeError, match="Linear is no transformers model"):
        abbe.diagnose(torch.nn.Linear(2, 2), TEXT, tokenizer=abbe.load("embedded").tokenizer)


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
    from abbe.models import _tap

    monkeypatch.setattr(_tap, "own_attention", lambda call: torch.zeros_like(call.query).transpose(1, 2).contiguous())
    with pytest.raises(abbe.AbbeError, match="self-check failed"):
        run(folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
