"""All measures by name, each in one sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureInfo:
    """A measure: its name in tables, what high and low mean, its unit, and whether it has a value for every N."""

    name: str
    meaning: str
    unit: str
    by_size: bool


_OF_ROWS = (
    ("entropy", "high means that the weight is spread over many keys, low that few hold it", "nats"),
    (
        "entropy_floor",
        "high means that the spread of the logits forces softmax to disperse, low that it need not",
        "nats",
    ),
    ("effective_tokens", "high means that many keys share the weight, low (1) that one has it", "tokens"),
    (
        "effective_tokens_floor",
        "high means that the spread of the logits forces softmax to share, low that one key could have all",
        "tokens",
    ),
    ("max_weight", "high means that one key stands out, low that none does", "weight"),
    ("logit_range", "high means that the logits allow sharp weights, low that they must be flat", "logits"),
    ("sink_mass", "high means that the first visible key serves as a sink, low that it does not", "weight"),
    ("learned_sink_mass", "high means that the head attends to nothing, low that keys get all the weight", "weight"),
    (
        "decay_exponent",
        "high (1) means that the largest weight fades like a uniform head's as the context grows, low that it holds",
        "exponent",
    ),
)

_SENSITIVITY = (
    ("worst", "high means that some small change of the logits moves the weights a lot, low that none does"),
    ("random", "high means that a random change of the logits moves the weights a lot, low that it hardly does"),
)

_DIFFERENCES = (
    ("random", "high means that a random step of the logits moves the weights a lot, low that it hardly does"),
    ("pair", "high means that pushing the second key past the first moves the weights a lot, low that it hardly does"),
)

_ROW_PARTS = (("mean", "mean of the rows"), ("p95", "95 % of the rows are below"), ("max", "any row"))

_OF_SETS = (
    ("top_mass", "high means that the N selected keys carry the row, low that the rest does", "weight"),
    (
        "selected_divergence",
        "high means that few of the N selected hold their weight, low (0) that they share it",
        "nats",
    ),
    ("distance", "high means that the selected tokens lie far from the rest, low that they lie among it", "length"),
    (
        "distance_per_token",
        "high means that an unselected token lies far from the selected sum, low that it lies near",
        "length",
    ),
    (
        "net_distance",
        "high means that selected and unselected parts of the output differ, low that they agree",
        "length",
    ),
    (
        "expected_distance_low",
        "high means that random sets of N keys must lie far from the rest on average, low that they need not",
        "length",
    ),
    (
        "expected_distance_high",
        "high means that random sets of N keys can lie far from the rest on average, low that they cannot",
        "length",
    ),
    (
        "expected_net_distance",
        "high means that a random set of N keys and the rest differ in the output (root mean square), low that they "
        "agree",
        "length",
    ),
)

_RETRIEVAL = (
    ("separability", "high (1) means that a {shape} up to the nearest other token holds all the selected, low few"),
    ("recall", "high (1) means that all selected tokens are {nearer} than every other, low that few are"),
    ("precision", "high (1) means that no other token lies among the selected ({shape}), low that many do"),
    ("f_score", "high (1) means that the selected set is a {shape} of its own, low that it is mixed with the rest"),
)

_METRICS = (
    ("", {"shape": "ball around their sum", "nearer": "nearer to their sum"}),
    ("_cosine", {"shape": "cone around their sum", "nearer": "better aligned with their sum"}),
)


def list_measures() -> tuple[MeasureInfo, ...]:
    """Every measure, in the order of the tables.

    Sensitivities at a temperature T carry the suffix "@T=...", differences always "@T=...,eps=...".
    """
    found = [MeasureInfo(*entry, by_size=False) for entry in _OF_ROWS]
    for measure, directions in (("sensitivity", _SENSITIVITY), ("difference", _DIFFERENCES)):
        found += [
            MeasureInfo(f"{measure}_{direction}_{part}", f"{meaning} ({words})", "weight per logit", False)
            for direction, meaning in directions
            for part, words in _ROW_PARTS
        ]
    found += [MeasureInfo(*entry, by_size=True) for entry in _OF_SETS]
    for suffix, words in _METRICS:
        found += [MeasureInfo(name + suffix, text.format(**words), "share", True) for name, text in _RETRIEVAL]
    return tuple(found)
