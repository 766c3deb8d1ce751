"""The monitor's numbers arrive in the files of wandb, trackio and mlflow, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from training_cases import batches, hooks, llama, same, watched

import abbe

NAME = "abbe/global/entropy_min"


def entropies(monitor: abbe.Monitor) -> list[float]:
    return list(monitor.result().steps["entropy_min"])


@pytest.mark.parametrize("by_name", [True, False])
def test_wandb(by_name: bool, tmp_path: Path) -> None:
    import wandb

    with wandb.init(project="abbe", dir=tmp_path) as run:
        monitor = watched(steps=2, trackers="wandb" if by_name else run)
        run.log({}, step=3)  # a step is complete when the next begins
        assert run.summary[NAME] == pytest.approx(entropies(monitor)[-1], rel=1e-5)


@pytest.mark.parametrize("by_name", [True, False])
def test_trackio(by_name: bool) -> None:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    project = f"abbe-{by_name}"
    run: Any = trackio.init(project=project, name="run")
    monitor = watched(steps=2, trackers="trackio" if by_name else run)
    trackio.finish()
    logged = SQLiteStorage.get_logs(project, "run")
    assert [row["step"] for row in logged] == [1, 2]
    assert [row[NAME] for row in logged] == pytest.approx(entropies(monitor), rel=1e-5)


@pytest.mark.parametrize("active", [True, False])
def test_mlflow(active: bool, tmp_path: Path) -> None:
    """The active run, and if there is none the one that mlflow starts itself."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("abbe")
    if active:
        mlflow.start_run()
    try:
        monitor = watched(steps=2, trackers=["mlflow"])
        run: Any = mlflow.active_run()
    finally:
        mlflow.end_run()
    logged = mlflow.MlflowClient().get_metric_history(run.info.run_id, NAME)
    assert [one.step for one in logged] == [1, 2]
    assert [one.value for one in logged] == pytest.approx(entropies(monitor), rel=1e-5)
    names = mlflow.get_run(run.info.run_id).data.metrics
    assert "abbe/layer_1/separability_20_max" in names


def trained(train: bool, checkpointing: bool, **options: Any) -> tuple[Any, abbe.Monitor | None]:
    torch.manual_seed(0)
    network = llama()
    if checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": True})
        network.enable_input_require_grads()
    model = peft.get_peft_model(network, peft.LoraConfig(target_modules=["q_proj", "v_proj"])).train(train)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = abbe.Monitor(model, every=1, **options) if options else None
    for inputs in batches(3):
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        monitor.close()
    return model, monitor


@pytest.mark.parametrize(("train", "checkpointing"), [(True, False), (True, True), (False, False)])
def test_adapters_are_trained_the_same_and_read(train: bool, checkpointing: bool) -> None:
    plain, _ = trained(train, checkpointing)
    read, monitor = trained(train, checkpointing, rows=4)
    assert monitor is not None
    assert monitor.silent is None
    assert same(plain.state_dict(), read.state_dict())
    assert hooks(read) == 0 or checkpointing  # `enable_input_require_grads` is a hook itself
    table = monitor.result().table
    assert monitor.result().steps["step"].to_list() == [1, 2, 3]
    for measure in ("entropy", "logit_change", "query_gradient", "value_gradient"):
        assert len(table.filter(measure=measure)) == 3 * 2 * 4, measure
    assert table.filter(measure="query_gradient")["value"].min() > 0
    # The first layer's keys have no trained part before them: they have no gradient, which is not a gradient of 0.
    assert set(table.filter(measure="key_gradient")["layer"]) == ({0, 1} if checkpointing else {1})
