# norms and spans
from .norms import check_norm as check_norm
from .norms import induced_norm as induced_norm
from .norms import cauchy_schwarz as cauchy_schwarz
from .spans import span as span

# matrices
from .spectra import definiteness as definiteness
from .spectra import loewner_order as loewner_order
from .spectra import eigenvalues as eigenvalues
from .spectra import singular_decomposition as singular_decomposition

# derivatives
from .differences import derivative_by_limit as derivative_by_limit
from .differences import directional_difference as directional_difference
from .differences import numerical_jacobian as numerical_jacobian
from .differences import gradient_check as gradient_check
from .differences import chain_rule as chain_rule
from .differences import hessian_at as hessian_at
from .differences import hessian_vector_product as hessian_vector_product
from .taylor import taylor_polynomial as taylor_polynomial
from .mean_value import mean_value_points as mean_value_points

# smoothness
from .smoothness import lipschitz_from_below as lipschitz_from_below
from .smoothness import smoothness_from_below as smoothness_from_below
from .smoothness import parabola_bounds as parabola_bounds

# function spaces
from .function_spaces import lebesgue_norm as lebesgue_norm
from .function_spaces import sobolev_norm as sobolev_norm
from .function_spaces import slobodeckij_seminorm as slobodeckij_seminorm
from .function_spaces import fourier_transform as fourier_transform

# probability
from .finite_probability import SigmaAlgebra as SigmaAlgebra
from .finite_probability import expectation as expectation
from .finite_probability import tail_expectation as tail_expectation
from .gaussians import Gaussian as Gaussian

# objectives
from .objectives import factorize as factorize
