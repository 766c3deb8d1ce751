"""abbe watch"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._errors import AbbeError
from .._lazy import need
from ._invocation import current
from ._names import EXTRA_OF
from ._options import Debug, Figures, Opened, Quiet, check_file, check_folder, json_option, output
from ._shown import open_in_browser, print_json, show_paths

if TYPE_CHECKING:
    from ..results import StepsFile, Training

EXAMPLES = ("abbe watch run --open", "abbe watch run --follow", "abbe watch run --json --out watch.html")
_LOOK = 3.0  # seconds from one look at the run folder to the next
_RELOAD = 5  # seconds after which a followed page reloads itself
_SHARE, _LONGEST = 5, 60.0  # a slow page is written less often: the core belongs to the training run


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of abbe.Monitor(folder=...); with Trainer, OUTPUT_DIR/abbe.")],
    follow: Annotated[
        bool,
        output(
            "Keep the page up to date while training continues, until Ctrl-C; waits for the first step.", "--follow"
        ),
    ] = False,
    out: Annotated[Path | None, output("File for the page; by default watch.html in the run folder.")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print answer, last values, alerts, losses and manifest as JSON.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show a training run recorded by abbe.Monitor: curves of all heads, the map of heads by step, alerts."""
    need("abbe watch", EXTRA_OF["watch"])
    if follow and as_json:
        raise AbbeError("--json prints one object and --follow continues until Ctrl-C: give one of them")
    if figures is not None:
        check_folder("--figures", figures)
    if out is not None:
        check_file("--out", out)
    from .. import views

    page = out or folder / "watch.html"
    if follow:
        training = _follow(folder, page, opened, quiet)
        if training is None:
            return
    else:
        training = _read(folder)
        views.write_watch_page(training, page)
    if figures is not None:
        views.save_figures(training, figures)
    if as_json:
        print_json(views.watch_summary(training))
    lines = [*([f"figures: {figures}"] if figures is not None else []), f"page: {page}"]
    show_paths(page, views.watch_table(training), lines, as_json, quiet)
    if opened and not follow:
        open_in_browser(page)


def _read(folder: Path) -> Training:
    """The run, with at least one step; else one line says what the folder is."""
    if not folder.is_dir():
        raise AbbeError(f"there is no folder {folder}: name the folder of abbe.Monitor, or wait with --follow")
    training = _opened(folder, _steps(folder))
    if not training.records:
        raise AbbeError(f"there are no steps in {folder} yet: wait for the first with --follow")
    return training


def _steps(folder: Path) -> StepsFile:
    from ..results import STEPS, StepsFile

    return StepsFile(folder / STEPS)


def _opened(folder: Path, steps: StepsFile) -> Training:
    """The run of a monitor so far; a folder of another study is refused by name."""
    from ..results import Training, read_manifest

    manifest, _ = read_manifest(folder)
    study = manifest.get("study") or "diagnose"
    if study != Training.study:
        raise AbbeError(f"{folder} is a folder of `abbe {study}`: abbe watch shows folders of abbe.Monitor")
    return Training(steps.read(), manifest)


def _follow(folder: Path, page: Path, opened: bool, quiet: bool) -> Training | None:
    """Write the page whenever there are new steps, until Ctrl-C; then once more, without reloading."""
    from .. import views

    write, steps = views.write_watch_page, _steps(folder)  # loaded here, before the time that a page takes is measured
    current.if_stopped = "the page stays as it is"
    training: Training | None = None
    written, printed = 0, 0
    if _size(folder) is not None:
        _opened(folder, steps)  # do not wait for a folder of another study
    _say(f"following {folder}: press Ctrl-C to stop", quiet)
    try:
        while True:
            begun = time.monotonic()
            size = _size(folder)
            if size and size != written and (latest := _opened(folder, steps)).records:
                write(latest, page, _RELOAD)
                if training is None:
                    _say(f"page: {page}", quiet)
                    if opened:
                        open_in_browser(page)
                training, written = latest, size
                printed = _say_alerts(training, printed, quiet)
            time.sleep(min(max(_LOOK, _SHARE * (time.monotonic() - begun)), _LONGEST))
    except KeyboardInterrupt:
        pass
    finally:  # also when the program is ended by a signal
        if training is not None:
            training = _opened(folder, steps)
            write(training, page)
    return training


def _size(folder: Path) -> int | None:
    """Bytes of the steps so far; None as long as there is no run."""
    from ..results import MANIFEST, STEPS

    if not (folder / MANIFEST).is_file():
        return None
    steps = folder / STEPS
    return steps.stat().st_size if steps.is_file() else 0


def _say_alerts(training: Training, printed: int, quiet: bool) -> int:
    """Print alerts that were not printed yet; returns how many there are now."""
    new = training.events(since=printed)
    for event in new:
        detail = f" ({event.numbers})" if event.numbers else ""
        _say(f"step {event.alert['step']:,}: {event.words.event} in {event.where}{detail}", quiet)
    return printed + len(new)


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(line, err=True)
