"""What a person sees: tables, charts and pages."""

from ._calibration import calibration_table
from ._capacity.charts import capacity_chart
from ._capacity.page import save_capacity_figures
from ._capacity.table import capacity_table
from ._compare.page import compare_page, save_compare_figures
from ._compare.table import compare_table
from ._diagnosis import diagnosis_table, summary
from ._diagnosis_figures import save_diagnosis_figures
from ._doctor import doctor_table
from ._normalizers import normalizers_table, trials_table
from ._report.figures import save_report_figures
from ._report.page import report_page
from ._report.table import report_table
from ._reproduce.figures import figure_chart
from ._reproduce.page import reproduction_page, save_figures
from ._reproduce.table import reproduction_table
from ._results import card_of, page_of
from ._shared.charts import equal_selectivity_chart
from ._verify import summary as verify_summary
from ._verify import verify_page, verify_table

__all__ = [
    "calibration_table",
    "capacity_chart",
    "capacity_table",
    "card_of",
    "compare_page",
    "compare_table",
    "diagnosis_table",
    "doctor_table",
    "equal_selectivity_chart",
    "figure_chart",
    "normalizers_table",
    "page_of",
    "report_page",
    "report_table",
    "reproduction_page",
    "reproduction_table",
    "save_capacity_figures",
    "save_compare_figures",
    "save_diagnosis_figures",
    "save_figures",
    "save_report_figures",
    "summary",
    "trials_table",
    "verify_page",
    "verify_summary",
    "verify_table",
]
