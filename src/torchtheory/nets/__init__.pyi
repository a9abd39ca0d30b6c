# networks
from .feedforward import mlp as mlp
from .feedforward import dense as dense
from .residual.layers import residual_network as residual_network
from .graph import GraphNetwork as GraphNetwork
from .feedforward import parameter_count as parameter_count

# activations
from .activations.table import activation as activation
from .activations.properties import inspect_activation as inspect_activation

# what a network does
from .residual.jacobians import jacobian_profile as jacobian_profile

# symmetries
from .homogeneity import measure_homogeneity as measure_homogeneity
from .symmetries import hidden_layers as hidden_layers
from .symmetries import permute_units as permute_units
from .symmetries import rescale_units as rescale_units
