"""The shell of every page: one offline file, all text escaped, no request to any host.

A page names in its policy the hashes of its own scripts, so that nothing else runs, even if some text were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import altair as alt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...words.finding import Fact
from ...words.numbers import number
from .theme import DARK, FONT, LIGHT

SIGNS = {"good": ("✓", "good"), "look": ("!", "to look at"), "bad": ("✕", "bad")}  # readable without colours

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
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return version if version in vl_convert.get_vegalite_versions() else None


def as_json(value: Any) -> Markup:
    """JSON that no browser can take for markup, wherever it stands in a script element."""
    return Markup(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_UNSAFE))
