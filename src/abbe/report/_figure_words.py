"""The words around each figure: its question, what the paper did, what is added here, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass

from ..studies._reproduction import Figure


@dataclass(frozen=True)
class Words:
    """`question` is the title of the chart; the rest stands under it on the page."""

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
        "Intervals over windows, real random sets beside the formula, and the range in which the mean over random sets "
        "provably lies: what the paper calls an upper bound on that mean is the lower end of the range.",
        "High means that the selected lie far from the rest, low that they lie among it. Both axes are logarithmic: "
        "a distance in proportion to L is a straight line that doubles whenever L doubles.",
    ),
    "2b": Words(
        "Figure 2b",
        "Does selecting more tokens increase the distance?",
        "The paper holds the length and selects N = 1, 5, 10, 20 and 100 keys; it sees a plateau beyond about 20.",
        "More sizes, intervals, random sets of the same size, and both proved limits.",
        "A flat curve means that more selected tokens no longer add to the distance. A gap between blue and grey means "
        "that the weights choose differently from chance, no gap that they do not.",
    ),
    "2c": Words(
        "Figure 2c",
        "Up to which N do the selected differ from random sets?",
        "The paper takes one mean distance a head, for the selected and for random sets, and raises N until a "
        "two-sample Kolmogorov–Smirnov test no longer tells the two groups apart: the critical N, about 0.06 L.",
        "The statistic itself, and both levels that the paper names (.01 in its text, .05 in its pseudocode). "
        "A test that does not reject is no proof of equality.",
        "A high critical N means that selection differs from chance even for large sets. An arrow means that every "
        "test rejected: the critical N lies above the largest N tried. D near 1 means that the two groups of heads do "
        "not overlap, D near 0 that they agree.",
    ),
    "3": Words(
        "Figure 3",
        "How many of the selected tokens can be told apart from the others?",
        "The paper draws the largest ball around the sum of the selected that holds no other token, and counts the "
        "share of the selected inside: separability N_s/N. It reports a fall until N of about 16, then .70 to .85.",
        "The same count for random sets of the same size: a high share can come from the size alone, so it is the gap "
        "between blue and grey that tells something about the weights.",
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
        "low temperature, on the left, only the largest row grows like 1/T.",
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
    """The settings of a figure in one line, as far as they are known."""
    about = figure.about
    parts = []
    if about.get("length") is not None:
        parts.append(f"L = {about['length']}")
    if about.get("size") is not None:
        parts.append(f"N = {about['size']}")
    lengths = about.get("lengths")
    if lengths:
        parts.append(f"L = {lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"L = {lengths[0]}")
    sizes = about.get("sizes")
    if sizes:
        parts.append(f"N = {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"N = {sizes[0]}")
    for key, one, many in (
        ("heads", "head", "heads"),
        ("windows", "window", "windows"),
        ("queries", "query", "queries"),
    ):
        found = about.get(key)
        if isinstance(found, (int, str)):
            parts.append(f"{found} {one if found == 1 else many}" + (" a window" if key == "queries" else ""))
    return ", ".join(parts)
