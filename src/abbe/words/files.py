"""The files of run folders: what each study writes, and what it resumes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunFile:
    """A file, or with a slash at its end a folder, in the run folder of a study.

    Attributes:
        study: its command.
        name: in the folder.
        meaning: what is in it.
    """

    study: str
    name: str
    meaning: str


_MANIFEST = (
    "format, versions, machine, model and text with their hashes, settings and seed, self-check, seconds, what was "
    "skipped and why; checksums of the other files"
)
_RESUMED = "what an interrupted run resumes from"
_PAGE = "the page: one file that works offline"
_FILES: dict[str, dict[str, str]] = {
    "diagnose": {
        "heads.parquet": "the table: every number at full precision",
        "windows/": f"a part per window: {_RESUMED}",
        "diagnose.html": _PAGE,
    },
    "report": {
        "report.html": _PAGE,
        "heads.parquet": "the run behind it: every number at full precision, as `abbe diagnose` writes it",
        "alternatives.parquet": "a row for every head and alternative normalizer",
        "sample.json": "the window that the page shows",
        "report.json": "answer, numbers, verdicts and advice, with their rules",
        "windows/": f"a part per window: {_RESUMED}",
        "alternatives/": _RESUMED,
        "sample/": _RESUMED,
    },
    "report --each": {
        "index.html": "the page with a row per model",
        "models.parquet": "the table: a row per model",
        "MODEL/": "the report of each model, itself a run folder",
        "failed/": "why models could not be measured",
    },
    "reproduce": {
        "reproduce.html": "the page: statements, interactive figures, times, what was skipped",
        "reproduction.json": "statements with their rules, critical N under every reading, settings and times",
        "figures/": "every figure as PNG and SVG, light and dark",
        "data/": "the numbers behind every figure as CSV and Parquet",
        "runs/": f"the full table of every run, by head: {_RESUMED}",
    },
    "capacity": {
        "capacity.html": _PAGE,
        "table.csv": "N* with interval, N*/L, whether the curve is monotone, the first N that holds, separability",
        "curve.csv": "every loss evaluated, the loss of the baseline, the relative rise and its interval",
        "growth.csv": "exponents in L, of the model and of each layer",
        "correlation.csv": "rank correlations over layers for each way, length and allowed rise",
        "capacity.json": "all of it, with findings and their rules",
        "curves/": _RESUMED,
        "losses/": _RESUMED,
        "separability/": "a run folder (`abbe.open_run` reads it) with the geometry",
    },
    "compare": {
        "compare.html": _PAGE,
        "table.csv": "a row for every normalizer",
        "needle.csv": "the needle test by normalizer, kind, length and depth",
        "compare.json": "all of it, with judgements and the recommendation",
        "parts/": _RESUMED,
        "calibrated/": "the runs of `abbe calibrate` behind --calibrate",
    },
    "calibrate": {
        "calibrate.html": _PAGE,
        "calibrated.safetensors": 'the swap, for `abbe.swap(model, "file:...")`',
        "tuned.safetensors": "the same after fine-tuning (with --finetune)",
        "calibration.json": "the result: losses, findings, tables",
        "layers/": f"a part per layer: {_RESUMED}",
        "losses.json": _RESUMED,
        "tuning.safetensors": f"{_RESUMED} (with --finetune)",
    },
    "lift": {
        "lift.html": "the page: the scan as a map, all plans in one picture, the judged table, commands to repeat it",
        "plan.safetensors": 'the plan, for `abbe.swap(model, "file:...")` and `abbe compare --with file:...`',
        "softmax.safetensors": "its control (softmax, tuned the same way), used the same way",
        "table.csv": "the judged table",
        "scan.csv": "each group of layers alone",
        "plans.csv": "every plan that was tried",
        "lift.json": "all of it",
        "parts/": _RESUMED,
        "tuning/": _RESUMED,
    },
    "diff": {
        "diff.html": _PAGE,
        "differences.parquet": "the table: every measure of every head on both sides",
        "curves.parquet": "rows of all sides",
        "findings.json": "what changed, in sentences with their rules",
        "runs/": f"a run folder per side: {_RESUMED}",
        "losses/": _RESUMED,
    },
    "train": {
        "train.html": _PAGE,
        "runs.parquet": "the table: a row for each run and seed",
        "curves.parquet": "losses and monitored quantities at every step that was read",
        "summary.csv": "the best rate of every choice, and what it reaches",
        "lengths.csv": "accuracy at each test length",
        "alerts.csv": "first steps of the alerts",
        "warnings.csv": "how well each quantity warns",
        "roc.csv": "the same, threshold by threshold",
        "train.json": "all except table and curves, with findings and their rules",
        "runs/": f"a part per run: {_RESUMED}",
    },
    "watch": {
        "steps.jsonl": (
            "one line per step that was read, each with a checksum; appended and flushed at once, so a killed run "
            "keeps its measurements"
        ),
        "watch.html": "the page that `abbe watch` writes",
    },
}


def list_files() -> tuple[RunFile, ...]:
    """Every file of every run folder, study by study; the manifest is in all of them.

    Returns:
        Files with what is in them.

    Examples:
        >>> from abbe.words.files import list_files
        >>> file = list_files()[0]
        >>> file.study, file.name
        ('diagnose', 'manifest.json')
    """
    return tuple(
        RunFile(study, name, meaning)
        for study, files in _FILES.items()
        for name, meaning in ({"manifest.json": _MANIFEST} | files).items()
    )
