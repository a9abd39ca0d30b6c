# threshold neurons
from .threshold_neuron import ThresholdNeuron as ThresholdNeuron
from .threshold_neuron import logic_gate as logic_gate
from .threshold_neuron import truth_table as truth_table
from .threshold_neuron import count_neuron_functions as count_neuron_functions

# perceptrons
from .perceptron import Perceptron as Perceptron
from .perceptron import perceptron_fit as perceptron_fit
from .perceptron import novikoff_bound as novikoff_bound

# separability
from .separability import separate as separate
from .separability import max_margin as max_margin
from .separability import minimum_norm_point as minimum_norm_point
from .representations import layerwise_separability as layerwise_separability

# dichotomies
from .dichotomies import count_dichotomies as count_dichotomies
from .dichotomies import realizable_dichotomies as realizable_dichotomies
from .dichotomies import cover_count as cover_count
from .dichotomies import capacity_curve as capacity_curve

# associative memories
from .hopfield import Hopfield as Hopfield
from .hopfield import hebbian as hebbian
from .hopfield_capacity import capacity_sweep as capacity_sweep
from .hopfield_capacity import hopfield_bit_error as hopfield_bit_error
from .hopfield_capacity import pattern_capacity as pattern_capacity
from .dense_memory import DenseMemory as DenseMemory
from .dense_memory import dense_capacity as dense_capacity
from .dense_memory import modern_hopfield_update as modern_hopfield_update

# regression
from .regression import least_squares as least_squares
from .regression import logistic_regression as logistic_regression
from .ridge import find_ridge as find_ridge
from .autoencoder import LinearAutoencoder as LinearAutoencoder
from .autoencoder import low_rank as low_rank
from .softmax import softmax_jacobian as softmax_jacobian
from .sigmoid_network import SigmoidPerceptron as SigmoidPerceptron
