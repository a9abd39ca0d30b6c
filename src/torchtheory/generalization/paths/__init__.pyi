# the gap by paths
from .gap_decomposition import decompose_gap as decompose_gap
from .gap_decomposition import GapDecomposition as GapDecomposition

# training in two phases
from .two_phase_training import fit_two_phases as fit_two_phases
from .two_phase_training import TwoPhases as TwoPhases
from .two_phase_training import FrozenGates as FrozenGates
from .two_phase_training import gate_pattern as gate_pattern
from .two_phase_training import gated_outputs as gated_outputs
from .two_phase_training import matching_epochs as matching_epochs
from .two_phase_training import first_phase_size as first_phase_size

# its bounds
from .two_phase_bounds import two_phase_gap_bound as two_phase_gap_bound
from .two_phase_bounds import TwoPhaseBound as TwoPhaseBound
from .two_phase_bounds import measure_feature_law as measure_feature_law
from .two_phase_bounds import path_weight_sizes as path_weight_sizes

# its margins
from .two_phase_margins import two_phase_margin_bound as two_phase_margin_bound
from .two_phase_margins import best_two_phase_margin_bound as best_two_phase_margin_bound
from .two_phase_margins import feature_radius as feature_radius
from .two_phase_margins import class_margins as class_margins
from .two_phase_margins import margin_loss as margin_loss
from .two_phase_margins import ball_complexity as ball_complexity
