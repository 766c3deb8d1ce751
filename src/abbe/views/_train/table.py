"""An experiment in words: what its page asks, what runs and quantities are called, and its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ...results import alert_words
from ...words.lab import CHOICE, HARD_MAXIMUM, HARD_MAXIMUM_NAME, PUBLISHED, PUBLISHED_PAPER
from ...words.manifest import part_of, text_name
from ...words.numbers import MISSING, many, number, percent, with_interval
from .._shared.terminal import TextTable, bullets, draw, note_lines, plain, skipped_lines

if TYPE_CHECKING:
    from ...lab import Experiment


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


_FAILED = "the training loss ended above half of the first one"
_WARNED = (
    "warned: share of failing runs that cross the threshold before their loss shows the failure; false alarms: of "
    "healthy ones, at any step; lead: median steps in between. Thresholds allow 5 % false alarms; alerts are as they "
    "are. Entropy is the share of its ceiling, fallen and risen are since the first step, rows are saturated above a "
    "weight of 0.99, the gradient ratio is that of queries and keys over values"
)


def train_table(experiment: Experiment) -> RenderableType:
    """What did the runs of an experiment learn?

    The judged statements, what each choice reaches at its best rate, and what warned before a failure. High accuracy
    and low loss are good; many failed runs mean that a choice is hard to train.

    Args:
        experiment: from `abbe.train_temperature`, `train_length`, `train_recall` or `train_text`.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 20, "workers": 1, "progress": False}
        >>> experiment = abbe.train_recall(normalizers="softmax", **small)
        >>> from rich import print
        >>> print(abbe.views.train_table(experiment))
        Which normalizer learns to recall?
        ...
    """
    heading = [Text(plain(question_of(experiment)), style="bold")]
    about = [Text(plain(line), style="dim") for line in about_lines(experiment)]
    parts: list[RenderableType] = [*heading, *about, *bullets(experiment.findings)]
    for table in (*main_tables(experiment), *warning_tables(experiment)):
        drawn = draw(table, "(", "@ ")  # below its number
        drawn.columns[0].overflow = "fold"  # names of normalizers are long words
        parts += [drawn, *note_lines(table)]
    return Group(*parts, *skipped_lines(experiment.manifest))


def train_tables(experiment: Experiment) -> list[TextTable]:
    """For the page, which also lists every choice with all its numbers."""
    return [*main_tables(experiment), *warning_tables(experiment), _choices(experiment)]


def main_tables(experiment: Experiment) -> list[TextTable]:
    """What the best rates reach."""
    if experiment.experiment == "temperature":
        return [_by_temperature(experiment)]
    lengths = [_by_length(experiment), _entropies(experiment)] if experiment.lengths.height else []
    return [*lengths, _reached(experiment)]


def _by_temperature(experiment: Experiment) -> TextTable:
    """Accuracy and best rate: a column per T, and one for its control."""
    rows = experiment.summary.to_dicts()
    controlled = {row["temperature"] for row in rows if row["compensated"]}
    columns = [
        (one, compensated)
        for one in in_order(row["temperature"] for row in rows)
        for compensated in ((False, True) if one in controlled else (False,))
    ]
    lines = []
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        for name in dict.fromkeys(normalizer_name(row) for row in rows):
            cells = {
                (row["temperature"], row["compensated"]): row
                for row in rows
                if (normalizer_name(row), row["optimizer"]) == (name, optimizer)
            }
            if cells:
                lines.append([f"{optimizer_name(optimizer)}, {name}", *(_reach(cells.get(one)) for one in columns)])
    titles = [f"T {one} control" if compensated else f"T {one}" for one, compensated in columns]
    note = "control: first values and rate of the query map undo the temperature" if controlled else ""
    return TextTable("Accuracy at the best rate, and that rate", ("trained with", *titles), lines, note)


def _reach(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{percent(row['accuracy'])} @ {row['best_rate']:g}"


def _by_length(experiment: Experiment) -> TextTable:
    """Means over seeds, next to published ones."""
    by_name = _means(experiment, "accuracy")
    by_name |= {f"{name}, published": values for name, values in PUBLISHED.items()}
    note = f"published: {PUBLISHED_PAPER}"
    return _over_lengths("Accuracy by items in the list, at the best rate", by_name, _share, note)


def _entropies(experiment: Experiment) -> TextTable:
    by_name = _means(experiment, "entropy")
    lengths = {length for values in by_name.values() for length in values}
    by_name["equal weights: ln n"] = {length: math.log(length) for length in lengths}
    title = "Entropy of the attention weights by items in the list (nats), at the best rate"
    return _over_lengths(title, by_name, "{:.2f}".format, "means over test lists and seeds")


def _means(experiment: Experiment, column: str) -> dict[str, dict[int, float]]:
    means = length_rows(experiment).group_by("name", "length", maintain_order=True).agg(pl.col(column).mean())
    by_name: dict[str, dict[int, float]] = {}
    for name, length, value in means.drop_nulls(column).iter_rows():
        by_name.setdefault(name, {})[length] = value
    return by_name


def _over_lengths(
    title: str, by_name: Mapping[str, Mapping[int, float]], shown: Callable[[float], str], note: str
) -> TextTable:
    lengths = sorted({length for values in by_name.values() for length in values})
    rows = [
        [name, *(shown(values[length]) if length in values else MISSING for length in lengths)]
        for name, values in by_name.items()
    ]
    return TextTable(title, ("normalizer", *(f"{length:,}" for length in lengths)), rows, note)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _reached(experiment: Experiment) -> TextTable:
    rows = [
        [
            row["name"], f"{row['best_rate']:g}", _accuracy(row), number(row["loss"], 3), number(row["half_step"]),
            f"{row['failed']} of {row['runs']}",
        ]
        for row in with_names(experiment).to_dicts()
    ]  # fmt: skip
    columns = ("normalizer", "best rate", "accuracy", "loss", "half loss", "failed")
    note = f"half loss: the first step that was read with half of the first loss; failed, over all rates: {_FAILED}"
    return TextTable("At the best rate, on new data", columns, rows, note)


def _accuracy(row: Mapping[str, Any]) -> str:
    return with_interval(row["accuracy"], row["low"], row["high"], _share)


def _choices(experiment: Experiment) -> TextTable:
    rows = [
        [
            optimizer_name(row["optimizer"]), normalizer_name(row),
            f"{row['temperature']}, compensated" if row["compensated"] else row["temperature"], f"{row['best_rate']:g}",
            _accuracy(row), number(row["loss"], 3), number(row["half_step"]), f"{row['failed']} of {row['runs']}",
            str(row["diverged"]), _sensitivity(row), number(row["largest_logit"], 3),
        ]
        for row in experiment.summary.to_dicts()
    ]  # fmt: skip
    columns = (
        "optimizer", "normalizer", "T", "best rate", "accuracy", "loss", "half loss at", "failed", "diverged",
        "rate sensitivity", "largest logit",
    )  # fmt: skip
    note = "accuracy, loss, step and logit at the best rate; failed and diverged count seeds over all rates: "
    note += f"{_FAILED}; rose above the first one, or was not finite"
    return TextTable("Every choice", columns, rows, note)


def _sensitivity(row: Mapping[str, Any]) -> str:
    low, high = row["rate_sensitivity_low"], row["rate_sensitivity_high"]
    return with_interval(row["rate_sensitivity"], low, high, lambda value: number(value, 3))


def warning_tables(experiment: Experiment) -> list[TextTable]:
    """Empty if nothing failed, or everything did."""
    rows = experiment.warnings.to_dicts()
    if not rows:
        return []
    signals = sorted((row for row in rows if row["kind"] != "alert"), key=lambda row: -(row["auc"] or 0.0))
    alerts = [row for row in rows if row["kind"] == "alert"]
    shown = [[signal_name(row), *_warning(row)] for row in (*signals, *alerts)]
    columns = ("what warns", "AUC", "threshold", "warned", "false alarms", "lead")
    first = rows[0]
    title = f"Early warning: {first['failing']:,} failing, {first['healthy']:,} healthy runs of single seeds"
    return [TextTable(title, columns, shown, _WARNED)]


def _warning(row: Mapping[str, Any]) -> list[str]:
    auc = row["auc"]
    return [
        "" if auc is None else with_interval(auc, row["auc_low"], row["auc_high"], "{:.2f}".format),
        "alert" if row["kind"] == "alert" else number(row["threshold"], 3),
        percent(row["warned"]), percent(row["false_alarms"]), number(row["lead"], 3),
    ]  # fmt: skip
