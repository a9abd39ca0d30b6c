# networks
from .feedforward import mlp as mlp
from .feedforward import dense as dense
from .residual.layers import residual_network as residual_network
from .residual.layers import DenselyConnected as DenselyConnected
from .graph import GraphNetwork as GraphNetwork
from .maxout import Maxout as Maxout
from .image_networks import lenet as lenet
from .residual.image_resnets import resnet as resnet
from .residual.image_resnets import resnet9 as resnet9
from .feedforward import parameter_count as parameter_count
from .drawings import draw_architecture as draw_architecture

# activations
from .activations.table import activation as activation
from .activations.properties import inspect_activation as inspect_activation
from .activations.properties import applicable_theorems as applicable_theorems

# what a network does
from .residual.jacobians import jacobian_profile as jacobian_profile
from .residual.jacobians import gradient_profile as gradient_profile
from .linear_networks import probe_linearity as probe_linearity
from .linear_networks import collapse_linear as collapse_linear
from .residual.euler import resnet_from_ode as resnet_from_ode
from .initialization_laws import compare_with_fresh_draws as compare_with_fresh_draws

# symmetries
from .homogeneity import measure_homogeneity as measure_homogeneity
from .symmetries import hidden_layers as hidden_layers
from .symmetries import permute_units as permute_units
from .symmetries import rescale_units as rescale_units
from .symmetries import canonical_form as canonical_form
from .symmetries import permutation_distance as permutation_distance

# normalization and biases
from .normalization import standardize as standardize
from .batch_norm_smoothing import batch_norm_smoothing as batch_norm_smoothing
from .biases import absorb_biases as absorb_biases
from .conversion import convert_activation as convert_activation

# topics
from . import activations as activations
from . import residual as residual
from . import infinite_width as infinite_width
