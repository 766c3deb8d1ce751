"""The one door to the inside of abbe: what tests use of it that is not public.

A module that moves, or a name that changes, is changed here alone. What is public is imported from where it is public.
Everything is imported on first use, because a test of a bound shall not wait for charts.
"""

from __future__ import annotations

import importlib
from typing import Any

# Modules, of which a test replaces a part for a while.
MODULES = {
    "attention_attend": "abbe._attention.attend",
    "attention_blocks": "abbe._attention.engine",
    "sparse_op": "abbe._attention.sparse",
    "sparse_call": "abbe._attention.sparse_passes",
    "declared": "abbe._declared",
    "kernels_switch": "abbe._kernels.calls",
    "kernels_threads": "abbe._kernels.calls",
    "float64_module": "abbe._tensors",
    "measures_rows": "abbe.measures._rows",
    "normalizers_step": "abbe.normalizers._for_attention",
    "normalizers_registry": "abbe.normalizers._registry",
    "normalizers_row_map": "abbe.normalizers._row_map",
    "calibrate_result": "abbe.studies._calibrate.result",
    "capacity_rules": "abbe.studies._capacity.rules",
    "compare_rules": "abbe.studies._compare.rules",
    "cost_study": "abbe.studies._cost",
    "differences": "abbe.studies._diff.differences",
    "lift_rules": "abbe.studies._lift.rules",
    "lift_search": "abbe.studies._lift.search",
    "lift_study": "abbe.studies._lift.study",
    "engine_fitting": "abbe.studies._shared.fitting",
    "estimates": "abbe.studies._shared.estimates",
    "eval_result": "abbe.studies._eval.result",
    "prompts": "abbe.studies._shared.prompts",
    "swapped": "abbe.studies._shared.swapped",
    "truncation": "abbe.studies._shared.truncation",
}

# Names by module; "a=b" is b, under a name that tells it from another b.
NAMES = {
    "abbe._attention.attend": "Options _blockwise _sparse",
    "abbe._attention.engine": "BlockSize",
    "abbe._import_hooks": "when_imported",
    "abbe._kernels.compiled": "SUMS WideCompiler",
    "abbe._kernels.sums": "vector_lanes",
    "abbe.measures._geometry": "fused_geometry reference_geometry row_geometry",
    "abbe.measures._sensitivity": "directions largest_eigenvalue rank_one_norms",
    "abbe.measures._statistics": "expanded_tail",
    "abbe.models._plan": "for_heads",
    "abbe.studies._report.sample": "token_texts",
    "abbe.studies._reproduce.claims": "reproduce_judge=judge",
}

PLACES = {
    alias: (module, name or alias)
    for module, listed in NAMES.items()
    for alias, _, name in (entry.partition("=") for entry in listed.split())
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in PLACES:
        raise AttributeError(f"no door to {name!r}: import it from where it is public, or add it to tests/inside.py")
    module, inner = PLACES[name]
    return getattr(importlib.import_module(module), inner)
