"""What a monitor measures: names, units, what high and low mean. Tables in documents and pages come from here."""

from __future__ import annotations

from ..words.training import Quantity

SATURATED = 0.99  # a row with a larger weight is saturated: softmax's derivative is below 0.01 there

QUANTITIES = (
    Quantity("entropy", "entropy", "nats", "high means that the weight is spread over many keys, low that few hold it",
             "ln n, n the visible keys"),
    Quantity("effective_tokens", "effective tokens", "tokens",
             "high means that many keys share the weight, low (1) that one has it", "n"),
    Quantity("max_logit", "largest logit", "logits",
             "high means that the scores have grown, low that the weights cannot be sharp"),
    Quantity("logit_change", "change of the logits by the update", "logits (root mean square)",
             "high means that one step moves attention a lot, low that it hardly does"),
    Quantity("logit_change_max", "largest change of a logit by the update", "logits",
             "high means that one step moves some score a lot, low that it moves none"),
    Quantity("max_weight", "largest weight", "weight", "high means that one key stands out, low that none does",
             "tight, from the range of the logits", "1/n"),
    Quantity("sink_mass", "weight on the first key", "weight",
             "high means that the first visible key serves as a sink, low that it does not",
             "that of the largest weight", "1/n"),
    Quantity("separability", "separability N_s/N", "share",
             "high (1) means that a ball up to the nearest other token holds all of the selected, low few", "",
             "random set"),
    Quantity("sensitivity_worst_mean", "sensitivity, worst direction: mean", "weight per logit",
             "high means that some small change of the logits moves the weights a lot, low that none does",
             "Lipschitz constant, 1/2"),
    Quantity("sensitivity_worst_max", "sensitivity, worst direction: largest row", "weight per logit",
             "high means that a row is easily moved, low that none is", "Lipschitz constant, 1/2"),
    Quantity("saturated", f"rows with a weight above {SATURATED:g}", "share",
             "high means that softmax passes hardly any gradient to the logits, low that it does"),
    Quantity("query_gradient", "gradient norm of the queries", "loss per query",
             "high means that the loss changes with the queries, low that the head learns nothing by them"),
    Quantity("key_gradient", "gradient norm of the keys", "loss per key",
             "high means that the loss changes with the keys, low that the head learns nothing by them"),
    Quantity("value_gradient", "gradient norm of the values", "loss per value",
             "high means that the loss changes with the values, low that the head learns nothing by them"),
    Quantity("gradient_ratio", "gradient of queries and keys over that of values", "ratio",
             "high means that the head learns where to look, low that it only learns what to copy"),
    Quantity("nonfinite", "rows with NaN or infinite logits or values; 1 for a gradient that is not finite", "share",
             "high means that numbers overflowed, low (0) that all are finite"),
)  # fmt: skip


def list_quantities() -> tuple[Quantity, ...]:
    """Everything that a monitor measures of a head: its unit, limit and control, and what high and low mean.

    Returns:
        One entry each, in the order of the tables. A set size follows the name after "@": "separability@N=20".

    Examples:
        >>> quantity = abbe.training.list_quantities()[0]
        >>> quantity.name, quantity.unit, quantity.meaning
        ('entropy', 'nats', 'high means that the weight is spread over many keys, low that few hold it')
    """
    return QUANTITIES


def tracker_name(measure: str) -> str:
    """A measure as trackers name it: "separability_20" for "separability@N=20"."""
    return measure.replace("@N=", "_")
