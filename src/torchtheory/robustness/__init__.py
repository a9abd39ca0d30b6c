"""Robustness: how much a change of the input can change the output."""

from torchtheory.robustness.lipschitz import LayerNorm, jacobian_norms, layer_norms

__all__ = ["LayerNorm", "jacobian_norms", "layer_norms"]
