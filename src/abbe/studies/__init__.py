"""What a command does, as a function."""

import typing as _typing

from .._declared import studies as _studies
from .._lazy import later as _on_first_use
from ..words.finding import Finding, KeyNumber
from ..words.paper import FIGURES

if _typing.TYPE_CHECKING:
    from ..lab import Experiment, train_length, train_recall, train_temperature, train_text
    from ..runs.executors import Shard, shard
    from ..runs.ray import on_ray
    from ..runs.study import merge, open
    from ..runs.watch import watching
    from ._calibrate.result import Calibration
    from ._calibrate.study import calibrate
    from ._capacity.result import Capacity
    from ._capacity.study import capacity
    from ._compare.result import Comparison
    from ._compare.study import compare
    from ._cost.result import Costs
    from ._cost.study import cost
    from ._diagnose.study import diagnose
    from ._diff.result import Difference
    from ._diff.study import diff
    from ._doctor.check import Check
    from ._doctor.study import doctor
    from ._each import Reports, report_each
    from ._lift.result import Lift
    from ._lift.study import lift
    from ._report.heads import HeadVerdict
    from ._report.result import Report
    from ._report.sample import Ball, Sample, SampleRow
    from ._report.study import report
    from ._reproduce.result import Claim, Figure, Reproduction
    from ._reproduce.study import reproduce
    from ._try_normalizers import NormalizerTrial, try_normalizers
    from ._verify import Verdict, verify

__all__ = [
    "FIGURES",
    "Ball",
    "Calibration",
    "Capacity",
    "Check",
    "Claim",
    "Comparison",
    "Costs",
    "Difference",
    "Experiment",
    "Figure",
    "Finding",
    "HeadVerdict",
    "KeyNumber",
    "Lift",
    "NormalizerTrial",
    "Report",
    "Reports",
    "Reproduction",
    "Sample",
    "SampleRow",
    "Shard",
    "Verdict",
    "calibrate",
    "capacity",
    "compare",
    "cost",
    "diagnose",
    "diff",
    "doctor",
    "lift",
    "merge",
    "on_ray",
    "open",
    "report",
    "report_each",
    "reproduce",
    "shard",
    "train_length",
    "train_recall",
    "train_temperature",
    "train_text",
    "try_normalizers",
    "verify",
    "watching",
]

_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        "..runs.watch": ("watching",),
        "._doctor.check": ("Check",),
        "._doctor.study": ("doctor",),
        "._try_normalizers": ("NormalizerTrial", "try_normalizers"),
        "._verify": ("Verdict", "verify"),
    },
    "models": {
        "..runs.executors": ("Shard", "shard"),
        "..runs.ray": ("on_ray",),
        "..runs.study": ("merge", "open"),
        "._cost.result": ("Costs",),
        "._cost.study": ("cost",),
        "._report.heads": ("HeadVerdict",),
        "._report.sample": ("Ball", "Sample", "SampleRow"),
        "._reproduce.result": ("Claim", "Figure"),
    },
}
for _study in _studies().values():  # each with its result
    for _extra, _name in ((_study.extra, _study.function), ("models", _study.result)):
        _modules = _NAMES.setdefault(_extra, {})
        _modules[_study.module] = tuple(dict.fromkeys((*_modules.get(_study.module, ()), _name)))
        if _name not in __all__:
            __all__ += [_name]
if not _typing.TYPE_CHECKING:  # types are those of the imports above
    __getattr__, __dir__ = _on_first_use(__name__, _NAMES)
