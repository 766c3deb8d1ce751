"""What can be proved about attention weights: pure, batched, differentiable functions of tensors.

Each docstring gives the statement, its assumptions, whether it is tight, its source, and what high and low mean.
Names that end in `_paper` are the forms of arXiv 2508.17821 where ours differ; some of them are false, as
`abbe verify` shows. `catalogue()` lists every statement with its status.
"""

from ._capacity import TruncationErrors, mass_law, truncation_errors
from ._catalogue import catalogue
from ._change import (
    change_bound,
    change_bound_by_norm,
    lipschitz,
    log_derivative_bound,
    selective_temperature,
    sensitivity_at_equal_selectivity,
)
from ._checks import selected_set
from ._dispersion import (
    effective_number,
    effective_number_bound,
    entropy,
    entropy_deficit_bound,
    entropy_deficit_bound_loose,
)
from ._distance import (
    distance,
    distance_bound,
    distance_bound_root_paper,
    distance_sandwich,
    net_distance,
    net_distance_bound,
)
from ._expected import (
    expected_distance_bound_paper,
    expected_distance_bounds,
    expected_distance_ceiling,
    expected_distance_exact,
    expected_net_distance_squared,
)
from ._gradient import (
    frobenius_norm,
    frobenius_norm_bound,
    inf_to_one_norm,
    inf_to_one_supremum,
    largest_entry,
    one_norm,
    spectral_norm,
    spectral_norm_bound_paper,
    spectral_norm_bounds,
    spectral_norm_supremum,
)
from ._margin import entmax_contenders, entmax_gap, margin_needed, winners_mass
from ._separability import (
    BallCount,
    Retrieval,
    coverage_paper,
    precision_recall,
    separability,
    sphere_separability_bounds,
    sphere_separability_bounds_paper,
    sphere_separability_estimate,
)
from ._statements import Point, Sizes, Statement
from ._weights import (
    general_weight_range,
    general_weight_range_paper,
    top_mass,
    top_mass_bounds,
    weight_bounds,
    weight_range,
    weight_range_paper,
)

__all__ = [
    "BallCount",
    "Point",
    "Retrieval",
    "Sizes",
    "Statement",
    "TruncationErrors",
    "catalogue",
    "change_bound",
    "change_bound_by_norm",
    "coverage_paper",
    "distance",
    "distance_bound",
    "distance_bound_root_paper",
    "distance_sandwich",
    "effective_number",
    "effective_number_bound",
    "entmax_contenders",
    "entmax_gap",
    "entropy",
    "entropy_deficit_bound",
    "entropy_deficit_bound_loose",
    "expected_distance_bound_paper",
    "expected_distance_bounds",
    "expected_distance_ceiling",
    "expected_distance_exact",
    "expected_net_distance_squared",
    "frobenius_norm",
    "frobenius_norm_bound",
    "general_weight_range",
    "general_weight_range_paper",
    "inf_to_one_norm",
    "inf_to_one_supremum",
    "largest_entry",
    "lipschitz",
    "log_derivative_bound",
    "margin_needed",
    "mass_law",
    "net_distance",
    "net_distance_bound",
    "one_norm",
    "precision_recall",
    "selected_set",
    "selective_temperature",
    "sensitivity_at_equal_selectivity",
    "separability",
    "spectral_norm",
    "spectral_norm_bound_paper",
    "spectral_norm_bounds",
    "spectral_norm_supremum",
    "sphere_separability_bounds",
    "sphere_separability_bounds_paper",
    "sphere_separability_estimate",
    "top_mass",
    "top_mass_bounds",
    "truncation_errors",
    "weight_bounds",
    "weight_range",
    "weight_range_paper",
    "winners_mass",
]
