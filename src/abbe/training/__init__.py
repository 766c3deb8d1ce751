"""Training: a monitor of attention for real runs."""

from ..words.training import Quantity
from ._alerts import Alert, Rule, list_rules
from ._monitor import Monitor
from ._quantities import list_quantities

__all__ = ["Alert", "Monitor", "Quantity", "Rule", "list_quantities", "list_rules"]
