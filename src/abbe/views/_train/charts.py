"""All charts of an experiment, by name, in the order of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._shared.series import Spec, unchecked
from .._shared.theme import ThemeName
from .choice_charts import best_chart, length_chart, rate_chart
from .curve_charts import choice_curves, temperature_curves
from .temperature_charts import accuracy_chart, rates_chart, sensitivity_chart
from .warning_charts import warning_chart

if TYPE_CHECKING:
    from ...studies import Experiment


@unchecked
def train_charts(experiment: Experiment, theme: ThemeName = "light") -> dict[str, Spec]:
    """What there is to see of an experiment; a chart without data is left out."""
    charts: dict[str, Spec | None]
    if experiment.experiment == "temperature":
        charts = {"accuracy": accuracy_chart(experiment, theme), "rates": rates_chart(experiment, theme)}
        for optimizer in experiment.summary["optimizer"].unique(maintain_order=True):
            charts[f"curves-{optimizer}"] = temperature_curves(experiment, optimizer, theme)
        charts["sensitivity"] = sensitivity_chart(experiment, theme)
    else:
        lengths = {"lengths": length_chart(experiment, theme)} if experiment.lengths.height else {}
        charts = {
            **lengths, "best": best_chart(experiment, theme), "rates": rate_chart(experiment, theme),
            "curves": choice_curves(experiment, theme),
        }  # fmt: skip
    charts["warning"] = warning_chart(experiment, theme)
    return {name: chart for name, chart in charts.items() if chart is not None}
