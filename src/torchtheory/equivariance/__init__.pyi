# actions on inputs
from .actions import translations as translations
from .actions import rotations as rotations
from .actions import flips as flips
from .actions import roto_translations as roto_translations
from .actions import permutations as permutations
from .actions import Actions as Actions
from .actions import Grid as Grid

# finite groups
from .groups import FiniteGroup as FiniteGroup
from .groups import finite_group as finite_group
from .groups import cyclic_group as cyclic_group
from .groups import product_group as product_group
from .groups import dihedral_group as dihedral_group
from .groups import symmetric_group as symmetric_group
from .groups import group_convolve as group_convolve
from .groups import group_cross_correlate as group_cross_correlate
from .groups import group_convolution_matrix as group_convolution_matrix
from .groups import group_characters as group_characters

# what a network commutes with
from .measure import measure_equivariance as measure_equivariance
from .layers import equivariance_by_layer as equivariance_by_layer
from .measure import equivariance_defect as equivariance_defect

# made equivariant
from .average import group_average as group_average
from .average import GroupAverage as GroupAverage
from .universality import subsampled_network as subsampled_network
