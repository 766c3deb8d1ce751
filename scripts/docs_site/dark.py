"""Figures for the dark theme: an SVG is recoloured when the site is built, so that no second file is kept."""

from __future__ import annotations

import re

# The light and the dark colours of abbe's pages, role by role; black, white and greys are those of plain charts.
_ROLES = {
    "#1e2129": ("#ffffff", "#fff", "white"),  # the page
    "#2a2f3a": ("#f4f6f8",),
    "#e6e9ee": ("#1c2430", "#000000", "#000", "black"),
    "#9aa6b5": ("#5a6675", "#888888", "#888"),
    "#3a4350": ("#dde2e8", "#dddddd", "#ddd", "#e6e9ee"),
    "#56b4e9": ("#0072b2", "#1f6fb4"),
    "#ff9248": ("#d55e00", "#c2571a"),
    "#2fc39a": ("#008a64", "#3a8f5c"),
    "#e08fbe": ("#b0548a",),
    "#98a1ac": ("#79818c",),
    "#363d47": ("#dcdfe3",),
    "#4d321f": ("#f8dfcc",),
    # Ramps from the shortest to the longest length: the longest stands out.
    "#2f6a96": ("#9ecae1",),
    "#3f7fae": ("#5596c2",),
    "#5d95be": ("#4682b1",),
    "#7cabce": ("#366d9f", "#2171b5"),
    "#9ac2df": ("#27598e",),
    "#b9d8ef": ("#17447c",),
    "#d8eeff": ("#08306b",),
}
_DARK = {light: dark for dark, lights in _ROLES.items() for light in lights}
_COLOUR = re.compile(r'(?<=")(?:#[0-9a-fA-F]{3,6}|white|black)(?=")')
_SVG = re.compile(r"!\[([^\]]*)\]\(((?:[^)\s]*/)?figures/[^)\s]+)\.svg\)")
_PNG = re.compile(r"(!\[[^\]]*\]\((?:[^)\s]*/)?figures/[^)\s]+\.png\))(?!\{)")


def recoloured(svg: str) -> str:
    """Colours that play no role, such as those of a continuous scale, stay."""
    return _COLOUR.sub(lambda match: _DARK.get(match[0].lower(), match[0]), svg)


def in_both_themes(markdown: str) -> str:
    """Each SVG once for either theme; screenshots of light pages get a class, by which site.css darkens them."""
    both = r"![\1](\2.svg#only-light)![\1](\2-dark.svg#only-dark)"
    return _PNG.sub(r"\1{ .screenshot }", _SVG.sub(both, markdown))
