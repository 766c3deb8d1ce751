"""Charts, drawn with altair: interactive on a page, PNG and SVG for papers."""

from __future__ import annotations

import altair as alt
import torch

from ...bounds import sensitivity_at_equal_selectivity

_NAMES = {"softmax": "softmax, ssmax", "entmax15": "entmax 1.5", "sparsemax": "sparsemax"}
_COLOURS = {"softmax, ssmax": "#c2571a", "entmax 1.5": "#1f6fb4", "sparsemax": "#3a8f5c"}


def equal_selectivity_chart(error: float = 0.1, longest: int = 2**20) -> alt.LayerChart:
    """What does it cost in sensitivity to give one key of L a weight of 1 - error?

    The Lipschitz constant of each normalizer against L, at the temperature that gives the top key this weight at a unit
    margin. A high curve means that a small change of the logits moves the weights a lot.

    Args:
        error: the weight that all other keys share, in (0, 1).
        longest: number of keys at the right end, >= 4.

    Returns:
        The chart, which `save` writes as PNG, SVG or HTML.

    Examples:
        >>> chart = abbe.views.equal_selectivity_chart(longest=64)
        >>> chart.title.text
        'Softmax pays for selectivity with ln L, entmax does not'
    """
    lengths = [2**k for k in range(2, longest.bit_length())]
    keys = torch.tensor(lengths, dtype=torch.float64)
    rows = [
        {"keys": length, "sensitivity": value, "normalizer": shown}
        for spec, shown in _NAMES.items()
        for length, value in zip(lengths, sensitivity_at_equal_selectivity(spec, keys, error).tolist(), strict=True)
    ]
    ends = [row for row in rows if row["keys"] == lengths[-1]]
    colour = alt.Color("normalizer:N", legend=None).scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    x = alt.X("keys:Q", title="keys in the row").scale(type="log", base=2, domain=[lengths[0], lengths[-1]])
    x = x.axis(values=lengths[::3], format=",d", grid=False)
    y = alt.Y("sensitivity:Q", title="Lipschitz constant at equal selectivity").scale(domain=[0, 9])
    tip = ["normalizer", alt.Tooltip("keys:Q", format=",d"), alt.Tooltip("sensitivity:Q", format=".2f")]
    lines = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2.5).encode(
        x, y, colour, tooltip=[alt.Tooltip("normalizer:N"), *tip[1:]]
    )  # fmt: skip
    labels = alt.Chart(alt.InlineData(values=ends)).mark_text(align="left", dx=6, fontSize=13).encode(
        x, y, colour, text="normalizer:N"
    )  # fmt: skip
    title = alt.TitleParams(
        "Softmax pays for selectivity with ln L, entmax does not",
        subtitle=f"temperature set so that a unit margin gives the top key a weight of {1 - error:g}",
        anchor="start",
        subtitleColor="#5a6675",
    )
    chart = alt.layer(lines, labels).properties(width=520, height=320, title=title, padding=5)
    styled: alt.LayerChart = chart.configure_view(stroke=None).configure_axis(
        labelFontSize=12, titleFontSize=12, gridColor="#e6e9ee"
    )
    return styled
