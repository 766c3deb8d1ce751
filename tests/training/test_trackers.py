"""Numbers reach trackers: TensorBoard's event file is read back; those of others in tests/ecosystem."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from training_cases import scalars, watched

import abbe
from abbe import AbbeError

KEY = re.compile(r"abbe/(layer_\d+|global)/[a-z_0-9]+")


def test_event_files_hold_the_numbers(tmp_path: Path) -> None:
    monitor = watched(steps=2, trackers=f"tensorboard:{tmp_path}")
    read, steps = scalars(tmp_path), monitor.result().steps
    assert all(KEY.fullmatch(tag) for tag in read)
    assert [step for step, _ in read["abbe/global/entropy_min"]] == [1, 2]
    for step, value in read["abbe/global/entropy_min"]:
        assert value == pytest.approx(steps.filter(step=step)["entropy_min"][0], rel=1e-5)
    layer = monitor.result().layers.filter(step=2, layer=1, measure="separability@N=20")
    assert read["abbe/layer_1/separability_20"][1][1] == pytest.approx(layer["mean"][0], rel=1e-5)
    assert read["abbe/layer_1/separability_20_max"][1][1] == pytest.approx(layer["max"][0], rel=1e-5)


def test_writers_bars_and_functions(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from tqdm import tqdm

    seen: list[tuple[int, int]] = []
    writer = SummaryWriter(tmp_path)
    with tqdm(range(2), disable=False, file=io.StringIO()) as bar:
        watched(steps=2, trackers=[writer, bar, lambda metrics, step: seen.append((len(metrics), step))])
    writer.close()
    assert [step for _, step in seen] == [1, 2]
    assert "H_min=" in bar.postfix
    assert "abbe/global/max_logit_max" in scalars(tmp_path)


class Run:
    """As wandb's and trackio's."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((metrics, step))


def test_runs_with_a_log_method() -> None:
    run = Run()
    watched(steps=2, trackers=[run])
    assert [step for _, step in run.logged] == [1, 2]
    assert all(KEY.fullmatch(name) for name in run.logged[0][0])


def test_a_tracker_that_fails_is_named_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def broken(metrics: dict[str, float], step: int) -> None:
        raise OSError("no host")

    run = Run()
    watched(steps=3, trackers=[broken, run])
    assert sum("a tracker failed" in line and "no host" in line for line in caplog.messages) == 1
    assert len(run.logged) == 3


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(AbbeError, match=f"{name} is not installed: pip install {name}"):
        abbe.Monitor(trackers=name)


@pytest.mark.parametrize("given", ["tensorbord:x", "tensorboard", 3, [None]])
def test_what_is_no_tracker_is_refused(given: Any) -> None:
    with pytest.raises(AbbeError, match="allowed are"):
        abbe.Monitor(trackers=given)
