"""A batch is its rows: every bound, with one number, set or mask per row."""

from __future__ import annotations

import pytest
import torch
from bound_cases import close
from torch import Tensor

from abbe import bounds

BATCH = 3, 2
_draw = torch.Generator().manual_seed(3)


def _uniform(*shape: int) -> Tensor:
    return torch.rand(*BATCH, *shape, generator=_draw, dtype=torch.float64)


_rows, _mask = 6 * _uniform(6) - 3, _uniform(6) < 0.7
_mask[..., 0] = True
_n = torch.tensor([[1, 2], [3, 4], [5, 6]])
# What bounds take, by name; a name that is not here is a number that all rows share.
GIVEN = {
    "row": _rows,
    "a": torch.softmax(_rows, -1),
    "x": 2 * _uniform(6, 3) - 1,
    "N": _n,
    "mask": _mask,
    "few": torch.minimum(_n, _mask.sum(-1)),
    "L": torch.tensor([[7, 8], [9, 10], [11, 12]]),
    "R": _rows.amax(-1) - _rows.amin(-1),
    "T": 0.1 + _uniform(),
    "r": 0.3 + _uniform(),
    "M": 0.3 + _uniform(),
    "d": torch.tensor([[2, 3], [4, 5], [6, 7]]),
    "share": 0.1 + 0.8 * _uniform(),
}
BOUNDS = {
    "weight_range weight_range_paper effective_number_bound": "R L T",
    "general_weight_range general_weight_range_paper": "T R L",
    "top_mass": "a N",
    "top_mass_bounds": "R L N T",
    "entropy effective_number": "a",
    "entropy_deficit_bound entropy_deficit_bound_loose": "R T",
    "margin_needed": "L share T N",
    "winners_mass": "R L T N",
    "entmax_contenders": "row 1.5",
    "largest_entry spectral_norm frobenius_norm frobenius_norm_bound one_norm inf_to_one_norm": "a T",
    "spectral_norm_bounds": "a T",
    "change_bound": "row T",
    "change_bound_by_norm": "R T",
    "spectral_norm_supremum spectral_norm_bound_paper inf_to_one_supremum log_derivative_bound": "T",
    "distance net_distance distance_bound distance_bound_root_paper net_distance_bound distance_sandwich": "a x N",
    "expected_distance_bounds expected_distance_bound_paper expected_net_distance_squared": "a x N",
    "expected_distance_exact": "a x 2",
    "expected_distance_ceiling": "N M",
    "separability": "a x N r",
    "precision_recall truncation_errors": "a x N",
    "sphere_separability_bounds": "a r d M",
    "sphere_separability_bounds_paper": "a r share M",
    "mass_law": "share M",
}
MASKED = (
    "distance net_distance distance_bound distance_bound_root_paper net_distance_bound distance_sandwich separability "
    "expected_distance_bounds expected_distance_bound_paper expected_net_distance_squared precision_recall"
)


def given(name: str, *at: int) -> object:
    """The numbers of the whole batch, or of one row: plain numbers where a row has only one."""
    if name not in GIVEN:
        return float(name) if "." in name else int(name)
    value = GIVEN[name][at]
    return value if value.ndim else value.item()


def assert_batches_are_rows(name: str, arguments: str, **by_name: str) -> None:
    def results(*at: int) -> tuple[Tensor, ...]:
        named = {keyword: given(which, *at) for keyword, which in by_name.items()}
        result = getattr(bounds, name)(*(given(which, *at) for which in arguments.split()), **named)
        return tuple(result) if isinstance(result, tuple) else (result,)

    batched = results()
    for i in range(BATCH[0]):
        for j in range(BATCH[1]):
            for many, alone in zip(batched, results(i, j), strict=True):
                close(many[i, j].double(), alone.double(), atol=1e-15)


@pytest.mark.parametrize(("name", "arguments"), [(n, given) for names, given in BOUNDS.items() for n in names.split()])
def test_batches_are_rows(name: str, arguments: str) -> None:
    assert_batches_are_rows(name, arguments)


@pytest.mark.parametrize("name", MASKED.split())
def test_batches_with_masks_are_rows(name: str) -> None:
    assert_batches_are_rows(name, "a x few", mask="mask")


def test_every_row_has_its_temperature_and_all_share_vectors() -> None:
    rows, t, a, x = (GIVEN[name] for name in ("row", "T", "a", "x"))
    for side, bound in enumerate(bounds.weight_bounds(rows, t.unsqueeze(-1))):
        close(bound[2, 1], bounds.weight_bounds(rows[2, 1], t[2, 1].item())[side], atol=0)
    close(bounds.distance(a, x[0, 0], 2)[1, 1], bounds.distance(a[1, 1], x[0, 0], 2))
    close(bounds.precision_recall(a, x, 2, "cosine").f[1, 1], bounds.precision_recall(a[1, 1], x[1, 1], 2, "cosine").f)
