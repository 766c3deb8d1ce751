"""Looking at results: their words in a terminal, and the panels, layers and rows of their charts."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import vl_convert
from rich.console import Console

from abbe.views import terminal
from abbe.views.html import vega_lite_version

FILLED = {
    "map": (),
    "sizes": ("rows",),
    "lengths": ("rows",),
    "ball": ("points", "circle"),
    "growth": ("chosen",),
    "gradient": ("chosen",),
    "alternatives": ("chosen",),
}
PANELS = {
    "map": ["dispersion, L = 1024", "separability, N = 20, L = 1024"],
    "sizes": ["separability", "weight of the selected", "distance from the rest", "weights within the selected"],
    "lengths": ["dispersion", "largest weight", "entropy", "separability, N = 20", "weight of the selected, N = 20"],
    "ball": [""],
    "growth": ["largest weight", "dispersion", "separability, N = 20", "how fast the largest weight fades"],
    "gradient": ["sensitivity, worst direction, L = 1024", "temperature below which a head is fragile"],
    "alternatives": ["separable weight, against what it changes", "gain"],
}


def printed(result: Any, columns: int = 80) -> str:
    """As a terminal of this width shows it."""
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(terminal(result))
    return console.export_text()


def charts_of(result: Any, theme: str = "light") -> dict[str, Any]:
    return dict(result.view().charts(theme))


def charts_on(page: str) -> dict[str, Any]:
    """The charts that a page holds, by name, each for both themes."""
    (content,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    return dict(json.loads(content))


def parts(spec: Any) -> Iterator[dict[str, Any]]:
    """Every object of a specification, data aside."""
    if isinstance(spec, dict):
        yield spec
        for name, value in spec.items():
            if name != "datasets":
                yield from parts(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from parts(value)


def one_panel(spec: dict[str, Any], title: str) -> dict[str, Any]:
    (panel,) = [part for part in spec["concat"] if part["title"] == title]
    return dict(panel)


def layer_rows(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(spec["datasets"][layer["data"]["name"]])


def series(spec: dict[str, Any], title: str, label: str) -> list[dict[str, Any]]:
    """The layers of a panel that are drawn under this label."""
    said = json.dumps(label)
    return [
        layer
        for layer in one_panel(spec, title)["layer"]
        if any(said == step.get("calculate") for step in layer.get("transform", []))
    ]


def drawn(spec: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> str:
    """As SVG, if Vega has nothing to complain about."""
    capfd.readouterr()
    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version(), show_warnings=True)
    said = capfd.readouterr()
    assert "WARN" not in said.err + said.out, said
    for broken in ("NaN", "undefined", "Infinity"):
        assert broken not in svg
    return svg


def y_domain(one: dict[str, Any]) -> tuple[float, float]:
    domains = {
        tuple(layer["encoding"]["y"]["scale"]["domain"]) for layer in one["layer"] if "y" in layer.get("encoding", {})
    }
    assert len(domains) == 1, "layers of one panel share their axis"
    return next(iter(domains))
