"""The figures of the paper as charts: interactive on a page, PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import altair as alt

from ..._errors import AbbeError
from .._shared.series import unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .distance import critical_panels, distance_panels
from .drift import drift_panels
from .panels import Panel, data, panel
from .sensitivity import sensitivity_panels
from .separability import separability_panels
from .words import WORDS, settings_line

if TYPE_CHECKING:
    from ...studies import Figure

_PANELS: dict[str, Callable[[Figure, Theme], list[Panel]]] = {
    "2a": distance_panels,
    "2b": distance_panels,
    "2c": critical_panels,
    "3": separability_panels,
    "4": sensitivity_panels,
    "drift": drift_panels,
}


@unchecked
def figure_chart(figure: Figure, theme: ThemeName = "light") -> alt.ConcatChart:
    """A figure of the paper as this model gives it.

    Its title asks the question, its subtitle holds the settings; measured curves stand beside random sets and what the
    paper states. What a high or low curve means differs by figure: the page of the reproduction says it.

    Args:
        figure: one of `abbe.Reproduction.figures`.
        theme: "light" or "dark".

    Returns:
        The chart, which `save` writes as PNG, SVG or HTML.

    Examples:
        >>> reproduction = abbe.reproduce(figures="2b", quick=True, windows=1, queries=4, progress=False)
        >>> abbe.views.figure_chart(reproduction.figures["2b"], "dark").title.text
        'Does selecting more tokens increase the distance?'
    """
    if figure.name not in _PANELS:
        raise AbbeError(f"no chart for figure {figure.name!r}; there are charts for {', '.join(_PANELS)}")
    colours = THEMES[theme]
    panels = _PANELS[figure.name](figure, colours) or [_nothing(colours)]
    words = WORDS[figure.name]
    title = alt.TitleParams(words.question, subtitle=settings_line(figure))
    columns = 1 if isinstance(panels[0], alt.ConcatChart) else 2
    chart = alt.concat(*panels, columns=columns, title=title, padding=10)
    if figure.name == "2c":  # levels on the left, lengths on the right
        chart = chart.resolve_scale(color="independent", shape="independent")
    chart.config = alt.Config.from_dict(colours.config())
    return chart.properties(description=f"{words.question} {settings_line(figure)}")


@lru_cache(maxsize=32)  # page, PNG and SVG share it; altair takes long to write it
@unchecked
def specification(figure: Figure, theme: ThemeName) -> dict[str, Any]:
    """The chart as Vega-Lite; cached, so never modify it."""
    chart: dict[str, Any] = figure_chart(figure, theme).to_dict(validate=False)
    return chart


def _nothing(theme: Theme) -> alt.LayerChart:
    words = alt.Chart(data([{}])).mark_text(text="nothing was measured", color=theme.soft, fontSize=12)
    return panel([words], "")
