"""The figures of the paper as charts: interactive on a page, PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import altair as alt

from ..._errors import AbbeError
from .._shared.panels import Panel, data, panel
from .._shared.series import unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .distance import critical_panels, distance_panels
from .drift import drift_panels
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
    """A figure of the paper in one theme, with a title that asks its question and a subtitle with the settings."""
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


@lru_cache(maxsize=32)  # page, PNG and SVG are drawn from the same one; altair takes long to write it
@unchecked
def specification(figure: Figure, theme: ThemeName) -> dict[str, Any]:
    """The chart as Vega-Lite; not to be changed."""
    chart: dict[str, Any] = figure_chart(figure, theme).to_dict(validate=False)
    return chart


def _nothing(theme: Theme) -> alt.LayerChart:
    words = alt.Chart(data([{}])).mark_text(text="nothing was measured", color=theme.soft, fontSize=12)
    return panel([words], "")
