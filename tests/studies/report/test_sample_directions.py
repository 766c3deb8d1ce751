"""Directions of the points of a ball: angles around the line to its centre."""

from __future__ import annotations

import math

import pytest
import torch
from inside import azimuths, ball_of
from torch import Tensor


def turned(points: Tensor) -> Tensor:
    """The same points in other axes."""
    drawn = torch.randn(points.shape[1], points.shape[1], generator=torch.Generator().manual_seed(5)).double()
    return points @ torch.linalg.qr(drawn).Q


def test_angles_between_points_around_the_line() -> None:
    """Around the z axis, whatever their heights and lengths: azimuths of 0, 90, 200 and 300 degrees."""
    want = torch.tensor([0.0, 90, 200, 300]).double().deg2rad()
    flat = torch.stack([want.cos(), want.sin()], -1) * torch.tensor([[1.0], [1e-6], [3], [0.2]])
    points = torch.cat([flat, torch.tensor([[5.0], [-1], [0], [1e-7]])], -1)
    angles = azimuths(points, torch.tensor([0, 0, 3.0]).double())
    steps = (angles - angles[0]).remainder(360)
    mirrored = (-steps).remainder(360)
    right = want.rad2deg()
    assert torch.allclose(steps, right, atol=1e-6) or torch.allclose(mirrored, right, atol=1e-6)


def test_angles_do_not_depend_on_the_axes() -> None:
    points = torch.randn(30, 8, generator=torch.Generator().manual_seed(2)).double()
    centre = points[:5].sum(0, keepdim=True)
    both = turned(torch.cat([points, centre]))
    angles = azimuths(points, centre[0])
    torch.testing.assert_close(azimuths(both[:-1], both[-1]), angles)
    assert bool(((angles >= 0) & (angles < 360)).all())
    assert angles.std() > 20


@pytest.mark.parametrize(
    ("points", "want"),
    [
        ([[0.0, 0, 0], [0, 0, 0], [0, 0, 0]], [0, 0, 0]),  # nothing
        ([[1.0, 0, 0], [-2, 0, 0], [0, 0, 0]], [0, 0, 0]),  # all on the line
        ([[1.0, 5, 0], [1, 2, 0], [1, -3, 0]], [0, 0, 180]),  # one direction across it
    ],
)
def test_angles_of_points_without_a_plane(points: list[list[float]], want: list[float]) -> None:
    angles = azimuths(torch.tensor(points).double(), torch.tensor([3.0, 0, 0]).double())
    torch.testing.assert_close(angles, torch.tensor(want).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_points_on_the_line_have_angle_zero_among_others(seed: int) -> None:
    points = torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)).double()
    centre = points[:4].sum(0)
    points[4:8] = torch.tensor([[0.7], [-1.3], [1e-9], [0]]) * centre
    angles = azimuths(points, centre)
    assert angles[4:8].tolist() == [0] * 4
    assert angles[[0, 1, 2, 3, 8, 9, 10, 11]].unique().numel() == 8


@pytest.mark.parametrize("seed", range(8))
def test_axes_point_to_the_side_of_the_farthest_point(seed: int) -> None:
    """In three dimensions the plane across the line holds all directions, so the angles give the coordinates."""
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)).double()
    turns = azimuths(points, torch.tensor([0.2, -1, 0.4]).double()).deg2rad()
    for along in (turns.cos(), turns.sin()):
        assert along[along.abs().argmax()] > 0
    assert turns.cos().square().sum() > turns.sin().square().sum()


def test_one_feature_one_member_and_a_centre_at_the_origin() -> None:
    points = torch.tensor([[2.0], [-2], [1], [1]]).double()
    ball = ball_of(points, torch.tensor([0, 1]), torch.tensor([2, 3]), torch.Generator().manual_seed(0))
    assert (ball.distances, ball.radius, ball.inside, ball.intruders) == ((2, 2), 1, (False, False), 2)
    alone = ball_of(points, torch.tensor([0]), torch.tensor([1, 2, 3]), torch.Generator().manual_seed(0))
    assert (alone.distances, alone.radius, alone.inside) == ((0,), 1, (True,))
    assert not any(map(math.isnan, (*ball.angles, *ball.other_angles, *alone.angles, *alone.other_angles)))
