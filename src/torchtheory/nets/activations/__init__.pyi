# the table
from .table import ACTIVATIONS as ACTIVATIONS
from .table import Activation as Activation
from .table import activation as activation
from .table import as_layer as as_layer
from .table import Pointwise as Pointwise

# derivatives
from .table import nth_derivative as nth_derivative
from .table import logistic_derivative as logistic_derivative
from .table import logistic_derivative_polynomial as logistic_derivative_polynomial
from .table import logit as logit

# properties
from .properties import inspect_activation as inspect_activation
from .properties import ActivationProperties as ActivationProperties
from .properties import applicable_theorems as applicable_theorems

# Gaussian moments
from .moments import second_moment as second_moment
from .moments import squared_slope as squared_slope
