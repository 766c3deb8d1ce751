"""abbe train: what its experiments answer, and their examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from .commands import GROUP, length, recall, temperature, text

_HELP = """Train small transformers to test claims about training attention. Nothing is downloaded.

[bold]temperature[/]: is low temperature hard to train, and does it remain so when its scale is compensated?

[bold]length[/]: which normalizer still finds the maximum in lists longer than those it was trained on?

[bold]recall[/]: which normalizer learns key-value recall, and at which learning rates?

[bold]text[/]: which normalizer trains the better character model of a text?

--quick takes about a minute on 2 cores, the defaults 1 to 15; each prints its cost before it starts. Every seed \
of every run is kept, and a stopped experiment resumes from its folder.
"""
_EXAMPLES: dict[str, Sequence[str]] = {
    "temperature": (
        "abbe train temperature --quick",
        "abbe train temperature --temperatures 1,0.3,0.1,learned --optimizer adamw --seeds 8 --open",
        "abbe train temperature --task mqar --with softmax --with entmax:alpha=1.5 --no-qk-norm --figures figures",
    ),
    "length": (
        "abbe train length --quick",
        "abbe train length --with softmax --with ssmax --rates 0.001,0.003,0.01 --seeds 5 --open",
    ),
    "recall": (
        "abbe train recall --quick",
        "abbe train recall --task mqar --with softmax --with sparsemax --optimizer muon --json",
    ),
    "text": (
        "abbe train text --quick",
        "abbe train text --text book.txt --with softmax --with entmax:alpha=1.5 --steps 1000 --out book",
    ),
}


def make_group(add: Callable[[typer.Typer, Callable[..., None], Sequence[str]], None]) -> typer.Typer:
    """The group of commands; `add` puts one of them into it, with its examples."""
    group = typer.Typer(name=GROUP, help=_HELP, no_args_is_help=True, rich_markup_mode="rich")
    for command in (temperature, length, recall, text):
        add(group, command, _EXAMPLES[command.__name__])
    return group
