"""All sentences of made-up reports, and what other studies say of planted numbers, as a snapshot.

Other tests assert numbers, topics and heads; what a person reads stands in `sentences.txt`, every line once. After a
change on purpose write it anew and read the difference: run this file with ABBE_UPDATE_SNAPSHOTS=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import capacity_runs as of_capacity
import made_up_calibration as of_calibration
import polars as pl
import pytest
from compare_runs import ALONE, DEAR, FEWER, SPARSE, TWO, judged
from planted_lift import lifted
from synthetic_run import MANIFEST, USUAL, alternatives, made_run

from abbe.results import Run
from abbe.studies import Report, Sample
from abbe.words.finding import Finding

FILE = Path(__file__).parent / "sentences.txt"
UPDATE = bool(os.environ.get("ABBE_UPDATE_SNAPSHOTS"))

UNIFORM = {"entropy": (5.9, 5.8, 5.95, 6.0, None)}
SINK = {"sink_mass": (0.8, 0.7, 0.9, 0.9, 0.002)}
BLURRED = {"separability": (0.2, 0.05, 0.35, None, 0.1)}
FADING = {"decay_exponent": (0.5, 0.4, 0.6, None, 1.0)}
SHARP = {"effective_tokens": (2.9, 2.8, 3.0, 500.0, None)}
FORCED = {"max_weight": (0.05, 0.04, 0.06, 0.49, 0.002)}
PATTERNS = {"previous_token": (0.6, 0.5, 0.7, 0.9, 0.006), "induction": (0.15, 0.1, 0.2, 0.9, 0.003)}
CALM = {"sensitivity_worst_p95": {0.1: 0.5, 1.0: 0.1}}
FLAT = {"top_mass": {1: 0.01, 5: 0.05, 20: 0.1, 100: 0.4}}
ONE_WINDOW = {name: (x[0], None, None, *x[3:]) for name, x in USUAL.items() if isinstance(x, tuple)}
SHARPER = "softmax:temperature=0.7"
GAINING = alternatives([
    *((head, "baseline", 0.5, None, None, None) for head in range(5)),
    (0, "sparsemax", 0.6, 0.1, 0.05, 0.2), (0, "topk:k=32", 0.7, 0.2, 0.1, 0.1),
    (1, "sparsemax", 0.9, 0.4, 0.1, 0.1), (2, "sparsemax", 0.5, 0.0, 0.0, 0.1),
    (0, SHARPER, 0.6, 0.1, 0.0, 0.3), (1, SHARPER, 0.6, 0.3, 0.1, 0.1),
])  # fmt: skip


def made(
    heads: Sequence[dict[str, Any]], other: pl.DataFrame | None = None, windows: int = 8, loss: float | None = 2.5,
    **options: Any,
) -> Report:  # fmt: skip
    settings = MANIFEST["settings"] | {"windows": windows}
    decoder = MANIFEST | {"model": MANIFEST["model"] | {"kind": "decoder"}, "settings": settings}
    run = Run(made_run(heads, **options).table, decoder)
    return Report.of(run, other, Sample(64, 0, (), (), (), (), loss, None if loss is None else 9.0))


REPORTS: dict[str, Report] = {
    "healthy heads, with patterns": made([{}, SHARP | PATTERNS, {}, {}, SHARP], GAINING),
    "one head of every kind": made(
        [SINK, UNIFORM | FORCED, BLURRED, FADING, SHARP, {}],
        p_values={1: 0.0, 5: 0.0, 20: 0.5, 100: 0.001},
        critical=(20.0, 5.0, 100.0, None, None),
    ),
    "sinks": made([SINK] * 5, overall=SINK, p_values={1: 0.0, 5: 0.5, 20: 0.5, 100: 0.9}, critical=(5.0,) * 5),
    "dispersing": made([UNIFORM, BLURRED, *[{}] * 4], at_64={0: {"entropy": (3.0, 2.9, 3.1, 4.0, None)}}),
    "fading": made([FADING] * 5, overall=FADING),
    "hardly learned, by the entropy": made([UNIFORM] * 5, overall=UNIFORM),
    "hardly learned, by the loss": made([{}] * 5, loss=8.9),
    "nothing is fragile, no set is large enough": made([CALM | FLAT] * 5, overall=FLAT),
    "one window, one head, no loss": made([ONE_WINDOW], windows=1, loss=None, overall=ONE_WINDOW),
    "nothing measured": made([], overall=dict.fromkeys(USUAL), p_values={}),
}


def capacity_findings() -> Iterator[Finding]:
    six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for shares in (of_capacity.UP, of_capacity.DOWN, of_capacity.MIXED, of_capacity.UP[:4], of_capacity.UP[:2]):
        yield of_capacity.geometry(six[: len(shares)], shares)
    yield of_capacity.geometry([1.0] * 3, of_capacity.UP[:3])
    for exponent, spread in ((0.5, 0.02), (0.02, 0.2), (0.95, 0.1), (1.4, 0.02), (-0.4, 0.02)):
        yield from of_capacity.growing(exponent, spread)
    yield from of_capacity.growing(0.5, 0.0, windows=1)
    yield from of_capacity.with_a_hole().findings
    for shares in ("UMMM UUUM", "UDMU", "MMME", "EEEE"):
        for cells in shares.split():
            known = {"U": of_capacity.UP, "D": of_capacity.DOWN, "M": of_capacity.MIXED, "E": of_capacity.EQUAL}
            yield from of_capacity.of_cells(of_capacity.cells(*(known[cell] for cell in cells))).values()
    for windows in (1, 2, 4, 5, 6):
        yield of_capacity.layers_of(windows)


def calibration_findings() -> Iterator[Finding]:
    own, worse, twice, heads = (getattr(of_calibration, name) for name in ("OWN", "WORSE", "twice", "heads_with_zeros"))
    same, less = [1.9, 2.3, 2.1], [1.0, 1.2, 1.1]
    for stages in (
        (own, worse, [2.1, 2.3, 2.2]), (own, worse, less), (own, same, less), (own, worse, [4.0, 4.2, 4.1]),
        (own, worse, [2.9, 3.3, 3.1]), (own, worse, worse, own), (own, worse, own, worse), (own, worse, own, same),
    ):  # fmt: skip
        yield from twice(*stages)
    yield from of_calibration.found(own, worse, own, same)  # three windows are too few
    yield from of_calibration.found(own[:1], worse[:1], own[:1], level=0.9)
    for tuned in (None, [0.3, 0.001]):
        yield from of_calibration.found(heads=heads([0.9, 0.9], [0.0, 0.5], tuned))
    for fitted in (("alpha", "t"), ("a.alpha",), ("a.t",)):
        more = {"heads": of_calibration.UNDONE, "fitted": of_calibration.parameters(*fitted, heads=len(fitted))}
        yield from twice(own, worse, own, **more)


def recommendations() -> Iterator[Finding]:
    planted: list[dict[str, Any]] = [
        {"even": {}}, {"good": {"loss_change_high": -0.0001}}, {"sparse": SPARSE}, {"first": DEAR, "second": DEAR},
        {"one": FEWER, "two": TWO, "later": TWO | {"loss": 3.01}},
        {"two": TWO, "three": TWO | {"loss_change_high": -0.1, "loss": 3.3}},
        {"few": SPARSE | {"active": 5.55, "active_high": 6.0}}, {"own": ALONE, "good": ALONE | FEWER, "windows": 1},
        *({"good": FEWER, "windows": windows} for windows in range(2, 6)), {"good": FEWER, "windows": 7, "level": 0.99},
    ]  # fmt: skip
    for rows in planted:
        yield judged(**rows)[1]


def rules_of_a_search() -> Iterator[Finding]:
    for goal, length in (("sparse", 64), ("loss", 64), ("retrieval", 64), ("retrieval", 16)):
        yield Finding(goal, "", str(lifted(goal=goal, length=length, max_loss=0.002).manifest["rule"]))


FINDINGS: dict[str, Callable[[], Iterator[Finding]]] = {
    "capacity": capacity_findings,
    "calibration": calibration_findings,
    "recommendation of a comparison": recommendations,
    "rule of a search": rules_of_a_search,
}
CASES = [*REPORTS, *FINDINGS]


def lines_of(report: Report) -> Iterator[str]:
    """Everything a person reads, without the evidence."""
    answer = report.answer
    yield f"answer ({answer.grade}, {answer.topic}): {answer.sentence}"
    yield f"    rule: {answer.rule}"
    for step in report.next_steps():
        yield f"next: {step.words}"
        yield f"    {step.command}"
    for key in report.numbers:
        yield f"number {key.name}: {key.shown}"
        yield f"    {key.meaning}"
    for kind, findings in (("verdict", report.verdicts), ("advice", report.advice)):
        for finding in findings:
            yield from finding_lines(kind, finding)
    for head in report.heads:
        yield f"head ({head.kind}): {head.sentence}"
        yield f"    rule: {head.rule}"
        for pattern in head.patterns:
            yield f"    {pattern.name}: {pattern.sentence}"
            yield f"    rule: {pattern.rule}"


def finding_lines(kind: str, finding: Finding) -> Iterator[str]:
    yield f"{kind} {finding.topic}: {finding.sentence}"
    yield f"    rule: {finding.rule}"
    if finding.heads:
        yield f"    heads: {', '.join(f'{layer}.{head}' for layer, head in finding.heads)}"


@cache
def said() -> dict[str, str]:
    """What each case says that no case before it has said."""
    before: set[str] = set()
    new = {}
    for case in CASES:
        found = (line for one in FINDINGS.get(case, tuple)() for line in finding_lines("finding", one))
        every = lines_of(REPORTS[case]) if case in REPORTS else found
        lines = list(dict.fromkeys(line for line in every if line not in before))
        before |= set(lines)
        new[case] = "\n".join(lines)
    return new


def stored() -> dict[str, str]:
    parts = FILE.read_text(encoding="utf-8").split("== ")[1:]
    return {title: lines.strip("\n") for title, _, lines in (part.partition("\n") for part in parts)}


@pytest.mark.skipif(UPDATE, reason="the snapshot is written anew")
@pytest.mark.parametrize("case", CASES)
def test_sentences(case: str) -> None:
    assert said()[case] == stored()[case]


def test_the_snapshot_holds_these_cases_and_no_others() -> None:
    if UPDATE:
        whole = "\n".join(f"== {case}\n{lines}\n" for case, lines in said().items())
        FILE.write_text(whole, encoding="utf-8")
    assert list(stored()) == CASES
