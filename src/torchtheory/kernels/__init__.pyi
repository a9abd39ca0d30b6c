# the tangent kernel of a network
from .tangent import empirical_ntk as empirical_ntk
from .tangent_operator import ntk_operator as ntk_operator
from .tangent_operator import jacobian_operator as jacobian_operator

# infinite width
from .infinite_width import nngp as nngp
from .infinite_width import ntk as ntk
from .infinite_width import limit_kernel as limit_kernel
from .infinite_width import limit_kernels as limit_kernels
from .infinite_convolution import convolutional_kernels as convolutional_kernels
from .dual_activations import dual_activation as dual_activation

# networks in tangent parametrization
from .parametrization import ntk_mlp as ntk_mlp
from .parametrization import ntk_convolutional as ntk_convolutional

# training in closed form
from .dynamics import KernelTraining as KernelTraining
from .laws import law_of_training as law_of_training
from .linearization import linearize as linearize

# laziness
from .laziness import measure_laziness as measure_laziness
from .laziness import kernel_drift as kernel_drift
from .laziness import kernel_target_alignment as kernel_target_alignment

# kernels
from .functions import gaussian as gaussian
from .functions import laplace as laplace
from .functions import matern as matern
from .functions import linear as linear
from .functions import polynomial as polynomial
from .functions import arc_cosine as arc_cosine
from .functions import from_features as from_features

# kernel learning
from .regression import kernel_least_squares as kernel_least_squares
from .gaussian_process import posterior as posterior
from .random_features import RandomFeatures as RandomFeatures

# paths
from .deep_paths import path_features as path_features
from .path_kernel import path_norms as path_norms
