# certificates
from .pac_bayes.certification import risk_certificate as risk_certificate
from .learning.validation_bound import validation_bounds as validation_bounds
from .learning.validation_bound import validation_sample_size as validation_sample_size

# complexities and bounds
from .vc.growth import vc_dimension_on as vc_dimension_on
from .vc.bounds import growth_radius as growth_radius
from .vc.networks import network_vc_bound as network_vc_bound
from .complexity.rademacher import exact_rademacher as exact_rademacher
from .complexity.rademacher import estimate_rademacher as estimate_rademacher
from .complexity.rademacher import uniform_deviation as uniform_deviation
from .complexity.norm_bounds import frobenius_bound as frobenius_bound
from .complexity.margin_bounds import best_margin_bound as best_margin_bound
from .vc.parameter_counting import count_parameters_bounds as count_parameters_bounds
from .complexity.norm_products import compare_norms as compare_norms
from .order_preservation import compare_orders as compare_orders

# stability and robustness
from .stability import leave_one_out as leave_one_out
from .algorithmic_robustness import robustness_bound as robustness_bound

# flatness
from .flatness.sharpness import ball_sharpness as ball_sharpness
from .flatness.sharpness import noise_sharpness as noise_sharpness
from .flatness.sharpness import hessian_sharpness as hessian_sharpness
from .flatness.rescaling import rescalable_pairs as rescalable_pairs
from .flatness.rescaling import rescale_pair as rescale_pair
from .flatness.rescaling import rescaled as rescaled

# implicit bias
from .implicit_bias.hard_margin import hard_margin_svm as hard_margin_svm
from .implicit_bias.separable_flow import separable_flow as separable_flow
from .implicit_bias.kkt import network_kkt as network_kkt

# double descent and memorization
from .interpolation.double_descent import width_curve as width_curve
from .interpolation.double_descent import feature_curve as feature_curve
from .memorization.experiment import memorization_test as memorization_test

# exact risks
from .learning.finite_distributions import FiniteDistribution as FiniteDistribution

# topics
from . import complexity as complexity
from . import flatness as flatness
from . import implicit_bias as implicit_bias
from . import interpolation as interpolation
from . import learning as learning
from . import memorization as memorization
from . import pac_bayes as pac_bayes
from . import paths as paths
from . import vc as vc
