"""report_each: a report per model, a table and an index page above them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cli_runs import run
from transformers import LlamaConfig, LlamaForCausalLM

import abbe

SMALL = {"lengths": [16, 32], "windows": 2, "queries": 4, "sizes": [2], "progress": False}
TEXT = "A lens gathers light. " * 60


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a tiny model, and a folder that holds none."""
    root = tmp_path_factory.mktemp("checkpoints")
    tokenizer = abbe.load("embedded").tokenizer
    for step in (900, 1000):
        torch.manual_seed(step)
        config = LlamaConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(tokenizer),
            max_position_embeddings=64,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(root / f"step-{step}")
        tokenizer.save_pretrained(root / f"step-{step}")
    (root / "step-950").mkdir()
    (root / "step-950" / "config.json").write_text("{}")
    (root / "notes").mkdir()
    return root


@pytest.fixture(scope="module")
def reports(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[abbe.Reports, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return abbe.report_each(f"{checkpoints}/*", TEXT, folder=folder, **SMALL), folder


def test_rows_are_in_the_order_of_the_steps(reports: tuple[abbe.Reports, Path]) -> None:
    names = [Path(model).name for model in reports[0].table["model"]]
    assert names == ["step-900", "step-950", "step-1000"]


def test_a_model_that_cannot_be_read_is_listed_with_its_reason(reports: tuple[abbe.Reports, Path]) -> None:
    row = reports[0].table.row(1, named=True)
    assert row["answer"] is None
    assert "step-950" in row["skipped"]
    assert len(reports[0].manifest["skipped"]) == 1


def test_numbers_are_those_of_the_single_report(reports: tuple[abbe.Reports, Path]) -> None:
    result, folder = reports
    row = result.table.row(2, named=True)
    single = abbe.open(folder / row["folder"])
    assert isinstance(single, abbe.Report)
    assert row["answer"] == single.answer.sentence
    assert row["effective_tokens"] == single.numbers[0].value
    assert row["sensitivity_high"] == single.numbers[4].high


def test_index_page_links_to_every_report(reports: tuple[abbe.Reports, Path]) -> None:
    page = (reports[1] / "index.html").read_text(encoding="utf-8")
    for name in ("step-900", "step-1000"):
        assert f'href="{name}/report.html"' in page
        assert (reports[1] / name / "report.html").is_file()
    assert 'href="step-950/report.html"' not in page


def test_folder_opens_again(reports: tuple[abbe.Reports, Path]) -> None:
    again = abbe.open(reports[1])
    assert isinstance(again, abbe.Reports)
    assert again.table.equals(reports[0].table)
    assert "step-900" in again._repr_html_()


@pytest.mark.slow
def test_same_names_get_folders_of_their_own(tmp_path: Path, checkpoints: Path) -> None:
    twice = [checkpoints / "step-900", checkpoints / "step-900"]
    table = abbe.report_each(twice, TEXT, folder=tmp_path, **SMALL).table
    assert table["folder"].to_list() == ["step-900", "step-900-2"]


@pytest.mark.slow
def test_names_do_not_depend_on_the_order(tmp_path: Path, checkpoints: Path) -> None:
    """Sweeps have the same last name in every run."""
    for name in ("a", "b"):
        shutil.copytree(checkpoints / "step-900", tmp_path / "runs" / name / "final")
    tables = [
        abbe.report_each(
            [tmp_path / "runs" / name / "final" for name in order], TEXT, folder=tmp_path / "out", **SMALL
        ).table
        for order in ("ab", "ba")
    ]
    assert [table["folder"].to_list() for table in tables] == [["a-final", "b-final"], ["b-final", "a-final"]]


@pytest.mark.slow
def test_an_error_of_one_model_does_not_stop_the_others(tmp_path: Path, checkpoints: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoints / "step-900", broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    table = abbe.report_each([broken, checkpoints / "step-900"], TEXT, folder=tmp_path / "out", **SMALL).table
    assert [row is None for row in table["skipped"]] == [False, True]
    assert "\n" not in table["skipped"][0]


@pytest.mark.parametrize(
    ("models", "line"),
    [
        ("nowhere/*", "no folder with config.json and no .gguf file matches 'nowhere/*'"),
        ([], "models is empty"),
        (["nowhere"], "no model could be measured; the first one: "),
    ],
)
def test_bad_input_is_named_in_one_line(models: object, line: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError) as raised:
        abbe.report_each(models, TEXT, folder=tmp_path / "out", **SMALL)  # type: ignore[arg-type]
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["smollm2", "--each", "runs/*"], "--each takes the place of the model smollm2"),
        (["--each", "runs/*", "--shard", "1/2"], "no folder with config.json and no .gguf file matches"),
        (["--shard", "1/2", "--actors", "3"], "two ways to share the work"),
        (["--actors", "3"], "add --engine ray"),
        (["--engine", "spark"], "there is no engine 'spark'"),
        (["--engine", "ray", "--device-map", "auto"], "--device-map needs several GPUs per actor"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], line: str, tmp_path: Path) -> None:
    result = run("report", *options, "--out", tmp_path / "out")
    assert line in str(result.exception)
