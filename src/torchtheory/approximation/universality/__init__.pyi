# which theorem applies
from .chart import which_universality as which_universality
from .chart import UniversalityTheorem as UniversalityTheorem

# sigmoids
from .cybenko import sigmoid_staircase as sigmoid_staircase
from .cybenko import soft_indicator as soft_indicator
from .decision_functions import half_space_unit as half_space_unit
from .discriminatory import discriminatory_test as discriminatory_test

# sums of units
from .fourier_networks import fourier_network as fourier_network
from .fourier_networks import squashed_cosine as squashed_cosine
from .stone_weierstrass import CosineNetwork as CosineNetwork
from .stone_weierstrass import algebra_conditions as algebra_conditions
from .discriminatory import ridge_units as ridge_units
from .discriminatory import polynomial_rank as polynomial_rank
from .ridge_sums import monomial_as_ridges as monomial_as_ridges
from .ridge_sums import ridge_interval as ridge_interval
from .ridge_sums import lift_networks as lift_networks

# superpositions
from .superpositions import fit_superposition as fit_superposition
from .superpositions import superposition_step as superposition_step
from .superpositions import inner_functions as inner_functions
from .superpositions import two_scale_superposition as two_scale_superposition

# deeper networks
from .identity_layers import deepen_on_box as deepen_on_box
from .approximate_identity import deepen_approximately as deepen_approximately
from .approximate_identity import identity_network as identity_network

# mollified activations
from .mollified_activations import mollified_activation as mollified_activation
from .mollified_activations import smooth_bump as smooth_bump
from .mollified_activations import smoothed_relu_power as smoothed_relu_power

# best fits
from .uniform_fit import best_uniform_fit as best_uniform_fit
from .uniform_fit import span_error as span_error
from .uniform_fit import random_units as random_units
