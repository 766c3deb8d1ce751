"""The run folder: opened at any time, kept when a run is killed, resumed from a checkpoint, refused to another run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from training_cases import batches, gpt2, llama, watched

import abbe
from abbe import AbbeError
from abbe.training import STEPS, StepsFile, Training, encoded_step


def opened(folder: Path) -> Training:
    result = abbe.open(folder)
    assert isinstance(result, Training)
    return result


def test_a_folder_opens_as_what_was_measured(tmp_path: Path) -> None:
    monitor = watched(steps=3, folder=tmp_path / "run")
    result, measured = opened(tmp_path / "run"), monitor.result()
    assert result.table.equals(measured.table)
    assert result.steps.equals(measured.steps)
    assert result.table.columns == ["step", "layer", "head", "measure", "value", "limit", "control"]
    assert result.manifest["study"] == "watch"
    assert result.manifest["layers"] == ["transformer.h.0.attn", "transformer.h.1.attn"]
    named = {quantity["name"] for quantity in result.manifest["quantities"]}
    assert {measure.partition("@")[0] for measure in result.table["measure"]} == named - {"learned"}  # nothing learns
    assert {rule["name"] for rule in result.manifest["rules"]} == {rule.name for rule in abbe.training.list_rules()}
    assert "GPT2LMHeadModel, 3 steps read, the last 3" in repr(result)
    assert json.loads(result.to_json())["steps"][2]["step"] == 3
    copied = opened(result.save(tmp_path / "copy"))
    assert copied.table.equals(result.table)


def test_a_folder_can_be_opened_while_the_run_goes_on(tmp_path: Path) -> None:
    network = gpt2(dropout=0.0)
    with abbe.Monitor(network, every=1, folder=tmp_path) as monitor:
        assert len(opened(tmp_path).records) == 0
        assert opened(tmp_path).table.is_empty()
        network(**next(batches(1))).loss.backward()
        monitor.step()
        assert opened(tmp_path).steps["step"].to_list() == [1]
        with (tmp_path / STEPS).open("ab") as file:
            file.write(b'{"crc32":1,"step":')  # the next line is being written
        assert opened(tmp_path).steps["step"].to_list() == [1]


def test_a_resumed_run_replaces_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    watched(steps=5, folder=tmp_path)
    monitor = watched(steps=2, folder=tmp_path, resume=3)
    assert monitor.steps_done == 5
    result = opened(tmp_path)
    assert result.steps["step"].to_list() == [1, 2, 3, 4, 5]
    assert result.steps["loss"][3] == pytest.approx(result.steps["loss"][0], rel=1e-5)  # the batches begin again


def test_an_alert_before_the_checkpoint_is_not_raised_again(tmp_path: Path) -> None:
    network = gpt2(dropout=0.0)
    network.transformer.h[0].attn.c_attn.weight.data *= 1e3
    watched(network, 2, folder=tmp_path)
    first = opened(tmp_path).alerts
    assert not first.filter(step=1).is_empty()
    watched(network, 1, folder=tmp_path, resume=2)
    assert opened(tmp_path).alerts.equals(first)


@pytest.mark.parametrize(
    ("network", "options", "why"),
    [
        (partial(gpt2, dropout=0.0), {}, "holds a run up to step 2"),
        (partial(gpt2, dropout=0.0), {"resume": 1, "rows": 3}, "different: rows"),
        (llama, {"resume": 1}, "different: model, configuration"),
    ],
)
def test_another_run_is_refused_in_one_line(network: Any, options: Any, why: str, tmp_path: Path) -> None:
    watched(steps=2, folder=tmp_path)
    with pytest.raises(AbbeError, match=why) as error:
        abbe.Monitor(network(), every=1, folder=tmp_path, **options)
    assert "\n" not in str(error.value)
    assert opened(tmp_path).steps["step"].to_list() == [1, 2]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(AbbeError, match="is not empty and holds no run"):
        abbe.Monitor(gpt2(), folder=tmp_path)


@pytest.mark.slow
def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    code = "import sys, abbe; sys.path.insert(0, sys.argv[2]); from training_cases import gpt2\n"
    code += "try: abbe.Monitor(gpt2(), folder=sys.argv[1])\nexcept abbe.AbbeError as error: print(error)"
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    with abbe.Monitor(gpt2(), folder=tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "is in use by process" in done.stdout


def test_damage_is_found(tmp_path: Path) -> None:
    watched(steps=2, folder=tmp_path)
    content = (tmp_path / STEPS).read_bytes()
    (tmp_path / STEPS).write_bytes(content.replace(b'"entropy"', b'"entrapy"', 1))
    with pytest.raises(AbbeError, match="is damaged: line 1"):
        abbe.open(tmp_path)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import abbe
from training_cases import batches, gpt2
network = gpt2(dropout=0.0)
monitor = abbe.Monitor(network, every=1, folder=sys.argv[1])
for step, inputs in enumerate(batches(5), 1):
    network(**inputs).loss.backward()
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    monitor.step()
"""


@pytest.mark.slow
def test_a_killed_run_keeps_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(Path(__file__).parent)]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
    assert opened(tmp_path / "run").steps["step"].to_list() == [1, 2]
    watched(steps=1, folder=tmp_path / "run", resume=2)
    assert opened(tmp_path / "run").steps["step"].to_list() == [1, 2, 3]


def test_a_file_that_grows_is_decoded_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / STEPS
    lines = [encoded_step({"step": step, "x": 1.0}).encode() for step in range(1, 6)]
    steps = StepsFile(path)
    assert steps.read() == []
    path.write_bytes(lines[0] + lines[1] + lines[2][:9])
    assert [one["step"] for one in steps.read()] == [1, 2]
    with path.open("r+b") as file:  # what was read is not looked at again
        file.write(b"?" * 20)
        file.seek(0, 2)
        file.write(lines[2][9:])
    assert [one["step"] for one in steps.read()] == [1, 2, 3]
    assert [one["step"] for one in steps.read()] == [1, 2, 3]


def test_a_file_that_a_resumed_run_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / STEPS
    lines = [encoded_step({"step": step, "x": 1.0}).encode() for step in range(1, 6)]
    steps = StepsFile(path)
    path.write_bytes(b"".join(lines[:4]))
    assert len(steps.read()) == 4
    path.write_bytes(lines[0])  # shorter
    assert [one["step"] for one in steps.read()] == [1]
    other = encoded_step({"step": 2, "x": 2.0}).encode()
    path.write_bytes(other + other + lines[3])  # longer, but not what it was
    assert [one["step"] for one in steps.read()] == [2, 2, 4]
    (tmp_path / "new").write_bytes(other + other + lines[3] + lines[4])
    (tmp_path / "new").replace(path)  # the same beginning, in another file
    assert [one["step"] for one in steps.read()] == [2, 2, 4, 5]
    path.write_bytes(path.read_bytes() + b'{"crc32":1,"step":1}\n')
    with pytest.raises(AbbeError, match="line 5 is not what was written"):
        steps.read()
