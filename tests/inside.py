"""The one door to the inside of abbe: what tests use of it that is not public.

A module that moves, or a name that changes, is changed here alone. What is public is imported from where it is public.
Everything is imported on first use, because a test of a bound shall not wait for charts.
"""

from __future__ import annotations

import importlib
from typing import Any

# Modules, of which a test replaces a part for a while.
MODULES = {
    # Kernels: how a call is cut into blocks, how much it keeps, which path and how many threads it takes.
    "attention_attend": "abbe._attention.attend",
    "attention_blocks": "abbe._attention.engine",
    "sparse_op": "abbe._attention.sparse",
    "sparse_call": "abbe._attention.sparse_passes",
    "kernels_switch": "abbe._kernels.calls",
    "kernels_threads": "abbe._kernels.calls",
    "normalizers_row_map": "abbe.normalizers._row_map",
    "normalizers_step": "abbe.normalizers._for_attention",
    "measures_rows": "abbe.measures._rows",
    # What kernel tests replace: whether a device has float64, and the list of normalizers.
    "float64_module": "abbe._tensors",
    "normalizers_registry": "abbe.normalizers._registry",
    # The list of studies: a test that adds one takes it out again.
    "declared": "abbe._declared",
    # Studies whose rules are not yet tested through them: the search
    # lift, the fit of a head, prompts, and matched temperatures.
    "lift_search": "abbe.studies._lift.search",
    "lift_study": "abbe.studies._lift.study",
    "estimates": "abbe.studies._shared.estimates",
    "eval_result": "abbe.studies._eval.result",
    "prompts": "abbe.studies._shared.prompts",
    "swapped": "abbe.studies._shared.swapped",
}

# Names by module.
NAMES = {
    # Kernels: limits of a call, and the paths that must agree.
    "abbe._attention.attend": "Options _blockwise _sparse",
    "abbe._attention.engine": "BlockSize",
    "abbe._kernels.compiled": "SUMS WideCompiler",
    "abbe._kernels.sums": "vector_lanes",
    "abbe.measures._geometry": "fused_geometry reference_geometry row_geometry",
    "abbe.measures._sensitivity": "directions largest_eigenvalue rank_one_norms",
    # Type checks of all tests begin when a module is imported.
    "abbe._import_hooks": "when_imported",
}

PLACES = {name: module for module, listed in NAMES.items() for name in listed.split()}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in PLACES:
        raise AttributeError(f"no door to {name!r}: import it from where it is public, or add it to tests/inside.py")
    return getattr(importlib.import_module(PLACES[name]), name)
