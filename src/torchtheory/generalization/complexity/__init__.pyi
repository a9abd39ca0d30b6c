# Rademacher complexity
from .rademacher import exact_rademacher as exact_rademacher
from .rademacher import estimate_rademacher as estimate_rademacher
from .rademacher import massart_bound as massart_bound
from .rademacher import linear_bounds as linear_bounds
from .rademacher import finite_class as finite_class
from .rademacher import linear_class as linear_class
from .rademacher import uniform_deviation as uniform_deviation
from .rademacher import empirical_uniform_deviation as empirical_uniform_deviation
from .symmetrization import symmetrization_chain as symmetrization_chain

# covering numbers
from .covering import covering_bounds as covering_bounds
from .covering import covering_number as covering_number
from .covering import packing_number as packing_number
from .covering import dudley_bound as dudley_bound
from .covering import haussler_bound as haussler_bound
from .covering import vc_rademacher_bound as vc_rademacher_bound
from .covering import covering_dimension as covering_dimension

# margins
from .margin_bounds import ramp_loss as ramp_loss
from .margin_bounds import margin_error as margin_error
from .margin_bounds import margin_bound as margin_bound
from .margin_bounds import best_margin_bound as best_margin_bound

# norms
from .norm_bounds import frobenius_bound as frobenius_bound
from .norm_bounds import frobenius_norms as frobenius_norms
from .norm_bounds import normalize_layers as normalize_layers
from .norm_bounds import depth_free_order as depth_free_order
from .norm_products import compare_norms as compare_norms
from .norm_products import NormProducts as NormProducts
