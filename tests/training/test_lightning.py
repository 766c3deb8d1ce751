"""Lightning's Trainer drives a monitor through its callback; where Lightning is not installed that is one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import batches, gpt2, hooks, same

import abbe
from abbe import AbbeError

INSTALLED = importlib.util.find_spec("lightning") is not None


@pytest.mark.skipif(INSTALLED, reason="lightning is installed")
def test_without_lightning_the_callback_is_refused() -> None:
    with pytest.raises(AbbeError, match="needs Lightning: pip install lightning"):
        abbe.Monitor().lightning()


@pytest.mark.skipif(not INSTALLED, reason="lightning is not installed")
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_the_same_model(tmp_path: Path) -> None:
    """With accumulation over two batches."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = gpt2(dropout=0.0)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.network(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def trained(callbacks: list[Any]) -> Any:
        lightning.seed_everything(0)
        module = Module()
        trainer = lightning.Trainer(
            max_steps=4, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False, callbacks=callbacks,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(list(batches(8)), batch_size=None))  # type: ignore[arg-type]
        return module

    monitor = abbe.Monitor(every=2, folder=tmp_path / "run")
    plain, read = trained([]), trained([monitor.lightning()])
    assert same(plain.state_dict(), read.state_dict())
    assert monitor.silent is None
    result: Any = abbe.open(tmp_path / "run")
    assert result.steps["step"].to_list() == [1, 2, 4]
    assert result.steps["learning_rate"][0] == pytest.approx(1e-2)
    assert hooks(read) == 0
