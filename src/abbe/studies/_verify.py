"""Try every statement of the theory: random draws, then a search for the worst point; and what people see of it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from .._arguments import whole
from .._errors import AbbeError
from ..bounds import Point, Statement, catalogue
from ..runs.inputs import checked_seed
from ..views.text import new_table
from ..views.theme import THEMES, Theme, ThemeName
from ..views.view import View
from ..words.finding import Answer
from ..words.numbers import percent

STARTS = 16  # of a search, from the worst draws
STEPS = 80  # of each, at 2,000 draws
_MOST_TRIALS = 1_000_000  # those of one statement are held in memory together
_CLEARLY = 1e-6  # a counterexample must break its statement by this much, not by rounding


@dataclass(frozen=True)
class Verdict:
    """What was measured about one statement.

    Attributes:
        name: of the statement.
        section: weights, distance, separability, gradient or capacity.
        text: the statement.
        source: where it is from.
        status: what the catalogue says of it.
        tight: whether the catalogue says that equality is reached.
        draws: points that were tried.
        worst: the largest ratio seen, measured/bound for an upper bound and bound/measured for a lower one: at most 1
            when it holds, near 1 when it is tight.
        typical: the median ratio of the random draws: small where the bound says little about ordinary inputs.
        holds: whether `worst` was at most 1.
        expected: whether that agrees with the status.
        counterexample: where it does not hold; empty where it does.
        seconds: that it took.
    """

    name: str
    section: str
    text: str
    source: str
    status: str
    tight: bool
    draws: int
    worst: float
    typical: float
    holds: bool
    expected: bool
    counterexample: str
    seconds: float

    @property
    def words(self) -> str:
        """The verdict in words."""
        if not self.holds:
            return "REFUTED"
        if self.status == "approximation":
            # The ratio allows for the error of a simulation: at most 1 means that no difference can be seen.
            return "holds" if self.worst <= 1 else f"holds, within {percent(self.worst - 1)}"
        if not self.tight:
            return "holds"
        return "holds, tight" if self.worst > 0.9995 else f"holds, tight to {self.worst:.3g}"


class Verdicts(list[Verdict]):
    """The verdicts of one verification: a list, which `abbe.views.terminal` and `abbe.views.figures` show.

    Args:
        verdicts: on each statement.
        trials: random draws per statement.
        seed: of the draws.

    Examples:
        >>> abbe.verify(["top-mass", "theorem-1-root"], trials=100).summary
        '1 holds, 1 refuted, all as the catalogue says.'
    """

    def __init__(self, verdicts: Iterable[Verdict], trials: int, seed: int) -> None:
        super().__init__(verdicts)
        self.trials, self.seed = trials, seed

    @property
    def summary(self) -> str:
        """One line: how many hold, how many are refuted, and every statement whose verdict was not expected."""
        holding = sum(verdict.holds for verdict in self)
        surprises = [verdict.name for verdict in self if not verdict.expected]
        counts = f"{holding} {'holds' if holding == 1 else 'hold'}, {len(self) - holding} refuted"
        if not surprises:
            return f"{counts}, all as the catalogue says."
        return f"{counts}. NOT as expected: {', '.join(surprises)}."

    def view(self) -> View:
        """The summary, every statement with its ratios, every refuted one with its counterexample, and the chart."""
        grade = "good" if all(verdict.expected for verdict in self) else "bad"
        return View(
            study="verify", question="What can be proved about attention", more=_lines(self),
            about=[f"{self.trials:,} draws per statement, seed {self.seed}"],
            answer=Answer(grade, self.summary, "every verdict is as the catalogue says"),
            charts=lambda theme: {"verify": verify_chart(self, theme)},
        )  # fmt: skip

    def to_html(self) -> str:
        """One offline page: the summary, how tight every bound is, a table per section.

        Returns:
            HTML that loads nothing. A ratio of 1 means that a bound is tight, more that it is false.
        """
        # These need the extra `report`.
        from markupsafe import Markup

        from ..views.charts import svg
        from ..views.html import render

        charts = {theme: Markup(svg(verify_chart(self, theme))) for theme in THEMES}
        return render("verify.html.jinja", verdicts=self, sections=_sections(self), charts=charts)


def verify(
    names: str | Iterable[str | Statement] = (),
    trials: int = 2000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Verdicts:
    """Do the statements of the theory hold? Random draws, then a search for the worst point by gradient ascent.

    Args:
        names: of statements, one or several, or statements of your own; all of `abbe.bounds.catalogue` by default.
        trials: random draws of each, about, >= 1.
        seed: of the draws.
        progress: called with the name of each statement that was tried.

    Returns:
        A verdict for each: `worst` is small where a bound has room, near 1 where it is tight, larger where it is false;
        `typical` is the median over random draws.

    Raises:
        AbbeError: a statement is unknown.

    Examples:
        >>> [(verdict.name, verdict.holds) for verdict in abbe.verify(["top-mass", "theorem-1-root"], trials=100)]
        [('top-mass', True), ('theorem-1-root', False)]
    """
    trials, seed = whole("trials", trials, least=1, most=_MOST_TRIALS), checked_seed(seed)
    verdicts, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # many small operations: a second thread would only wait
    try:
        for statement in _chosen((names,) if isinstance(names, str) else tuple(names)):
            verdicts.append(_try(statement, trials, seed))
            if progress is not None:
                progress(statement.name)
    finally:
        torch.set_num_threads(threads)
    return Verdicts(verdicts, trials, seed)


def _chosen(names: tuple[str | Statement, ...]) -> list[Statement]:
    known = {statement.name: statement for statement in catalogue()}
    for name in names:
        if isinstance(name, str) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else "`abbe verify --list` shows all"
            raise AbbeError(f"unknown statement {name!r}. {hint}")
    return [known[name] if isinstance(name, str) else name for name in names or known]


def _try(statement: Statement, trials: int, seed: int) -> Verdict:
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    worst, draws, example = 0.0, 0, ""
    drawn = []
    for sizes in statement.sizes:
        point = statement.sampler(generator, max(1, trials // len(statement.sizes)), sizes)
        drawn.append(_checked(statement, statement.ratio(point)))
        best, tried = _search(statement, point, drawn[-1], scale=trials)
        ratio = statement.ratio(best).detach()
        draws += tried
        top = float(ratio.max())
        if top > 1 + max(statement.tolerance, _CLEARLY) and not example:
            example = _smallest_counterexample(statement, _rows(best, ratio.argmax()[None]))
        worst = max(worst, top)
    holds = worst <= 1 + statement.tolerance
    expected = holds == (statement.status != "refuted")
    return Verdict(
        statement.name, statement.section, statement.text, statement.source, statement.status, statement.tight,
        draws, worst, float(torch.cat(drawn).median()), holds, expected, example, time.perf_counter() - start,
    )  # fmt: skip


def _search(statement: Statement, point: Point, ratio: Tensor, scale: int) -> tuple[Point, int]:
    """The worst points found, starting from draws with these ratios, and how many points were tried."""
    draws = ratio.numel()
    order = ratio.argsort(descending=True)[:STARTS]
    best = _rows(point, order)
    if not statement.searchable:
        return best, draws
    steps = max(20, min(STEPS * scale // 2000, 20 * STEPS))
    half = order.numel() - order.numel() // 2
    spread_out = torch.linspace(0, draws - 1, half).long()  # not only from the best draws: ascent may stall there
    worst = _ascend(statement, _rows(point, torch.cat([order, spread_out])), best, steps)
    return worst, draws + steps * (len(order) + half)


def _ascend(statement: Statement, start: Point, best: Point, steps: int) -> Point:
    """Adam on the log of the ratio; keeps the worst point of every start."""
    free = {name: value.clone().requires_grad_() for name, value in start.values.items()}
    seen, kept = torch.full((len(next(iter(free.values()))),), -torch.inf, dtype=torch.float64), start
    optimizer = torch.optim.Adam(list(free.values()), lr=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.01 ** (step / steps)  # coarse steps first, the last ones settle
        point = Point(free, start.sizes)
        ratio = _checked(statement, statement.ratio(point))
        better = ratio.detach() > seen
        seen = torch.where(better, ratio.detach(), seen)
        kept = Point({k: _where(better, free[k].detach(), kept.values[k]) for k in free}, start.sizes)
        optimizer.zero_grad()
        if not ratio.requires_grad:
            break
        # In logarithms, so that every start counts alike; a ratio of 0 has none.
        (-torch.log(ratio.clamp(min=1e-9)).sum()).backward()  # type: ignore[no-untyped-call]
        for value in free.values():  # an extreme start may overflow: it stays where it is
            if value.grad is not None:
                value.grad = torch.nan_to_num(value.grad, 0.0, 0.0, 0.0)
        optimizer.step()
        with torch.no_grad():
            if "log_temperature" in free:
                free["log_temperature"].clamp_(-3, 3)  # the range of the draws
    joined = {k: torch.cat([kept.values[k], best.values[k]]) for k in free}
    return Point({k: v.detach() for k, v in joined.items()}, start.sizes)


def _checked(statement: Statement, ratio: Tensor) -> Tensor:
    if bool(torch.isnan(ratio).any()):
        raise AbbeError(f"{statement.name}: a measured quantity or bound is NaN, so there is no verdict")
    return ratio


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *([1] * (yes.ndim - 1))), yes, no)


def _rows(point: Point, index: Tensor) -> Point:
    return Point({name: value[index].detach() for name, value in point.values.items()}, point.sizes)


def _smallest_counterexample(statement: Statement, point: Point) -> str:
    """The same point with as few digits as still break the statement, as text to type in."""
    for digits in range(7 if statement.noise is None else 0):  # what was simulated is known at this point only
        rounded = _rounded(point, digits)
        if float(statement.ratio(rounded)[0]) > 1 + max(statement.tolerance, _CLEARLY):
            return _described(statement, rounded)
    return _described(statement, point)


def _rounded(point: Point, digits: int) -> Point:
    values = {name: torch.round(value, decimals=digits) for name, value in point.values.items()}
    if (log_temperature := point.values.get("log_temperature")) is not None:
        temperature = log_temperature.exp()
        size = 10.0 ** torch.floor(torch.log10(temperature))
        values["log_temperature"] = (torch.round(temperature / size, decimals=digits) * size).log()
    return Point(values, point.sizes)


def _described(statement: Statement, point: Point) -> str:
    parts = [f"{name}={value}" for name, value in point.sizes.items()]
    for name, value in point.values.items():
        if name == "log_temperature":
            parts.append(f"T={float(value.exp()[0]):.6g}")
        elif name not in ("mean", "error"):
            parts.append(f"{name}={_numbers(value[0])}")
    measured, bound = float(statement.measured(point)[0]), float(statement.bound(point)[0])
    sign = {"upper": ">", "lower": "<", "equal": "is not"}[statement.side]
    return f"{', '.join(parts)}: measured {measured:.6g} {sign} bound {bound:.6g}"


def _numbers(value: Tensor) -> str:
    if value.ndim == 0:
        return f"{float(value) + 0.0:.6g}"
    shown = ", ".join(_numbers(part) for part in value[:16])
    return f"({shown}{', ...' if len(value) > 16 else ''})"


# -- What people see --------------------------------------------------------------------------------------------------


def _sections(verdicts: Iterable[Verdict]) -> list[str]:
    return list(dict.fromkeys(verdict.section for verdict in verdicts))


def _style(verdict: Verdict) -> str:
    return "bold red" if not verdict.expected else "green" if verdict.holds else "yellow"


def _lines(verdicts: Sequence[Verdict]) -> list[RenderableType]:
    """A table with a part per section, then the refuted statements."""
    table = new_table()
    for column in ("statement", "source", "median", "worst", "verdict"):
        table.add_column(column, justify="right" if column in ("median", "worst") else "left", no_wrap=True)
    for section in _sections(verdicts):
        table.add_section()
        table.add_row(Text(section, style="bold"))
        for verdict in (verdict for verdict in verdicts if verdict.section == section):
            words = Text(verdict.words + ("" if verdict.expected else ", UNEXPECTED"), style=_style(verdict))
            source = "ours" if verdict.source.startswith("this project") else "paper"
            table.add_row(Text(f"  {verdict.name}"), source, f"{verdict.typical:.3f}", f"{verdict.worst:.4f}", words)
    lines: list[RenderableType] = [table]
    for verdict in verdicts:
        if not verdict.holds:
            lines.append(Text(f"{verdict.name}: {verdict.text}", style=_style(verdict)))
            lines.append(Text(f"  {verdict.counterexample}\n"))
    return lines


_ROW, _WIDTH = 15, 420  # pixels: height of a statement, width of a panel
_LEAST = 0.01  # left edge of the axis; smaller ratios are drawn there
_RATIO = "measured / bound (bound / measured for lower bounds)"
_SOURCES = ("this project", "the paper")
_SHAPES = {"holds": "circle", "approximation": "diamond", "refuted": "cross"}


def verify_chart(verdicts: Sequence[Verdict], theme: ThemeName = "light") -> dict[str, Any]:
    """How tight is every bound?

    The ratio of each statement, from the median of random draws to the worst point found. A small median means that a
    bound says little about ordinary inputs; a worst ratio of 1 that it is tight; a larger one that it is false.
    """
    from ..views.charts import finished  # needs the extra `report`

    rows = [_mark(verdict) for verdict in verdicts]
    largest, sections = max((row["worst"] for row in rows), default=1.0), _sections(verdicts)
    panels = [
        _panel([row for row in rows if row["section"] == section], largest, THEMES[theme], last=section == sections[-1])
        for section in sections
    ]
    marks = "from the median of random draws (bar) to the worst point found (mark)"
    about = [marks, "1 is equality; marks to the right of it break the bound"]
    chart = finished(panels, "How tight is every bound?", about, theme, columns=1, legend_columns=len(_SHAPES))
    chart["config"]["legend"]["layout"] = {"bottom": {"margin": 30, "anchor": "start"}}
    # A page may have wider letters than those that the names were measured with.
    return chart | {"spacing": 14, "padding": {"left": 32, "top": 10, "right": 10, "bottom": 10}}


def _mark(verdict: Verdict) -> dict[str, Any]:
    holds = "approximation" if verdict.status == "approximation" else "holds"
    # Four digits: rounding errors must not put a tight bound to the right of 1.
    worst, typical = (max(float(f"{ratio:.4g}"), _LEAST) for ratio in (verdict.worst, verdict.typical))
    return {
        "statement": verdict.name, "section": verdict.section, "worst": worst, "typical": typical,
        "source": _SOURCES[not verdict.source.startswith("this project")],
        "outcome": holds if verdict.holds else "refuted",
    }  # fmt: skip


def _panel(rows: Sequence[dict[str, Any]], largest: float, theme: Theme, last: bool) -> dict[str, Any]:
    """One section; only the last panel has the labels of the axis that all share."""
    from ..views.charts import Plot, axis, by_value, names_axis  # as above

    ticks: dict[str, Any] = {
        "values": [10.0**k for k in range(-2, 7)],
        "format": "~g",
        "grid": False,
        "labels": last,
        "ticks": last,
    }
    x = axis("worst", _RATIO if last else None, (_LEAST, max(2.0, 1.3 * largest)), log=True, **ticks)
    names = [row["statement"] for row in rows]
    y = names_axis("statement", None, names, grid=True, labelLimit=220, ticks=False, domain=False)
    hues = dict(zip(_SOURCES, (theme.selected, theme.claim), strict=True))
    plot = Plot(
        x,
        y,
        dict.fromkeys(("statement", "source", "outcome", "worst", "typical"), ""),
        color=by_value("source", hues, legend={"symbolType": "stroke", "symbolSize": 420}),
        shape=by_value("outcome", _SHAPES),
    )
    plot.level([1.0], along="x", color=theme.ink)
    plot.ends(rows, "typical", "worst", "x", strokeWidth=1.5, opacity=0.55)
    plot.draw("tick", rows, {"x": "typical"}, thickness=2, size=9).dots(rows, size=46)
    return plot.panel(rows[0]["section"], _WIDTH, _ROW * len(rows))
