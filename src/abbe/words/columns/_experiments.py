"""Tables of experiments: the training lab, the reproduction of the paper, the cost of a run.

The tables of the figures are in the docstring of `abbe.studies.Figure`.
"""

from __future__ import annotations

from ._column import HIGH, LOW, Table, column

_RUN = column("run", "number of the choice of normalizer, temperature, optimizer and rate")
_SEED = column("seed", "of weights and data")
_CHOICE = (
    column("normalizer", "its spec"),
    column("temperature", "in front of the normalizer: a number, learned or a schedule"),
    column("compensated", "whether the scale of the temperature is undone in weights and rate: the control"),
    column("qk_norm", "whether queries and keys are normalized"),
    column("optimizer", "sgd, adamw or muon"),
)
_QUANTITIES = (
    column("entropy_share", "entropy over its ceiling ln n; high means spread, low sharp"),
    column("max_logit", "largest logit of any head"),
    column("logit_change", "change of the logits by the update, root mean square, largest head"),
    column("max_weight", "largest weight, mean over heads"),
    column("saturated", "share of rows with a weight above 0.99"),
    column("separability", "N_s/N of sets of 4 keys"),
    column("sensitivity", "worst sensitivity, mean"),
    column("gradient_ratio", "gradient of queries and keys over that of values"),
    column("query_gradient", "norm of the gradient of the queries"),
    column("nonfinite", "share of rows with NaN or infinity"),
    column("separability_control", "N_s/N of random sets of 4 keys"),
)
_SIGNAL = (
    column("quantity", "name of the monitored quantity, or of an alert"),
    column("direction", "high or low: which values warn"),
    column("kind", "level, or change since the first step; of an alert: alert"),
    column("threshold", "from which it warns"),
)
_WARNED = column("warned", "share of the failing runs that it flags before their loss does")
_FALSE = column("false_alarms", "share of the healthy runs that it flags")

EXPERIMENTS = (
    Table("train", "table", "a run and seed; quantities are from the last step", (
        _RUN, *_CHOICE, column("rate", "learning rate"), _SEED,
        column("accuracy", "on held-out data"), column("loss", "on the same data"),
        column("train_loss", "mean over the last fifth of the steps"), column("start_loss", "first training loss"),
        column("half_step", "first step that was read with at most half of the first loss"),
        column("failed", "whether the training loss ended above half of the first one"),
        column("diverged", "whether it ended above the first one by more than a twentieth, or was not finite"),
        column("largest_logit", "over the whole run"), *_QUANTITIES,
        column("temperature_end", "at the last step"), column("learned", "values that the normalizer has learned"),
    )),
    Table("train", "curves", "a run, seed and step that was read", (
        _RUN, _SEED, column("step", "of the training"), column("loss", "of this step"), *_QUANTITIES,
    )),
    Table("train", "summary", "a choice without its rate, at its best rate", (
        *_CHOICE, column("best_rate", "of the lowest training loss"), column("best_run", "its number"),
        column("accuracy", "at that rate, mean over seeds"), LOW, HIGH, column("loss", "at that rate"),
        column("half_step", "at that rate, median over seeds"), column("runs", "rates times seeds"),
        column("failed", "how many of them failed"), column("diverged", "how many diverged"),
        column("rate_sensitivity", "mean over rates of the training loss above the best (arXiv 2309.14322); high means "
               "that the rate must be chosen well", interval=True),
        column("largest_logit", "at the best rate"),
    )),
    Table("train", "lengths", "a run, seed and test length", (
        _RUN, _SEED, column("length", "items or tokens of the test"), column("accuracy", "at that length"),
        column("entropy", "of the attention weights at that length, in nats; mean over examples"),
    )),
    Table("train", "alerts", "a run, seed and alert of the monitor", (
        _RUN, _SEED, column("rule", "name of the alert"), column("step", "at which it was first raised"),
    )),
    Table("train", "warnings", "a monitored quantity at its best threshold, or an alert", (
        *_SIGNAL, column("failing", "runs that failed"), column("healthy", "runs that did not"), _WARNED, _FALSE,
        column("auc", "area under the ROC curve: 1/2 is chance, 1 perfect", interval=True),
        column("lead", "median of the steps between a warning and the step at which the loss shows the failure"),
        column("lead_share", "the same as a share of those steps"),
    )),
    Table("train", "roc", "a monitored quantity and threshold", (*_SIGNAL, _FALSE, _WARNED)),
    Table("reproduce", "table", "a statement of the paper", (
        column("figure", "of the paper, or drift"), column("topic", "in a word"),
        column("answer", "holds, does not hold, or cannot be judged"), column("paper", "what it says"),
        column("measured", "what this model shows"), column("rule", "by which it is judged"),
    )),
    Table("cost", "table", "a window length", (
        column("length", "tokens of a window"), column("windows", "of that length"),
        column("tokens", "of all windows"), column("queries", "measured per window"),
        column("pass_seconds", "forward pass of one window"), column("measure_seconds", "measures of one window"),
        column("seconds_per_token", "of all"), column("seconds_per_head", "of all"),
        column("exponent", "the time of a window grows like length to this power, around this length"),
        column("seconds", "of all windows"), column("activation_bytes", "at batch 1"),
        column("measure_bytes", "of the measures"), column("extra_bytes", "beyond the model, as a run announces it"),
        column("bytes_per_token", "of the extra bytes, the part that grows with the window"),
        column("device_bytes", "with the weights, on every device of a copy of the model"),
    )),
)  # fmt: skip
