"""One server for all commands, and what each study gives when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_models
from abbe_processes import OTHER, Commands, commands
from folders import save


@pytest.fixture(scope="session")
def abbe_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    place = tmp_path_factory.mktemp("reliability")
    save(tiny_models.gpt2(vocab_size=256), place / "tiny")
    save(tiny_models.gpt2(vocab_size=256, gain=2.0), place / OTHER)
    text = place / "book.txt"
    text.write_text("In the beginning there was a lens, and it was ground by hand. " * 40)
    scratch = place / "scratch"
    scratch.mkdir()
    with commands(place / "tiny", text, scratch) as running:
        yield running


@pytest.fixture(scope="session")
def whole(abbe_commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a study that nobody disturbed; made once, not to be changed."""
    place, made = tmp_path_factory.mktemp("whole"), {}

    def of(study: str) -> Path:
        if study not in made:
            ended = abbe_commands.run(abbe_commands.of(study, place / study, "--quiet"))
            assert ended.code == 0, ended.err
            made[study] = place / study
        return made[study]

    return of
