# descent with a certificate
from .descent.iterates import gradient_descent as gradient_descent
from .certificates.certify import certify as certify
from .certificates.assumptions import Assumptions as Assumptions
from .certificates.recorded_runs import record_points as record_points
from .certificates.recorded_runs import record_optimizer as record_optimizer

# curvature of a network
from .curvature.operators import gradient as gradient
from .curvature.operators import hessian_operator as hessian_operator
from .curvature.operators import gauss_newton_operator as gauss_newton_operator
from .curvature.operators import fisher_operator as fisher_operator
from .curvature.operators import empirical_fisher_operator as empirical_fisher_operator
from .curvature.edge_of_stability import stability_limit as stability_limit

# landscapes and paths
from .landscape.slices import loss_slice as loss_slice
from .landscape.slices import random_directions as random_directions
from .landscape.slices import eigen_directions as eigen_directions
from .landscape.parameter_space import point_vector as point_vector
from .landscape.parameter_space import segment_losses as segment_losses
from .landscape.trained_paths import bend_path as bend_path
from .landscape.low_loss_paths import path_losses as path_losses

# critical points
from .landscape.critical_points import critical_point as critical_point
from .landscape.network_points import classify_network as classify_network
from .linear_networks.two_layer_critical_points import (
    linear_critical_points as linear_critical_points,
)
from .linear_networks.deep_saddles import deep_saddle_report as deep_saddle_report

# global optimality
from .parallel_networks.nuclear_norm import factorize_with_decay as factorize_with_decay
from .parallel_networks.factorization_certificates import (
    certify_factorization as certify_factorization,
)
from .parallel_networks.network_certificates import certify_network as certify_network

# gradients at initialization and their noise
from .initial_scale import initialization_report as initialization_report
from .initial_scale import fresh_growths as fresh_growths
from .curvature.noise_scale import gradient_noise_scale as gradient_noise_scale

# gradient flow
from .descent.flow import gradient_flow as gradient_flow

# topics
from . import certificates as certificates
from . import curvature as curvature
from . import descent as descent
from . import landscape as landscape
from . import linear_networks as linear_networks
from . import parallel_networks as parallel_networks
