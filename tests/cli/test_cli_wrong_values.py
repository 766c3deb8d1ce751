"""Every option that takes a value, with every wrong one: exit code 2, one line, nothing on standard output."""

from __future__ import annotations

from pathlib import Path

import pytest
import stand_in_harness
from cli_runs import COMMANDS, command_of, run_main

from abbe import studies

pytest_plugins = ("cli_fixtures",)

WORDS = ["", " ", "x", "nan", "-1", "0", "1.5", "inf", "1,", ",", "1;2", "1e999", "９x", "--"]
# What is right, or starts a long run: counts as large as you like are cut to what the text has.
ALLOWED = {
    "--seed": {"0"},
    "--tau": {"1.5"},
    "--temperatures": {"1.5"},
    "--temperature": {"1.5"},
    "--logits": {"-1", "0", "1.5"},
    "--steps": {"0"},
    "--finetune": {"0"},
    "--budget": {"1.5"},
    "--rates": {"1.5"},
    "--decay": {"0", "1.5"},
    "--num-fewshot": {"0"},
}
NO_NUMBERS = (
    "--text", "--tokens", "--with", "--out", "--figures", "--html", "--vectors", "--way", "--figure", "--device",
    "--dtype", "--device-map", "--plan",
)  # fmt: skip
WITHOUT_MODEL = ("merge", "verify", "normalizers", "pull", "doctor", "watch", "train")
ALWAYS = {
    "eval": ["--plan", "sparsemax", "--tasks", "last"],
    "calibrate": ["--with", "sparsemax"],
    "export": ["--plan", "sparsemax", "--out", "new"],
    "merge": ["."],
    "pull": [],
    "verify": ["spectral"],
    "normalizers": ["softmax"],
    "watch": ["."],
}


def options() -> list[tuple[str, str]]:
    """All options with a value, of all commands."""
    return [
        (command, parameter.opts[0])
        for command in COMMANDS
        if not command.startswith("train ") or hasattr(studies, command.replace(" ", "_"))
        for parameter in command_of(command).params
        if parameter.opts[0].startswith("--")
        and not parameter.is_flag
        and parameter.opts[0] != "--help"
        and parameter.opts[0] != "--tasks"  # names of lm-eval: tests/ecosystem
    ]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("command", "option"), options())
def test_one_line_and_exit_code_2(
    command: str, option: str, folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    stand_in_harness.install(monkeypatch)
    if option in ("--out", "--figures", "--html"):
        Path("file").write_text("mine")
        wrong = ["file/below"] if option == "--out" else [".", "file/x"] if option == "--html" else ["file"]
    elif option in NO_NUMBERS:
        wrong = ["", " ", "x", "/", "0", "entmx", ",", "=", ";"]
    else:
        wrong = [word for word in WORDS if word not in ALLOWED.get(option, set())]
    on_model = [str(folder)] + ([] if option == "--text" or command == "eval" else ["--text", str(book)])
    before = sorted(path.name for path in tmp_path.iterdir())
    for value in wrong:
        words = [] if command.split()[0] in WITHOUT_MODEL else list(on_model)
        words += [word for word in ALWAYS.get(command, []) if option != "--with"]
        code = run_main(monkeypatch, *command.split(), *words, f"{option}={value}")
        output = capsys.readouterr()
        assert code == 2, (value, output)
        assert output.out == "", value
        assert output.err.startswith("abbe: "), value
        assert output.err.count("\n") == 1, (value, output.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
