"""Tables of a reproduction: its statements. Those of the figures are in the docstring of `abbe.studies.Figure`."""

from __future__ import annotations

from ._column import Table, column

PAPER = (
    Table("reproduce", "table", "a statement of the paper", (
        column("figure", "of the paper, or drift"), column("topic", "in a word"),
        column("answer", "holds, does not hold, or cannot be judged"), column("paper", "what it says"),
        column("measured", "what this model shows"), column("rule", "by which it is judged"),
    )),
    Table("cost", "table", "a window length", (
        column("length", "tokens of a window"), column("windows", "of that length"),
        column("tokens", "of all windows"), column("queries", "measured per window"),
        column("pass_seconds", "forward pass of one window"), column("measure_seconds", "measures of one window"),
        column("seconds_per_token", "of all"), column("seconds_per_head", "of all"),
        column("exponent", "a window takes as long as length to this power, around this length"),
        column("seconds", "of all windows"), column("activation_bytes", "at batch 1"),
        column("measure_bytes", "of the measures"), column("extra_bytes", "beyond the model, as a run announces it"),
        column("bytes_per_token", "of those beyond the model that grow with the window"),
        column("device_bytes", "with the weights, on every device of a copy of the model"),
    )),
)  # fmt: skip
