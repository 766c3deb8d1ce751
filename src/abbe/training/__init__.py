"""Training: a monitor of attention for real runs."""

from ..words.training import Quantity
from ._alerts import Alert, Alerts, Rule, list_rules
from ._monitor import Monitor
from ._own_network import LayerRows, measure_layers
from ._quantities import list_quantities
from ._values import Measured, Values, of_model

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
    "of_model",
]
