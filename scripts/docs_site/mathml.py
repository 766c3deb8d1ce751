"""Formulas as MathML: browsers typeset it themselves, so that no script and no font is fetched."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
_BIG_NORM = re.compile(r"\\[Bb]igg?[lr]?\s*\\\|")
_BAR = re.compile(r"<mo>(&#x02016;|&#x0007C;)</mo>")  # with an exponent it would stretch over that, too
_SLASH = re.compile(r"<mo>(?:/|&#x0002F;)</mo>")  # a quotient in a line, not an operator


def with_mathml(page: str) -> str:
    """The HTML of a page, with every formula that the extension arithmatex has marked set as MathML."""
    page = _BLOCK.sub(lambda match: f'<div class="formula">{_mathml(match[1], "block")}</div>', page)
    return _INLINE.sub(lambda match: _mathml(match[1], "inline"), page)


def _mathml(latex: str, display: str) -> str:
    known = _BIG_NORM.sub(r"\\Vert ", html.unescape(latex).strip())  # MathML stretches it by itself
    made: str = convert(known, display=display)
    if "\\" in re.sub(r"<[^>]*>", "", made):  # an unknown command is left as it is
        raise ValueError(f"the formula {latex!r} has a command that latex2mathml does not know")
    return _SLASH.sub(r'<mo lspace="0" rspace="0">/</mo>', _BAR.sub(r'<mo stretchy="false">\1</mo>', made))
