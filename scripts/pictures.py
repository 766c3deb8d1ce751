"""pictures: make every picture of README, docs and the model card again, from measured runs.

    python scripts/pictures.py                                   # all that need nothing but this checkout
    python scripts/pictures.py --list                            # what there is, from which run, at what cost
    python scripts/pictures.py --only report.png,page-lift.png
    python scripts/pictures.py --run report=abbe-report-embedded --only report.png
    python scripts/pictures.py --everything                      # also those of smollm2

Runs are kept in --runs and resumed: the second time only the pictures are drawn.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from draw_pictures import ROOT, Sources, browsing
from picture_table import PICTURES, RUNS, Picture

FIGURES = ROOT / "docs" / "figures"
LARGEST, LARGEST_PAGE = 300_000, 5_000_000  # bytes of a picture, and of a page


def measure(name: str, folder: Path) -> None:
    """The commands of a run, in turn; what is finished in the folder is not measured again."""
    folder.mkdir(parents=True, exist_ok=True)
    # This checkout, whatever else is installed.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    for command in RUNS[name].commands:
        words = [word.format(here=folder) for word in shlex.split(command)]
        if words[:2] == ["abbe", "export"] and Path(words[-1]).is_dir():
            continue  # an export wants a new folder
        program = ["-m", "abbe", *words[1:], "--quiet"] if words[0] == "abbe" else words
        if command.startswith(("abbe train", "abbe reproduce", "abbe calibrate")):
            program += ["--figures", str(folder / "figures")]
        print(f"{name}: {' '.join(words)}", flush=True)
        subprocess.run([sys.executable, *program], cwd=ROOT, env=environment, check=True)


def largest(name: str) -> int:
    """How many bytes a picture or a page may have."""
    return LARGEST_PAGE if name.endswith(".html") else LARGEST


def draw(picture: Picture, sources: Sources, out: Path) -> int:
    """Its size in bytes; a picture that is too large replaces nothing."""
    with tempfile.TemporaryDirectory() as work:
        drawn = Path(work) / picture.name
        picture.draw(sources, drawn)
        size = drawn.stat().st_size
        most = largest(picture.name)
        if size > most:
            sys.exit(f"{picture.name} would have {size:,} bytes, more than {most:,}: show less of it")
        out.mkdir(parents=True, exist_ok=True)
        (out / picture.name).write_bytes(drawn.read_bytes())
    return size


def chosen(only: str | None, given: Sequence[str], everything: bool) -> list[Picture]:
    """The pictures that are asked for; by default those whose runs need nothing but this checkout."""
    if only is None:
        return [one for one in PICTURES if one.run is None or one.run in given or everything or not RUNS[one.run].given]
    names = [name.strip() for name in only.split(",")]
    if unknown := sorted(set(names) - {one.name for one in PICTURES}):
        sys.exit(f"there is no picture {', '.join(unknown)}: --list shows all")
    return [one for one in PICTURES if one.name in names]


def listed() -> str:
    lines = []
    for one in PICTURES:
        source, cost = (one.stored, "seconds") if one.run is None else (RUNS[one.run].commands[-1], RUNS[one.run].cost)
        lines.append(f"{one.name:28} {source} ({cost})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURES, help="where the pictures go")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "pictures", help="where runs are kept")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=FOLDER", help="a finished run to draw from")
    parser.add_argument("--only", help="names of pictures, with commas")
    parser.add_argument("--everything", action="store_true", help="also what needs a pulled model or a book")
    parser.add_argument("--list", action="store_true", help="list the pictures, their runs and what these cost")
    options = parser.parse_args(arguments)
    if options.list:
        print(listed())
        return
    given = {name: Path(folder) for name, _, folder in (one.partition("=") for one in options.run)}
    if unknown := sorted(given.keys() - RUNS):
        sys.exit(f"there is no run {', '.join(unknown)}: choose from {', '.join(RUNS)}")
    asked = chosen(options.only, list(given), options.everything)
    with browsing() as browser:
        done: set[str] = set()
        for picture in asked:
            folder = given.get(picture.run or "", options.runs / (picture.run or ""))
            if picture.run is not None and picture.run not in given and picture.run not in done:
                measure(picture.run, folder.resolve())
                done.add(picture.run)
            size = draw(picture, Sources(folder, browser), options.out)
            print(f"{options.out / picture.name}: {size:,} bytes", flush=True)
    if left := [one.name for one in PICTURES if one not in asked and options.only is None]:
        print(f"left as they are (--everything, or --run NAME=FOLDER): {', '.join(left)}")


if __name__ == "__main__":
    main()
