# deep
from .deep import deep_linear_gradients as deep_linear_gradients
from .deep import deep_linear_optimum as deep_linear_optimum
from .deep import deep_critical_point as deep_critical_point
from .deep import balanced_layers as balanced_layers
from .deep import critical_product as critical_product
from .deep_saddles import deep_saddle_report as deep_saddle_report
from .deep_saddles import linear_landscape_certificate as linear_landscape_certificate

# degenerate saddles
from .degenerate_saddles import first_derivative_order as first_derivative_order
from .degenerate_saddles import plateau_time as plateau_time

# two layers
from .two_layer import two_layer_gradients as two_layer_gradients
from .two_layer import two_layer_hessian as two_layer_hessian
from .two_layer import alternating_minimization as alternating_minimization
from .two_layer_critical_points import linear_critical_points as linear_critical_points
from .two_layer_critical_points import escape_direction as escape_direction
from .second_moments import reduced_rank_regression as reduced_rank_regression

# factorizations
from .deep_factorization import FactoredMatrix as FactoredMatrix
from .deep_factorization import align_factors as align_factors
from .deep_factorization import end_to_end_flow as end_to_end_flow
from .deep_factorization import mode_flow as mode_flow
from .deep_factorization import mode_time as mode_time
from .deep_factorization import gaussian_measurements as gaussian_measurements
from .deep_factorization import entry_measurements as entry_measurements

# gradients at initialization
from .initial_gradients import sample_gradients as sample_gradients
from .initial_gradients import gaussian_gradient_bound as gaussian_gradient_bound
from .initial_gradients import softmax_gradient_bound as softmax_gradient_bound
from .matrix_moments import fourth_moments as fourth_moments
from .matrix_moments import gram_moments as gram_moments
