"""All measures by name: label, unit, what high and low mean, limit and control."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GROUPS", "MeasureInfo", "list_measures", "list_tests"]

DISPERSION, PATTERNS, SELECTION = "Dispersion of the weights", "Attention patterns", "Weight of the selected set"
DISTANCE = "Distance from the rest"
SEPARABILITY, SENSITIVITY, TEST = "Separability", "Sensitivity", "Test against random sets"
GROUPS = (DISPERSION, PATTERNS, SELECTION, DISTANCE, SEPARABILITY, SENSITIVITY, TEST)


@dataclass(frozen=True)
class MeasureInfo:
    """A measure of attention rows: its name in tables, and what it means.

    Attributes:
        name: in tables.
        meaning: what high and low mean.
        unit: of its values.
        by_size: whether it has a value for every N.
        label: its name for people.
        group: the heading that it is listed under.
        limit: what bounds its value; empty if nothing does.
        control: what it is compared with; empty if nothing is.
    """

    name: str
    meaning: str
    unit: str
    by_size: bool
    label: str
    group: str
    limit: str = ""
    control: str = ""


_THEOREM, _RANDOM, _LOGITS = "Theorem 1", "random set", "tight, from the range of the logits"
_ONE_KEY = ("that of the largest weight", "1/n")  # of a measure that is the weight of some key
_OF_ROWS = (
    ("entropy", "entropy", "nats", "high means that the weight is spread over many keys, low that few hold it",
     "ln n"),
    ("entropy_floor", "entropy, provable floor", "nats",
     "high means that the spread of the logits forces softmax to disperse, low that it need not"),
    ("effective_tokens", "effective tokens", "tokens",
     "high means that many keys share the weight, low (1) that one has it", "n"),
    ("effective_tokens_floor", "effective tokens, provable floor", "tokens",
     "high means that the spread of the logits forces softmax to share, low that one key could have all"),
    ("max_weight", "largest weight", "weight", "high means that one key stands out, low that none does",
     _LOGITS, "1/n"),
    ("logit_range", "range of the logits", "logits",
     "high means that the logits allow sharp weights, low that they must be flat", "2 scale ‖q‖ max ‖k‖"),
    ("decay_exponent", "decay exponent", "exponent",
     "high (1) means that the largest weight fades like a uniform head's as the context grows, low that it holds",
     "", "1, a uniform head"),
)  # fmt: skip

_PATTERNS = (
    ("sink_mass", "weight on the first key", "weight",
     "high means that the first visible key serves as a sink, low that it does not", *_ONE_KEY),
    ("learned_sink_mass", "weight on a learned sink", "weight",
     "high means that the head attends to nothing, low that keys get all the weight"),
    ("previous_token", "weight on the previous token", "weight",
     "high means that the head looks at the token just before the query, low that it does not", *_ONE_KEY),
    ("induction", "weight after the previous copy (induction)", "weight",
     "high means that the head looks at the token that followed the previous occurrence of the query's token, low "
     "that it does not; queries without such a token do not count", *_ONE_KEY),
)  # fmt: skip

_DIRECTIONS = (
    ("sensitivity_worst", "sensitivity, worst direction", "Lipschitz constant, 1/(2T)",
     "high means that some small change of the logits moves the weights a lot, low that none does"),
    ("sensitivity_random", "sensitivity, random direction", "Lipschitz constant, 1/(2T)",
     "high means that a random change of the logits moves the weights a lot, low that it hardly does"),
    ("difference_random", "difference, random step", "tight, tanh",
     "high means that a random step of the logits moves the weights a lot, low that it hardly does"),
    ("difference_pair", "difference, second key past the first", "tight, tanh",
     "high means that pushing the second key past the first moves the weights a lot, low that it hardly does"),
)  # fmt: skip
_ROW_PARTS = (
    ("mean", "mean", "mean of the rows"), ("p95", "95 % of rows below", "95 % of the rows are below"),
    ("max", "largest row", "any row"),
)  # fmt: skip

_OF_SETS = (
    (SELECTION, "top_mass", "weight of the selected set", "weight",
     "high means that the N selected keys carry the row, low that the rest does", _LOGITS, "N/n"),
    (SELECTION, "selected_divergence", "imbalance within the selected set", "nats",
     "high means that few of the N selected hold their weight, low (0) that they share it", "", _RANDOM),
    (DISTANCE, "distance", "distance", "length",
     "high means that the selected tokens lie far from the rest, low that they lie among it", _THEOREM, _RANDOM),
    (DISTANCE, "distance_per_token", "distance per token", "length",
     "high means that an unselected token lies far from the selected sum, low that it lies near", _THEOREM, _RANDOM),
    (DISTANCE, "net_distance", "net distance", "length",
     "high means that selected and unselected parts of the output differ, low that they agree", _THEOREM, _RANDOM),
    (DISTANCE, "expected_distance_low", "expected distance of random sets, from", "length",
     "high means that random sets of N keys must lie far from the rest on average, low that they need not"),
    (DISTANCE, "expected_distance_high", "expected distance of random sets, to", "length",
     "high means that random sets of N keys can lie far from the rest on average, low that they cannot"),
    (DISTANCE, "expected_net_distance", "expected net distance of random sets", "length",
     "high means that a random set of N keys and the rest differ in the output (root mean square), low that they "
     "agree"),
)  # fmt: skip

_RETRIEVAL = (
    ("separability", "separability",
     "high (1) means that a {shape} up to the nearest other token holds all the selected, low that it holds few"),
    ("recall", "recall", "high (1) means that all selected tokens are {nearer} than every other, low that few are"),
    ("precision", "precision",
     "high (1) means that no other token lies among the selected ({shape}), low that many do"),
    ("f_score", "F score",
     "high (1) means that a {shape} holds the selected tokens and no others, low that they are mixed with the rest"),
)  # fmt: skip
_METRICS = (
    ("", "", {"shape": "ball around their sum", "nearer": "nearer to their sum"}),
    ("_cosine", " by angle", {"shape": "cone around their sum", "nearer": "better aligned with their sum"}),
)

_TESTS = (
    ("ks_statistic", "Kolmogorov-Smirnov statistic", "",
     "high means that the heads' distances differ from those of random sets, low that they agree"),
    ("ks_p_value", "Kolmogorov-Smirnov p value", "probability",
     "high means that the difference from random sets may be chance, low that it is not"),
    ("critical_n", "critical N", "tokens",
     "high means that even large selected sets differ from random ones, low that only small ones do; none means that "
     "all sizes measured differ"),
    ("rejecting", "tests that reject at every N", "share",
     "high means that most tests distinguish selected from random sets at every size, low that few do"),
)  # fmt: skip


def list_measures() -> tuple[MeasureInfo, ...]:
    """Every measure: its name, unit, limit and control, and what high and low mean.

    Returns:
        One entry each, in the order of the tables. Sensitivities at a temperature T carry the suffix "@T=...",
        differences always "@T=...,eps=...".

    Examples:
        >>> info = abbe.measures.list_measures()[0]
        >>> info.name, info.unit, info.limit
        ('entropy', 'nats', 'ln n')
        >>> info.meaning
        'high means that the weight is spread over many keys, low that few hold it'
    """
    listed = [
        MeasureInfo(name, meaning, unit, False, label, group, *limit_and_control)
        for group, of_group in ((DISPERSION, _OF_ROWS), (PATTERNS, _PATTERNS))
        for name, label, unit, meaning, *limit_and_control in of_group
    ]
    listed += [
        MeasureInfo(
            f"{name}_{part}", f"{meaning} ({of})", "weight per logit", False, f"{label}: {words}", SENSITIVITY, limit
        )
        for name, label, limit, meaning in _DIRECTIONS
        for part, words, of in _ROW_PARTS
    ]
    listed += [
        MeasureInfo(name, meaning, unit, True, label, group, *limit_and_control)
        for group, name, label, unit, meaning, *limit_and_control in _OF_SETS
    ]
    listed += [
        MeasureInfo(name + suffix, text.format(**shape), "share", True, label + by, SEPARABILITY, control=_RANDOM)
        for suffix, by, shape in _METRICS
        for name, label, text in _RETRIEVAL
    ]
    return tuple(listed)


def list_tests() -> tuple[MeasureInfo, ...]:
    """The other rows of a run's table: tests over all heads, and what high and low mean.

    Returns:
        One entry each.

    Examples:
        >>> [info.name for info in abbe.measures.list_tests()]
        ['ks_statistic', 'ks_p_value', 'critical_n', 'rejecting']
    """
    return tuple(MeasureInfo(name, meaning, unit, True, label, TEST) for name, label, unit, meaning in _TESTS)
