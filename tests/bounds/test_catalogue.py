"""The catalogue of statements: complete, reproducible, and in step with the functions."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

from abbe import bounds
from abbe.bounds import Statement

STATEMENTS = {statement.name: statement for statement in bounds.catalogue()}
FUNCTIONS = {name: value for name, value in vars(bounds).items() if inspect.isfunction(value) and name[0] != "_"}
every_statement = pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)


def test_names_are_unique_and_easy_to_type() -> None:
    names = [statement.name for statement in bounds.catalogue()]
    assert len(names) == len(set(names)) == len(STATEMENTS)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+^-]*", name) for name in names)


@every_statement
def test_records_are_complete(statement: Statement) -> None:
    assert statement.section in ("weights", "distance", "separability", "gradient", "capacity")
    for field in (statement.text, statement.latex, statement.source, statement.assumptions):
        assert field
        assert field == field.strip()
        assert "\n" not in field
    assert statement.source == "this project" or re.search(r"arXiv \d{4}\.\d{5}", statement.source)
    assert statement.status in ("proved", "refuted", "conditional", "approximation")
    assert isinstance(statement.tight, bool)
    assert statement.side in ("upper", "lower", "equal")
    assert statement.sizes
    assert 0 < statement.tolerance <= 0.15
    assert statement.tolerance <= 1e-6 or statement.status == "approximation"


@every_statement
def test_latex_is_balanced_and_the_text_is_not_latex(statement: Statement) -> None:
    assert statement.latex.count("{") == statement.latex.count("}")
    assert len(re.findall(r"\\left\b", statement.latex)) == len(re.findall(r"\\right\b", statement.latex))
    assert "$" not in statement.latex
    assert "\\" not in statement.text


def test_a_refuted_statement_is_a_claim_of_the_paper_and_not_tight() -> None:
    refuted = [statement for statement in STATEMENTS.values() if statement.status == "refuted"]
    assert len(refuted) >= 5
    for statement in refuted:
        assert statement.source == "arXiv 2508.17821"
        assert not statement.tight


def test_sections_come_in_the_order_of_the_theory() -> None:
    sections = [statement.section for statement in bounds.catalogue()]
    assert list(dict.fromkeys(sections)) == ["weights", "distance", "separability", "gradient", "capacity"]
    assert sections == sorted(sections, key=list(dict.fromkeys(sections)).index)


@pytest.mark.quick(19)
@every_statement
def test_samplers_are_reproducible_and_ratios_finite(statement: Statement) -> None:
    for sizes in statement.sizes:
        if sizes.get("keys", 0) > 5000:
            continue
        points = [statement.sampler(torch.Generator().manual_seed(seed), 40, sizes) for seed in (5, 5, 6)]
        assert points[0].values.keys() == points[1].values.keys()
        for name, value in points[0].values.items():
            assert value.dtype == torch.float64
            assert bool(torch.isfinite(value).all())
            assert torch.equal(value, points[1][name])
        assert any(not torch.equal(points[0][name], points[2][name]) for name in points[0].values)
        assert points[0].sizes == sizes
        rows = {len(value) for value in points[0].values.values()}
        assert len(rows) == 1
        ratio = statement.ratio(points[0])
        assert ratio.shape == (rows.pop(),)
        assert bool(torch.isfinite(ratio).all())
        if statement.status != "refuted":
            assert float(ratio.max()) <= 1 + statement.tolerance


SEARCHED = [s for s in STATEMENTS.values() if s.searchable and s.name != "lipschitz-sparsemax"]  # its norm is 0 or 1


@pytest.mark.parametrize("statement", SEARCHED, ids=lambda s: s.name)
def test_searchable_ratios_have_gradients(statement: Statement) -> None:
    for sizes in statement.sizes:
        point = statement.sampler(torch.Generator().manual_seed(1), 20, sizes)
        free = {name: value.clone().requires_grad_() for name, value in point.values.items()}
        statement.ratio(bounds.Point(free, sizes)).sum().backward()
        assert any(value.grad is not None and bool((value.grad != 0).any()) for value in free.values())


def test_every_claim_of_the_paper_is_tried_or_said_to_be_an_assumption() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(inspect.getfile(bounds)).parent.glob("_catalogue*.py")
    )
    for name in FUNCTIONS:
        if name.endswith("_paper"):
            tried = re.search(rf"\b{name}\b", source)
            assert tried or "assumption" in " ".join(FUNCTIONS[name].__doc__.split()), name


def test_point_gives_temperature_and_weights() -> None:
    point = bounds.Point(
        {"logits": torch.tensor([[0.0, 1.0]]).double(), "log_temperature": torch.tensor([0.5]).double()}, {"keys": 2}
    )
    torch.testing.assert_close(point.temperature, torch.tensor([0.5]).double().exp())
    torch.testing.assert_close(point.weights, torch.softmax(point["logits"] / point.temperature, -1))
