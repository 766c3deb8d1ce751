"""Every statement of the paper, judged on made-up figures whose answer is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from abbe.studies import Claim, Figure, Reproduction

LENGTHS = (32, 64, 128, 256, 512, 1024)
YES, NO, UNKNOWN = "holds", "does not hold", "cannot be judged"


def judge(figures: Mapping[str, Figure]) -> tuple[Claim, ...]:
    return Reproduction.of(figures, {}, {}).claims


def claims(name: str, tables: dict[str, pl.DataFrame], **about: Any) -> dict[str, Claim]:
    verdicts = judge({name: Figure(name, tables, about)})
    assert all(claim.figure == name and claim.paper and claim.rule and claim.measured for claim in verdicts)
    return {claim.topic: claim for claim in verdicts}


def series(axis: str, lines: Mapping[str, Mapping[int, float]], vectors: str = "embedding") -> pl.DataFrame:
    rows = [(vectors, at, name, value) for name, line in lines.items() for at, value in line.items()]
    return pl.DataFrame(rows, schema=["vectors", axis, "series", "value"], orient="row")


def power(exponent: float, factor: float = 1.0) -> dict[int, float]:
    return {length: factor * length**exponent for length in LENGTHS}


def test_statements_without_a_figure_are_not_judged() -> None:
    assert judge({}) == ()


# -- Distance ---------------------------------------------------------------------------------------------------------


def growth(selected: Mapping[int, float], **others: Mapping[int, float]) -> dict[str, Claim]:
    lines = {"selected": selected, "random": power(1)} | {name.replace("_", " "): x for name, x in others.items()}
    return claims("2a", {"distance": series("length", lines)})


@pytest.mark.parametrize(("exponent", "answer"), [(1, YES), (0.81, YES), (0.79, NO), (1.21, NO)])
def test_growth_with_length(exponent: float, answer: str) -> None:
    claim = growth(power(exponent))["distance grows with length"]
    assert claim.answer == answer
    assert claim.numbers == pytest.approx({"exponent of selected": exponent, "exponent of random": 1})


def test_growth_needs_three_lengths_and_both_lines() -> None:
    for unknown in ({32: 1.0, 64: 2.0}, power(1) | {64: 0.0}):  # no power law has a value of 0
        assert growth(unknown)["distance grows with length"].answer == UNKNOWN
    assert growth(power(1), random=power(0.5))["distance grows with length"].answer == NO


@pytest.mark.parametrize(("factor", "answer"), [(3, YES), (1.26, YES), (1.24, NO), (0.9, NO)])
def test_bound_is_conservative(factor: float, answer: str) -> None:
    claim = growth(power(1), bound=power(1, factor))["bound of Theorem 1"]
    assert claim.answer == answer
    assert claim.numbers["least ratio"] == pytest.approx(factor)
    assert growth(power(1))["bound of Theorem 1"].answer == UNKNOWN


@pytest.mark.parametrize(("low", "answer"), [(0.9, NO), (0.96, UNKNOWN), (1.0, UNKNOWN), (1.1, UNKNOWN)])
def test_formula_of_the_mean(low: float, answer: str) -> None:
    """It can be refuted, not confirmed."""
    claim = growth(power(1), expected_low=power(1, low), expected_high=power(1, 2))["formula of Theorem 1(2)"]
    assert claim.answer == answer
    assert claim.numbers == pytest.approx({"largest ratio": 1 / low, "largest ratio to the corrected": 0.5})


def test_only_embeddings_are_judged() -> None:
    """The paper's vectors; those of value space are shown beside them."""
    exponents = {"embedding": 1, "value": 3}
    lines = [series("length", {"selected": power(e), "random": power(e)}, kind) for kind, e in exponents.items()]
    assert claims("2a", {"distance": pl.concat(lines)})["distance grows with length"].answer == YES


@pytest.mark.parametrize(
    ("line", "answer"),
    [((1.0, 3.0, 3.2), YES), ((1.0, 3.0, 2.8), YES), ((1.0, 3.0, 4.0), NO), ((1.0, 3.0, 2.0), NO),
     ((1.0, 1.01, 1.02), NO), ((1.0, 3.0), UNKNOWN)],
)  # fmt: skip
def test_plateau(line: tuple[float, ...], answer: str) -> None:
    selected = dict(zip((1, 20, 100), line, strict=False))
    assert claims("2b", {"distance": series("n", {"selected": selected})})["plateau in N"].answer == answer


# -- Critical N -------------------------------------------------------------------------------------------------------


def critical(
    sizes: Mapping[int, tuple[float | None, float | None]], heads: int = 144, growing: Mapping[int, float] = power(1)
) -> dict[str, Claim]:
    rows = [
        ("embedding", length, level, None if n is None else float(n), length // 2)
        for length, both in sizes.items()
        for level, n in zip((0.01, 0.05), both, strict=True)
    ]
    schema = ["vectors", "length", "level", ("critical_n", pl.Float64), "largest_n"]
    distances = pl.DataFrame({"vectors": "embedding", "length": list(growing), "value": list(growing.values())})
    tables = {"critical": pl.DataFrame(rows, schema=schema, orient="row"), "proportional": distances}
    return claims("2c", tables, heads=heads)


@pytest.mark.parametrize(
    ("share", "answer"), [(0.06, YES), (0.03, YES), (0.12, YES), (0.029, NO), (0.121, NO), (0.2, NO)]
)
def test_critical_share(share: float, answer: str) -> None:
    """From half of the paper's 0.06 to twice that, both included."""
    claim = critical({length: (share * length, 2 * share * length) for length in (100, 1000)})["critical N"]
    assert claim.answer == answer
    assert claim.numbers == pytest.approx({"critical N / L at 0.01": share, "critical N / L at 0.05": 2 * share})


def test_critical_n_when_every_test_rejects() -> None:
    claim = critical({1024: (None, 60)})["critical N"]
    assert claim.answer == NO
    assert "none up to 512 at level 0.01" in claim.measured
    claim = critical({32: (8, 8), 64: (14, 14), 128: (24, 24), 256: (None, 5)})["critical N grows with length"]
    assert claim.answer == UNKNOWN
    assert "every test rejects at 1 of 4 lengths" in claim.measured


@pytest.mark.parametrize(("exponent", "answer"), [(0.8, YES), (0.97, NO), (1.1, NO), (-0.1, NO), (0, NO)])
def test_critical_growth(exponent: float, answer: str) -> None:
    claim = critical({length: (length**exponent, None) for length in LENGTHS})["critical N grows with length"]
    assert claim.answer == answer
    assert claim.numbers["exponent"] == pytest.approx(exponent, abs=1e-9)


@pytest.mark.parametrize(("heads", "answer"), [(4, UNKNOWN), (5, YES)])
def test_critical_share_needs_heads(heads: int, answer: str) -> None:
    """With four heads not even two disjoint groups differ at level 0.01."""
    assert critical({length: (0.06 * length, None) for length in LENGTHS}, heads)["critical N"].answer == answer


@pytest.mark.parametrize(("exponent", "answer"), [(1, NO), (0.0, NO), (-0.5, YES)])
def test_collapse(exponent: float, answer: str) -> None:
    claim = critical({32: (1, 1)}, growing=power(exponent))["N in proportion to L"]
    assert claim.answer == answer
    assert claim.numbers["exponent"] == pytest.approx(exponent, abs=1e-9)


# -- Separability, sensitivity, drift ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "falls", "settles"),
    [
        ({1: 1.0, 8: 0.85, 16: 0.78, 100: 0.75}, YES, YES),
        ({1: 1.0, 8: 0.85, 16: 0.78, 100: 0.5}, NO, NO),
        ({1: 1.0, 8: 0.85, 16: 0.78, 100: 0.66}, NO, NO),  # more than half of the fall comes later
        ({1: 1.0, 8: 0.99, 16: 0.98, 100: 0.97}, NO, NO),
        ({1: 1.0, 8: 0.6, 16: 0.4, 100: 0.45}, YES, NO),
        ({1: 1.0, 16: 0.95, 48: 0.8, 100: 0.5}, NO, NO),
        ({1: 1.0, 8: 0.9}, UNKNOWN, UNKNOWN),
    ],
)
def test_separability(line: dict[int, float], falls: str, settles: str) -> None:
    verdict = claims("3", {"mean": series("n", {"selected": line, "random": dict.fromkeys(line, 0.1)})})
    assert (verdict["separability falls"].answer, verdict["separable share"].answer) == (falls, settles)


def gradient(exponent: float, worst: float = 0.45) -> dict[str, Claim]:
    temperatures = (0.003, 0.01, 0.03, 0.1, 1.0)
    rows: list[tuple[Any, ...]] = []
    for t in temperatures:
        for step, shape in ((1e-3, exponent), (10.0, 0.0)):
            rows += [(t, step, "random", "paper", t**shape), (t, step, "random", "max", t**-0.3)]
        rows += [(t, None, "worst", "mean", t**0.5), (t, None, "worst", "max", worst / t)]
    ceilings = [(t, None, 0.5 / t, min(0.25 / t, 2**0.5)) for t in temperatures]
    step = ("step", pl.Float64)
    tables = {
        "sensitivity": pl.DataFrame(
            rows, schema=["temperature", step, "direction", "statistic", "value"], orient="row"
        ),
        "ceilings": pl.DataFrame(ceilings, schema=["temperature", step, "true", "paper"], orient="row"),
    }
    return claims("4", tables)


@pytest.mark.parametrize(("exponent", "answer"), [(-1, YES), (-0.81, YES), (-0.5, NO), (-1.3, NO)])
def test_growth_at_low_temperature(exponent: float, answer: str) -> None:
    """By the smallest step alone."""
    claim = gradient(exponent)["sensitivity at low temperature"]
    assert claim.answer == answer
    assert claim.numbers == pytest.approx({
        "exponent: random direction, largest head": exponent, "exponent: random direction, largest row": -0.3,
        "exponent: worst direction, mean": 0.5, "exponent: worst direction, largest row": -1,
    })  # fmt: skip


def test_ceiling_of_the_paper() -> None:
    claim = gradient(-1, worst=0.45)["ceiling of Corollary 3"]
    assert claim.answer == NO
    assert claim.numbers["largest ratio to 1/(2T)"] == pytest.approx(0.9)
    assert claim.numbers["largest ratio"] == pytest.approx(0.45 / 0.003 / 2**0.5)
    assert gradient(-1, worst=0.001)["ceiling of Corollary 3"].answer == YES


@pytest.mark.parametrize(
    ("by_size", "by_length", "answers"),
    [
        ({1: 0.0, 5: 0.5, 100: 0.3}, {32: 0.6, 1024: 0.4}, (YES, YES)),
        ({1: 0.0, 5: 0.3, 100: 1.5}, {32: 0.4, 1024: 0.6}, (NO, NO)),
        ({1: 0.0, 5: 0.5}, {32: 0.4}, (UNKNOWN, UNKNOWN)),
        ({5: 0.5, 100: 0.7}, {32: 0.5, 1024: 0.49}, (UNKNOWN, UNKNOWN)),  # nats and share disagree; hardly a change
    ],
)
def test_drift(by_size: dict[int, float], by_length: dict[int, float], answers: tuple[str, str]) -> None:
    sizes, lengths = series("n", {"selected": by_size}), series("length", {"selected": by_length})
    share = pl.col("value") / pl.col("n").log()
    tables = {"by_size": sizes.with_columns(share=share), "by_length": lengths.with_columns(share=pl.col("value"))}
    assert tuple(claim.answer for claim in claims("drift", tables, size=5).values()) == answers
