"""A calibration in the terminal, and the tables of its page: losses stage by stage, errors layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import model_name
from ...words.names import FINETUNED, FITTED, SWAPPED
from ...words.numbers import percent, with_interval
from .._shared.terminal import TextTable, bullets, draw, plain, skipped_lines

if TYPE_CHECKING:
    from ...results import Estimate
    from ...studies import Calibration


def calibration_table(calibration: Calibration) -> RenderableType:
    """What did the swap cost, and what did calibration regain?

    Losses stage by stage, then errors and exact zeros per layer. A loss over the baseline above 0 and a large error are
    costs.

    Args:
        calibration: from `abbe.calibrate`.

    Examples:
        >>> small = {"length": 32, "windows": 2, "held_out": 2, "steps": 2, "progress": False}
        >>> calibration = abbe.calibrate(normalizer="topk:k=8", **small)
        >>> from rich import print
        >>> print(abbe.views.calibration_table(calibration))
        abbe-gpt2-5M with topk:k=8
        ...
    """
    parts: list[RenderableType] = [Text(plain(calibration_question(calibration)), style="bold")]
    parts += [draw(table, "(") for table in calibration_tables(calibration)]  # the interval below its number
    return Group(*parts, *bullets(calibration.findings), *skipped_lines(calibration.manifest))


def calibration_question(calibration: Calibration) -> str:
    spec = calibration.spec
    words = spec if isinstance(spec, str) else ", ".join(f"{pattern}: {one}" for pattern, one in spec.items())
    return f"{model_name(calibration.manifest)} with {words}"


def calibration_tables(calibration: Calibration) -> list[TextTable]:
    """Losses, then errors and zeros per layer."""
    of_layers = _layers(calibration, "error", "Error of the outputs, over their size")
    zeros = _layers(calibration, "zeros", "Weights that are exactly 0")
    return [*([_losses(calibration)] if calibration.losses else []), of_layers, zeros]


def _losses(calibration: Calibration) -> TextTable:
    rows = [
        (stage.stage, *(_cell(x) for x in (stage.loss, stage.over_baseline, stage.gain)))
        for stage in calibration.losses
    ]
    return TextTable("Loss on held-out windows, nats per token", ("stage", "loss", "over baseline", "gain"), rows)


def _cell(mean: Estimate | None) -> str:
    """z drops the minus of -0.000."""
    return "" if mean is None else with_interval(mean.value, mean.low, mean.high, "{:z.3f}".format)


def _layers(calibration: Calibration, what: str, title: str) -> TextTable:
    """A column per stage after the swap."""
    layers = calibration.layers
    stages = {"before": SWAPPED, "after": FITTED}
    stages |= {} if layers["error_tuned"].is_null().all() else {"tuned": FINETUNED}
    rows = [
        (str(row["layer"]), *(percent(row[f"{what}_{stage}"]) for stage in stages))
        for row in layers.iter_rows(named=True)
    ]
    return TextTable(title, ("layer", *stages.values()), rows)
