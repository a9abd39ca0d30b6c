# kernels
from .functions import Kernel as Kernel
from .functions import linear as linear
from .functions import polynomial as polynomial
from .functions import gaussian as gaussian
from .functions import laplace as laplace
from .functions import matern as matern
from .functions import arc_cosine as arc_cosine
from .functions import from_features as from_features
from .functions import cosine_normalized as cosine_normalized
from .functions import kernel_operator as kernel_operator

# regression
from .regression import kernel_least_squares as kernel_least_squares
from .regression import KernelFit as KernelFit

# Gaussian processes
from .gaussian_process import posterior as posterior
from .gaussian_process import Posterior as Posterior
from .gaussian_process import sample_paths as sample_paths

# random features
from .random_features import RandomFeatures as RandomFeatures
from .random_features import CosineSine as CosineSine

# complexity of labels
from .complexity import label_complexity as label_complexity
from .complexity import squared_kernel_norm as squared_kernel_norm
from .complexity import linear_target_complexity as linear_target_complexity
