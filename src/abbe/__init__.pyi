# The public names and their types, the one list of them: `_lazy` reads it, and imports each name on first use.
# A line "# needs EXTRA" holds for the imports below it.

from ._errors import AbbeError as AbbeError
from ._attention.attend import attention as attention
from .normalizers import (
    Normalizer as Normalizer,
    NormalizerInfo as NormalizerInfo,
    list_normalizers as list_normalizers,
    normalizer as normalizer,
)
from .studies import (
    doctor as doctor,
    verify as verify,
)

# needs models
from .models import (
    Export as Export,
    LoadedModel as LoadedModel,
    Plan as Plan,
    Swap as Swap,
    Tap as Tap,
    Text as Text,
    Window as Window,
    export as export,
    load as load,
    plan as plan,
    pull as pull,
    read_text as read_text,
    swap as swap,
    tap as tap,
    windows as windows,
)
from .results import (
    Result as Result,
    Run as Run,
    open_run as open_run,
)
from .studies import (
    Calibration as Calibration,
    Capacity as Capacity,
    Comparison as Comparison,
    Difference as Difference,
    Evaluation as Evaluation,
    Experiment as Experiment,
    Lift as Lift,
    Report as Report,
    Reports as Reports,
    Reproduction as Reproduction,
    calibrate as calibrate,
    capacity as capacity,
    cost as cost,
    diagnose as diagnose,
    diff as diff,
    evaluate as evaluate,
    lift as lift,
    merge as merge,
    on_ray as on_ray,
    open as open,
    shard as shard,
    train_length as train_length,
    train_recall as train_recall,
    train_temperature as train_temperature,
    train_text as train_text,
)
from .training import Monitor as Monitor

# needs all
from .studies import (
    compare as compare,
    report as report,
    report_each as report_each,
    reproduce as reproduce,
)

__version__: str
