# largest margins
from .hard_margin import hard_margin_svm as hard_margin_svm
from .hard_margin import HardMargin as HardMargin
from .hard_margin import kkt_residuals as kkt_residuals
from .kkt import margin_kkt as margin_kkt
from .kkt import network_kkt as network_kkt

# the flow of separable data
from .separable_flow import separable_flow as separable_flow
from .separable_flow import SeparableFlow as SeparableFlow
from .separable_flow import MarginLoss as MarginLoss
from .separable_flow import exponential_tail as exponential_tail
from .separable_flow import check_loss as check_loss
from .separable_flow import residual_certificate as residual_certificate

# margins that grow
from .smoothed_margin import smoothed_minimum as smoothed_minimum
from .smoothed_margin import growing_margin as growing_margin
from .smoothed_margin import follow_margin as follow_margin

# least norms
from .least_norm import solution_set as solution_set
from .least_norm import closest_interpolant as closest_interpolant
from .least_norm import least_squares_step_limit as least_squares_step_limit
from .least_norm import quadratic_iterate as quadratic_iterate
from .least_norm import ridge_predictions as ridge_predictions
from .least_norm import effective_degrees as effective_degrees

# balanced layers
from .layer_balance import layer_balance_of as layer_balance_of
from .layer_balance import layer_alignment as layer_alignment
from .layer_balance import alignment_bound as alignment_bound
from .layer_balance import balanced_weights as balanced_weights
