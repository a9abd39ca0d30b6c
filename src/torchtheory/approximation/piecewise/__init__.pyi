# on a line
from .interpolants import relu_interpolant as relu_interpolant
from .interpolants import threshold_interpolant as threshold_interpolant
from .broken_lines import broken_line_network as broken_line_network
from .hats import hat_interpolant as hat_interpolant
from .splines import spline_network as spline_network
from .hp_elements import hp_network as hp_network

# boxes
from .boxes import box_network as box_network
from .boxes import box_indicator as box_indicator
from .boxes import piecewise_constant as piecewise_constant
from .boxes import folklore_size as folklore_size

# finite elements
from .finite_elements import finite_element_network as finite_element_network
from .finite_elements import Mesh as Mesh
from .finite_elements import cube_mesh as cube_mesh
from .finite_elements import line_mesh as line_mesh
from .finite_elements import nodal_network as nodal_network

# smooth functions
from .yarotsky import smooth_network as smooth_network
from .yarotsky import SmoothApproximant as SmoothApproximant
from .yarotsky import taylor_patches as taylor_patches
from .sparse_grids import sparse_grid_network as sparse_grid_network
from .sparse_grids import sparse_grid as sparse_grid
from .sparse_grids import sparse_grid_error as sparse_grid_error

# manifolds
from .manifold_networks import manifold_network as manifold_network
from .manifold_networks import tangent_charts as tangent_charts
from .manifolds import swiss_roll as swiss_roll
from .manifolds import intrinsic_dimension as intrinsic_dimension

# payoffs
from .payoffs import payoff_network as payoff_network
from .payoffs import largest_network as largest_network

# norms of functions
from .function_norms import smooth_norm as smooth_norm
from .function_norms import holder_norm as holder_norm
from .function_norms import box_sobolev_norm as box_sobolev_norm
