"""Tables of the studies that measure heads: diagnose, report, diff, watch."""

from __future__ import annotations

from ._column import EACH_HEAD, HEAD, HIGH, LAYER, LENGTH, LOW, Table, column

_MODEL = column("model", "name of the model")
_SIZE = column("n", "size N of the selected set; null for measures of the whole row")
_MEASURE = column("measure", "name of the measure")
_LIMITS = (
    column("limit", "proved bound of the value; null if there is none"),
    column("control", "the same for random sets or for a uniform head; null if there is none"),
)
_RUN = (
    *(_MODEL, LAYER, HEAD, LENGTH, _SIZE, _MEASURE),
    column("value", "what was measured, on average over queries and windows"),
    *(LOW, HIGH, *_LIMITS),
)

HEADS = (
    Table("diagnose", "table", "a model, layer, head, window length, set size and measure", _RUN),
    Table("report", "table", "as in `abbe diagnose`", _RUN),
    Table("report", "growth", "a head", (
        *EACH_HEAD,
        column("decay", "exponent with which the largest weight fades as the context grows; high means fast, 1 is a "
               "uniform head", interval=True),
        column("uniform_from", "first measured length at which the entropy is near its ceiling"),
        column("random_from", "first measured length at which separability is no better than that of random sets"),
        column("weight", "largest weight at the largest length"),
        column("faint_at", "length at which the largest weight would fall below 0.1 if it kept fading as measured"),
        column("half_until", "keys among which a query with the head's mean range of logits can give one half of the "
               "weight"),
    )),
    Table("report", "floors", "a head", (
        *EACH_HEAD,
        column("floor", "temperature below which the weights become fragile; null if no measured one is"),
        column("lowest", "lowest temperature measured"),
        column("sensitivity", "worst sensitivity at T = 1; 95 % of the queries stay below it"),
        column("ceiling", "the proved largest sensitivity at T = 1"),
    )),
    Table("report", "alternatives", "a head and an alternative normalizer, given the same logits", (
        *EACH_HEAD,
        column("normalizer", "its spec"),
        column("separable", "share of the weight on tokens strictly inside the ball of the selected", interval=True),
        column("gain", "separable weight minus that of the baseline, on paired windows", interval=True),
        column("output_change", "root of the squared change of the output over the squared output; high means that "
               "later layers would see something different"),
        column("active", "keys with a weight above 0; low means sparse"),
        column("effective_tokens", "1 over the sum of squared weights"),
        column("sensitivity", "worst sensitivity"),
    )),
    Table("report --each", "table", "a model", (
        _MODEL,
        column("folder", "of its report, within this one"),
        column("grade", "good, look or bad"),
        column("answer", "the first sentence of its report"),
        column("effective_tokens", "of a query, at the largest length", interval=True),
        column("separability", "of 20 tokens", interval=True),
        column("critical_n", "first size at which selection looks random; null if every size differs",
               interval=True),
        column("decay", "exponent with which the largest weight fades", interval=True),
        column("sensitivity", "worst sensitivity", interval=True),
        column("seconds", "its report took"),
        column("skipped", "why there is no report"),
    )),
    Table("diff", "table", "a layer, head, window length, set size and measure; the largest changes first", (
        LAYER, HEAD, LENGTH, _SIZE, _MEASURE,
        column("first", "value of the first model, mean over windows"),
        column("second", "value of the last model"),
        column("difference", "second minus first, on paired windows"), LOW, HIGH,
        column("effect", "difference over the spread of the measure among the heads"),
        column("p_value", "of a paired t test over windows"),
        column("q_value", "of Benjamini and Hochberg, over all heads, measures, sizes and lengths"),
        column("changed", "whether it counts as changed: beyond chance and beyond rounding"),
    )),
    Table("diff", "curves", "a side and a row of `abbe diagnose`", (
        column("side", "number of the model or checkpoint, from 0"), *_RUN,
    )),
    Table("watch", "table", "a step that was read, layer, head and quantity", (
        column("step", "of the training, from 1"), *EACH_HEAD, column("measure", "name of the quantity"),
        column("value", "mean over the rows that were read"), *_LIMITS,
    )),
    Table("watch", "steps", "a step that was read; least, mean and largest of every quantity follow", (
        column("step", "of the training, from 1"),
        column("loss", "of this step"),
        column("loss_mean", "mean of the losses since the last step that was read"),
        column("learning_rate", "as passed to the monitor"),
        column("seconds", "since the start"),
        column("read_seconds", "of the reading"),
    )),
    Table("watch", "alerts", "an alert", (
        column("step", "at which it was raised"), column("rule", "its name"),
        column("layer", "null for the loss"), column("head", "null for the loss"),
        column("value", "that raised it"), column("threshold", "that it passed"),
    )),
)  # fmt: skip
