# covariances and tangents through a network
from .rules import limit_rules as limit_rules
from .fields import Field as Field
from .fields import Part as Part
from .fields import Raw as Raw

# duals of activations
from .dual_activations import dual_activation as dual_activation
from .dual_activations import dual_moments as dual_moments
from .dual_activations import activation_layer as activation_layer

# topics
from . import duals as duals
