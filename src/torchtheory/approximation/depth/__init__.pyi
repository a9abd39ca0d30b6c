# deep beside shallow
from .comparison import compare_depth as compare_depth
from .comparison import DepthComparison as DepthComparison

# narrow networks
from .narrow import minimal_width as minimal_width
from .narrow import max_min_network as max_min_network
from .narrow import narrow_broken_line as narrow_broken_line
from .narrow import level_path as level_path
from .narrow import fixed_size_floor as fixed_size_floor
from .narrow import sphere_witness as sphere_witness

# radial functions
from .radial import squared_length_network as squared_length_network
from .radial import radial_shells as radial_shells
from .radial import absolute_sum_network as absolute_sum_network
from .band_limited import covered_share as covered_share
from .band_limited import tubes_needed as tubes_needed
from .band_limited import band_limited_root as band_limited_root

# compositions
from .compositional import composite_network as composite_network
from .compositional import tree_network as tree_network
from .compositional import bilinear_network as bilinear_network
from .compositional import SmoothFunction as SmoothFunction

# circuits
from .arithmetic_circuits import DeepCircuit as DeepCircuit
from .arithmetic_circuits import ShallowCircuit as ShallowCircuit
from .arithmetic_circuits import random_deep_circuit as random_deep_circuit
from .arithmetic_circuits import coefficient_tensor as coefficient_tensor
from .arithmetic_circuits import matricization_rank as matricization_rank
from .arithmetic_circuits import best_shallow_circuit as best_shallow_circuit
from .sum_product import SumProductTree as SumProductTree
from .sum_product import expand_tree as expand_tree
from .sum_product import ShallowSumProduct as ShallowSumProduct
