"""Tables of the studies that try other normalizers: compare, capacity, calibrate, lift."""

from __future__ import annotations

from dataclasses import replace

from ..names import JUMPS
from ._column import EACH_HEAD, HIGH, LOW, Column, Table, column

# Of a comparison; `{tau}` is the rise of the loss that defines the capacity.
_COMPARE = (
    Column("loss", "loss (nats)", "high means that the next token is predicted badly, low that it is predicted well"),
    Column("perplexity", "perplexity", "exp of the loss: among how many tokens the model hesitates; low is good"),
    Column("loss_change", "change of the loss (nats)", "above 0 means worse than the baseline, on the same windows",
           signed=True),
    Column("loss_rise", "change of the loss", "the same as a share of the baseline's loss", share=True, signed=True),
    Column("effective_tokens", "effective tokens",
           "high means that many keys share the weight, low (1) that one has it"),
    Column("active", "active tokens", "keys with a weight above 0; low means that attention is sparse"),
    Column("zeros", "exact zeros", "share of the visible keys whose weight is exactly 0; high means sparse",
           share=True),
    Column("separability", "separability of 20",
           "high (1) means that a ball holds the 20 selected tokens and no other; exact zeros tie, and ties count"),
    Column("separable", "separable weight",
           "share of the weight on tokens that the output separates from all unselected ones; ties do not count",
           share=True),
    Column("separable_gain", "gain in separable weight", "above 0 means more than the baseline",
           share=True, signed=True),
    Column("distance_per_token", "distance per token",
           "high means that an unselected token lies far from the sum of the 20 selected, low that it lies near"),
    Column("capacity", "capacity (tokens)",
           "how many of the largest weights per query are enough: without the others the loss rises by {tau}; low "
           "means that few tokens carry the model"),
    Column("capacity_ratio", "capacity over baseline",
           "below 1 means that fewer tokens are enough than with the baseline"),
    Column("sensitivity", "sensitivity at equal selectivity",
           "how far weights move with logits in the worst direction, each head at the temperature at which it is as "
           "selective as the baseline; high means fragile"),
    Column("sensitivity_own", "sensitivity of the baseline", "of the unchanged model, on the same heads"),
    Column("sensitivity_ratio", "sensitivity over baseline", "below 1 means calmer than softmax that is as selective"),
    Column("needle_accuracy", "needle accuracy",
           "share of the prompts whose answer is right; the needle test lists the share by chance", share=True),
    Column("needle_gain", "needle gain",
           "needle accuracy minus that of the baseline on the same prompts; above 0 means that more are found. No "
           "interval where both are right on the same prompts", share=True, signed=True),
    Column("needle_margin", "needle margin (logits)",
           "logit of the right answer minus that of the best wrong one; above 0 is right", signed=True),
    Column("temperature", "temperature for equal selectivity",
           "geometric mean over the heads that can be matched; high means that the normalizer must be softened"),
    Column("matched_heads", "heads matched", "share of the swapped heads that can be made as selective as the baseline",
           share=True),
    Column("sensitivity_theory", "sensitivity, proved",
           "Lipschitz constant at which a margin of 1 gives one key of the window a weight of 0.9"),
    Column("time_ratio", "time over baseline", "of a forward pass; high means slow"),
    Column("seconds", "seconds per pass", "the best of several passes of one window"),
    Column("extra_megabytes", "extra memory (MB)", "of the tensors of a forward pass, beyond the baseline",
           signed=True),
)  # fmt: skip
_WITHOUT_INTERVAL = ("temperature", "matched_heads", "sensitivity_theory", "time_ratio", "seconds", "extra_megabytes")
COMPARE = tuple(replace(one, interval=one.name not in _WITHOUT_INTERVAL) for one in _COMPARE)

_STAGES = "after the bare swap (_before), calibrated (_after) and fine-tuned (_tuned)"
_ZEROS = column("zeros", "share of the visible keys whose weight is exactly 0")
_EFFECTIVE = column("effective_tokens", "1 over the sum of squared weights")
_WAY = column("way", "deletion or renormalised: whether the kept weights are scaled up")
_TAU = column("tau", "relative rise of the loss, as requested")
_ALLOWED = column("allowed", "relative rise that is allowed: tau, for a layer also its equal share of tau")
_OF_LAYER = column("layer", "truncated alone; null for the whole model")

_COMPARE_TABLES = (
    Table("compare", "table", "the baseline, and every alternative", (
        column("normalizer", "baseline, a spec, patterns with specs, or a file"), *COMPARE,
        column(JUMPS, "whether its weights jump somewhere: its sensitivities are then those between the jumps"),
    )),
    Table("compare", "needle", "a normalizer, kind of prompt, length and depth; null means all of them together", (
        column("normalizer", "as in the table"), column("kind", "key-value or needle"),
        column("length", "tokens of the prompt"), column("depth", "place of the answer, from 0 (begin) to 1 (end)"),
        column("prompts", "how many"),
        column("accuracy", "share of right answers, with Wilson's interval", interval=True),
        column("chance", "accuracy of guessing among the candidates"),
        column("gain", "accuracy minus the baseline's on the same prompts", interval=True),
        column("margin", "logit of the right answer minus that of the best wrong one", interval=True),
    )),
    Table("compare", "judgements", "an alternative, judged by the rule of the recommendation", (
        column("normalizer", "as in the table"),
        column("affordable", "whether its loss is at most 1 % worse"),
        column("lowers_loss", "whether its loss is lower"),
        column("separates", "whether more of its weight is separable; not a reason to recommend it"),
        column("needs_fewer", "whether its capacity is smaller"),
        column("retrieves", "whether it finds more needles"),
        column("helps", "whether it is affordable and one of the other three holds"),
    )),
)  # fmt: skip

_CAPACITY_TABLES = (
    Table("capacity", "table", "a length, way and tau, of the whole model and of each layer truncated alone", (
        _OF_LAYER, column("length", "tokens of the windows"), _WAY, _TAU, _ALLOWED,
        column("capacity", "N*: the least N at which the loss rises by at most `allowed`; high means that many keys "
               "are used"), LOW, HIGH,
        column("share", "N* over the length"),
        column("monotone", "false if a smaller N held, too"),
        column("first", "the least N tried that holds"),
        column("windows", "that it was measured on"),
        column("separability_n", "size of the sets of `separability`"),
        column("separability", "of that many selected tokens", interval=True),
        column("control", "separability of as many random tokens"),
    )),
    Table("capacity", "curve", "a loss that was evaluated", (
        _OF_LAYER, column("length", "tokens of the windows"), _WAY, column("n", "keys kept per query"),
        column("loss", "with these keys alone"), column("baseline", "loss of the unchanged model"),
        column("rise", "loss over baseline, minus 1"), LOW, HIGH,
    )),
    Table("capacity", "growth", "a way and an allowed rise, of the model and of each layer", (
        _OF_LAYER, _WAY, _TAU, _ALLOWED,
        column("exponent", "of N* in the length; below 1 means that the share N*/L falls"), LOW, HIGH,
        column("lengths", "number of lengths fitted"),
    )),
    Table("capacity", "correlation", "a way, length and allowed rise, over layers", (
        _WAY, _TAU, _ALLOWED, column("length", "tokens of the windows"),
        column("separability_n", "common size of the sets"),
        column("correlation", "Spearman's, of capacity and separability"),
        column("p_value", "two-sided"), column("exact", "whether all permutations were counted"),
        column("layers", "how many"),
    )),
)  # fmt: skip

_CALIBRATE_TABLES = (
    Table("calibrate", "table", "a fitted head", (
        *EACH_HEAD, column("name", "path of the layer's module"), column("spec", "of its normalizer"),
        column("energy", "sum of squares of the baseline's output"),
        *(column(f"error_{when}", f"squared change of its output over `energy`, {_STAGES}")
          for when in ("before", "after", "tuned")),
        *(column(f"zeros_{when}", f"share of visible keys with a weight of exactly 0, {_STAGES}")
          for when in ("before", "after", "tuned")),
    )),
    Table("calibrate", "parameters", "a fitted number, after the last stage", (
        *EACH_HEAD, column("parameter", "its name in the spec"), column("start", "before fitting"),
        column("value", "after fitting"),
    )),
)  # fmt: skip

_RISE = column("rise", "relative rise of the loss over the baseline's", interval=True)
_OVER_CONTROL = "relative rise of the loss over that of softmax, tuned the same way"
_LIFT_TABLES = (
    Table("lift", "table", "a contender on the test text: the baseline; softmax, tuned the same way; the plan", (
        column("contender", "which of the three"), column("loss", "in nats per token"),
        column("longer_loss", "the same on the longest windows (goal retrieval)"), _ZEROS,
        column("active", "keys with a weight above 0"), _EFFECTIVE,
        column("lists", "share of key-value lists answered"),
        column("sentences", "share of sentences found among decoys"),
        column("pass_keys", "share of pass keys found"),
        column("sensitivity_ratio", "sensitivity at equal selectivity, over the baseline's"), _RISE,
        column("longer_rise", "the same of `longer_loss`", interval=True),
        column("zeros_gain", "share of zeros minus the baseline's", interval=True),
        column("needle_gain", "accuracy on lists and sentences minus the baseline's", interval=True),
        column("lists_gain", "accuracy on lists minus the baseline's", interval=True),
        column("sentences_gain", "accuracy on sentences minus the baseline's", interval=True),
        column("key_gain", "pass keys found minus the baseline's", interval=True),
        column("control_rise", f"{_OVER_CONTROL}; the plan's only", interval=True),
        column("time_ratio", "of a forward pass, over the baseline's"), column("seconds", "of a forward pass"),
    )),
    Table("lift", "scan", "a group of layers alone under a candidate", (
        column("layers", "of the group"), column("first", "its first layer"), column("last", "its last layer"),
        column("normalizer", "the candidate"),
        column("harm", "relative rise of the loss", interval=True),
        column("gain", "what the goal gains: a share of zeros, a lower loss, or log-probability of the pass keys"),
        _ZEROS, _EFFECTIVE,
        column("effective_tokens_baseline", "the same of the unchanged model"),
        column("sensitivity_ratio", "sensitivity at equal selectivity, over the baseline's"),
        column("output_error", "squared change of the outputs over their size, after fitting"),
    )),
    Table("lift", "plans", "a plan measured on the validation text", (
        column("plan", "patterns and specs, in one line"), column("layers", "how many are changed"),
        column("steps", "of tuning"), column("loss", "in nats per token"), _RISE,
        column("gain", "what the goal gains"), _ZEROS, column("active", "keys with a weight above 0"), _EFFECTIVE,
        column("chosen", "whether it went on to be tested"),
        column("control_rise", f"{_OVER_CONTROL}; null if it was not tuned, or is softmax itself", interval=True),
    )),
    Table("lift", "keys", "a contender, length and depth (goal retrieval)", (
        column("contender", "which of the three"), column("length", "tokens of the prompt"),
        column("depth", "place of the pass key, from 0 to 1"), column("prompts", "how many"),
        column("right", "share of pass keys found", interval=True),
        column("log_probability", "of the five digits, mean"),
    )),
)  # fmt: skip

NORMALIZERS = (*_COMPARE_TABLES, *_CAPACITY_TABLES, *_CALIBRATE_TABLES, *_LIFT_TABLES)
