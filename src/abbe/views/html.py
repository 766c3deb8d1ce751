"""The shell of every page: one offline file, all text escaped, no request to any host.

A page names in its policy the hashes of its own scripts, so that nothing else runs, even if some text were not escaped.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..words.finding import Fact
from ..words.numbers import number
from .theme import DARK, FONT, LIGHT, THEMES, ThemeName

if TYPE_CHECKING:  # of the extra `models`, which a page of bounds does not need
    import polars as pl

_GLOBAL = "window.vegaEmbed = vegaEmbed;"
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def render(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """The page; `scripts` run in this order at its end."""
    looks = {"light": LIGHT, "dark": DARK, "font": Markup(FONT)}
    code = {"policy": _policy(scripts), "scripts": [Markup(script) for script in scripts]}
    page = _environment().get_template(template).render(**looks, **code, **values)
    return page.encode("utf-8", "replace").decode("utf-8")  # half a character in some text would break the file


def manifest_parts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What every page shows of a manifest: parts that were skipped, and the whole as JSON."""
    skipped = [str(why) for why in manifest.get("skipped") or ()]
    return {"skipped": skipped, "manifest": json.dumps(manifest, indent=2, ensure_ascii=False, default=str)}


def numbers_of(numbers: Mapping[str, Fact]) -> list[tuple[str, str]]:
    return [(name, number(value)) for name, value in numbers.items()]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("abbe.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be loaded, sent or framed; charts need styles and pictures made on the page."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    kept = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"{kept}; script-src {allowed}"


def script(name: str) -> str:
    return (files("abbe.views") / "scripts" / name).read_text(encoding="utf-8")


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed in one script."""
    import vl_convert  # a large library that most pages do not need

    return vl_convert.javascript_bundle(_GLOBAL, vl_version=vega_lite_version())


@cache
def vega_lite_version() -> str | None:
    """The version that altair writes for; None (the newest) if it is not available."""
    import vl_convert  # as above

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return version if version in vl_convert.get_vegalite_versions() else None


def as_json(value: Any) -> Markup:
    """JSON that no browser can take for markup, wherever it stands in a script element."""
    return Markup(_compact(value).translate(_UNSAFE))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# -- Data inside a page, small enough to be mailed -------------------------------------------------------------------
#
# A table is a line of JSON that describes its columns, then the columns, byte plane by byte plane, so that slowly
# changing bytes lie together and compress well. Words and whole numbers are coded by their place in a list of all
# values; other numbers are decimals of five digits, so that Python and the page read exactly the same value.

DIGITS = 5
ABSENT, NOT_A_NUMBER, INFINITE, MINUS_INFINITE = range(4)  # in place of a power of ten
NO_POWER = 1000  # added to a power of ten, so that it is positive and none of the above
NO_MANTISSA = 1 << 23  # added to a mantissa of five digits: positive, and below 2^24, so that three bytes hold it
_TINY = 1e-300  # below it powers of ten overflow: shown as 0


def packed(content: bytes) -> Markup:
    """Compressed, as text of letters and digits that is safe in any element; the same bytes give the same text."""
    return Markup(base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii"))


def packed_json(value: Any) -> Markup:
    return packed(_compact(value).encode("utf-8", "replace"))


def packed_table(table: pl.DataFrame) -> Markup:
    """Floats as decimals, all other columns by codes."""
    described, planes = [], []
    for column in table.iter_columns():
        about, of_column = _decimals(column) if column.dtype.is_float() else _codes(column)
        described.append({"name": column.name} | about)
        planes += of_column
    head = json.dumps({"rows": table.height, "columns": described}, ensure_ascii=False)
    return packed(head.encode("utf-8", "replace") + b"\n" + b"".join(planes))


def _codes(column: pl.Series) -> tuple[dict[str, Any], list[bytes]]:
    """The sorted values, null last; and the place of every row's value among them."""
    values = column.unique().drop_nulls().sort().to_list()
    places = {value: place for place, value in enumerate(values)} | {None: len(values)}
    codes = np.fromiter((places[value] for value in column.to_list()), np.uint32, column.len())
    planes = 1 if len(values) < 256 else 2 if len(values) < 65536 else 4
    return {"kind": "codes", "values": [*values, None], "planes": planes}, _planes(codes, planes)


def _decimals(column: pl.Series) -> tuple[dict[str, Any], list[bytes]]:
    """mantissa * 10^power, with marks for absent and non-finite values."""
    values = column.fill_null(math.nan).to_numpy().astype(np.float64)
    usual = np.isfinite(values) & (np.abs(values) >= _TINY)
    safe = np.where(usual, values, 1.0)
    powers = np.floor(np.log10(np.abs(safe))).astype(np.int64) - (DIGITS - 1)
    mantissas = np.rint(safe / 10.0**powers).astype(np.int64)
    short = np.abs(mantissas) == 10**DIGITS  # 9.999996 has become 10.0000
    mantissas, powers = np.where(short, mantissas // 10, mantissas), np.where(short, powers + 1, powers)
    marks = np.where(np.isposinf(values), INFINITE, np.where(np.isneginf(values), MINUS_INFINITE, NOT_A_NUMBER))
    marks = np.where(column.is_null().to_numpy(), ABSENT, marks)
    powers = np.where(np.isfinite(values), np.where(usual, powers, 0) + NO_POWER, marks)
    mantissas = np.where(usual, mantissas, 0) + NO_MANTISSA
    return {"kind": "decimals"}, _planes(mantissas, 3) + _planes(powers, 2)


def _planes(numbers: npt.NDArray[Any], planes: int) -> list[bytes]:
    """The lowest byte of all numbers, then the next."""
    return [((numbers >> (8 * plane)) & 255).astype(np.uint8).tobytes() for plane in range(planes)]


def plain_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON: five digits, words for non-finite numbers."""
    return [{name: plain_value(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def plain_value(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")


def both_themes(specifications: Mapping[ThemeName, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Charts by name from charts by theme: both looks, and their shared data once."""
    charts: dict[str, Any] = {}
    for theme in THEMES:
        for name, specification in specifications[theme].items():
            look = dict(specification)
            chart = charts.setdefault(name, {"datasets": {}})
            chart["datasets"] |= look.pop("datasets", {})
            chart[theme] = look
    return charts
