"""What a person sees: tables, charts and pages of what the studies give.

`..._table` takes a result and returns what `rich` prints on a terminal; `..._page` returns one self-contained HTML page
as text; `..._chart` takes a result and a theme ("light" or "dark") and returns a Vega-Lite chart;
`save_..._figures` takes a result and a folder, writes PNG and SVG in both themes, and returns the paths.
`Result.to_html` writes any page.

Examples:
    >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
    >>> from rich.console import Console
    >>> console = Console(width=80)
    >>> with console.capture() as shown:
    ...     console.print(abbe.views.diagnosis_table(run))
    >>> "effective" in shown.get()
    True
    >>> sorted({path.suffix for path in abbe.views.save_diagnosis_figures(run, "figures")})
    ['.png', '.svg']
"""

import typing as _typing

from .._lazy import later as _on_first_use

if _typing.TYPE_CHECKING:
    from ._calibrate.charts import calibration_chart
    from ._calibrate.page import save_calibration_figures
    from ._calibrate.table import calibration_table
    from ._capacity.charts import capacity_chart
    from ._capacity.page import save_capacity_figures
    from ._capacity.table import capacity_table
    from ._compare.page import compare_page, save_compare_figures
    from ._compare.table import compare_table
    from ._cost import cost_table
    from ._diagnosis import diagnosis_table, summary
    from ._diagnosis_figures import save_diagnosis_figures
    from ._diff.charts import diff_charts
    from ._diff.page import save_diff_figures
    from ._diff.table import diff_table
    from ._doctor import doctor_table
    from ._each.page import reports_page, save_reports_figures
    from ._each.table import reports_table
    from ._lift.page import save_lift_figures
    from ._lift.table import lift_table
    from ._normalizers import normalizers_table, trials_table
    from ._report.figures import save_report_figures
    from ._report.page import report_page
    from ._report.table import report_table
    from ._reproduce.figures import figure_chart
    from ._reproduce.page import reproduction_page, save_reproduction_figures
    from ._reproduce.table import reproduction_table
    from ._results import card_of, page_of
    from ._shared.charts import equal_selectivity_chart
    from ._train.charts import train_charts
    from ._train.page import save_train_figures
    from ._train.table import train_table
    from ._verify import verify_page, verify_summary, verify_table
    from ._verify_chart import save_verify_figures, verify_chart
    from ._watch.answer import watch_summary
    from ._watch.page import save_watch_figures, watch_page, write_watch_page
    from ._watch.table import watch_table

__all__ = [
    "calibration_chart",
    "calibration_table",
    "capacity_chart",
    "capacity_table",
    "card_of",
    "compare_page",
    "compare_table",
    "cost_table",
    "diagnosis_table",
    "diff_charts",
    "diff_table",
    "doctor_table",
    "equal_selectivity_chart",
    "figure_chart",
    "lift_table",
    "normalizers_table",
    "page_of",
    "report_page",
    "report_table",
    "reports_page",
    "reports_table",
    "reproduction_page",
    "reproduction_table",
    "save_calibration_figures",
    "save_capacity_figures",
    "save_compare_figures",
    "save_diagnosis_figures",
    "save_diff_figures",
    "save_lift_figures",
    "save_report_figures",
    "save_reports_figures",
    "save_reproduction_figures",
    "save_train_figures",
    "save_verify_figures",
    "save_watch_figures",
    "summary",
    "train_charts",
    "train_table",
    "trials_table",
    "verify_chart",
    "verify_page",
    "verify_summary",
    "verify_table",
    "watch_page",
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
        "._calibrate.table": ("calibration_table",),
        "._capacity.table": ("capacity_table",),
        "._cost": ("cost_table",),
        "._diagnosis": ("diagnosis_table", "summary"),
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
        "._calibrate.page": ("save_calibration_figures",),
        "._capacity.charts": ("capacity_chart",),
        "._capacity.page": ("save_capacity_figures",),
        "._compare.page": ("compare_page", "save_compare_figures"),
        "._compare.table": ("compare_table",),
        "._diagnosis_figures": ("save_diagnosis_figures",),
        "._each.page": ("reports_page", "save_reports_figures"),
        "._lift.page": ("save_lift_figures",),
        "._diff.charts": ("diff_charts",),
        "._diff.page": ("save_diff_figures",),
        "._report.figures": ("save_report_figures",),
        "._report.page": ("report_page",),
        "._report.table": ("report_table",),
        "._reproduce.figures": ("figure_chart",),
        "._reproduce.page": ("reproduction_page", "save_reproduction_figures"),
        "._reproduce.table": ("reproduction_table",),
        "._results": ("card_of", "page_of"),
        "._train.charts": ("train_charts",),
        "._train.page": ("save_train_figures",),
        "._watch.answer": ("watch_summary",),
        "._watch.page": ("save_watch_figures", "watch_page", "write_watch_page"),
        "._watch.table": ("watch_table",),
    },
}
if not _typing.TYPE_CHECKING:  # types are those of the imports above
    __getattr__, __dir__ = _on_first_use(__name__, _NAMES)
