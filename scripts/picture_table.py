"""picture_table: every picture of README, docs and the model card, and the run that it is drawn from.

A run is a command that keeps a folder; one that is finished there is not measured again. Times are of two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draw_pictures import Sources, curve_of_the_card, drawing, file_of, screen, sparse_attention
from drawings import DRAWINGS

FIGURES = ("2a", "2b", "2c", "3", "4", "drift")
EXAMPLES = {
    "own_figure": "20 s",
    "mass_law": "10 s",
    "own_transformer": "1 min",
    "watch_trainer": "1 min",
    "lift_and_export": "1 min",
    "lora_entmax": "1 min, and needs peft",
}


@dataclass(frozen=True)
class Run:
    """A measured run.

    Attributes:
        commands: what makes it, one after the other, with {here} for its folder; words of `abbe`, or an example.
        cost: on two cores.
        given: it needs what not everyone has (a pulled model, a book) or much time: made only if it is asked for.
    """

    commands: tuple[str, ...]
    cost: str
    given: bool = False


@dataclass(frozen=True)
class Picture:
    """One file below docs/figures, a picture or a whole page: which run it shows, and how it is drawn; without a run
    from a stored table."""

    name: str
    run: str | None
    draw: Callable[[Sources, Path], None]
    stored: str = ""  # the table that it is drawn from again, if there is no run


RUNS = {
    "report": Run(("abbe report --out {here}",), "30 s"),
    "compare": Run(("abbe compare --length 256 --out {here}",), "1 min"),
    "capacity": Run(("abbe capacity --lengths 128,256 --windows 4 --no-layers --out {here}",), "1 min"),
    "diff": Run(
        (
            "abbe export embedded --plan softmax:temperature=0.7 --out {here}/sharper",
            "abbe diff embedded {here}/sharper --lengths 64 --out {here}/diff",
        ),
        "40 s",
    ),
    "calibrate": Run(("abbe calibrate --with entmax:alpha=1.5 --finetune 30 --out {here}",), "1 min"),
    "verify": Run(("abbe verify --figures {here}",), "1 min"),
    "reproduce": Run(("abbe reproduce --out {here}",), "2 min"),
    "lab": Run(
        ("abbe train temperature --with softmax --with sparsemax --optimizer sgd --optimizer adamw --out {here}",),
        "4 min",
    ),
    **{name: Run((f"examples/{name}.py --out {{here}}",), cost, "needs" in cost) for name, cost in EXAMPLES.items()},
    "smollm2": Run(
        ("abbe report smollm2 --lengths 64,256 --windows 2 --out {here}",), "3 min, after `abbe pull smollm2`", True
    ),
    "mass-law": Run(
        ("examples/mass_law.py --model embedded --model smollm2 --text war_and_peace.txt --length 1024 --out {here}",),
        "2 min, after `abbe pull smollm2`, and needs the book",
        True,
    ),
    "evaluation": Run(
        (
            "abbe eval smollm2 --plan entmax:alpha=1.5 --plan 'layers.4-14=topp:p=0.9' --tasks my-tasks --limit 100 "
            "--out {here} --figures {here}/figures",
        ),
        "15 min, after `abbe pull smollm2`, and needs lm-eval and the tasks of scripts/harness_tasks.py",
        True,
    ),
    "smollm2-reproduce": Run(
        ("abbe reproduce smollm2 --text war_and_peace.txt --out {here}",), "an hour, and needs the book", True
    ),
}
PICTURES = (
    Picture("report-embedded.html", "report", file_of("report.html")),
    Picture("compare-embedded.html", "compare", file_of("compare.html")),
    Picture("report.png", "report", screen("report.html", height=800)),
    Picture("report-heads.png", "report", screen("report.html", part="#heads")),
    Picture("page-report.png", "report", screen("report.html", part="#tokens", height=900)),
    Picture("page-compare.png", "compare", screen("compare.html", height=1000)),
    Picture("page-capacity.png", "capacity", screen("capacity.html", height=1000)),
    Picture("page-lift.png", "lift_and_export", screen("lift.html", height=1000)),
    Picture("page-diff.png", "diff", screen("diff/diff.html", height=1000)),
    Picture("page-train.png", "lab", screen("train.html", height=1000)),
    Picture("page-own.png", "own_transformer", screen("report/report.html", height=800)),
    Picture("page-watch.png", "watch_trainer", screen("too-fast.html", height=1000)),
    Picture("page-smollm2.png", "smollm2", screen("report.html", height=800)),
    Picture("page-smollm2-heads.png", "smollm2", screen("report.html", part="#heads .map-box", height=900)),
    *(Picture(f"embedded-{one}.svg", "reproduce", file_of(f"figures/figure-{one}.svg")) for one in FIGURES),
    *(Picture(f"smollm2-{one}.svg", "smollm2-reproduce", file_of(f"figures/figure-{one}.svg")) for one in FIGURES),
    Picture("evaluation.svg", "evaluation", file_of("figures/differences.svg")),
    Picture("lab-temperature.svg", "lab", file_of("figures/accuracy.svg")),
    Picture("lab-warning.svg", "lab", file_of("figures/warning.svg")),
    Picture("mass-law.svg", "mass-law", file_of("mass_law.svg")),
    *(Picture(f"example-{name}.svg", name, file_of(f"{name}.svg")) for name in EXAMPLES),
    Picture("sparse_attention.svg", None, sparse_attention, "benchmarks/sparse_attention.jsonl"),
    Picture("embedded_loss.svg", None, curve_of_the_card, "src/abbe/embedded/MODEL_CARD.md"),
    Picture("verify.svg", "verify", file_of("verify.svg")),
    Picture("calibration.svg", "calibrate", file_of("figures/calibration.svg")),
    *(Picture(f"{name}.svg", None, drawing(name), "nothing: drawn by scripts/drawings.py") for name in DRAWINGS),
)
