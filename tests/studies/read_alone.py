"""The readers of a report by themselves: a report lets them share the passes of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from inside import AlternativesReader, SampleReader, alternatives_windows, sample_window

from abbe import Text
from abbe.models import LoadedModel, Tap, Window
from abbe.runs.inputs import Settings
from abbe.runs.parts import Parts
from abbe.runs.window import Passes, PassReader, check_model, check_tokens, run_model
from abbe.studies import Sample


def read_alone(
    model: LoadedModel, open_tap: Tap, reader: PassReader, windows: Sequence[Window],
    on_window: Callable[[Window], object] = lambda window: None,
) -> None:  # fmt: skip
    if open_tap.error is None:
        check_model(model, open_tap, check_tokens(model, windows))
    reader.start(Parts(None, ""), len(open_tap.layers))
    passes = Passes(model, open_tap)
    for window in windows:
        passes.read(window, reader, run=run_model)
        on_window(window)


def try_alternatives(
    model: LoadedModel,
    open_tap: Tap,
    windows: Sequence[Window],
    settings: Settings,
    *,
    most_windows: int = 4,
    on_window: Callable[[Window], object] = lambda window: None,
    **options: Any,
) -> pl.DataFrame:
    reader = AlternativesReader(model, windows, settings, most_windows=most_windows, **options)
    read_alone(model, open_tap, reader, alternatives_windows(windows, most_windows), on_window)
    return reader.table()


def take_sample(
    model: LoadedModel, text: Text, open_tap: Tap, windows: Sequence[Window], settings: Settings, **options: Any
) -> Sample:
    reader = SampleReader(model, windows, settings, **options)
    read_alone(model, open_tap, reader, [sample_window(windows)])
    return reader.sample(text)
