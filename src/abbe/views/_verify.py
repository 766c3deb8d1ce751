"""The verdicts of `abbe verify` as a table for the terminal and as one offline page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ..words.numbers import percent
from ._shared.terminal import new_table

if TYPE_CHECKING:
    from ..studies import Verdict


def sentence(verdict: Verdict) -> str:
    """The verdict in words."""
    if not verdict.holds:
        return "REFUTED"
    if verdict.status == "approximation":
        # The ratio allows for the error of a simulation: at most 1 means that no difference can be seen.
        return "holds" if verdict.worst <= 1 else f"holds, within {percent(verdict.worst - 1)}"
    if not verdict.tight:
        return "holds"
    return "holds, tight" if verdict.worst > 0.9995 else f"holds, tight to {verdict.worst:.3g}"


def verify_table(verdicts: Sequence[Verdict]) -> RenderableType:
    """Which statements hold, and how tight are they?

    Every statement with its ratios, then every refuted one with its smallest counterexample. A ratio near 1 means that
    a bound is tight, a small one that it is loose; one above 1 refutes it.

    Args:
        verdicts: from `abbe.verify`.

    Returns:
        What `rich` prints.

    Examples:
        >>> from rich.console import Console
        >>> console = Console(width=100)
        >>> with console.capture() as printed:
        ...     console.print(abbe.views.verify_table(abbe.verify("top-mass", trials=20)))
        >>> "holds, tight" in printed.get()
        True
    """
    table = new_table()
    for column in ("statement", "source"):
        table.add_column(column, no_wrap=True)
    for column in ("median", "worst"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    section = ""
    for verdict in verdicts:
        if verdict.section != section:
            section = verdict.section
            table.add_section()
            table.add_row(Text(section, style="bold"))
        words = Text(sentence(verdict) + ("" if verdict.expected else ", UNEXPECTED"), style=_style(verdict))
        source = "ours" if verdict.source.startswith("this project") else "paper"
        table.add_row(Text(f"  {verdict.name}"), source, f"{verdict.typical:.3f}", f"{verdict.worst:.4f}", words)
    parts: list[RenderableType] = [table]
    for verdict in verdicts:
        if not verdict.holds:
            parts += [
                Text(f"{verdict.name}: {verdict.text}", style=_style(verdict)),
                Text(f"  {verdict.counterexample}\n"),
            ]
    return Group(*parts, Text(verify_summary(verdicts), style="bold"))


def _style(verdict: Verdict) -> str:
    if not verdict.expected:
        return "bold red"
    return "green" if verdict.holds else "yellow"


def verify_summary(verdicts: Sequence[Verdict]) -> str:
    """One line: how many statements hold, how many are refuted, and whether that is as the catalogue says.

    Args:
        verdicts: from `abbe.verify`.

    Returns:
        The sentence; it names every statement whose verdict was not expected.

    Examples:
        >>> abbe.views.verify_summary(abbe.verify(["top-mass", "theorem-1-root"], trials=100))
        '1 holds, 1 refuted, all as the catalogue says.'
    """
    holding = sum(verdict.holds for verdict in verdicts)
    surprises = [verdict.name for verdict in verdicts if not verdict.expected]
    counts = f"{holding} {'holds' if holding == 1 else 'hold'}, {len(verdicts) - holding} refuted"
    return (
        f"{counts}, all as the catalogue says."
        if not surprises
        else f"{counts}. NOT as expected: {', '.join(surprises)}."
    )


def verify_page(verdicts: Sequence[Verdict], trials: int, seed: int) -> str:
    """The verdicts as one offline page: the summary, how tight every bound is, a table per section.

    Args:
        verdicts: from `abbe.verify`.
        trials: random draws per statement, as given to it.
        seed: as given to it.

    Returns:
        HTML that loads nothing. A ratio of 1 means that a bound is tight, more that it is false.

    Examples:
        >>> "1 holds, 0 refuted" in abbe.views.verify_page(abbe.verify("top-mass", trials=20), trials=20, seed=0)
        True
    """
    # These need the extra `report`, the table does not.
    from markupsafe import Markup

    from ._shared.drawings import svg
    from ._shared.page import render
    from ._shared.theme import THEMES
    from ._verify_chart import verify_chart

    return render(
        "verify.html.jinja",
        rows=[(verdict, sentence(verdict)) for verdict in verdicts],
        sections=list(dict.fromkeys(verdict.section for verdict in verdicts)),
        charts={theme: Markup(svg(verify_chart(verdicts, theme))) for theme in THEMES},
        summary=verify_summary(verdicts),
        trials=trials,
        seed=seed,
    )
