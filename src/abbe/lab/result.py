"""The result of an experiment: its tables, what its runs are called, and its view."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from ..results import Result
from ..training import rule_named
from ..views import TextTable, View
from ..views.theme import ThemeName
from ..words.finding import Finding
from ..words.frames import HIGH, LOW, column, frame
from ..words.manifest import part_of, text_name
from ..words.numbers import MISSING, many, number, percent, with_interval

if TYPE_CHECKING:
    from ..views.charts import Spec

HARD_MAXIMUM = "topk:k=1"  # in `train_length`, only at test time
HARD_MAXIMUM_NAME = "hard maximum on the trained softmax logits"
PUBLISHED_PAPER = "arXiv 2410.01104"
PUBLISHED: dict[str, dict[int, float]] = {  # accuracy by number of items, trained on up to 16 (table 1 there)
    "softmax": {16: 0.986, 64: 0.943, 256: 0.813, 1024: 0.538, 4096: 0.226, 16384: 0.124},
    "adaptive-temperature": {16: 0.986, 64: 0.945, 256: 0.821, 1024: 0.577, 4096: 0.249, 16384: 0.140},
}

# -- Tables as they are declared --------------------------------------------------------------------------------------

_RUN = column("run", int, "number of the choice of normalizer, temperature, optimizer and rate")
_SEED = column("seed", pl.Int64, "of weights and data")
_CHOICE = (
    column("normalizer", str, "its spec"),
    column("temperature", str, "in front of the normalizer: a number, learned or a schedule"),
    column("compensated", bool, "whether the scale of the temperature is undone in weights and rate: the control"),
    column("qk_norm", bool, "whether queries and keys are normalized"),
    column("optimizer", str, "sgd, adamw or muon"),
)
CHOICE = tuple(part.name for part in _CHOICE)  # what defines a run, except its rate


_QUANTITIES = tuple(
    column(name, float, meaning, label=label)
    for name, label, meaning in (
        ("entropy_share", "entropy", "entropy over its ceiling ln n; high means spread, low sharp"),
        ("max_logit", "largest logit", "largest logit of any head"),
        ("logit_change", "", "change of the logits by the update, root mean square, largest head"),
        ("max_weight", "", "largest weight, mean over heads"),
        ("saturated", "saturated rows", "share of rows with a weight above 0.99"),
        ("separability", "N_s/N", "N_s/N of sets of 4 keys"),
        ("sensitivity", "", "worst sensitivity, mean"),
        ("gradient_ratio", "", "gradient of queries and keys over that of values"),
        ("query_gradient", "", "norm of the gradient of the queries"),
        ("nonfinite", "", "share of rows with NaN or infinity"),
        ("separability_control", "", "N_s/N of random sets of 4 keys"),
    )
)
_SIGNAL = (
    column("quantity", str, "name of the monitored quantity, or of an alert"),
    column("direction", str, "high or low: which values warn"),
    column("kind", str, "level, or change since the first step; of an alert: alert"),
    column("threshold", float, "from which it warns"),
)
_WARNED = column("warned", float, "share of the failing runs that it flags before their loss does", share=True)
_FALSE = column("false_alarms", float, "share of the healthy runs that it flags", share=True)
_QUESTIONS = {
    "temperature": "Is low temperature hard to train?",
    "length": "Which normalizer finds the maximum in lists longer than it was trained on?",
    "recall": "Which normalizer learns to recall?",
    "text": "Which normalizer trains the better language model?",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment(Result, study="train", drawn=True):
    """The result of `train_temperature`, `train_length`, `train_recall` or `train_text`.

    A run is one choice of normalizer, temperature, optimizer and rate; every run has all seeds.

    Attributes:
        table: a row for each run and seed. `accuracy` and `loss` are on data that was never trained on, `train_loss`
            is the mean over the last fifth of the steps, `half_step` the first step that was read with at most half
            of the first loss. `failed`: the training loss ended above half of the first one; `diverged`: it ended more
            than a twentieth above the first one, or not finite. `largest_logit` is over the whole run; the monitored
            quantities are those of the last step.
        curves: loss and monitored quantities at every step that was read, by run and seed.
        lengths: accuracy and mean entropy of the attention weights (nats) at each test length, by run and seed; empty
            for tasks of one length.
        alerts: the first step at which each alert of the monitor was raised, by run and seed.
        summary: a row for each choice except for the rate: the best rate (by training loss) and its results, with an
            interval over seeds, and the sensitivity to the rate (arXiv 2309.14322): the mean over rates of the
            training loss above the best, with losses capped at the first one.
        warnings: for each monitored quantity, how well it separates runs that will fail from healthy ones before their
            loss does, at a threshold with at most 5 % false alarms, and how well the monitor's alerts do.
        roc: for each quantity and threshold, the shares of failing runs that are found and of false alarms.
        findings: statements, each judged by its rule.
        manifest: task, settings, versions, machine, seconds.
    """

    files: ClassVar[Mapping[str, str]] = {"runs/": "a part per run: what an interrupted run resumes from"}

    table: pl.DataFrame = frame(
        "a run and seed; quantities are from the last step",
        *(_RUN, *_CHOICE, column("rate", float, "learning rate"), _SEED),
        column("accuracy", float, "on held-out data", share=True),
        column("loss", float, "on the same data"),
        column("train_loss", float, "mean over the last fifth of the steps"),
        column("start_loss", float, "first training loss"),
        column("half_step", int, "first step that was read with at most half of the first loss"),
        column("failed", bool, "whether the training loss ended above half of the first one"),
        column("diverged", bool, "whether it ended above the first one by more than a twentieth, or was not finite"),
        column("largest_logit", float, "over the whole run"),
        *_QUANTITIES,
        column("temperature_end", float, "at the last step"),
        column("learned", str, "values that the normalizer has learned"),
        file="runs.parquet",
    )
    curves: pl.DataFrame = frame(
        "a run, seed and step that was read",
        *(_RUN, _SEED, column("step", int, "of the training"), column("loss", float, "of this step"), *_QUANTITIES),
        file="curves.parquet",
    )
    summary: pl.DataFrame = frame(
        "a choice without its rate, at its best rate",
        *_CHOICE,
        column("best_rate", float, "of the lowest training loss"),
        column("best_run", int, "its number"),
        column("accuracy", float, "at that rate, mean over seeds", share=True),
        *(LOW, HIGH, column("loss", float, "at that rate")),
        column("half_step", float, "at that rate, median over seeds"),
        column("runs", int, "rates times seeds"),
        column("failed", int, "how many of them failed"),
        column("diverged", int, "how many diverged"),
        column(
            "rate_sensitivity",
            float,
            "mean over rates of the training loss above the best (arXiv 2309.14322); high means that the rate must be "
            "chosen well",
            interval=True,
        ),
        column("largest_logit", float, "at the best rate"),
    )
    lengths: pl.DataFrame = frame(
        "a run, seed and test length",
        *(_RUN, _SEED, column("length", int, "items or tokens of the test")),
        column("accuracy", float, "at that length", share=True),
        column("entropy", float, "of the attention weights at that length, in nats; mean over examples"),
    )
    alerts: pl.DataFrame = frame(
        "a run, seed and alert of the monitor",
        *(_RUN, _SEED, column("rule", str, "name of the alert"), column("step", int, "at which it was first raised")),
    )
    warnings: pl.DataFrame = frame(
        "a monitored quantity at its best threshold, or an alert",
        *(*_SIGNAL, column("failing", int, "runs that failed"), column("healthy", int, "runs that did not")),
        *(_WARNED, _FALSE),
        column("auc", float, "area under the ROC curve: 1/2 is chance, 1 perfect", interval=True),
        column("lead", float, "median of the steps between a warning and the step at which the loss shows the failure"),
        column("lead_share", float, "the same as a share of those steps", share=True),
    )
    roc: pl.DataFrame = frame("a monitored quantity and threshold", *_SIGNAL, _FALSE, _WARNED)
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any] = field(repr=False)

    @property
    def experiment(self) -> str:
        """Its name: "temperature", "length", "recall" or "text"."""
        return str(self.manifest["settings"]["experiment"])

    def __repr__(self) -> str:
        return f"Experiment({self.experiment}, {self.table['run'].n_unique()} runs, {len(self.table)} with all seeds)"

    def as_json(self) -> dict[str, Any]:
        """Everything but the curves, which are long: `curves` and curves.parquet hold them."""
        return {name: content for name, content in super().as_json().items() if name != "curves"}

    def view(self) -> View:
        settings = part_of(self.manifest, "settings")
        runs, seeds = self.table["run"].n_unique(), self.table["seed"].n_unique()
        steps = f" of {many(settings['steps'], 'step')}" if isinstance(settings.get("steps"), int) else ""
        return self._view(
            _QUESTIONS.get(self.experiment, "What did the runs learn?"),
            f"small transformers; task: {text_name(self.manifest)}",
            f"{many(runs, 'run')}{steps}, each with {many(seeds, 'seed')}",
            tables=_tables(self),
        )

    def _charts(self, theme: ThemeName) -> Mapping[str, Spec]:
        from .charts import train_charts  # altair belongs to the extra `report`

        return train_charts(self, theme)


# -- Names ------------------------------------------------------------------------------------------------------------

_OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
_LABELS = {quantity.name: quantity.label for quantity in _QUANTITIES}
_MOVED = {"low": "fallen", "high": "risen"}


def temperature_name(temperature: str) -> str:
    """ "T = 0.1", "learned T", "T geometric:1:0.1"."""
    kind, _, start = temperature.partition(":")
    if kind == "learned":
        return f"learned T from {start}" if start else "learned T"
    return f"T {temperature}" if start else f"T = {temperature}"


def in_order(temperatures: pl.Series) -> list[str]:
    """Each once, from high to low; schedules and learned ones come last."""
    once, number = temperatures.unique(maintain_order=True).to_frame(), pl.first().cast(pl.Float64, strict=False)
    return once.sort(number, descending=True, nulls_last=True, maintain_order=True).to_series().to_list()


def signal_name(row: Mapping[str, Any]) -> str:
    """An alert of the monitor by its event, a quantity with its direction of alarm."""
    if row["kind"] == "alert":
        return rule_named(row["quantity"]).event
    moved = _MOVED[row["direction"]] if row["kind"] == "change" else row["direction"]
    return f"{_LABELS.get(row['quantity'], row['quantity'])}, {moved}"


def with_names(experiment: Experiment) -> pl.DataFrame:
    """The summary with names: `of` a normalizer, `at` a temperature or its control, `by` an optimizer, and the `name`
    of a choice, which is its normalizer and the other choices in which rows differ."""
    summary = experiment.summary
    warmth = pl.col("temperature").replace({word: temperature_name(word) for word in summary["temperature"]})
    named = summary.with_columns(
        of=pl.when("qk_norm").then(pl.format("{}, QK-norm", "normalizer")).otherwise("normalizer"),
        at=pl.when("compensated").then(pl.format("{}, compensated", warmth)).otherwise(warmth),
        by=pl.col("optimizer").replace(_OPTIMIZERS),
    )
    hard = (pl.col("normalizer") == HARD_MAXIMUM) & (experiment.experiment == "length")
    normalizer = pl.when(hard).then(pl.lit(HARD_MAXIMUM_NAME)).otherwise("of")
    optimizer = pl.when(pl.col("optimizer").n_unique() > 1).then("by")
    parts = (normalizer, pl.when(pl.col("temperature") != "1").then("at"), optimizer)
    return named.with_columns(name=pl.concat_str(parts, separator=", ", ignore_nulls=True))


def length_rows(experiment: Experiment) -> pl.DataFrame:
    """Accuracy and entropy by test length at the best rate of each choice: name, seed, length, accuracy, entropy."""
    named = with_names(experiment).select("name", pl.col("best_run").alias("run"))
    return named.join(experiment.lengths, on="run", how="inner", maintain_order="left_right").drop_nulls("accuracy")


# -- Tables for people ------------------------------------------------------------------------------------------------

_NOTE = (
    "at the best rate, on new data; half loss: the first step that was read with half of the first loss; failed, over "
    "all rates: the training loss ended above half of the first one"
)
_MORE = "; diverged: it rose above the first one, or was not finite"
_EXPLAINED = (
    "warned: share of failing runs that cross the threshold before their loss shows the failure; false alarms: of "
    "healthy ones, at any step; lead: median steps in between. Thresholds allow 5 % false alarms; alerts are as they "
    "are. Entropy is the share of its ceiling, fallen and risen are since the first step, rows are saturated above a "
    "weight of 0.99, the gradient ratio is that of queries and keys over values"
)
_BREAKS = ("(", "@ ")  # below its number


def _tables(experiment: Experiment) -> list[TextTable]:
    """What the best rates reach, and what warned; the page lists every choice with all its numbers."""
    if experiment.experiment == "temperature":
        tables = [_by_temperature(experiment)]
    else:
        tables = _by_length(experiment) if experiment.lengths.height else []
        tables.append(_choices(experiment, "At the best rate", 6, _NOTE, ("terminal", "card")))
    return [*tables, *_warnings(experiment), _choices(experiment, "Every choice", 9, _NOTE + _MORE, ("page",))]


def _by_temperature(experiment: Experiment) -> TextTable:
    """Accuracy and best rate: a row per optimizer and normalizer, a column per T, and one for its control."""
    named = pl.concat(with_names(experiment).partition_by("by", maintain_order=True))
    cells = [f"{percent(share)} @ {rate:g}" for share, rate in named.select("accuracy", "best_rate").iter_rows()]
    end = pl.when("compensated").then(pl.lit(" control")).otherwise(pl.lit(""))
    place = {"line": pl.format("{}, {}", "by", "of"), "title": pl.format("T {}{}", "temperature", end)}
    wide = named.select(**place, cell=pl.Series(cells)).pivot("title", index="line", values="cell").fill_null("")
    each = [f"T {word}{which}" for word in in_order(named["temperature"]) for which in ("", " control")]
    titles = [title for title in each if title in wide.columns]
    note = "control: first values and rate of the query map undo the temperature" if named["compensated"].any() else ""
    title, cells_by_line = "Accuracy at the best rate, and that rate", wide.select("line", *titles).rows()
    return TextTable(title, ("trained with", *titles), cells_by_line, note, breaks=_BREAKS)


def _by_length(experiment: Experiment) -> list[TextTable]:
    """Means over seeds, next to published accuracies and to the entropy of equal weights."""
    means = length_rows(experiment).group_by("name", "length", maintain_order=True).mean()

    def table(title: str, value: str, shown: Callable[[float], str], beside: dict[str, Any], note: str) -> TextTable:
        groups = means.drop_nulls(value).group_by("name", maintain_order=True)
        by_name = {name: dict(rows.select("length", value).iter_rows()) for (name,), rows in groups} | beside
        lengths = sorted({length for values in by_name.values() for length in values})
        rows = [
            [name, *(shown(values[length]) if length in values else MISSING for length in lengths)]
            for name, values in by_name.items()
        ]
        return TextTable(title, ("normalizer", *(f"{length:,}" for length in lengths)), rows, note, breaks=_BREAKS)

    published = {f"{name}, published": values for name, values in PUBLISHED.items()}
    most = {"equal weights: ln n": {length: math.log(length) for length in means["length"]}}
    return [
        table("Accuracy by items in the list", "accuracy", _share, published, f"published: {PUBLISHED_PAPER}"),
        table("Entropy of the weights by items (nats)", "entropy", "{:.2f}".format, most, "means over seeds"),
    ]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _choices(experiment: Experiment, title: str, columns: int, note: str, on: tuple[str, ...]) -> TextTable:
    """Every choice at its best rate, with the first few of its numbers."""

    def estimate(row: Mapping[str, Any], name: str, ends: str, show: Callable[[float], str]) -> str:
        return with_interval(row[name], row[f"{ends}low"], row[f"{ends}high"], show)

    rows = [
        {
            "normalizer": row["name"],
            "best rate": f"{row['best_rate']:g}",
            "accuracy": estimate(row, "accuracy", "", _share),
            "loss": number(row["loss"], 3),
            "half loss": number(row["half_step"]),
            "failed": f"{row['failed']} of {row['runs']}",
            "diverged": str(row["diverged"]),
            "rate sensitivity": estimate(row, "rate_sensitivity", "rate_sensitivity_", lambda x: number(x, 3)),
            "largest logit": number(row["largest_logit"], 3),
        }
        for row in with_names(experiment).to_dicts()
    ]
    cells = [list(row.values())[:columns] for row in rows]
    return TextTable(title, list(rows[0])[:columns], cells, note, on=on, breaks=_BREAKS, whole=("accuracy",))


def _warnings(experiment: Experiment) -> list[TextTable]:
    """Signals, the best first, then alerts; none if nothing failed, or everything did."""
    rows = experiment.warnings.sort("auc", descending=True, nulls_last=True, maintain_order=True).to_dicts()
    if not rows:
        return []
    shown = [
        [
            signal_name(row),
            "" if row["auc"] is None else with_interval(row["auc"], row["auc_low"], row["auc_high"], "{:.2f}".format),
            "alert" if row["kind"] == "alert" else number(row["threshold"], 3),
            *(percent(row["warned"]), percent(row["false_alarms"]), number(row["lead"], 3)),
        ]
        for row in rows
    ]
    title = f"Early warning: {rows[0]['failing']:,} failing, {rows[0]['healthy']:,} healthy runs of single seeds"
    columns = ("what warns", "AUC", "threshold", "warned", "false alarms", "lead")
    return [TextTable(title, columns, shown, _EXPLAINED, breaks=_BREAKS)]
