"""The charts of a report as files: all of them, in both themes, with one telling head filled in."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from inside import THEMES, ball_data, figures, telling_ball, telling_head
from inside import report_KINDS as KINDS
from made_up_report import MANIFEST, grid, report, sample, table

from abbe import AbbeError
from abbe.results import Run
from abbe.studies import Ball, Report, SampleRow
from abbe.views import save_figures

pytestmark = pytest.mark.slow  # pictures take seconds each; the command writes them in a quick test

NAMES = ("map", "growth", "gradient", "alternatives", "sizes", "lengths", "ball")
HOSTILE = "<script>alert(1)</script> \"'&amp; ]]> שלום \u202eabc 👩‍🔬"


def texts(svg: bytes) -> list[str]:
    """All text of a drawing; it must be whole as XML."""
    lines = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [part for line in lines for part in line.itertext()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("figures") / "new" / "folder"
    written = save_figures(report(), target)
    assert sorted(path.name for path in written) == sorted(path.name for path in target.iterdir())
    return target


@pytest.mark.slow
def test_every_figure_in_both_themes(folder: Path) -> None:
    expected = {f"{name}{look}.{ending}" for name in NAMES for look in ("", "-dark") for ending in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == expected
    for path in folder.glob("*.png"):
        picture = path.read_bytes()
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", picture[16:24])
        assert 900 < width < 1500
        assert 500 < height < 2400
    for path in folder.glob("*.svg"):
        theme = THEMES["dark" if path.stem.endswith("-dark") else "light"]
        assert theme.background in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_titles_ask_and_subtitles_tell(folder: Path) -> None:
    layer, head = telling_head(report().run) or (None, None)
    for name in NAMES:
        said = texts((folder / f"{name}.svg").read_bytes())
        assert any(words.endswith("?") for words in said)
        assert "gpt2-like on War and Peace" in said
        assert "8 windows of 64 to 1024 tokens, 64 queries per window, value vectors" in said
        assert any(f"Layer {layer}, head {head}" in words for words in said) == (name in ("sizes", "lengths", "ball"))


def test_no_figure_speaks_of_a_chosen_head(folder: Path) -> None:
    drawn = [path.read_text(encoding="utf-8") for path in folder.glob("*.svg")]
    assert len(drawn) == 2 * len(NAMES)
    assert not any("the chosen head" in words for words in drawn)


def test_the_telling_head_has_the_median_separability() -> None:
    run = report(grid(3, 5)).run
    at = run.table.filter(
        (pl.col("measure") == "separability") & (pl.col("n") == 20) & (pl.col("length") == 1024)
        & pl.col("head").is_not_null()
    )  # fmt: skip
    values = sorted(at["value"])
    layer, head = telling_head(run) or (-1, -1)
    (value,) = at.filter((pl.col("layer") == layer) & (pl.col("head") == head))["value"]
    assert value == values[7]


def test_without_separability_dispersion_tells() -> None:
    heads = table(grid(1, 3)).filter(pl.col("measure") != "separability")
    of = heads.filter(
        (pl.col("measure") == "effective_tokens") & (pl.col("length") == 1024) & pl.col("head").is_not_null()
    )
    middle = of.sort("value").row(1, named=True)
    assert telling_head(Run(heads, MANIFEST)) == (middle["layer"], middle["head"])
    assert telling_head(Run(heads.clear(), MANIFEST)) is None


def test_the_head_is_filled_with_its_own_rows() -> None:
    of = report()
    place = telling_head(of.run)
    charts = figures(of, "light")
    mine = of.run.table.filter((pl.col("layer") == place[0]) & (pl.col("head") == place[1]))  # type: ignore[index]
    rows = charts["sizes"]["datasets"]["rows"]
    assert {row["length"] for row in rows} == {1024}
    assert len(rows) == mine.filter((pl.col("length") == 1024) & pl.col("n").is_not_null()).height
    rows = charts["lengths"]["datasets"]["rows"]
    assert {row["n"] for row in rows} == {None, 20}
    assert {(row["layer"], row["head"]) for row in rows} == {place}


def a_ball(**changes: Any) -> tuple[SampleRow, Ball]:
    parts: dict[str, Any] = {
        "size": 2, "radius": 2.0, "inside": (True, False), "distances": (1.0, 3.0), "angles": (0.0, 90.0),
        "other_keys": (4, 5, 6), "other_distances": (2.0, 3.0, 4.0), "other_angles": (180.0, 270.0, 45.0),
        "intruders": 2,
    }  # fmt: skip
    ball = Ball(**(parts | changes))
    return SampleRow(0, 0, 7, (1, 2, 3), (0.5, 0.25, 0.125), (ball,)), ball


def test_points_lie_at_their_distance_and_angle() -> None:
    window = sample(grid(1, 1))
    data = ball_data(window, *a_ball())
    points = data["points"]
    assert [point["kind"] for point in points] == [KINDS[0], KINDS[1], KINDS[2], KINDS[2], KINDS[3]]
    assert [point["weight"] for point in points] == [0.5, 0.25, None, None, None]
    assert [point["token"] for point in points] == [window.tokens[key] for key in (1, 2, 4, 5, 6)]
    assert [point["distance"] for point in points] == [1, 3, 2, 3, 4]
    for point, angle in zip(points, (0, 90, 180, 270, 45), strict=True):
        assert math.hypot(point["x"], point["y"]) == pytest.approx(point["distance"] / 4)
        assert math.degrees(math.atan2(point["y"], point["x"])) % 360 == pytest.approx(angle)
    assert [corner["order"] for corner in data["circle"]] == list(range(72))
    assert all(math.hypot(corner["x"], corner["y"]) == pytest.approx(0.5) for corner in data["circle"])


def test_a_ball_of_nothing_is_a_point() -> None:
    row, ball = a_ball(radius=0.0, distances=(0.0, 0.0), other_distances=(0.0, 0.0, 0.0))
    data = ball_data(sample(grid(1, 1)), row, ball)
    assert all(point["x"] == point["y"] == 0 for point in data["points"])


def test_the_ball_is_that_of_the_last_query_and_the_largest_size() -> None:
    window = sample(grid(2, 2))
    row, ball = telling_ball(window, (1, 0)) or (None, None)
    assert row is not None
    assert ball is not None
    assert (row.layer, row.head, row.query, ball.size) == (1, 0, max(window.queries), max(window.sizes))
    assert telling_ball(window, (7, 7)) is None


@pytest.mark.parametrize("changes", [{"sample": None}, {"sample": sample(grid(1, 1), tokens=["a"] * 3, queries=1)}])
def test_without_a_ball_there_is_no_picture_of_it(changes: dict[str, Any]) -> None:
    assert list(figures(report(grid(2, 2), **changes), "light")) == list(NAMES[:-1])


def test_without_heads_only_the_whole_is_drawn(tmp_path: Path) -> None:
    empty = Report(Run(table([]).clear(), MANIFEST), (), (), (), pl.DataFrame(), pl.DataFrame(), pl.DataFrame())
    written = save_figures(empty, tmp_path)
    assert {path.name for path in written if path.suffix == ".svg"} == {
        f"{name}{look}.svg" for name in NAMES[:4] for look in ("", "-dark")
    }
    assert "nothing was measured" in texts((tmp_path / "map.svg").read_bytes())


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    manifest = MANIFEST | {"model": {"name": HOSTILE}, "text": {"name": f"/home/ada/{HOSTILE}"}}
    places = grid(1, 2)
    save_figures(report(places, manifest=manifest, sample=sample(places, tokens=[HOSTILE] * 64)), tmp_path)
    drawn = list(tmp_path.glob("*.svg"))
    assert len(drawn) == 2 * len(NAMES)
    for path in drawn:
        said = texts(path.read_bytes())
        assert any("<script>alert(1)</script>" in words for words in said)
        assert b"<script" not in path.read_bytes()


def test_a_name_that_is_a_path_loses_its_folders() -> None:
    manifest = MANIFEST | {"model": {"name": "/home/ada/models/mine"}}
    for chart in figures(report(grid(1, 2), manifest=manifest), "light").values():
        assert chart["title"]["subtitle"][0] == "mine on War and Peace"


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(AbbeError, match=r"taken is a file: give a folder for the figures"):
        save_figures(report(grid(1, 1)), tmp_path / "taken")
