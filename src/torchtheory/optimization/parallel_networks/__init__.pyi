# networks
from .subnetworks import ParallelNetwork as ParallelNetwork
from .subnetworks import parallel_network as parallel_network
from .subnetworks import Subnetwork as Subnetwork
from .subnetworks import relu_unit as relu_unit
from .subnetworks import linear_unit as linear_unit
from .subnetworks import deep_subnetwork as deep_subnetwork
from .subnetworks import split_hidden_units as split_hidden_units

# certificates of global optimality
from .network_certificates import certify_network as certify_network
from .network_certificates import NetworkCertificate as NetworkCertificate
from .network_certificates import grow_network as grow_network
from .factorization_certificates import certify_factorization as certify_factorization
from .factorization_certificates import FactorizationCertificate as FactorizationCertificate
from .factorization_certificates import grow_factorization as grow_factorization

# factorizations with decay
from .nuclear_norm import factorize_with_decay as factorize_with_decay
from .nuclear_norm import balanced_factors as balanced_factors
from .nuclear_norm import threshold_singular_values as threshold_singular_values

# the convex problem below
from .induced_regularizer import induced_penalty as induced_penalty
from .induced_regularizer import InducedPenalty as InducedPenalty
from .polar_problems import polar as polar
from .polar_problems import Polar as Polar

# degrees
from .nondegenerate_pairs import check_pair as check_pair
from .nondegenerate_pairs import match_degrees as match_degrees
from .nondegenerate_pairs import degree_of as degree_of
from .nondegenerate_pairs import layers_that_break as layers_that_break

# paths that never climb
from .nonincreasing_paths import nonincreasing_path as nonincreasing_path
from .nonincreasing_paths import required_width as required_width
from .nonincreasing_paths import slide_to_zero as slide_to_zero
