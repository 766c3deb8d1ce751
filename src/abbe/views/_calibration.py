"""A calibration in the terminal: losses stage by stage, errors layer by layer, what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from ..words.numbers import percent, with_interval
from ._shared.terminal import bullets, new_table, plain, skipped_lines

if TYPE_CHECKING:
    from ..studies import Calibration, Interval


_STAGES = {BASELINE: "baseline"}


def calibration_table(calibration: Calibration) -> RenderableType:
    """Readable from 80 columns on."""
    spec = calibration.spec
    spec = spec if isinstance(spec, str) else ", ".join(f"{pattern}: {one}" for pattern, one in spec.items())
    parts: list[RenderableType] = [Text(plain(f"{calibration.manifest['model']['name']} with {spec}"), style="bold")]
    if calibration.losses:
        parts.append(_losses(calibration))
    parts.append(_layers(calibration))
    return Group(*parts, *bullets(calibration.findings), *skipped_lines(calibration.manifest))


def _losses(calibration: Calibration) -> Table:
    table = new_table("loss", "over baseline", "gain", first="held out")
    for stage in calibration.losses:
        table.add_row(
            _STAGES.get(stage.stage, stage.stage),
            *(Text(_cell(value)) for value in (stage.loss, stage.over_own, stage.gain)),
        )
    return table


def _cell(mean: Interval | None) -> str:
    return "" if mean is None else with_interval(mean.value, mean.low, mean.high, "{:.3f}".format)


def _layers(calibration: Calibration) -> Table:
    """A column for each stage after the swap."""
    layers = calibration.layers
    stages = {"before": SWAPPED, "after": FITTED}
    stages |= {} if layers["error_tuned"].is_null().all() else {"tuned": FINETUNED}
    names = [f"{what}_{stage}" for what in ("error", "zeros") for stage in stages]
    words = [
        f"{what}, {SWAPPED}" if stage == SWAPPED else stage for what in ("error", "zeros") for stage in stages.values()
    ]
    table = new_table(*words, first="layer")
    for column, word in zip(table.columns[1:], words, strict=True):
        column.no_wrap = " " not in word  # else it would be cut in a narrow terminal
    for row in layers.iter_rows(named=True):
        table.add_row(str(row["layer"]), *(percent(row[name]) for name in names))
    return table
