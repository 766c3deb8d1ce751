"""Training: a monitor of attention for real runs."""

from ..results import Quantity
from ._alerts import Alert, Alerts, Rule, list_rules
from ._monitor import Monitor
from ._quantities import Measured, Values, list_quantities, reduce_heads
from ._reading import LayerRows, measure_layers

__all__ = [
    "Alert",
    "Alerts",
    "LayerRows",
    "Measured",
    "Monitor",
    "Quantity",
    "Rule",
    "Values",
    "list_quantities",
    "list_rules",
    "measure_layers",
    "reduce_heads",
]
