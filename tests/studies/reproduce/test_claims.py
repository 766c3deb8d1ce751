"""Every statement of the paper, judged on made-up figures whose answer is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from inside import reproduce_judge as judge

from abbe.studies import Claim, Figure

LENGTHS = (32, 64, 128, 256, 512, 1024)
SIZES = (1, 2, 5, 10, 20, 50, 100)


def series(
    axis: str, lines: Mapping[str, Mapping[int, float | None]], vectors: str | None = "embedding"
) -> pl.DataFrame:
    rows = [{axis: at, "series": name, "value": value} for name, line in lines.items() for at, value in line.items()]
    frame = pl.DataFrame(rows).with_columns(low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    return frame if vectors is None else frame.select(pl.lit(vectors).alias("vectors"), pl.all())


def claims(name: str, tables: dict[str, pl.DataFrame], **about: Any) -> dict[str, Claim]:
    verdicts = judge({name: Figure(name, tables, about)})
    assert all(claim.figure == name and claim.paper and claim.rule and claim.measured for claim in verdicts)
    return {claim.topic: claim for claim in verdicts}


def power(exponent: float, factor: float = 1.0) -> dict[int, float]:
    return {length: factor * length**exponent for length in LENGTHS}


def growth(selected: Mapping[int, float], **others: Mapping[int, float]) -> dict[str, Claim]:
    lines = {"selected": selected, "random": power(1)} | {name.replace("_", " "): x for name, x in others.items()}
    return claims("2a", {"distance": series("length", lines)})


@pytest.mark.parametrize(
    ("exponent", "answer"), [(1, "holds"), (0.81, "holds"), (0.79, "does not hold"), (1.21, "does not hold")]
)
def test_growth_with_length(exponent: float, answer: str) -> None:
    claim = growth(power(exponent))["distance grows with length"]
    assert claim.answer == answer
    assert claim.numbers["exponent of selected"] == pytest.approx(exponent)
    assert claim.numbers["exponent of random"] == pytest.approx(1)


def test_growth_needs_three_lengths_and_both_lines() -> None:
    for unknown in ({32: 1.0, 64: 2.0}, power(1) | {64: 0.0}):  # no power law has a value of 0
        assert growth(unknown)["distance grows with length"].answer == "cannot be judged"
    bent = growth(power(1), random=power(0.5))
    assert bent["distance grows with length"].answer == "does not hold"


@pytest.mark.parametrize(
    ("factor", "answer"), [(3, "holds"), (1.26, "holds"), (1.24, "does not hold"), (0.9, "does not hold")]
)
def test_bound_is_conservative(factor: float, answer: str) -> None:
    claim = growth(power(1), bound=power(1, factor))["bound of Theorem 1"]
    assert claim.answer == answer
    assert claim.numbers["least ratio"] == pytest.approx(factor)
    assert growth(power(1))["bound of Theorem 1"].answer == "cannot be judged"


@pytest.mark.parametrize(
    ("low", "answer"),
    [(0.9, "does not hold"), (0.96, "cannot be judged"), (1.0, "cannot be judged"), (1.1, "cannot be judged")],
)
def test_formula_of_the_mean(low: float, answer: str) -> None:
    """It can be refuted, not confirmed."""
    claim = growth(power(1), expected_low=power(1, low), expected_high=power(1, 2))["formula of Theorem 1(2)"]
    assert claim.answer == answer
    assert claim.numbers["largest ratio"] == pytest.approx(1 / low)
    assert claim.numbers["largest ratio to the corrected"] == pytest.approx(0.5)


def test_only_embeddings_are_judged() -> None:
    """The paper's vectors; those of value space are shown beside them."""
    both = pl.concat(
        [
            series("length", {name: power(e) for name in ("selected", "random")}, kind)
            for kind, e in (("embedding", 1), ("value", 3))
        ]
    )
    assert claims("2a", {"distance": both})["distance grows with length"].answer == "holds"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ({1: 1.0, 20: 3.0, 100: 3.2}, "holds"),
        ({1: 1.0, 20: 3.0, 100: 2.8}, "holds"),
        ({1: 1.0, 20: 3.0, 100: 4.0}, "does not hold"),
        ({1: 1.0, 20: 3.0, 100: 2.0}, "does not hold"),
        ({1: 1.0, 20: 1.01, 100: 1.02}, "does not hold"),
        ({1: 1.0, 20: 3.0}, "cannot be judged"),
    ],
)
def test_plateau(line: dict[int, float], answer: str) -> None:
    assert claims("2b", {"distance": series("n", {"selected": line})})["plateau in N"].answer == answer


def critical(
    sizes: Mapping[int, tuple[float | None, float | None]], heads: int = 144, growing: Mapping[int, float] = power(1)
) -> dict[str, Claim]:
    rows = [
        {
            "vectors": "embedding",
            "length": length,
            "level": level,
            "critical_n": n,
            "low": None,
            "high": None,
            "largest_n": length // 2,
        }
        for length, both in sizes.items()
        for level, n in zip((0.01, 0.05), both, strict=True)
    ]
    table = pl.DataFrame(rows, schema_overrides={"critical_n": pl.Float64, "low": pl.Float64, "high": pl.Float64})
    distances = pl.DataFrame({"vectors": "embedding", "length": list(growing), "value": list(growing.values())})
    return claims("2c", {"critical": table, "tests": pl.DataFrame(), "proportional": distances}, heads=heads)


@pytest.mark.parametrize(
    ("share", "answer"),
    [(0.06, "holds"), (0.031, "holds"), (0.119, "holds"), (0.025, "does not hold"), (0.2, "does not hold")],
)
def test_critical_share(share: float, answer: str) -> None:
    claim = critical({length: (share * length, 2 * share * length) for length in LENGTHS})["critical N"]
    assert claim.answer == answer
    assert claim.numbers == {
        "critical N / L at 0.01": pytest.approx(share),
        "critical N / L at 0.05": pytest.approx(2 * share),
    }


def test_critical_share_when_every_test_rejects() -> None:
    claim = critical({1024: (None, 60)})["critical N"]
    assert claim.answer == "does not hold"
    assert "none up to 512 at level 0.01" in claim.measured


@pytest.mark.parametrize(
    ("exponent", "answer"),
    [(0.8, "holds"), (0.97, "does not hold"), (1.1, "does not hold"), (-0.1, "does not hold"), (0, "does not hold")],
)
def test_critical_growth(exponent: float, answer: str) -> None:
    claim = critical({length: (length**exponent, None) for length in LENGTHS})["critical N grows with length"]
    assert claim.answer == answer
    assert claim.numbers["exponent"] == pytest.approx(exponent, abs=1e-9)


def test_critical_growth_is_not_judged_where_tests_reject() -> None:
    sizes: dict[int, tuple[float | None, float | None]] = {32: (8, 8), 64: (14, 14), 128: (24, 24), 256: (None, 5)}
    claim = critical(sizes)["critical N grows with length"]
    assert claim.answer == "cannot be judged"
    assert "every test rejects at 1 of 4 lengths" in claim.measured


@pytest.mark.parametrize(("heads", "answer"), [(4, "cannot be judged"), (5, "holds")])
def test_critical_share_needs_heads(heads: int, answer: str) -> None:
    """With four heads not even two disjoint groups differ at level 0.01."""
    verdict = critical({length: (0.06 * length, None) for length in LENGTHS}, heads)
    assert verdict["critical N"].answer == answer


@pytest.mark.parametrize(("exponent", "answer"), [(1, "does not hold"), (0.0, "does not hold"), (-0.5, "holds")])
def test_collapse(exponent: float, answer: str) -> None:
    claim = critical({32: (1, 1)}, growing=power(exponent))["N in proportion to L"]
    assert claim.answer == answer
    assert claim.numbers["exponent"] == pytest.approx(exponent, abs=1e-9)


def separability(line: Mapping[int, float], **more: Any) -> dict[str, Claim]:
    return claims(
        "3",
        {"mean": series("n", {"selected": line, "random": dict.fromkeys(line, 0.1)}), "heads": pl.DataFrame()},
        **more,
    )


@pytest.mark.parametrize(
    ("line", "falls", "settles"),
    [
        ({1: 1.0, 8: 0.85, 16: 0.78, 100: 0.75}, "holds", "holds"),
        ({1: 1.0, 8: 0.85, 16: 0.78, 100: 0.5}, "does not hold", "does not hold"),
        ({1: 1.0, 8: 0.99, 16: 0.98, 100: 0.97}, "does not hold", "does not hold"),
        ({1: 1.0, 8: 0.6, 16: 0.4, 100: 0.45}, "holds", "does not hold"),
        ({1: 1.0, 16: 0.95, 48: 0.8, 100: 0.5}, "does not hold", "does not hold"),
        ({1: 1.0, 8: 0.9}, "cannot be judged", "cannot be judged"),
    ],
)
def test_separability(line: dict[int, float], falls: str, settles: str) -> None:
    verdict = separability(line)
    assert (verdict["separability falls"].answer, verdict["separable share"].answer) == (falls, settles)


def gradient(exponent: float, worst: float = 0.45) -> dict[str, Claim]:
    temperatures = (0.003, 0.01, 0.03, 0.1, 1.0)
    rows: list[dict[str, Any]] = []
    for t in temperatures:
        for step in (1e-3, 10.0):
            shape = exponent if step == 1e-3 else 0.0
            rows += [_row(t, step, "random", "paper", t**shape), _row(t, step, "random", "max", t**-0.3)]
        rows += [_row(t, None, "worst", "mean", t**0.5), _row(t, None, "worst", "max", worst / t)]
    ceilings = [{"temperature": t, "step": None, "true": 0.5 / t, "paper": min(0.25 / t, 2**0.5)} for t in temperatures]
    kinds = {"step": pl.Float64}
    tables = {
        "sensitivity": pl.DataFrame(rows, schema_overrides=kinds),
        "ceilings": pl.DataFrame(ceilings, schema_overrides=kinds),
    }
    return claims("4", tables)


def _row(t: float, step: float | None, direction: str, statistic: str, value: float) -> dict[str, Any]:
    return {"temperature": t, "step": step, "direction": direction, "statistic": statistic, "value": value}


@pytest.mark.parametrize(
    ("exponent", "answer"), [(-1, "holds"), (-0.81, "holds"), (-0.5, "does not hold"), (-1.3, "does not hold")]
)
def test_growth_at_low_temperature(exponent: float, answer: str) -> None:
    """By the smallest step alone."""
    claim = gradient(exponent)["sensitivity at low temperature"]
    assert claim.answer == answer
    assert claim.numbers == pytest.approx({
        "exponent: random direction, largest head": exponent,
        "exponent: random direction, largest row": -0.3,
        "exponent: worst direction, mean": 0.5,
        "exponent: worst direction, largest row": -1,
    })  # fmt: skip


def test_ceiling_of_the_paper() -> None:
    claim = gradient(-1, worst=0.45)["ceiling of Corollary 3"]
    assert claim.answer == "does not hold"
    assert claim.numbers["largest ratio to 1/(2T)"] == pytest.approx(0.9)
    assert claim.numbers["largest ratio"] == pytest.approx(0.45 / 0.003 / 2**0.5)
    assert gradient(-1, worst=0.001)["ceiling of Corollary 3"].answer == "holds"


def drift(by_size: Mapping[int, float], by_length: Mapping[int, float]) -> dict[str, Claim]:
    tables = {
        "by_size": series("n", {"selected": by_size}, None).with_columns(share=pl.col("value") / pl.col("n").log()),
        "by_length": series("length", {"selected": by_length}, None).with_columns(share=pl.col("value")),
    }
    return claims("drift", tables, size=5)


def test_drift() -> None:
    down, up = {1: 0.0, 5: 0.5, 100: 0.3}, {1: 0.0, 5: 0.3, 100: 1.5}
    verdict = drift(down, {32: 0.6, 1024: 0.4})
    assert [claim.answer for claim in verdict.values()] == ["holds", "holds"]
    verdict = drift(up, {32: 0.4, 1024: 0.6})
    assert [claim.answer for claim in verdict.values()] == ["does not hold", "does not hold"]
    verdict = drift({1: 0.0, 5: 0.5}, {32: 0.4})
    assert [claim.answer for claim in verdict.values()] == ["cannot be judged", "cannot be judged"]


def test_drift_is_not_judged_if_nats_and_share_disagree_or_hardly_change() -> None:
    verdict = drift({5: 0.5, 100: 0.7}, {32: 0.5, 1024: 0.49})
    assert [claim.answer for claim in verdict.values()] == ["cannot be judged", "cannot be judged"]


def test_statements_without_a_figure_are_not_judged() -> None:
    assert judge({}) == ()


@pytest.mark.parametrize(
    ("n", "answer"), [(30, "holds"), (120, "holds"), (29, "does not hold"), (121, "does not hold")]
)
def test_critical_share_at_the_edges_of_its_range(n: float, answer: str) -> None:
    """From half of the paper's 0.06 to twice that, both included."""
    assert critical({1000: (n, None)})["critical N"].answer == answer
