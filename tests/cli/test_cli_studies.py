"""The commands of studies: what each asks its study for, what it writes and prints, and mistakes in one line."""

from __future__ import annotations

import inspect
import json
import math
import shutil
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_runs import command_of, run, run_main

import abbe
from abbe import studies
from abbe.results import finite

pytest_plugins = ("cli_fixtures",)

Ask = Callable[..., dict[str, Any]]
# Folder and file names of a study called without options.
DEFAULTS = {
    "report": ("abbe-report-embedded", "report.html"),
    "reproduce": ("abbe-reproduce-embedded", "reproduce.html"),
    "capacity": ("abbe-capacity-embedded", "capacity.html"),
    "compare": ("abbe-compare-embedded", "compare.html"),
    "calibrate": ("abbe-calibrate-embedded-entmax-alpha-1.5", "calibrate.html"),
    "lift": ("abbe-lift-embedded-sparse", "lift.html"),
    "diagnose": ("abbe-diagnose-embedded", "diagnose.html"),
    "train temperature": ("abbe-train-temperature", "train.html"),
    "train length": ("abbe-train-length", "train.html"),
    "train recall": ("abbe-train-recall", "train.html"),
    "train text": ("abbe-train-text", "train.html"),
}
# A command as it is typed, and what its study is asked for beside folder and progress.
ASKED: dict[str, dict[str, Any]] = {
    "report org/model --text a.txt --text b.txt --lengths 128,512 --windows 3 --queries all --sizes 1,5 "
    "--vectors output --seed 7": {
        "model": "org/model", "text": ["a.txt", "b.txt"], "lengths": [128, 512], "windows": 3, "queries": "all",
        "sizes": [1, 5], "vectors": "output", "seed": 7,
    },
    "capacity org/model --tau 0.2 --lengths 128,512 --windows 3 --way deletion --grid coarse --no-layers --queries 32 "
    "--layer-lengths 512 --layer-windows 2 --targets last:16 --level 0.9 --resamples 50 --device cuda "
    "--dtype bfloat16": {
        "model": "org/model", "tau": [0.2], "lengths": [128, 512], "windows": 3, "way": "deletion", "grid": "coarse",
        "layers": False, "queries": 32, "layer_lengths": [512], "layer_windows": 2, "targets": "last:16",
        "level": 0.9, "resamples": 50, "device": "cuda", "dtype": "bfloat16",
    },
    "compare --with entmax:alpha=1.5 --with topk:k=32 --length 256 --needle-lengths 64,128 --prompts 9 --calibrate": {
        "normalizers": ["entmax:alpha=1.5", "topk:k=32"], "length": 256, "needle_lengths": [64, 128], "prompts": 9,
        "calibrate": True,
    },
    "calibrate --with sparsemax --length 128 --held-out 4 --queries all --steps 7 --finetune 9": {
        "normalizer": "sparsemax", "length": 128, "held_out": 4, "queries": "all", "steps": 7, "finetune": 9,
    },
    "lift tiny --goal retrieval --max-loss 0.2% --budget none --with logn:trained=512,floor=1 --lengths 512,1024": {
        "model": "tiny", "goal": "retrieval", "max_loss": "0.2%", "budget": None,
        "normalizers": ["logn:trained=512,floor=1"], "lengths": [512, 1024],
    },
    "reproduce --figure all": {"figures": "all"},
    "reproduce --figure 3": {"figures": "3"},
    "reproduce --figure 2a,3 --quick": {"figures": ["2a", "3"], "quick": True},
    "train temperature --task text --text a.txt --temperatures 1,0.1,learned,geometric:1:0.1 --with softmax "
    "--optimizer sgd --optimizer muon --rates 0.1,1 --no-qk-norm --decay 0.1 --quick --workers 1 --device auto": {
        "task": "text", "text": ["a.txt"], "temperatures": ["1", "0.1", "learned", "geometric:1:0.1"],
        "normalizers": ["softmax"], "optimizers": ["sgd", "muon"], "rates": [0.1, 1.0], "qk_norm": False,
        "decay": 0.1, "quick": True, "workers": 1, "device": "auto",
    },
    "train recall --temperature learned --qk-norm --pairs 4 --symbols 8192 --length 64 --width 32 --task mqar": {
        "temperature": "learned", "qk_norm": True, "pairs": 4, "symbols": 8192, "length": 64, "width": 32,
        "task": "mqar",
    },
    "train text --text a.txt --temperature 0.5": {"text": ["a.txt"], "temperature": "0.5"},
    "train length --lengths 16,64": {"lengths": [16, 64]},
}  # fmt: skip


def study_of(command: str) -> str:
    """The function behind a command."""
    words = [word for word in command.split()[:2] if not word.startswith("-")]
    return "_".join(words) if words[0] == "train" else words[0]


@pytest.mark.parametrize("command", DEFAULTS)
def test_what_is_not_given_is_left_to_the_study(command: str, stand_in: Ask) -> None:
    asked = stand_in(study_of(command), {})
    result = run(*command.split())
    folder, page = DEFAULTS[command]
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"THE TABLE\npage: {folder}/{page}\n", "")
    assert asked == {"folder": Path(folder), "progress": True}


@pytest.mark.parametrize(("name", "want"), [("org/some model", "some-model"), ("../x/", "x"), ("..", "model")])
def test_a_folder_is_named_after_the_model(name: str, want: str, stand_in: Ask) -> None:
    asked = stand_in("reproduce", {})
    run("reproduce", name, "--quick")
    assert asked["folder"] == Path(f"abbe-reproduce-{want}-quick")


@pytest.mark.parametrize("command", ASKED)
def test_every_option_reaches_the_study(command: str, stand_in: Ask, tmp_path: Path) -> None:
    asked = stand_in(study_of(command), {})
    result = run(*command.split(), "--out", tmp_path / "out", "--quiet", "--figures", "pictures")
    assert (result.exit_code, result.stderr) == (0, "")
    assert Path(result.stdout.strip()).parent == tmp_path / "out"
    more = {"folder": tmp_path / "out", "progress": False, "drawn in": Path("pictures")}
    assert asked == ASKED[command] | more


@pytest.mark.parametrize("command", DEFAULTS)
def test_every_option_is_an_argument_of_the_study(command: str) -> None:
    arguments = inspect.signature(getattr(studies, study_of(command))).parameters
    shared = {"out", "figures_folder", "opened", "as_json", "quiet", "debug", "help", "each"}
    shared |= {"shard", "engine", "address", "actors"}
    assert {option.name for option in command_of(command).params} - shared <= set(arguments)


def test_json_leaves_standard_output_alone(stand_in: Ask) -> None:
    stand_in("report", {"numbers": (1, math.nan), "verdicts": [{"x": math.inf}]})
    result = run("report", "--json", "--figures", "pictures")
    assert json.loads(result.stdout) == {"numbers": [1, None], "verdicts": [{"x": None}]}
    assert result.stderr == "figures: pictures\npage: abbe-report-embedded/report.html\n"
    assert run("report", "--json", "--quiet").stderr == ""


@pytest.mark.parametrize(("study", "what"), [("calibrate", "swap"), ("lift", "plan")])
def test_a_file_to_go_on_with_is_named(study: str, what: str, stand_in: Ask) -> None:
    stand_in(study, {}, file="made.safetensors")
    lines = run(study, "--figures", "charts").stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["THE TABLE", what, "figures", "page"]
    assert lines[1].endswith("/made.safetensors")


def test_the_page_is_opened_only_when_asked(stand_in: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in("report", {})
    run("report", "--no-open")
    assert "opened" not in asked
    assert run("report", "--open").stderr == ""
    assert asked["opened"] == (tmp_path / "abbe-report-embedded" / "report.html").as_uri()
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = run("report", "--open")
    assert (result.exit_code, result.stderr) == (0, "abbe: no browser was found: open the page yourself\n")


MISTAKES = {
    "capacity --tau much": "--tau is 'much', but must be numbers separated by commas, such as 64,256",
    "capacity --tau 0": "tau must be numbers > 0, such as 0.01,0.05, got [0.0]",
    "capacity --way cutting": "way is 'cutting', but must be one of deletion, renormalised, or both",
    "capacity --lengths 9,16 --layer-lengths 99": "layer_lengths has 99, but must be among the lengths: 9, 16",
    "capacity --lengths 9999": "window length 9999 is above the model's context of 64 tokens",
    "compare --with entmx": "unknown normalizer 'entmx'. Did you mean 'entmax'?",
    "compare --with sparsemax --with sparsemax": "sparsemax is given twice: name each normalizer once",
    "compare --length 65": "window length 65 is above the model's context of 64",
    "compare --needle-lengths 999": "needle length 999 is above the model's context of 64",
    "lift --goal fast": "goal is 'fast', but must be one of sparse, retrieval, loss",
    "lift --max-loss 5": "max_loss is '5', but must be a share of the loss, such as 0.5% or 0.005",
    "lift --budget soon": "budget is 'soon', but must be a time such as 90s, 20m or 1.5h",
    "train temperature --task juggling": "there is no task 'juggling': choose one of recall, mqar, maximum, text",
    "train temperature --optimizer lion": "there is no optimizer 'lion': choose one of sgd, adamw, muon",
    "train temperature --temperatures stepwise:1:0.1": "temperature is 'stepwise:1:0.1', but must be a number > 0",
    "train temperature --rates 0": "rates must be numbers > 0",
    "train temperature --decay -1": "decay is -1.0, but must be a number >= 0",
    "train temperature --text a.txt": "text is read by the task text only, and the task is recall",
    "train dogs": "no such command 'dogs'; see abbe train --help",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_one_line(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.split()
    model = [] if words[0] == "train" else [folder]
    assert run_main(monkeypatch, words[0], *model, *words[1:]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), said.err[:6]) == ("", 1, "abbe: ")
    assert MISTAKES[command] in said.err
    assert not list(tmp_path.iterdir())


HEADS = "--windows 2 --queries 4 --lengths 16,32 --sizes 1,3"
REAL = {
    "diagnose": (HEADS, "self-check error"),
    "report": (HEADS, "self-check error"),
    "reproduce": ("--quick --figure 2a,3", "about"),
    "capacity": ("--lengths 12,24 --windows 2 --tau 0.05", "about"),
    "compare": ("--with sparsemax --length 32 --windows 2 --needle-lengths 32 --prompts 1", "2 normalizers, "),
    "calibrate": ("--with sparsemax --length 32 --windows 3 --held-out 2 --queries 8 --finetune 2", "about"),
    "train temperature": (
        "--with softmax --temperatures 1,0.1 --optimizer adamw --rates 0.01 --seeds 2 --steps 12 --no-qk-norm "
        "--workers 1",
        "3 runs of 2 seeds",
    ),
}
SLOW = ("capacity", "compare", "train temperature")


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in REAL]
)
def test_a_real_run(command: str, folder: Path, book: Path, tmp_path: Path) -> None:
    """The cost before the work; then page, figures and JSON, which an opened folder repeats."""
    options, cost = REAL[command]
    out, pictures = tmp_path / "out", tmp_path / "pictures"
    model = [] if command.startswith("train") else [folder, "--text", book]
    words = [*command.split(), *model, *options.split(), "--out", out]
    result = run(*words, "--figures", pictures)
    assert result.exit_code == 0, result.output
    assert cost in result.stderr
    assert any(path.suffix == ".pdf" for path in pictures.iterdir())
    page = Path(result.stdout.splitlines()[-1].removeprefix("page: "))
    assert page.parent == out
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    again = run(*words, "--json", "--quiet")
    assert (again.stderr, json.loads(again.stdout)) == ("", finite(abbe.open(out).as_json()))


def test_reproduce_writes_figures_and_their_data_unasked(
    folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("reproduce", folder, "--text", book, "--quick", "--figure", "3", "--quiet").exit_code == 0
    out = tmp_path / "abbe-reproduce-tiny-quick"
    ends = [f"{theme}.{kind}" for theme in ("", "-dark") for kind in ("pdf", "png", "svg")]
    assert {path.name for path in (out / "figures").iterdir()} == {f"figure-3{end}" for end in ends}
    assert len(pl.read_csv(out / "data" / "figure-3-heads.csv")) > 0


def test_standard_input(folder: Path, book: Path) -> None:
    words = ("diagnose", folder, *HEADS.split(), "--json", "--quiet")
    piped = run(*words, "--text", "-", "--out", "piped", typed=book.read_text())
    from_file = run(*words, "--text", book)
    assert json.loads(piped.stdout)["table"] == json.loads(from_file.stdout)["table"] != []


@pytest.mark.slow
def test_diff_of_two_models_or_of_the_checkpoints_in_a_folder(folder: Path, book: Path, tmp_path: Path) -> None:
    for step in (9, 10):
        shutil.copytree(folder, tmp_path / "runs" / f"checkpoint-{step}")
    quick = ("--text", book, *HEADS.split(), "--json", "--quiet")
    sides = (tmp_path / "runs" / "checkpoint-9", tmp_path / "runs" / "checkpoint-10")
    two, over = run("diff", *sides, *quick), run("diff", tmp_path / "runs", *quick, "--out", "over")
    assert Path("abbe-diff-checkpoint-9-checkpoint-10", "diff.html").is_file()
    for result in (two, over):
        assert result.exit_code == 0, result.exception
        content = json.loads(result.stdout)
        assert [side["name"] for side in content["manifest"]["models"]] == ["checkpoint-9", "checkpoint-10"]
        assert not any(row["changed"] for row in content["table"])


# -- Shards -----------------------------------------------------------------------------------------------------------


QUICK = ("--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3")


def test_shards_and_merge(folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("diagnose", folder, "--text", "book.txt", *QUICK, "--quiet")
    first = run(*command, "--out", "run", "--shard", "1/2")
    assert first.exit_code == 0
    assert first.stdout == "shard 1/2: 2 parts made, 2 of 4 missing\n"
    last = run(*command, "--out", "run", "--shard", "2/2", "--json")
    assert json.loads(last.stdout) == {"shard": "2/2", "made": 2, "total": 4, "missing": []}
    assert last.stderr == "shard 2/2: 2 parts made, all 4 are there\n"
    next((tmp_path / "run" / "windows").iterdir()).unlink()  # what is missing is made
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # text and model are found from any folder
    merged = run("merge", "../run", "--quiet")
    assert (merged.exit_code, merged.stdout) == (0, "../run/diagnose.html\n")
    local = abbe.diagnose(folder, book, lengths=[16, 32], windows=2, queries=4, sizes=[1, 3], progress=False)
    assert abbe.open_run("../run").table.equals(local.table)
    again = run("merge", "../run", "--json")
    assert json.loads(again.stdout)["table"] == local.table.to_dicts()


def test_what_a_shard_has_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--open"], ["--figures", "drawn"]):
        assert run_main(monkeypatch, "diagnose", str(folder), "--shard", "1/2", *option) == 2
        assert capsys.readouterr().err == (
            f"abbe: a shard makes no page and no figures: give {option[0]} to abbe merge instead\n"
        )


@pytest.mark.slow
def test_text_from_a_pipe_is_kept_for_the_merge(folder: Path, tmp_path: Path) -> None:
    text = "In the beginning there was a lens, and it was ground by hand. " * 10
    command = ("diagnose", folder, "--text", "-", *QUICK, "--quiet", "--out", tmp_path / "run", "--shard", "1/2")
    assert run(*command, typed=text).exit_code == 0
    assert abbe.merge(tmp_path / "run", progress=False).manifest["text"]["name"] == "standard input"


def test_which_commands_can_be_shared() -> None:
    def has_shard(command: str) -> bool:
        return any("--shard" in parameter.opts for parameter in command_of(command).params)

    assert all(map(has_shard, ("report", "reproduce", "diagnose", "capacity", "compare", "calibrate", "train text")))
    assert not any(map(has_shard, ("lift", "watch", "verify", "merge")))
