"""What a person sees: tables, charts and pages."""

from ._charts import equal_selectivity_chart
from ._diagnosis import diagnosis_table
from ._figures import figure_chart
from ._reproduction import reproduction_page, save_figures
from ._reproduction_table import reproduction_table
from ._verify import verify_page, verify_table

__all__ = [
    "diagnosis_table",
    "equal_selectivity_chart",
    "figure_chart",
    "reproduction_page",
    "reproduction_table",
    "save_figures",
    "verify_page",
    "verify_table",
]
