"""Training: a monitor of attention for real runs."""

from ._alerts import Alert, Rule, list_rules
from ._monitor import Monitor
from ._quantities import Quantity, list_quantities

__all__ = ["Alert", "Monitor", "Quantity", "Rule", "list_quantities", "list_rules"]
