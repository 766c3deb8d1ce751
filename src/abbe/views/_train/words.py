"""What the page of an experiment asks, what runs and quantities are called, and its tables with these names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ...results import alert_words
from ...words.lab import CHOICE, HARD_MAXIMUM, HARD_MAXIMUM_NAME
from ...words.manifest import part_of, text_name
from ...words.numbers import many

if TYPE_CHECKING:
    from ...studies import Experiment

ENDED = ("train_loss", "start_loss", "diverged")  # how the training of a run ended
CONTROL = "compensated control"
QUESTIONS = {
    "temperature": "Is low temperature hard to train?",
    "length": "Which normalizer finds the maximum in lists longer than it was trained on?",
    "recall": "Which normalizer learns to recall?",
    "text": "Which normalizer trains the better language model?",
}
_OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
QUANTITIES = {
    "loss": "training loss",
    "entropy_share": "entropy, share of its ceiling",
    "max_logit": "largest logit",
    "logit_change": "change of the logits by a step",
    "saturated": "rows with a weight above 0.99",
    "separability": "separability N_s/N",
    "sensitivity": "sensitivity, worst direction",
    "gradient_ratio": "gradient, queries and keys over values",
    "query_gradient": "gradient of the queries",
}
_SIGNALS = {  # short, for the rows of a chart; the note of the table explains them
    "entropy_share": "entropy", "max_logit": "largest logit", "logit_change": "logit change",
    "saturated": "saturated rows", "separability": "N_s/N", "sensitivity": "sensitivity",
    "gradient_ratio": "gradient ratio", "query_gradient": "query gradient",
}  # fmt: skip
_DIRECTIONS = {
    ("low", "level"): "low", ("high", "level"): "high", ("low", "change"): "fallen", ("high", "change"): "risen",
}  # fmt: skip


def question_of(experiment: Experiment) -> str:
    return QUESTIONS.get(experiment.experiment, "What did the runs learn?")


def about_lines(experiment: Experiment) -> list[str]:
    """What was trained on what, and how often."""
    settings = part_of(experiment.manifest, "settings")
    runs, seeds = experiment.table["run"].n_unique(), experiment.table["seed"].n_unique()
    steps = f" of {many(settings['steps'], 'step')}" if isinstance(settings.get("steps"), int) else ""
    return [
        f"small transformers; task: {text_name(experiment.manifest)}",
        f"{many(runs, 'run')}{steps}, each with {many(seeds, 'seed')}",
    ]


def optimizer_name(optimizer: str) -> str:
    return _OPTIMIZERS.get(optimizer, optimizer)


def normalizer_name(row: Mapping[str, Any]) -> str:
    return f"{row['normalizer']}, QK-norm" if row["qk_norm"] else str(row["normalizer"])


def temperature_name(temperature: str) -> str:
    """ "T = 0.1", "learned T", "T geometric:1:0.1"."""
    kind, _, start = temperature.partition(":")
    if kind == "learned":
        return f"learned T from {start}" if start else "learned T"
    return f"T {temperature}" if start else f"T = {temperature}"


def in_order(temperatures: Iterable[str]) -> list[str]:
    """Each once, from high to low; schedules and learned ones come last."""
    return sorted(dict.fromkeys(temperatures), key=lambda one: (as_number(one) is None, -(as_number(one) or 0.0)))


def as_number(temperature: str) -> float | None:
    try:
        return float(temperature)
    except ValueError:
        return None


def signal_name(row: Mapping[str, Any]) -> str:
    """An alert of the monitor by its event, a quantity with its direction of alarm."""
    if row["kind"] == "alert":
        return alert_words(row["quantity"]).event
    label = _SIGNALS.get(row["quantity"], str(row["quantity"]).replace("_", " "))
    return f"{label}, {_DIRECTIONS.get((row['direction'], row['kind']), row['direction'])}"


def with_names(experiment: Experiment) -> pl.DataFrame:
    """The summary with a column `name`: the normalizer, and the other choices in which rows differ."""
    rows = experiment.summary.to_dicts()
    temperatures, optimizers = ({row[part] for row in rows} for part in ("temperature", "optimizer"))

    def name(row: Mapping[str, Any]) -> str:
        hard = experiment.experiment == "length" and row["normalizer"] == HARD_MAXIMUM
        parts = [HARD_MAXIMUM_NAME if hard else normalizer_name(row)]
        if temperatures != {"1"}:
            parts += [temperature_name(row["temperature"])] if row["temperature"] != "1" else []
            parts += ["compensated"] if row["compensated"] else []
        return ", ".join([*parts, *([optimizer_name(row["optimizer"])] if len(optimizers) > 1 else [])])

    return experiment.summary.with_columns(pl.Series("name", [name(row) for row in rows], pl.String))


def named_table(experiment: Experiment) -> pl.DataFrame:
    """Every run of every seed, with the name of its choice and whether its rate is the best."""
    named = with_names(experiment).select(*CHOICE, "name", "best_run")
    table = experiment.table.join(named, on=list(CHOICE), how="left", maintain_order="left")
    return table.with_columns(best=pl.col("run") == pl.col("best_run"))


def length_rows(experiment: Experiment) -> pl.DataFrame:
    """Accuracy and entropy by test length at the best rate of each choice: name, seed, length, accuracy, entropy."""
    named = with_names(experiment).select("name", pl.col("best_run").alias("run"))
    return named.join(experiment.lengths, on="run", how="inner", maintain_order="left_right").drop_nulls("accuracy")
