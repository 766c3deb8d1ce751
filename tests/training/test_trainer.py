"""transformers' Trainer: bit-identical weights, its own trackers, resume, stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training_cases import VOCABULARY, gpt2, hooks, same, scalars

import abbe

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Trainer itself


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(1, VOCABULARY, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def trained(folder: Path, callbacks: list[Any], *, resume: bool = False, **options: Any) -> Any:
    arguments = {"per_device_train_batch_size": 2, "max_steps": 4, "report_to": "none", "save_strategy": "no"} | options
    args = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, logging_strategy="no", **arguments
    )
    trainer = transformers.Trainer(gpt2(), args, train_dataset=Texts(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_weights_are_bit_identical_and_the_run_is_kept(tmp_path: Path) -> None:
    """With accumulation over two micro-batches."""
    options = {"gradient_accumulation_steps": 2, "learning_rate": 1e-2}
    plain = trained(tmp_path / "plain", [], **options)
    monitor = abbe.Monitor(every=2)
    read = trained(tmp_path / "read", [monitor], **options)
    assert same(plain.model.state_dict(), read.model.state_dict())
    assert monitor.silent is None
    assert hooks(read.model) == 0
    result: Any = abbe.open(tmp_path / "read" / "abbe")
    assert result.steps["step"].to_list() == [1, 2, 4]
    assert 3 < result.steps["loss"][0] < 6
    assert result.steps["learning_rate"][0] == pytest.approx(1e-2)
    assert result.steps["learning_rate"][1] < 1e-2


def test_a_monitor_checks_itself_in_every_run(tmp_path: Path) -> None:
    monitor = abbe.Monitor(every=2)
    for name in ("first", "second"):
        trained(tmp_path / name, [monitor], max_steps=2)
    first, second = (abbe.open(tmp_path / name / "abbe").manifest["self_check"] for name in ("first", "second"))
    assert first == second


def test_trainers_own_tensorboard_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    monitor = abbe.Monitor(every=2)
    trained(tmp_path, [monitor], report_to="tensorboard", max_steps=3)
    read = scalars(tmp_path / "events")
    assert [step for step, _ in read["train/abbe/global/entropy_min"]] == [1, 2]
    expected = monitor.result().steps["entropy_min"].to_list()
    assert [value for _, value in read["train/abbe/global/entropy_min"]] == pytest.approx(expected, rel=1e-5)
    assert "train/abbe/layer_1/entropy" in read


@pytest.mark.slow
def test_a_run_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 5}
    first = abbe.Monitor(every=1)
    trained(tmp_path, [first], **saving)
    (tmp_path / "checkpoint-5").rename(tmp_path / "lost")
    second = abbe.Monitor(every=1)
    trained(tmp_path, [second], resume=True, **saving)
    assert second.silent is None
    result: Any = abbe.open(tmp_path / "abbe")
    assert result.steps["step"].to_list() == [1, 2, 3, 4, 5]
    again = abbe.Monitor(every=1)
    trained(tmp_path, [again], max_steps=1)  # from the start: another run, in a folder of its own
    assert len(abbe.open(tmp_path / "abbe-2").steps) == 1  # type: ignore[attr-defined]


def test_an_alert_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alert = abbe.training.Alert(1, "sink", 0, 0, 0.5, 0.3)
    monkeypatch.setattr(abbe.training.Alerts, "check", lambda self, step, values, loss: [alert])
    monitor = abbe.Monitor(every=2, on_alert="stop")
    trainer = trained(tmp_path, [monitor])
    assert trainer.state.global_step == 1
