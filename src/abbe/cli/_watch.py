"""abbe watch"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .._errors import AbbeError
from .._files import write_whole
from .._lazy import need
from ._options import check_drawing, check_file, current
from ._shown import open_in_browser, show_paths

if TYPE_CHECKING:
    from ..training import StepsFile, Training

_LOOK = 3.0  # seconds from one look at the run folder to the next
_RELOAD = 5  # seconds after which a followed page reloads itself
_SHARE, _LONGEST = 5, 60.0  # a slow page is written less often: the core belongs to the training run


def watch(
    folder: Path, *, follow: bool = False, out: Path | None = None, figures_folder: Path | None = None,
    opened: bool = False, as_json: bool = False, quiet: bool = False,
) -> None:  # fmt: skip
    """Show a training run recorded by abbe.Monitor: curves of all heads, the map of heads by step, alerts.

    Args:
        folder: folder of abbe.Monitor(folder=...); with Trainer, OUTPUT_DIR/abbe.
        follow: keep the page up to date while training continues, until Ctrl-C; waits for the first step.
        out: file for the page; by default watch.html in the run folder.
        as_json: print answer, last values, alerts, losses and manifest as JSON.
        quiet: no table; only the path of the page.

    Commands:
        abbe watch run --open
        abbe watch run --follow
        abbe watch run --json --out watch.html
    """
    need("abbe watch", "all")
    if follow and as_json:
        raise AbbeError("--json prints one object and --follow continues until Ctrl-C: give one of them")
    check_drawing("abbe watch", figures_folder, opened)
    if out is not None:
        check_file("--out", out)
    from .. import views

    page = out or folder / "watch.html"
    training = _follow(folder, page, opened, quiet) if follow else _read(folder)
    if training is None:  # stopped before the first step
        return
    if not follow:
        _write(training, page)
    lines = [f"page: {page}"]
    if figures_folder is not None:
        views.figures(training, figures_folder)
        lines.insert(0, f"figures: {figures_folder}")
    if as_json:
        typer.echo(training.to_json())
    show_paths(page, views.terminal(training), lines, as_json, quiet)
    if opened and not follow:
        open_in_browser(page)


def _write(training: Training, page: Path, reload: int | None = None) -> None:
    from .. import views

    write_whole(page, views.page(training.view(reload)), durable=False)


def _read(folder: Path) -> Training:
    """The run, with at least one step; else one line says what the folder is."""
    if not folder.is_dir():
        raise AbbeError(f"there is no folder {folder}: name the folder of abbe.Monitor, or wait with --follow")
    training = _opened(folder, _steps(folder))
    if not training.records:
        raise AbbeError(f"there are no steps in {folder} yet: wait for the first with --follow")
    return training


def _steps(folder: Path) -> StepsFile:
    from ..training import STEPS, StepsFile

    return StepsFile(folder / STEPS)


def _opened(folder: Path, steps: StepsFile) -> Training:
    """The run of a monitor so far; a folder of another study is refused by name."""
    from ..results import read_manifest
    from ..training import Training

    manifest, _ = read_manifest(folder)
    if manifest.get("study") != Training.study:
        raise AbbeError(f"{folder} is a folder of `abbe {manifest['study']}`: abbe watch shows folders of abbe.Monitor")
    return Training(steps.read(), manifest)


def _follow(folder: Path, page: Path, opened: bool, quiet: bool) -> Training | None:
    """Write the page whenever there are new steps, until Ctrl-C; then once more, without reloading."""
    steps = _steps(folder)
    current.if_stopped = "the page stays as it is"
    training: Training | None = None
    written, printed = 0, 0
    if _size(folder, steps) is not None:
        _opened(folder, steps)  # do not wait for a folder of another study
    _say(f"following {folder}: press Ctrl-C to stop", quiet)
    try:
        while True:
            begun = time.monotonic()
            size = _size(folder, steps)
            if size and size != written and (latest := _opened(folder, steps)).records:
                _write(latest, page, _RELOAD)
                if training is None:
                    _say(f"page: {page}", quiet)
                    if opened:
                        open_in_browser(page)
                training, written = latest, size
                for alert in training.events(since=printed):
                    detail = f" ({alert.numbers})" if alert.numbers else ""
                    _say(f"step {alert.step:,}: {alert.kind.event} in {alert.where}{detail}", quiet)
                    printed += 1
            time.sleep(min(max(_LOOK, _SHARE * (time.monotonic() - begun)), _LONGEST))
    except KeyboardInterrupt:
        pass
    finally:  # also when the program is ended by a signal
        if training is not None:
            training = _opened(folder, steps)
            _write(training, page)
    return training


def _size(folder: Path, steps: StepsFile) -> int | None:
    """Bytes of the steps so far; None as long as there is no run."""
    from ..results import MANIFEST

    if not (folder / MANIFEST).is_file():
        return None
    return steps.path.stat().st_size if steps.path.is_file() else 0


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(line, err=True)
