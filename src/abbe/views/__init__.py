"""What a person sees: tables, charts and pages."""

from ._calibration import calibration_table
from ._capacity.charts import capacity_chart
from ._capacity.figures import save_capacity_figures
from ._capacity.table import capacity_table
from ._compare.page import compare_page, save_compare_figures
from ._compare.table import compare_table
from ._diagnosis import diagnosis_table
from ._doctor import doctor_table
from ._normalizers import normalizers_table, trials_table
from ._notebook import report_html, run_html
from ._report.figures import save_report_figures
from ._report.page import report_page
from ._report.table import report_table
from ._reproduce.figures import figure_chart
from ._reproduce.page import reproduction_page, save_figures
from ._reproduce.table import reproduction_table
from ._shared.charts import equal_selectivity_chart
from ._verify import summary as verify_summary
from ._verify import verify_page, verify_table
from ._with_page import compare, report, reproduce

__all__ = [
    "calibration_table",
    "capacity_chart",
    "capacity_table",
    "compare",
    "compare_page",
    "compare_table",
    "diagnosis_table",
    "doctor_table",
    "equal_selectivity_chart",
    "figure_chart",
    "normalizers_table",
    "report",
    "report_html",
    "report_page",
    "report_table",
    "reproduce",
    "reproduction_page",
    "reproduction_table",
    "run_html",
    "save_capacity_figures",
    "save_compare_figures",
    "save_figures",
    "save_report_figures",
    "trials_table",
    "verify_page",
    "verify_summary",
    "verify_table",
]
