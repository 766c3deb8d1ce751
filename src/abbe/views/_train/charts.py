"""All charts of an experiment by name, in the order of its page, and that page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._shared.series import Spec, unchecked
from .._shared.theme import THEMES, ThemeName
from .._study_page import study_page
from .choice_charts import best_chart, length_chart, rate_chart
from .curve_charts import choice_curves, temperature_curves
from .table import train_tables
from .temperature_charts import accuracy_chart, rates_chart, sensitivity_chart
from .warning_charts import warning_chart
from .words import about_lines, question_of

if TYPE_CHECKING:
    from ...studies import Experiment


@unchecked
def train_charts(experiment: Experiment, theme: ThemeName = "light") -> dict[str, Spec]:
    """All charts of an experiment of the training lab.

    What each choice reaches at its best rate, how much the rate matters, curves over the steps, and what warned before
    a failure. High accuracy and low loss are good; a signal with a high AUC warns reliably.

    Args:
        experiment: from `abbe.train_temperature`, `train_length`, `train_recall` or `train_text`.
        theme: "light" or "dark".

    Returns:
        Vega-Lite specifications by name; a chart without data is left out.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 20, "workers": 1, "progress": False}
        >>> experiment = abbe.train_recall(normalizers="softmax", **small)
        >>> list(abbe.views.train_charts(experiment))
        ['best', 'rates', 'curves']
    """
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


def train_page(experiment: Experiment) -> str:
    charts = {theme: train_charts(experiment, theme) for theme in THEMES}
    question, about = question_of(experiment), about_lines(experiment)
    return study_page(experiment, question, about, experiment.findings, train_tables(experiment), charts)
