# The public names and their types: `abbe._lazy` reads them, and imports each name on first use.

# needs models
from ._alerts import (
    Alert as Alert,
    Alerts as Alerts,
    Rule as Rule,
    list_rules as list_rules,
    rule_named as rule_named,
)
from ._monitor import Monitor as Monitor
from ._quantities import (
    Measured as Measured,
    Quantity as Quantity,
    Values as Values,
    list_quantities as list_quantities,
    reduce_heads as reduce_heads,
)
from ._reading import (
    LayerRows as LayerRows,
    measure_layers as measure_layers,
)
from ._record import (
    STEPS as STEPS,
    StepsFile as StepsFile,
    encoded_step as encoded_step,
)
from ._result import Training as Training
