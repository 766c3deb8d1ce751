"""Light and dark: the same roles in two sets of colours, for charts and pages alike.

The hues are those of Okabe and Ito, which colour-blind readers can distinguish, darkened or lightened to reach a
contrast of 3 against the background. A role keeps its hue in all figures: claims of the paper are vermillion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ThemeName = Literal["light", "dark"]
FONT = "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """One colour for every role."""

    background: str
    raised: str  # boxes and code
    ink: str
    soft: str  # text of less weight
    line: str  # grids and rules
    selected: str  # the N keys of largest weight
    control: str  # random sets
    control_pale: str  # an area that belongs to them
    claim: str  # what the paper states
    claim_pale: str
    proved: str  # what is proved
    third: str  # one more series
    fourth: str
    ramp: tuple[str, str]  # from the shortest to the longest length
    heat: tuple[str, str, str]  # from the lowest to the highest value of a map
    good: str
    bad: str
    alarm: str

    def shades(self, count: int) -> list[str]:
        """Colours in equal steps along the ramp."""
        ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in self.ramp]
        parts = [step / max(1, count - 1) for step in range(count)]
        return ["#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(*ends, strict=True)) for part in parts]

    def config(self) -> dict[str, Any]:
        """The part of a Vega-Lite specification that holds no data."""
        axis = {"labelColor": self.ink, "titleColor": self.ink, "tickColor": self.soft, "domainColor": self.soft}
        sizes = {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 6}
        return {
            "background": self.background,
            "font": FONT,
            "view": {"stroke": None},
            "axis": axis | sizes | {"gridColor": self.line, "gridOpacity": 0.8, "labelOverlap": "greedy"},
            "axisX": {"grid": False, "labelAngle": 0},
            "title": {
                "anchor": "start", "frame": "group", "color": self.ink, "fontSize": 13, "fontWeight": 600, "offset": 10,
                "subtitleColor": self.soft, "subtitleFontSize": 11, "subtitlePadding": 4,
            },
            "legend": {
                "orient": "bottom", "direction": "horizontal", "columns": 2, "title": None, "labelColor": self.ink,
                "labelFontSize": 11, "labelLimit": 300, "symbolOpacity": 1, "columnPadding": 18,
                "rowPadding": 4, "offset": 12, "symbolBaseFillColor": self.soft,
                "symbolBaseStrokeColor": self.soft,
            },
            "concat": {"spacing": 28},
        }  # fmt: skip


LIGHT = Theme(
    background="#ffffff", raised="#f4f6f8", ink="#1c2430", soft="#5a6675", line="#dde2e8", selected="#0072b2",
    control="#79818c", control_pale="#dcdfe3", claim="#d55e00", claim_pale="#f8dfcc",
    proved="#1c2430", third="#008a64", fourth="#b0548a", ramp=("#5596c2", "#08306b"),
    heat=("#e3eef7", "#5a9bc8", "#08306b"),
    good="#1a7f4b", bad="#b3560b", alarm="#b3261e",
)  # fmt: skip
DARK = Theme(
    background="#12161c", raised="#1b2129", ink="#e6e9ee", soft="#9aa6b5", line="#333d4a", selected="#56b4e9",
    control="#98a1ac", control_pale="#363d47", claim="#ff9248", claim_pale="#4d321f",
    proved="#e6e9ee", third="#2fc39a", fourth="#e08fbe", ramp=("#3f7fae", "#d8eeff"),
    heat=("#1b2c3f", "#4a8fc4", "#e2f3ff"),
    good="#58c48c", bad="#e8a15a", alarm="#ff8a80",
)  # fmt: skip
THEMES: dict[ThemeName, Theme] = {"light": LIGHT, "dark": DARK}
