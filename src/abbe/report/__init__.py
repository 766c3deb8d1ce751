"""What a person sees: tables, charts and pages."""

from ._charts import equal_selectivity_chart
from ._diagnosis import diagnosis_table
from ._verify import verify_page, verify_table

__all__ = ["diagnosis_table", "equal_selectivity_chart", "verify_page", "verify_table"]
