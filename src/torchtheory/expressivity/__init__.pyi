# pieces on a line
from .pieces import affine_pieces as affine_pieces
from .pieces import pieces_along as pieces_along

# cells and boundary on a plane
from .arrangement import PlaneSlice as PlaneSlice
from .arrangement import plane_arrangement as plane_arrangement
from .boundary import decision_boundary as decision_boundary
from .boundary import class_cells as class_cells
from .boundary import connected_parts as connected_parts

# regions
from .regions import count_regions as count_regions
from .regions import Box as Box
from .regions import Polyline as Polyline
from .enumeration import enumerate_regions as enumerate_regions
from .regions import activation_pattern as activation_pattern
from .hyperplanes import hyperplane_regions as hyperplane_regions

# topology of decision regions
from .topology import region_betti_numbers as region_betti_numbers
from .topology import decision_betti_numbers as decision_betti_numbers

# bounds
from .bounds import region_bounds as region_bounds
from .bounds import most_pieces as most_pieces
from .bounds import most_regions as most_regions
from .bounds import least_units as least_units
from .hyperplanes import zaslavsky_bound as zaslavsky_bound
from .bounds import montufar_bound as montufar_bound
from .bounds import curvature_floor as curvature_floor

# networks that oscillate
from .folding import sawtooth_network as sawtooth_network
from .folding import zigzag_network as zigzag_network
from .folding import folding_network as folding_network
from .folding import montufar_network as montufar_network

# trajectories
from .trajectory import image_length as image_length
