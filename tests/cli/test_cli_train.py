"""`abbe train`: what its commands ask the lab for, what they write and print, and mistakes in one line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import StandIn, command_of, run, run_main

from abbe import studies, views

QUESTIONS = {
    "temperature": "Is low temperature hard to train?",
    "length": "Which normalizer still finds the maximum",
    "recall": "Which normalizer learns key-value recall",
    "text": "Which normalizer trains the better character model",
}
EXPERIMENTS = tuple(QUESTIONS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the experiment was asked for; experiments and views are stand-ins."""
    seen: dict[str, Any] = {}
    made = StandIn("train", {"table": [{"accuracy": 0.5}]})

    def stand_in(name: str) -> Any:
        def train(**options: Any) -> Any:
            seen.update(options, experiment=name)
            return made

        return train

    for name in EXPERIMENTS:
        monkeypatch.setattr(studies, f"train_{name}", stand_in(name), raising=False)
    monkeypatch.setattr(views, "train_table", lambda given: "THE TABLE" * (given is made))
    monkeypatch.setattr(views, "save_figures", lambda _given, folder: seen.update(figures=folder))
    monkeypatch.chdir(tmp_path)
    return seen


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_not_given_is_left_to_the_experiment(name: str, asked: dict[str, Any]) -> None:
    result = run("train", name)
    folder = Path(f"abbe-train-{name}")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"THE TABLE\npage: {folder / 'train.html'}\n", "")
    assert asked == {"experiment": name, "folder": folder, "progress": True}


def test_every_option_reaches_the_temperature_experiment(asked: dict[str, Any], tmp_path: Path) -> None:
    given = ["--task", "text", "--text", "a.txt", "--temperatures", "1, 0.1,learned,geometric:1:0.1", "--seeds", "2"]
    given += ["--with", "softmax", "--with", "entmax:alpha=1.5", "--optimizer", "sgd", "--optimizer", "muon"]
    given += ["--rates", "0.1,1", "--steps", "30", "--no-qk-norm", "--decay", "0.1", "--quick", "--workers", "1"]
    given += ["--device", "auto"]
    out = tmp_path / "out"
    result = run("train", "temperature", *given, "--seed", "7", "--out", out, "--quiet", "--figures", "pictures")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{out / 'train.html'}\n", "")
    assert asked == {
        "experiment": "temperature", "task": "text", "text": ["a.txt"], "seeds": 2, "rates": [0.1, 1.0], "steps": 30,
        "temperatures": ["1", "0.1", "learned", "geometric:1:0.1"], "normalizers": ["softmax", "entmax:alpha=1.5"],
        "optimizers": ["sgd", "muon"], "qk_norm": False, "decay": 0.1, "quick": True, "workers": 1, "seed": 7,
        "folder": out, "progress": False, "device": "auto", "figures": Path("pictures"),
    }  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_option_of_a_command_is_an_argument_of_its_experiment(name: str) -> None:
    function = inspect.signature(getattr(studies, f"train_{name}")).parameters
    shared = {"out", "figures_folder", "opened", "as_json", "quiet", "debug", "help"}
    shared |= {"shard", "engine", "address", "actors"}
    assert {option.name for option in command_of(f"train {name}").params} - shared <= set(function)


def test_recall_text_and_length_have_options_of_their_own(asked: dict[str, Any]) -> None:
    assert run("train", "recall", "--temperature", "learned", "--qk-norm").exit_code == 0
    assert (asked["temperature"], asked["qk_norm"]) == ("learned", True)
    assert run("train", "recall", "--pairs", "4", "--symbols", "8192", "--length", "64", "--width", "32").exit_code == 0
    assert [asked[size] for size in ("pairs", "symbols", "length", "width")] == [4, 8192, 64, 32]
    assert run("train", "text", "--text", "a.txt", "--temperature", "0.5").exit_code == 0
    assert (asked["text"], asked["temperature"]) == (["a.txt"], "0.5")
    assert run("train", "length", "--lengths", "16,64").exit_code == 0
    assert asked["lengths"] == [16, 64]


def test_json_leaves_standard_output_alone(asked: dict[str, Any]) -> None:
    result = run("train", "recall", "--task", "mqar", "--json", "--out", "here")
    assert json.loads(result.stdout) == {"table": [{"accuracy": 0.5}]}
    assert result.stderr == "page: here/train.html\n"
    assert asked["task"] == "mqar"


def test_help_says_what_each_answers_and_how_long_it_takes() -> None:
    shown = " ".join(run("train", "--help").stdout.split())
    for name, question in QUESTIONS.items():
        assert f"│ {name} {question}" in shown
    assert "--quick takes about a minute on 2 cores, the defaults 1 to 15" in shown


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--task", "juggling"], "there is no task 'juggling': choose one of recall, mqar, maximum, text"),
        (["--optimizer", "lion"], "there is no optimizer 'lion': choose one of sgd, adamw, muon"),
        (["--temperatures", "1,0"], "temperature is '0', but must be a number > 0, learned"),
        (["--temperatures", "stepwise:1:0.1"], "temperature is 'stepwise:1:0.1', but must be a number > 0"),
        (["--with", "entmx"], "'entmx'"),
        (["--rates", "0"], "rates must be numbers > 0"),
        (["--decay", "-1"], "decay is -1.0, but must be a number >= 0"),
        (["--text", "a.txt"], "text is read by the task text only, and the task is recall: leave one of them out"),
    ],
)
def test_mistakes_are_one_line(
    given: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, "train", "temperature", *given) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert line in said.err


def test_an_experiment_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "train", "dogs") == 2
    assert capsys.readouterr().err == "abbe: no such command 'dogs'; see abbe train --help\n"


@pytest.mark.slow
def test_a_real_run_resumes(tmp_path: Path) -> None:
    out, pictures = tmp_path / "out", tmp_path / "pictures"
    small = ["--with", "softmax", "--temperatures", "1,0.1", "--optimizer", "adamw", "--rates", "0.01", "--seeds", "2"]
    small += ["--steps", "12", "--no-qk-norm", "--workers", "1", "--out", str(out)]
    result = run("train", "temperature", *small, "--figures", pictures)
    assert result.exit_code == 0, result.output
    assert "Is low temperature hard to train?" in result.stdout
    assert "3 runs of 2 seeds" in result.stderr  # the cost, before the work
    assert (pictures / "accuracy.svg").is_file()
    again = run("train", "temperature", *small, "--json", "--quiet")
    content = json.loads(again.stdout)
    assert {row["temperature"] for row in content["table"]} == {"1", "0.1"}
    assert again.stderr == ""
