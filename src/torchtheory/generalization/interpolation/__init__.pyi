# double descent
from .double_descent import width_curve as width_curve
from .double_descent import feature_curve as feature_curve
from .double_descent import RiskCurve as RiskCurve
from .double_descent import effective_complexity as effective_complexity

# bias and variance
from .bias_variance import decompose_estimates as decompose_estimates
from .bias_variance import decompose_predictions as decompose_predictions
from .bias_variance import gaussian_bias_variance as gaussian_bias_variance
from .bias_variance import gaussian_variance_factor as gaussian_variance_factor
from .bias_variance import excess_risk as excess_risk
from .minimum_norm import design_bias_variance as design_bias_variance
from .minimum_norm import ridge_bias_variance as ridge_bias_variance
from .minimum_norm import minimum_norm_weights as minimum_norm_weights

# spectral asymptotics
from .spectral_asymptotics import asymptotic_variance as asymptotic_variance
from .spectral_asymptotics import marchenko_pastur_density as marchenko_pastur_density
from .spectral_asymptotics import marchenko_pastur_support as marchenko_pastur_support
from .spectral_asymptotics import marchenko_pastur_cdf as marchenko_pastur_cdf
from .spectral_asymptotics import effective_ranks as effective_ranks

# interpolants
from .interpolators import singular_kernel_weights as singular_kernel_weights
from .interpolators import piecewise_linear_weights as piecewise_linear_weights
from .interpolators import polynomial_weights as polynomial_weights
from .interpolators import noise_amplification as noise_amplification

# step functions
from .step_functions import best_steps as best_steps
from .step_functions import greedy_steps as greedy_steps
