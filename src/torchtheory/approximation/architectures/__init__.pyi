# convolutional
from .convolutional_equivalence import as_convolutional as as_convolutional
from .convolutional_equivalence import as_fully_connected as as_fully_connected
from .filter_factorization import factor_filter as factor_filter
from .filter_factorization import deep_convolutional_network as deep_convolutional_network
from .filter_factorization import sobolev_depth_exponents as sobolev_depth_exponents
from .shift_structure import convolution_matrix as convolution_matrix
from .shift_structure import equivariance_gaps as equivariance_gaps

# on functions
from .function_convnets import CellGrid as CellGrid
from .function_convnets import energy_convnet as energy_convnet
from .function_convnets import inner_product_convnet as inner_product_convnet
from .function_convnets import blur_threshold_convnet as blur_threshold_convnet

# recurrent
from .recurrent_systems import DynamicalSystem as DynamicalSystem
from .recurrent_systems import ShallowRNN as ShallowRNN
from .recurrent_systems import shallow_rnn as shallow_rnn
from .recurrent_simulation import simulate_system as simulate_system
from .recurrent_simulation import euler_system as euler_system
from .recurrent_simulation import recurrent_fit as recurrent_fit
from .recurrent_simulation import error_growth as error_growth
from .recurrent_simulation import memory_profile as memory_profile

# sequences
from .recurrent_sequences import sequence_network as sequence_network
from .recurrent_sequences import fit_sequences as fit_sequences
from .recurrent_sequences import fit_in_probability as fit_in_probability
from .recurrent_sequences import length_stress_test as length_stress_test

# residual
from .residual import ResidualNetwork as ResidualNetwork
from .residual import residual_memorizer as residual_memorizer
from .residual import unroll_residual as unroll_residual
from .residual import radial_network as radial_network

# with shortcuts
from .skip_connections import SkipNetwork as SkipNetwork
from .skip_connections import skip_to_plain as skip_to_plain
from .skip_connections import skip_taylor_network as skip_taylor_network
