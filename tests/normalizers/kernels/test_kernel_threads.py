"""The kernels under threads: the same bits for any number of them, many callers at once, and after a fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from inside import normalizers_row_map as _row_map
from normalizer_cases import Case, every_case, random_logits
from torch import Tensor

import abbe

SETTER = Callable[[int], None]


def everything(made: abbe.Normalizer, rows: Tensor) -> list[Tensor]:
    """Weights and all gradients."""
    logits = rows.clone().requires_grad_()
    weights = made(logits)
    return [weights.detach(), *torch.autograd.grad(weights.square().sum(), [logits, *made.parameters()])]


@every_case()
def test_number_of_threads_does_not_change_a_bit(case: Case, fused: None, set_threads: SETTER) -> None:
    """Also with fewer rows than threads, and rows that do not divide evenly."""
    made = case.make(torch.float32)
    for shape in ((3, 1, 65), (3, 37, 129)):
        rows, results = random_logits(*shape, seed=1, dtype=torch.float32), []
        for count in (1, 2, 5):
            set_threads(count)
            results.append(everything(made, rows))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("spec", ["learned-temperature", "ssmax:learn=true", "entmax:alpha=1.5,learn=true"])
def test_large_sums_over_rows_do_not_depend_on_threads(spec: str, set_threads: SETTER) -> None:
    """The gradient to a parameter is a sum over all rows: enough of them for torch to split it."""
    rows, results = random_logits(1, 70_000, 8, dtype=torch.float32), []
    for count in (1, 2):
        set_threads(count)
        results.append(everything(abbe.normalizer(spec), rows))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("spec", ["softmax", "sparsemax", "entmax:alpha=1.25", "topk:k=5", "stick-breaking"])
def test_many_callers_at_once(spec: str, fused: None, set_threads: SETTER) -> None:
    set_threads(2)
    made = abbe.normalizer(spec)
    rows = [random_logits(40, 257, seed=seed, dtype=torch.float32) for seed in range(8)]
    alone = [everything(made, x) for x in rows]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = list(pool.map(lambda x: everything(made, x), rows))
            for one, other in zip(alone, together, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _in_child(rows: Tensor, want: Tensor) -> None:
    torch.set_num_threads(2)
    got = abbe.normalizer("entmax:alpha=1.5")(rows)
    raise SystemExit(0 if torch.equal(got, want) else 1)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_child_can_still_call(fused: None, set_threads: SETTER) -> None:
    """The parent's helper threads do not exist in the child."""
    set_threads(2)
    rows = random_logits(24, 257, dtype=torch.float32)
    want = abbe.normalizer("entmax:alpha=1.5")(rows)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(rows, want))
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        pytest.fail("the forked child hangs")
    assert child.exitcode == 0


def test_small_tensors_stay_away_from_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> Tensor:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(_row_map, "run_forward", refuse)
    monkeypatch.setattr(_row_map.RowWeights, "forward", staticmethod(refuse))
    made = abbe.normalizer("sparsemax")
    made(random_logits(16, 16, dtype=torch.float32))
    made(random_logits(300, 300))  # float64
    made(random_logits(300, 300, dtype=torch.float32)[:0])
    with pytest.raises(AssertionError, match="a kernel was called"):
        made(random_logits(300, 300, dtype=torch.float32))
