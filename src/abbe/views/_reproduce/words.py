"""The words around each figure: its question, what the paper did, what is added here, and how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...words.paper import DRIFT

if TYPE_CHECKING:
    from ...studies import Figure


@dataclass(frozen=True)
class Words:
    """`question` is the title of the chart; the page shows the rest below it."""

    name: str
    question: str
    paper: str
    added: str
    reading: str


WORDS = {
    "2a": Words(
        "Figure 2a",
        "Does the distance between the selected and the rest grow with the length?",
        "The paper selects the 5 keys of largest weight and adds up the distances of all other weighted vectors to the "
        "sum of the selected. It sets this beside random sets of 5 and beside its Theorem 1.",
        "Intervals over windows, one random set for every query beside the formula, and the range in which the mean "
        "over random sets provably lies: the formula of Theorem 1(2), without its term epsilon, is its lower end.",
        "The distance is nearly (L − N) times the length of the sum of the selected, so it mostly shows how much "
        "weight they hold and whether their vectors agree. High means that the others lie far from that sum, low "
        "that they lie near. Both axes are logarithmic.",
    ),
    "2b": Words(
        "Figure 2b",
        "Does selecting more tokens increase the distance?",
        "The paper holds the length and selects N = 1, 5, 10, 20 and 100 keys; it sees a plateau beyond about 20.",
        "More sizes, intervals, random sets of the same size, and both proved limits.",
        "A flat curve means that more selected tokens no longer add to the distance. A gap between blue and grey "
        "shows that the selected hold more weight than random tokens, as they must wherever weights are not equal.",
    ),
    "2c": Words(
        "Figure 2c",
        "Up to which N do the selected differ from random sets?",
        "The paper takes one mean distance per head, for the selected and for random sets, and raises N until a "
        "two-sample Kolmogorov–Smirnov test no longer separates the two groups: the critical N, about 0.06 L.",
        "The statistic itself, and both levels that the paper names (.01 in its text, .05 in its pseudocode). "
        "A test that does not reject is no proof of equality; and as both groups are the same heads on the same "
        "queries, p is a yardstick here rather than a probability. A set of N counts for queries with more keys. Below "
        "the figure, critical N also with the formula of Theorem 1(2) in place of random sets, and with a test at "
        "every query or of all queries of a window in place of the heads' means: the middle one of all these tests.",
        "A high critical N means that selection differs from chance even for large sets. An arrow means that every "
        "test rejected: the critical N lies above the largest N tried. D near 1 means that the two groups of heads do "
        "not overlap, D near 0 that they agree.",
    ),
    "3": Words(
        "Figure 3",
        "How many of the selected tokens are separable from the others?",
        "The paper draws the largest ball around the sum of the selected that holds no other token, and counts the "
        "share of the selected inside: separability N_s/N. It reports a fall until N of about 16, then .70 to .85.",
        "The same count for random sets of the same size: a high share can come from the size alone, so it is the gap "
        "between blue and grey that says something about the weights.",
        "High means that nearly all selected tokens are distinct from the rest, low that others lie as close as "
        "they do. A box holds the middle half of the heads; the diamond is the mean over heads.",
    ),
    "4": Words(
        "Figure 4",
        "How much do the weights move when the logits move a little?",
        "The paper moves the logits by a step in one random direction, at many temperatures, and sets the result "
        "beside the ceiling min(1/(4T), √2).",
        "Directions that matter: a random one misses the worst by a factor of about √L. The true ceiling, at most "
        "min(1/(2T), √2/step), can be reached; values above the paper's ceiling refute it.",
        "High means that a small change of the logits turns the attention over, low that the weights are stable. At "
        "low temperature, on the left, a mean levels off unless the two largest logits often tie; the largest row "
        "may grow like 1/T.",
    ),
    "drift": Words(
        "Drift to uniform",
        "Do the weights inside the selected set become uniform?",
        "The paper says in words that selection drifts to a uniform pattern as N grows; it has no figure for it.",
        "The divergence of the weights inside the set from uniform, made from the runs of figures 2a and 2b, beside "
        "random sets and the largest possible value, ln N.",
        "High means that few of the set hold its weight, low (0) that they share it.",
    ),
}


def settings_line(figure: Figure) -> str:
    """The known settings of a figure in one line."""
    about = figure.about
    if figure.name == DRIFT:
        parts = [f"against N at L = {about.get('length', '?')}, against L at N = {about.get('size', '?')}"]
    else:
        parts = [
            _range("L", about.get("length"), about.get("lengths")),
            _range("N", about.get("size"), about.get("sizes")),
        ]
    for key, one, many in (("heads", "head", "heads"), ("windows", "window", "windows")):
        if isinstance(about.get(key), (int, str)):
            parts.append(f"{about[key]} {one if about[key] == 1 else many}")
    queries = about.get("queries")
    if isinstance(queries, (int, str)):
        counted = {1: "1 query", "all": "all queries"}.get(queries, f"at most {queries} queries")
        parts.append(f"{counted} per window")
    if about.get("more_than"):
        parts.append(f"all with more than {about['more_than']} keys")
    return ", ".join(part for part in parts if part)


def _range(name: str, one: int | None, many: Sequence[int] | None) -> str:
    if many:
        return f"{name} = {many[0]} to {many[-1]}" if len(many) > 1 else f"{name} = {many[0]}"
    return "" if one is None else f"{name} = {one}"
