"""Expressivity: exact pieces and regions of networks, and what depth and width can say."""

from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.bends import (
    BendWatch,
    Visitor,
    exact_function,
    sample_shape,
    watch_bends,
)
from torchtheory.expressivity.boundary import (
    Boundary,
    class_cells,
    connected_parts,
    decision_boundary,
)
from torchtheory.expressivity.bounds import (
    RegionBounds,
    alternation_floor,
    curvature_floor,
    doubling_bound,
    even_bound,
    least_units,
    montufar_bound,
    most_pieces,
    most_regions,
    region_bounds,
    sawtooth_floor,
)
from torchtheory.expressivity.enumeration import RegionList, enumerate_regions
from torchtheory.expressivity.folding import (
    central_hyperplanes,
    folding_network,
    montufar_network,
    sawtooth_network,
    zigzag_network,
)
from torchtheory.expressivity.hyperplanes import hyperplane_regions, zaslavsky_bound
from torchtheory.expressivity.pieces import Pieces, affine_pieces, bending_points, pieces_along
from torchtheory.expressivity.polygons import (
    Complex,
    areas,
    join_polygons,
    merge_points,
    split_by_lines,
    widths,
)
from torchtheory.expressivity.regions import Box, Polyline, activation_pattern, count_regions
from torchtheory.expressivity.topology import (
    BettiNumbers,
    betti_numbers,
    decision_betti_numbers,
    euler_characteristic,
    most_intervals,
    region_betti_numbers,
)
from torchtheory.expressivity.trajectory import circle, gaussian_network, image_length

__all__ = [
    "Arrangement",
    "BendWatch",
    "BettiNumbers",
    "Boundary",
    "Box",
    "Complex",
    "Pieces",
    "PlaneSlice",
    "Polyline",
    "RegionBounds",
    "RegionList",
    "Visitor",
    "activation_pattern",
    "affine_pieces",
    "alternation_floor",
    "areas",
    "bending_points",
    "betti_numbers",
    "central_hyperplanes",
    "circle",
    "class_cells",
    "connected_parts",
    "count_regions",
    "curvature_floor",
    "decision_betti_numbers",
    "decision_boundary",
    "doubling_bound",
    "enumerate_regions",
    "euler_characteristic",
    "even_bound",
    "exact_function",
    "folding_network",
    "gaussian_network",
    "hyperplane_regions",
    "image_length",
    "join_polygons",
    "least_units",
    "merge_points",
    "montufar_bound",
    "montufar_network",
    "most_intervals",
    "most_pieces",
    "most_regions",
    "pieces_along",
    "plane_arrangement",
    "region_betti_numbers",
    "region_bounds",
    "sample_shape",
    "sawtooth_floor",
    "sawtooth_network",
    "split_by_lines",
    "watch_bends",
    "widths",
    "zaslavsky_bound",
    "zigzag_network",
]
