"""Charts as pictures: PNG, SVG and PDF for papers, SVG inside pages and notebooks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from .html import vega_lite_version

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DEFINED = re.compile(r'\bid="([^"]+)"')
_USED = re.compile(r'(\bid="|url\(#|href="#)([^")]+)(["\)])')
_XML_NAMES = re.compile(r' xmlns(:\w+)?="[^"]*"')


def drawings(chart: dict[str, Any]) -> dict[str, bytes]:
    """PNG at twice the size, SVG and PDF, by file ending; needs neither browser nor network."""
    import vl_convert  # a large library

    svg = as_svg(chart)
    return {"png": vl_convert.svg_to_png(svg, scale=2), "svg": svg.encode(), "pdf": vl_convert.svg_to_pdf(svg)}


def as_svg(chart: Mapping[str, Any]) -> str:
    import vl_convert

    return vl_convert.vegalite_to_svg(for_xml(chart), vl_version=vega_lite_version())


def for_xml(part: Any) -> Any:
    """The same without characters that XML forbids: one of them would make the library end the process."""
    if isinstance(part, str):
        return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", part)
    if isinstance(part, dict):
        return {for_xml(key): for_xml(value) for key, value in part.items()}
    return [for_xml(value) for value in part] if isinstance(part, list | tuple) else part


def svg(chart: Mapping[str, Any]) -> str:
    """The chart as SVG, at most as wide as the page."""
    drawn = _XML_NAMES.sub("", _unique_names(as_svg(chart)))  # HTML knows them, and a page names no host
    label = escape(str(chart["description"]))
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" style="max-width:100%;height:auto" ', 1)


def _unique_names(drawn: str) -> str:
    """Ids unique to this drawing, since a notebook holds many, and reproducible: Vega only counts them up."""
    order = {name: str(i) for i, name in enumerate(dict.fromkeys(_DEFINED.findall(drawn)))}
    counted = _USED.sub(lambda use: use[1] + order.get(use[2], use[2]) + use[3], drawn)
    prefix = f"abbe-{hashlib.sha256(counted.encode()).hexdigest()[:10]}-"
    return _USED.sub(lambda use: use[1] + prefix + use[2] + use[3], counted)
