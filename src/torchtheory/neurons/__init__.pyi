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
from .autoencoder import LinearAutoencoder as LinearAutoencoder
