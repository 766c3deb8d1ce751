"""The scripts in examples/ run as a reader runs them, without a network, and leave their pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

EXAMPLES = ROOT / "examples"
# Arguments that make an example short, and what it must have found all the same.
SMALL = {
    "own_figure": (["--length", "128", "--windows", "2"], "separability of the top 20 tokens: narrow half"),
    "mass_law": (["--length", "64", "--windows", "2"], "embedded: counted over predicted"),
    "own_transformer": (["--steps", "20", "--context", "64"], "alphas that the heads learned"),
    "watch_trainer": (["--steps", "4", "--length", "64"], "too fast: loss"),
    "lift_and_export": (
        ["--windows", "2", "--length", "128", "--steps", "0"],
        "weights with their plan beside them; outputs differ by",
    ),
}
LIMIT = 240  # seconds, on cores that others use, too


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_and_leaves_its_picture(name: str, tmp_path: Path) -> None:
    arguments, expected = SMALL[name]
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--out", "here", *arguments]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    offline = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert done.stdout.splitlines()[-1] == f"picture: {Path('here') / name}.svg"
    assert (tmp_path / "here" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_every_example_is_run_here_and_shown_with_its_picture() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    index = (ROOT / "docs" / "examples" / "index.md").read_text(encoding="utf-8")
    for name in SMALL:
        page = (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")
        assert f'--8<-- "examples/{name}.py"' in page
        assert f"](../figures/example-{name}.svg)" in page
        assert f"]({name}.md)" in index
