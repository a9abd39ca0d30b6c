# kernels of infinite width
from .dense import nngp as nngp
from .dense import ntk as ntk
from .module_kernels import limit_kernel as limit_kernel
from .module_kernels import module_limit as module_limit
from .dense import dense_limit_kernel as dense_limit_kernel
from .dense import limit_kernels as limit_kernels
from .dense import LimitKernels as LimitKernels
from .convolution import convolutional_kernels as convolutional_kernels

# networks in tangent parametrization
from .parametrization import ntk_mlp as ntk_mlp
from .parametrization import ntk_convolutional as ntk_convolutional
from .parametrization import ScaledLinear as ScaledLinear
from .parametrization import ScaledConv2d as ScaledConv2d

# Gram matrices
from .two_layer import TwoLayerNetwork as TwoLayerNetwork
from .two_layer import sampled_gram as sampled_gram
from .two_layer import expected_gram as expected_gram
from .two_layer import relu_gram_limit as relu_gram_limit
from .gram_concentration import compare_gram as compare_gram
from .gram_concentration import weyl_bounds as weyl_bounds
from .gram_concentration import gram_radius as gram_radius
from .gram_concentration import width_for_accuracy as width_for_accuracy

# wide networks
from .wide_convergence import wide_network as wide_network
from .wide_convergence import wide_descent as wide_descent
from .wide_convergence import gradient_domination as gradient_domination
from .wide_convergence import ratio_in_ball as ratio_in_ball
from .wide_convergence import step_size_limit as step_size_limit
from .wide_layer import fit_last_layer as fit_last_layer
from .wide_layer import layer_ranks as layer_ranks
from .wide_layer import last_layer_path as last_layer_path
