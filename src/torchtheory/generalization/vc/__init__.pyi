# growth and shattering
from .growth import growth_on as growth_on
from .growth import shatters as shatters
from .growth import shattered_subsets as shattered_subsets
from .growth import vc_dimension_on as vc_dimension_on
from .growth import sauer_bound as sauer_bound

# classes
from .growth import thresholds as thresholds
from .growth import signed_thresholds as signed_thresholds
from .growth import intervals as intervals
from .growth import rectangles as rectangles
from .growth import halfspaces as halfspaces
from .growth import homogeneous_halfspaces as homogeneous_halfspaces
from .growth import growth_thresholds as growth_thresholds
from .growth import growth_intervals as growth_intervals
from .growth import growth_halfspaces as growth_halfspaces

# bounds
from .bounds import growth_radius as growth_radius
from .bounds import vc_radius as vc_radius
from .bounds import vc_sample_size as vc_sample_size
from .bounds import vc_rate as vc_rate

# networks
from .networks import network_vc_bound as network_vc_bound
from .networks import piecewise_linear_vc_order as piecewise_linear_vc_order
from .networks import log2_network_growth_bound as log2_network_growth_bound
from .networks import anthony_bartlett_vc_bound as anthony_bartlett_vc_bound
from .parameter_counting import count_parameters_bounds as count_parameters_bounds
from .parameter_counting import log10_parameters_needed as log10_parameters_needed

# witnesses
from .shattering import linear_shattering as linear_shattering
from .shattering import radon_partition as radon_partition
from .shattering import relu_shattering as relu_shattering
from .hypothesis_sets import all_labelings as all_labelings
from .hypothesis_sets import threshold_network_labelings as threshold_network_labelings
