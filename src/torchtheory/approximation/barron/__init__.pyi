# constants
from .constants import grid_barron_constant as grid_barron_constant
from .constants import radial_barron_constant as radial_barron_constant
from .constants import monte_carlo_barron_constant as monte_carlo_barron_constant
from .constants import BarronEstimate as BarronEstimate
from .constants import root_dimension_bound as root_dimension_bound

# spectra
from .spectra import Spectrum as Spectrum
from .spectra import PlaneWaves as PlaneWaves
from .spectra import GaussianBump as GaussianBump
from .spectra import RidgeSpectrum as RidgeSpectrum
from .fourier_pairs import FourierPair as FourierPair

# sampled networks
from .sampled_networks import barron_network as barron_network
from .sampled_networks import best_network as best_network
from .sampled_networks import units_for_error as units_for_error
from .sampled_networks import SampledNetwork as SampledNetwork
from .sampled_networks import draw_steps as draw_steps
from .stratified_steps import steps_in_strata as steps_in_strata

# Maurey and Carathéodory
from .maurey import maurey_error as maurey_error
from .maurey import compress_network as compress_network
from .caratheodory import few_terms as few_terms
from .caratheodory import prune_units as prune_units

# fixed bases
from .fixed_basis import fourier_basis_error as fourier_basis_error
from .fixed_basis import fixed_basis_floor as fixed_basis_floor
from .fixed_basis import network_beats_every_basis as network_beats_every_basis

# boundaries and sup norms
from .boundaries import barron_classifier as barron_classifier
from .boundaries import BoundaryClassifier as BoundaryClassifier
from .uniform import additive_sup_error as additive_sup_error
from .random_steps import draw_step_pairs as draw_step_pairs
from .random_steps import step_pair_network as step_pair_network
from .random_steps import sampled_exponentials as sampled_exponentials
