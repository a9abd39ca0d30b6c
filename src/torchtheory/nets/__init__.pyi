# networks
from .feedforward import mlp as mlp
from .feedforward import dense as dense
from .residual.layers import residual_network as residual_network
from .graph import GraphNetwork as GraphNetwork
from .autoencoder import LinearAutoencoder as LinearAutoencoder
from .feedforward import parameter_count as parameter_count

# activations
from .activations import activation as activation
from .activation_properties import inspect_activation as inspect_activation

# what a network does
from .chain import as_chain as as_chain
from .watching import watch_units as watch_units
from .watching import watch_signals as watch_signals

from .residual.jacobians import jacobian_profile as jacobian_profile

# convolutions and what they commute with
from .equivariance.measure import measure_equivariance as measure_equivariance
from .equivariance.layers import equivariance_by_layer as equivariance_by_layer
from .convolutional.shift_equivariant import is_convolution as is_convolution
from .convolutional.spectra import convolution_singular_values as convolution_singular_values
from .convolutional.receptive_fields import receptive_fields as receptive_fields

# symmetries
from .homogeneity import measure_homogeneity as measure_homogeneity
from .symmetries import hidden_layers as hidden_layers
from .symmetries import permute_units as permute_units
from .symmetries import rescale_units as rescale_units

# threshold neurons and separability
from .threshold_neuron import ThresholdNeuron as ThresholdNeuron
from .perceptron import perceptron_fit as perceptron_fit
from .separability import separate as separate
from .separability import max_margin as max_margin
from .dichotomies import count_dichotomies as count_dichotomies

# associative memories
from .hopfield import Hopfield as Hopfield
from .hopfield import hebbian as hebbian

# regression
from .regression import least_squares as least_squares
from .regression import logistic_regression as logistic_regression
