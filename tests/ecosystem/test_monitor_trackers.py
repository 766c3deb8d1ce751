"""The monitor's numbers arrive in the files of wandb, trackio and mlflow, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_cases import watched

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
