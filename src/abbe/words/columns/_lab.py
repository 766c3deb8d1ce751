"""Tables of the training lab."""

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
    column("threshold", "from which on it warns"),
)
_WARNED = column("warned", "share of the failing runs that it warns of before their loss shows it")
_FALSE = column("false_alarms", "share of the healthy runs that it accuses")

LAB = (
    Table("train", "table", "a run and seed; quantities are those of the last step", (
        _RUN, *_CHOICE, column("rate", "learning rate"), _SEED,
        column("accuracy", "on data that was never trained on"), column("loss", "on the same data"),
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
    Table("train", "summary", "a choice but for its rate, at its best rate", (
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
    )),
    Table("train", "alerts", "a run, seed and alert of the monitor", (
        _RUN, _SEED, column("rule", "name of the alert"), column("step", "at which it was first raised"),
    )),
    Table("train", "warnings", "a monitored quantity at its best threshold, or an alert as it is", (
        *_SIGNAL, column("failing", "runs that failed"), column("healthy", "runs that did not"), _WARNED, _FALSE,
        column("auc", "area under the ROC curve: 1/2 is chance, 1 perfect", interval=True),
        column("lead", "median of the steps between a warning and the step at which the loss shows the failure"),
        column("lead_share", "the same as a share of those steps"),
    )),
    Table("train", "roc", "a monitored quantity and threshold", (*_SIGNAL, _FALSE, _WARNED)),
)  # fmt: skip
