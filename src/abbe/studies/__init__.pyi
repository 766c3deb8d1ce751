# The public names and their types, the one list of them: `abbe._lazy` reads it, and imports each name on first use.
# Studies that are not listed are found by their declaration; a line "# needs EXTRA" holds for the imports below it.

from ..runs.watch import watching as watching
from ..words.finding import (
    Finding as Finding,
    KeyNumber as KeyNumber,
)
from ..words.names import FIGURES as FIGURES
from ._doctor import (
    Check as Check,
    Checks as Checks,
    doctor as doctor,
)
from ._try_normalizers import (
    NormalizerTrial as NormalizerTrial,
    try_normalizers as try_normalizers,
)
from ._verify import (
    Verdict as Verdict,
    Verdicts as Verdicts,
    verify as verify,
)

# needs models
from ..lab import (
    Experiment as Experiment,
    train_length as train_length,
    train_recall as train_recall,
    train_temperature as train_temperature,
    train_text as train_text,
)
from ..runs.executors import (
    Shard as Shard,
    shard as shard,
)
from ..runs.ray import on_ray as on_ray
from ..runs.study import (
    list_results as list_results,
    merge as merge,
    open as open,
)
from ._calibrate.result import Calibration as Calibration
from ._calibrate.study import calibrate as calibrate
from ._capacity.result import Capacity as Capacity
from ._capacity.study import capacity as capacity
from ._compare.result import Comparison as Comparison
from ._cost import (
    Costs as Costs,
    cost as cost,
)
from ._diagnose import diagnose as diagnose
from ._diff.result import Difference as Difference
from ._diff.study import diff as diff
from ._each import Reports as Reports
from ._eval.result import Evaluation as Evaluation
from ._eval.study import evaluate as evaluate
from ._lift.result import Lift as Lift
from ._lift.study import lift as lift
from ._report.heads import (
    HeadPattern as HeadPattern,
    HeadVerdict as HeadVerdict,
)
from ._report.study import Report as Report
from ._report.sample import (
    Ball as Ball,
    Sample as Sample,
    SampleRow as SampleRow,
)
from ._reproduce.claims import (
    Claim as Claim,
    Figure as Figure,
)
from ._reproduce.result import Reproduction as Reproduction

# needs all
from ._compare.study import compare as compare
from ._each import report_each as report_each
from ._report.study import report as report
from ._reproduce.study import reproduce as reproduce
