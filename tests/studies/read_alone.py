"""The readers of a report by themselves: a report lets them share the passes of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from inside import AlternativesReader, SampleReader, alternatives_windows, sample_window

from abbe import Text
from abbe.models import LoadedModel, Tap, Window
from abbe.runs.parts import Parts
from abbe.runs.settings import Settings
from abbe.runs.window import check_model, check_tokens, read_window
from abbe.studies import Sample


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
    chosen = alternatives_windows(windows, most_windows)
    if open_tap.error is None:
        check_model(model, open_tap, check_tokens(model, chosen))
    reader = AlternativesReader(model, open_tap, chosen, settings, Parts(None, ""), **options)
    for window in chosen:
        read_window(model, window, [reader])
        on_window(window)
    return reader.table()


def take_sample(
    model: LoadedModel, text: Text, open_tap: Tap, windows: Sequence[Window], settings: Settings, **options: Any
) -> Sample:
    chosen = sample_window(windows)
    if open_tap.error is None:
        check_model(model, open_tap, check_tokens(model, list(windows)))
    reader = SampleReader(model, open_tap, chosen, settings, **options)
    read_window(model, chosen, [reader])
    return reader.sample(text)
