"""abbe.cost: what a study will take, from the shape of a model and rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_main

import abbe
from abbe.models import shape_of
from abbe.runs.cost import memory_of

LLAMA_70B = {"layers": 80, "heads": 64, "kv_heads": 8, "width": 8192, "mlp": 28672, "vocabulary": 128256}
SHAPE = ",".join(f"{name}={size}" for name, size in LLAMA_70B.items())
GPU = {"flops": 4e14, "bandwidth": 3e12, "dtype": "bfloat16"}
DEVICE = {"flops": 5e10, "bandwidth": 1e10}


def test_a_shape_without_weights_is_that_of_the_model() -> None:
    loaded = abbe.load("embedded")
    shape = abbe.cost("embedded", lengths=64, **DEVICE).shape
    assert shape == shape_of(loaded.network, loaded.kind) == abbe.cost(loaded, lengths=64, **DEVICE).shape
    assert shape.parameters == sum(one.numel() for one in loaded.network.parameters())


def test_memory_is_that_of_the_longest_window() -> None:
    needed = memory_of(abbe.load("embedded"), 1024, 64, warm=True)
    costs = abbe.cost("embedded", lengths=[64, 1024], **DEVICE)
    assert costs.megabytes == needed.peak / 1e6 == costs.table["extra_bytes"].max() / 1e6


def test_seconds_of_a_window_are_those_of_the_rates() -> None:
    costs = abbe.cost("embedded", lengths=256, windows=3, queries=16, **DEVICE)
    linear, layers, heads, width, head_width = 4_718_592, 6, 8, 256, 32
    row, rates = costs.table.row(0, named=True), costs.rates
    block, key = rates.measured_block, (9200 + 1436 * head_width) / 1e10
    assert (rates.layer, block) == pytest.approx((30e-5, (2600 + 1275 * heads) * 1e-5))
    assert row["pass_seconds"] == pytest.approx(
        layers * 30e-5 + 2 * 256 * linear / 5e10 + 2 * 256**2 * width * layers / 5e10
    )
    assert row["measure_seconds"] == pytest.approx(layers * (block + 16 * heads * 256 * key))
    by_query = replace(rates, measured_query=6e-6).of_measures(costs.shape, 256, 16)  # 0 for a described device
    assert by_query == pytest.approx(row["measure_seconds"] + layers * 16 * heads * 6e-6)
    assert row["seconds"] == pytest.approx(3 * (row["pass_seconds"] + row["measure_seconds"])) == costs.seconds
    assert row["seconds_per_head"] * layers * heads == pytest.approx(row["seconds_per_token"] * 256)
    of_pass = costs.formula()["pass"]
    assert of_pass[0] + 256 * of_pass[1] + 256**2 * of_pass[2] == pytest.approx(row["pass_seconds"])
    measures = replace(costs, rates=replace(rates, measured_query=6e-6)).formula()["measures"]
    assert measures[0] + 16 * measures[1] + 16 * 256 * measures[2] == pytest.approx(by_query)


def test_a_pass_grows_from_linear_to_quadratic() -> None:
    described = {"flops": 1e12, "bandwidth": 1e30, "study": "pass"}
    short, long = abbe.cost(LLAMA_70B, lengths=[1000, 1_000_000], **described).table["exponent"]
    assert short == pytest.approx(1, abs=0.02)
    assert 1.8 < long < 2


def test_a_mixture_of_experts_counts_the_experts_that_a_token_meets(tmp_path: Path) -> None:
    import transformers

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.MixtralConfig(**sizes, intermediate_size=128, num_local_experts=8, num_experts_per_tok=2)
    config.save_pretrained(tmp_path)
    shape = abbe.cost(tmp_path / "config.json", lengths=64, **DEVICE).shape
    assert shape.linear == 2 * (4 * 64 * 64 + 2 * 3 * 64 * 128 + 8 * 64)


def test_70_billion_parameters_at_128k_tokens_on_8_devices() -> None:
    costs = abbe.cost(LLAMA_70B, lengths=131072, windows=1, devices=8, **GPU)
    row = costs.table.row(0, named=True)
    assert costs.shape.parameters == 70_553_706_496
    assert costs.weights == 2 * costs.shape.parameters
    assert row["pass_seconds"] == pytest.approx(101, rel=0.02)  # 4.0e16 operations at 4e14 per second
    assert row["device_bytes"] == pytest.approx(costs.weights / 8 + row["extra_bytes"])
    assert str(costs).startswith("Llama shape of 70.6 B parameters: 1 window, 131,072 tokens: about ")
    assert "in one copy of 8 devices with 62 GB on each" in str(costs)


def test_as_many_copies_as_fit_share_the_windows() -> None:
    one = abbe.cost(LLAMA_70B, lengths=4096, devices=8, **GPU)
    copies = abbe.cost(LLAMA_70B, lengths=4096, devices=8, memory=80e9, **GPU)
    assert (copies.devices, copies.copies) == (2, 4)
    assert copies.seconds == pytest.approx(one.seconds / 4)


def test_reports_measure_at_more_temperatures_and_lengths() -> None:
    assert abbe.cost("embedded", study="report", **DEVICE).table["length"].to_list() == [64, 128, 256, 512, 1024]
    assert abbe.cost("embedded", **DEVICE).table["length"].to_list() == [64, 256, 1024]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such"}, "there is no folder 'no/such', and no such model in the hub's cache"),
        ({"model": "a.gguf"}, "a.gguf has no config.json"),
        ({"model": ""}, "the model has no name"),
        ({"model": 3}, "the model is 3, but must be a name"),
        ({"model": {"layers": 2}}, "shape lacks heads, width, mlp, vocabulary"),
        ({"model": LLAMA_70B | {"experts": 2}}, "shape has no 'experts'"),
        ({"model": LLAMA_70B | {"layers": 0}}, "layers is 0, but must be a whole number >= 1"),
        ({"model": LLAMA_70B | {"kv_heads": 7}}, "64 heads, which 7 kv_heads do not divide"),
        ({"model": LLAMA_70B | {"heads": 24}}, "which 24 heads do not divide"),
        ({"lengths": 2000}, "window length 2000 is above the model's context of 1024 tokens"),
        ({"lengths": [1]}, "but must be a list of window lengths >= 2"),
        ({"study": "reprot"}, "study is 'reprot', but must be one of diagnose, report, pass"),
        ({"dtype": "int8"}, "dtype is 'int8', but must be one of float32, bfloat16, float16"),
        ({"windows": 0}, "windows is 0"),
        ({"queries": 0}, "queries is 0"),
        ({"flops": 1e12}, "give bandwidth, too"),
        ({"bandwidth": 1e12}, "give flops, too"),
        ({"devices": 2}, "give flops and bandwidth, too"),
        ({"flops": -1.0, "bandwidth": 1e12}, "flops must be numbers > 0"),
        ({"flops": 1e12, "bandwidth": 1e12, "devices": 0}, "devices is 0"),
        (
            {"model": LLAMA_70B, "lengths": 64, **GPU, "memory": 80e9},
            "do not fit on 1 devices of 80.0 GB",
        ),
    ],
    ids=str,
)
def test_bad_input_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(abbe.AbbeError) as caught:
        abbe.cost(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_prints_a_table_a_line_or_json() -> None:
    device = ("--flops", "5e10", "--bandwidth", "1e10")
    table = run("cost", "--lengths", "64,256", *device)
    assert table.exit_code == 0, table.output
    assert "An estimate; rates given" in table.output
    line = run("cost", "--lengths", "64", "--quiet", *device).output
    assert line.startswith("embedded: 8 windows, 512 tokens: about 15 s and 10.5 MB on top of the model of 22.1 MB")
    printed = json.loads(run("cost", "--shape", SHAPE, "--lengths", "131072", "--flops", "4e14", "--bandwidth", "3e12",
                             "--devices", "8", "--dtype", "bfloat16", "--json").stdout)  # fmt: skip
    assert printed["estimate"] is True
    assert printed["lengths"][0]["length"] == 131072
    assert printed["shape"]["parameters"] == 70_553_706_496


def test_a_shape_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "cost", "--shape", "layers:3") == 2
    assert capsys.readouterr().err.startswith("abbe: --shape is 'layers:3', but must be sizes such as layers=32")
