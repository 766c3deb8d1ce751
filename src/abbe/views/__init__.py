"""What a person sees: tables, charts and pages of what the studies give.

`..._table` takes a result and returns what `rich` prints on a terminal of at least 80 columns; `..._chart` takes a
result and a theme ("light" or "dark") and returns a Vega-Lite chart. `page_of` is the page of any result, which
`Result.to_html` writes, `card_of` what a notebook shows of it, and `save_figures` draws its charts as PNG and SVG.
"""

import typing as _typing

from .._lazy import later as _on_first_use

if _typing.TYPE_CHECKING:
    from ._calibrate.charts import calibration_chart
    from ._calibrate.table import calibration_table
    from ._capacity.charts import capacity_chart
    from ._capacity.table import capacity_table
    from ._compare.table import compare_table
    from ._cost import cost_table
    from ._diagnosis import diagnosis_table
    from ._diff.charts import diff_charts
    from ._diff.table import diff_table
    from ._doctor import doctor_table
    from ._each.table import reports_table
    from ._lift.table import lift_table
    from ._normalizers import normalizers_table, trials_table
    from ._report.table import report_table
    from ._reproduce.figures import figure_chart
    from ._reproduce.table import reproduction_table
    from ._results import card_of, page_of, save_figures
    from ._shared.charts import equal_selectivity_chart
    from ._shared.terminal import TextTable
    from ._train.charts import train_charts
    from ._train.table import train_table
    from ._verify import verify_page, verify_summary, verify_table
    from ._verify_chart import save_verify_figures, verify_chart
    from ._view import View, card, figures, page, terminal
    from ._watch.answer import watch_summary, watch_table
    from ._watch.page import write_watch_page

__all__ = [
    "TextTable",
    "View",
    "calibration_chart",
    "calibration_table",
    "capacity_chart",
    "capacity_table",
    "card",
    "card_of",
    "compare_table",
    "cost_table",
    "diagnosis_table",
    "diff_charts",
    "diff_table",
    "doctor_table",
    "equal_selectivity_chart",
    "figure_chart",
    "figures",
    "lift_table",
    "normalizers_table",
    "page",
    "page_of",
    "report_table",
    "reports_table",
    "reproduction_table",
    "save_figures",
    "save_verify_figures",
    "terminal",
    "train_charts",
    "train_table",
    "trials_table",
    "verify_chart",
    "verify_page",
    "verify_summary",
    "verify_table",
    "watch_summary",
    "watch_table",
    "write_watch_page",
]

_NAMES = {
    "": {
        "._doctor": ("doctor_table",),
        "._normalizers": ("normalizers_table", "trials_table"),
        "._verify": ("verify_summary", "verify_table"),
    },
    "models": {
        "._shared.terminal": ("TextTable",),
        "._view": ("View", "card", "figures", "page", "terminal"),
        "._calibrate.table": ("calibration_table",),
        "._capacity.table": ("capacity_table",),
        "._cost": ("cost_table",),
        "._diagnosis": ("diagnosis_table",),
        "._each.table": ("reports_table",),
        "._lift.table": ("lift_table",),
        "._diff.table": ("diff_table",),
        "._train.table": ("train_table",),
    },
    "report": {
        "._shared.charts": ("equal_selectivity_chart",),
        "._verify": ("verify_page",),
        "._verify_chart": ("save_verify_figures", "verify_chart"),
    },
    "all": {
        "._calibrate.charts": ("calibration_chart",),
        "._capacity.charts": ("capacity_chart",),
        "._compare.table": ("compare_table",),
        "._diff.charts": ("diff_charts",),
        "._report.table": ("report_table",),
        "._reproduce.figures": ("figure_chart",),
        "._reproduce.table": ("reproduction_table",),
        "._results": ("card_of", "page_of", "save_figures"),
        "._train.charts": ("train_charts",),
        "._watch.answer": ("watch_summary", "watch_table"),
        "._watch.page": ("write_watch_page",),
    },
}
if not _typing.TYPE_CHECKING:  # types are those of the imports above
    __getattr__, __dir__ = _on_first_use(__name__, _NAMES)
