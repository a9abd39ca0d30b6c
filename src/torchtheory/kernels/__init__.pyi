# the tangent kernel of a network
from .tangent.kernel import empirical_ntk as empirical_ntk
from .tangent.operator import ntk_operator as ntk_operator
from .tangent.operator import jacobian_operator as jacobian_operator

# infinite width
from .infinite.dense import nngp as nngp
from .infinite.dense import ntk as ntk
from .infinite.module_kernels import limit_kernel as limit_kernel
from .infinite.module_kernels import module_limit as module_limit
from .infinite.dense import limit_kernels as limit_kernels
from .infinite.convolution import convolutional_kernels as convolutional_kernels

# networks in tangent parametrization
from .infinite.parametrization import ntk_mlp as ntk_mlp
from .infinite.parametrization import ntk_convolutional as ntk_convolutional

# training in closed form
from .tangent.dynamics import KernelTraining as KernelTraining
from .tangent.laws import law_of_training as law_of_training
from .tangent.linearization import linearize as linearize

# laziness
from .tangent.laziness import measure_laziness as measure_laziness
from .tangent.laziness import kernel_drift as kernel_drift
from .tangent.laziness import kernel_target_alignment as kernel_target_alignment

# kernels
from .learning.functions import gaussian as gaussian
from .learning.functions import laplace as laplace
from .learning.functions import matern as matern
from .learning.functions import linear as linear
from .learning.functions import polynomial as polynomial
from .learning.functions import arc_cosine as arc_cosine
from .learning.functions import from_features as from_features

# kernel learning
from .learning.regression import kernel_least_squares as kernel_least_squares
from .learning.gaussian_process import posterior as posterior
from .learning.random_features import RandomFeatures as RandomFeatures

# paths
from .paths.deep_paths import path_features as path_features
from .paths.path_kernel import path_norms as path_norms

# topics
from . import tangent as tangent
from . import infinite as infinite
from . import learning as learning
from . import paths as paths
