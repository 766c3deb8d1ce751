"""Studies of capacity that were stopped and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from capacity_runs import made
from inside import Parts, window_losses
from inside import capacity_losses as _capacity_losses
from polars.testing import assert_frame_equal

from abbe.models import windows as cut_windows


def test_the_cost_is_that_of_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cost_printed(**options: Any) -> str:
        made(layers=False, lengths=[16], way="deletion", tau=0.05, progress=True, **options)
        return capsys.readouterr().err

    planned = 8  # the baseline's loss, N = 1, 2, 4 and 8, and two steps of the search; separability
    assert f"{3 * planned} windows, {48 * planned} tokens: about" in cost_printed()
    cost_printed(folder=tmp_path)
    assert "all windows were measured before" in cost_printed(folder=tmp_path)
    (tmp_path / "capacity.json").unlink()
    (tmp_path / "separability" / "windows" / "16-1.safetensors").unlink()
    kept = len(list((tmp_path / "losses").iterdir()))
    left = 3 * (planned - 1 - kept) + 1
    assert left >= 1
    counted = "1 window" if left == 1 else f"{left} windows"
    assert f"{counted}, {16 * left} tokens: about" in cost_printed(folder=tmp_path)


def test_check_and_cost_are_said_once_for_losses_and_separability(capsys: pytest.CaptureFixture[str]) -> None:
    made(layers=False, lengths=[16], progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["tiny gpt2", "tiny gpt2", "54 windows, 864 tokens"]
    assert "to measure with" in lines[0]
    assert "self-check error" in lines[1]


def test_losses_of_some_windows_are_taken_from_those_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their numbers, in the order that is asked for; those of more windows than are kept are evaluated."""
    model = tiny_runs.model()
    cut = cut_windows(tiny_runs.TEXT, [16], 4, 0, tokenizer=model.tokenizer)
    how = _capacity_losses.Truncation("deletion", 4)
    losses = _capacity_losses.Losses(model, Parts(tmp_path, "run"), lambda *_: None)
    own, cut_off = losses.baseline(cut[:3]), losses.truncated(cut[:3], how)
    assert len(set(own.tolist())) == len(set(cut_off.tolist())) == 3
    with monkeypatch.context() as patched:
        patched.setattr(_capacity_losses, "window_losses", lambda *_: pytest.fail("evaluated again"))
        for known in (losses, _capacity_losses.Losses(model, Parts(tmp_path, "run"), lambda *_: None)):
            assert known.baseline([cut[2], cut[1]]).tolist() == own[[2, 1]].tolist()
            assert known.truncated([cut[1]], how).tolist() == cut_off[[1]].tolist()
    for known in (losses, _capacity_losses.Losses(model, Parts(tmp_path, "run"), lambda *_: None)):
        assert known.baseline([cut[3], cut[0]]).tolist() == window_losses(model, [cut[3], cut[0]]).tolist()


@pytest.mark.slow
def test_a_folder_that_does_not_say_of_which_windows_it_is_costs_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"layer_windows": 1, "folder": tmp_path, "progress": True}
    first = made(**options)
    for path in (tmp_path / "losses").iterdir():
        path.write_text('{"losses": [9.0, 9.0, 9.0]}')
    capsys.readouterr()
    assert_frame_equal(made(**options).table, first.table)
    assert "all windows were measured before" not in capsys.readouterr().err
