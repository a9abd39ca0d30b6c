# how large must a network be
from .rates.budget import size_needed as size_needed
from .depth.narrow import minimal_width as minimal_width
from .universality.chart import which_universality as which_universality

# measuring
from .certificates import measured_error as measured_error
from .certificates import network_size as network_size

# the calculus of networks
from .network_calculus import chain as chain
from .network_calculus import compose as compose
from .network_calculus import stack as stack
from .network_calculus import combine as combine
from .network_calculus import deepen as deepen

# one dimension
from .piecewise.interpolants import relu_interpolant as relu_interpolant
from .universality.cybenko import sigmoid_staircase as sigmoid_staircase

# products and polynomials
from .polynomials.squaring import square_network as square_network
from .polynomials.products import product_network as product_network
from .polynomials.relu import polynomial_network as polynomial_network

# smooth functions
from .piecewise.yarotsky import smooth_network as smooth_network
from .piecewise.finite_elements import finite_element_network as finite_element_network
from .piecewise.sparse_grids import sparse_grid_network as sparse_grid_network

# edges and manifolds
from .dictionaries.horizons import horizon_network as horizon_network
from .dictionaries.cartoon_networks import cartoon_network as cartoon_network
from .piecewise.manifold_networks import manifold_network as manifold_network

# through given points
from .memorization.networks import line_memorizer as line_memorizer
from .memorization.networks import shallow_memorizer as shallow_memorizer
from .memorization.networks import memorizer_parameters as memorizer_parameters

# other architectures
from .piecewise.payoffs import payoff_network as payoff_network
from .architectures.recurrent_simulation import simulate_system as simulate_system

# spectra and sampling
from .barron.sampled_networks import barron_network as barron_network
from .barron.maurey import compress_network as compress_network

# witnesses
from .depth.narrow import level_path as level_path
from .universality.uniform_fit import best_uniform_fit as best_uniform_fit

# topics
from . import architectures as architectures
from . import barron as barron
from . import depth as depth
from . import dictionaries as dictionaries
from . import memorization as memorization
from . import piecewise as piecewise
from . import polynomials as polynomials
from . import rates as rates
from . import universality as universality
