"""Lightning's Trainer drives a monitor through its callback, in whichever mode it trains the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from training_cases import batches, gpt2, hooks, same
from transformers import AutoModelForCausalLM

import abbe


class Module(lightning.LightningModule):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Any, index: int) -> Any:
        return self.network(**batch).loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.network(**batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trained(network: Any, folder: Path, callbacks: list[Any]) -> Any:
    """Four steps with accumulation over two batches, and validation after each of them."""
    module = Module(network)
    trainer = lightning.Trainer(
        max_steps=4, accumulate_grad_batches=2, val_check_interval=2, accelerator="cpu", devices=1, logger=False,
        callbacks=callbacks, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip
    data = (torch.utils.data.DataLoader(list(batches(n, length=k)), batch_size=None) for n, k in ((8, 40), (1, 17)))  # type: ignore[arg-type]
    trainer.fit(module, *data)
    return module


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_lightning_trains_the_same_model_and_it_is_read(mode: str, tmp_path: Path) -> None:
    """`from_pretrained` gives a model in evaluation mode, and Lightning leaves it there."""
    gpt2(dropout=0.0).save_pretrained(tmp_path / "model")

    def network() -> Any:
        return type(gpt2()).from_pretrained(tmp_path / "model").train(mode == "training")

    monitor = abbe.Monitor(every=2, folder=tmp_path / "run")
    plain = trained(network(), tmp_path, [])
    read = trained(network(), tmp_path, [monitor.lightning()])
    assert read.network.training == (mode == "training")
    assert same(plain.state_dict(), read.state_dict())
    assert monitor.silent is None
    result: Any = abbe.open(tmp_path / "run")
    assert result.steps["step"].to_list() == [1, 2, 4]
    assert result.steps["learning_rate"][0] == pytest.approx(1e-2)
    assert result.table.filter(measure="query_gradient")["value"].min() > 0
    assert hooks(read) == 0


def test_a_checkpoint_of_a_swapped_model_is_resumed(tmp_path: Path) -> None:
    """The plan is in its state: Lightning goes on with the learned values, and refuses another plan by name."""

    def fitted(what: str, steps: int, resume: Path | None = None) -> Any:
        network = gpt2(dropout=0.0)
        abbe.swap(network, what)
        module, monitor = Module(network), abbe.Monitor(every=2)
        trainer = lightning.Trainer(
            max_steps=steps, callbacks=[monitor.lightning()], accelerator="cpu", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        data = torch.utils.data.DataLoader(list(batches(1)), batch_size=None)  # type: ignore[arg-type]
        trainer.fit(module, data, ckpt_path=resume)
        assert monitor.silent is None
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return module

    learned = "entmax:alpha=1.5,learn=true"
    whole = fitted(learned, 4)
    fitted(learned, 2)
    assert same(fitted(learned, 4, tmp_path / "2.ckpt").state_dict(), whole.state_dict())
    with pytest.raises(abbe.AbbeError, match=r"the checkpoint has entmax:alpha=1\.5,learn=true"):
        fitted("sparsemax", 4, tmp_path / "2.ckpt")
    whole.network.save_pretrained(tmp_path / "folder")
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert same(read.state_dict(), whole.network.state_dict())
