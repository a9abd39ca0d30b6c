"""Robustness: how much a change of the input can change the output."""

from torchtheory.robustness.lipschitz import LayerNorm, jacobian_norms, layer_norms
from torchtheory.robustness.margin_certificates import boundary_distances, certified_radii

__all__ = [
    "LayerNorm",
    "boundary_distances",
    "certified_radii",
    "jacobian_norms",
    "layer_norms",
]
