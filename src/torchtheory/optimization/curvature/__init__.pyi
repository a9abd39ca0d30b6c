# operators
from .operators import gradient as gradient
from .operators import hessian_operator as hessian_operator
from .operators import gauss_newton_operator as gauss_newton_operator
from .operators import fisher_operator as fisher_operator
from .operators import empirical_fisher_operator as empirical_fisher_operator

# what a step may be
from .edge_of_stability import stability_limit as stability_limit

# noise of gradients
from .noise_scale import gradient_noise_scale as gradient_noise_scale
from .noise_scale import NoiseScale as NoiseScale
from .layer_noise import gradient_noise_by_layer as gradient_noise_by_layer
from .layer_noise import LayerNoise as LayerNoise
