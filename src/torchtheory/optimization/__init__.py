"""Optimization: descent and its guarantees, flow, noise, stability, critical points, curvature."""

from torchtheory.optimization.convergence import (
    accelerated_bound,
    averaged_descent_bound,
    first_critical,
    geometric_bound,
    iterations_to_critical_point,
    polyak_lojasiewicz_constant,
    sufficient_decrease,
)
from torchtheory.optimization.critical_points import (
    CriticalPoint,
    classify,
    critical_point,
    escape_times,
)
from torchtheory.optimization.curvature import gradient, hessian_operator
from torchtheory.optimization.descent import (
    Descent,
    average_iterate,
    descend,
    gradient_descent,
    gradient_of,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.edge_of_stability import stability_limit
from torchtheory.optimization.flow import ParameterPath, gradient_flow
from torchtheory.optimization.minibatch import draw_batches, minibatch_direction, minibatch_gradient
from torchtheory.optimization.noise import (
    accumulated_variance,
    with_gaussian_noise,
    with_unit_noise,
)
from torchtheory.optimization.noise_scale import NoiseScale, gradient_noise_scale
from torchtheory.optimization.stability import (
    MeasuredStability,
    distance_bound,
    logistic_constants,
    measure_stability,
    replace_example,
    stability_bound,
)

__all__ = [
    "CriticalPoint",
    "Descent",
    "MeasuredStability",
    "NoiseScale",
    "ParameterPath",
    "accelerated_bound",
    "accumulated_variance",
    "average_iterate",
    "averaged_descent_bound",
    "classify",
    "critical_point",
    "descend",
    "distance_bound",
    "draw_batches",
    "escape_times",
    "first_critical",
    "geometric_bound",
    "gradient",
    "gradient_descent",
    "gradient_flow",
    "gradient_noise_scale",
    "gradient_of",
    "hessian_operator",
    "iterations_to_critical_point",
    "last_iterate",
    "logistic_constants",
    "measure_stability",
    "minibatch_direction",
    "minibatch_gradient",
    "polyak_lojasiewicz_constant",
    "replace_example",
    "stability_bound",
    "stability_limit",
    "sufficient_decrease",
    "trajectory",
    "with_gaussian_noise",
    "with_unit_noise",
]
