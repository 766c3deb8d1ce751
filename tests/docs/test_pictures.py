"""Every picture that a reader sees is in the table of `make pictures`, exists and is small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT
from doc_commands import check_options
from load_scripts import script

pictures: Any = script("pictures")
table: Any = script("picture_table")
FIGURES = ROOT / "docs" / "figures"
NAMES = {picture.name for picture in table.PICTURES}
CARD = ROOT / "src" / "abbe" / "embedded" / "MODEL_CARD.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), CARD)
LINK = re.compile(r"""!\[[^\]]*\]\(([^)\s]+)[^)]*\)|<img[^>]+src=["']([^"']+)|\]\((figures/[^)\s]+\.html)\)""")


def linked(page: Path) -> list[Path]:
    links = [first or second or third for first, second, third in LINK.findall(page.read_text(encoding="utf-8"))]
    return [(page.parent / link).resolve() for link in links]


def test_every_picture_of_a_page_is_in_the_table() -> None:
    shown = {path for page in PAGES for path in linked(page)}
    assert len(shown) > 20
    for path in shown:
        assert path.parent == FIGURES, path
        assert path.name in NAMES, f"{path.name} is not in scripts/picture_table.py"


def test_every_picture_of_the_table_exists_is_small_and_shown() -> None:
    shown = {path.name for page in PAGES for path in linked(page)}
    for name in NAMES:
        assert 1_000 < (FIGURES / name).stat().st_size <= pictures.largest(name), name
    assert NAMES == shown == {path.name for path in FIGURES.iterdir()}


@pytest.mark.parametrize("name", table.RUNS)
def test_the_commands_of_a_run_can_be_typed(name: str) -> None:
    for command in table.RUNS[name].commands:
        words = shlex.split(command.format(here="here"))
        if words[0] == "abbe":
            check_options([*words[1:], "--quiet"])
        else:
            assert (ROOT / words[0]).is_file()
        assert any(word.startswith("here") for word in words), "it must keep its run where pictures are drawn from"


def test_every_run_is_drawn_and_its_cost_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(table.RUNS) == {picture.run for picture in table.PICTURES} - {None}
    pictures.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(NAMES)
    assert all(re.search(r"\(.+\)$", line) for line in lines)


def test_by_default_nothing_is_needed_but_the_checkout() -> None:
    drawn = {picture.run for picture in pictures.chosen(None, [], False)}
    assert drawn - {None} == {name for name, run in table.RUNS.items() if not run.given}
    assert "smollm2" in {picture.run for picture in pictures.chosen(None, ["smollm2"], False)}
    assert len(pictures.chosen(None, [], True)) == len(NAMES)
    assert [picture.name for picture in pictures.chosen("report.png", [], False)] == ["report.png"]
    with pytest.raises(SystemExit, match=r"no picture nothere\.png"):
        pictures.chosen("nothere.png", [], False)


def test_a_picture_that_is_too_large_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(b"kept")
    large = table.Picture("large.png", None, lambda _sources, path: path.write_bytes(bytes(pictures.LARGEST + 1)))
    with pytest.raises(SystemExit, match="show less"):
        pictures.draw(large, None, tmp_path)
    assert (tmp_path / "large.png").read_bytes() == b"kept"


@pytest.mark.slow
def test_pictures_are_drawn_again_from_stored_tables(tmp_path: Path) -> None:
    names = [picture.name for picture in table.PICTURES if picture.run is None]
    pictures.main(["--only", ",".join(names), "--out", str(tmp_path), "--runs", str(tmp_path / "runs")])
    for name in names:
        assert (tmp_path / name).read_bytes() == (FIGURES / name).read_bytes(), f"make pictures gives another {name}"
