"""open: the saved result of any study."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from ..lab.result import Experiment, opened_experiment
from ..results import Result, Run, Training, opened_run, opened_training, read_manifest
from ._calibrate.result import Calibration, opened_calibration
from ._capacity.result import Capacity, opened_capacity
from ._compare.result import Comparison, opened_comparison
from ._diff.result import Difference, opened_difference
from ._each import Reports, opened_reports
from ._lift.result import Lift, opened_lift
from ._report.result import SAMPLE, Report
from ._report.study import opened_report
from ._reproduce.result import Reproduction, opened_reproduction

_OPENERS: dict[str, Callable[[Path, Mapping[str, Any], Mapping[str, Any]], Result]] = {
    Run.study: opened_run,
    Report.study: opened_report,
    Reports.study: opened_reports,
    Reproduction.study: opened_reproduction,
    Capacity.study: opened_capacity,
    Comparison.study: opened_comparison,
    Difference.study: opened_difference,
    Calibration.study: opened_calibration,
    Lift.study: opened_lift,
    Training.study: opened_training,
    Experiment.study: opened_experiment,
}


def open(folder: str | os.PathLike[str]) -> Result:
    """Open the result that `diagnose`, `report`, `capacity`, `compare`, `diff` or another study saved in a folder.

    A folder that a `Monitor` writes can be opened while the training run goes on.

    Args:
        folder: of the run.

    Returns:
        The result, as the study returned it.

    Raises:
        AbbeError: it is not a run folder, or is unfinished or damaged.

    Examples:
        >>> abbe.open(abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run"))
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    source = Path(folder).expanduser()
    manifest, stored = read_manifest(source)
    study = manifest.get("study") or _of_older_format(source)
    if study not in _OPENERS:
        raise AbbeError(f"{source} is a folder of `abbe {study}`, which this version does not know")
    try:
        return _OPENERS[study](source, manifest, stored)
    except (KeyError, TypeError, ValueError) as error:
        raise AbbeError(f"{source} is incomplete ({error}): run the same command again with this folder") from None


def _of_older_format(folder: Path) -> str:
    """Up to format 2 only runs and reports had a manifest, which did not name the study."""
    return Report.study if (folder / SAMPLE).exists() else Run.study
