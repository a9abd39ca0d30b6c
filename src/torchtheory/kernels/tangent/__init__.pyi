# the tangent kernel
from .kernel import empirical_ntk as empirical_ntk
from .operator import ntk_operator as ntk_operator
from .operator import jacobian_operator as jacobian_operator

# training in closed form
from .dynamics import KernelTraining as KernelTraining
from .dynamics import FlowRule as FlowRule
from .dynamics import DescentRule as DescentRule
from .dynamics import HeavyBallRule as HeavyBallRule
from .laws import law_of_training as law_of_training

# linearization
from .linearization import linearize as linearize
from .linearization import LinearizedModel as LinearizedModel
from .linearization import directional_derivative as directional_derivative
from .linearization import linearization_gap as linearization_gap
from .linearization import two_layer_gap_bound as two_layer_gap_bound
from .linearization import activation_smoothness as activation_smoothness

# laziness
from .laziness import measure_laziness as measure_laziness
from .laziness import Laziness as Laziness
from .laziness import kernel_drift as kernel_drift
from .laziness import kernel_target_alignment as kernel_target_alignment
