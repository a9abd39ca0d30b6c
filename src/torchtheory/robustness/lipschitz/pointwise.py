"""Suprema of the slopes of functions that act on each entry alone."""

from __future__ import annotations

from torch import nn

from torchtheory.core.errors import UnsupportedModel

#: Of layers without parameters, and the largest factor of softmax.
SLOPES: dict[type[nn.Module], float] = {
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Hardtanh: 1.0,
    nn.Tanh: 1.0,
    nn.Sigmoid: 0.25,
    nn.LogSigmoid: 1.0,
    nn.Softplus: 1.0,
    nn.Softsign: 1.0,
    nn.Tanhshrink: 1.0,
    nn.Softshrink: 1.0,
    nn.Hardswish: 1.5,  # just below x = 3
    nn.Hardsigmoid: 1 / 6,
    nn.SiLU: 1.09984,  # at x = 2.39936
    nn.Mish: 1.08850,  # at x = 1.49063
    nn.SELU: 1.0507009873554805 * 1.6732632423543772,  # the slope just below 0
    nn.Softmax: 0.5,
}
#: From here on torch takes x for softplus, and what it leaves out is 2e-9 at most.
_NO_STEP = 20.0
_GELU = {"none": 1.12891, "tanh": 1.129}  # at x = 1.41421 and x = 1.41850


def pointwise_constant(module: nn.Module) -> float:
    """The Lipschitz constant of an activation.

    >>> pointwise_constant(nn.LeakyReLU(-3.0)), pointwise_constant(nn.Sigmoid())
    (3.0, 0.25)

    Raises:
        UnsupportedModel: if it is none whose constant is known.
    """
    if isinstance(module, nn.LeakyReLU):
        return max(1.0, abs(module.negative_slope))
    if isinstance(module, nn.ELU):
        return max(1.0, abs(module.alpha))
    if isinstance(module, nn.CELU) and module.alpha > 0:
        return 1.0
    if isinstance(module, nn.Softplus) and module.threshold < _NO_STEP:
        raise UnsupportedModel(
            f"softplus with the threshold {module.threshold:g} jumps there, so that it has no "
            f"Lipschitz constant: use at least {_NO_STEP:g}"
        )
    if isinstance(module, nn.GELU):
        return _GELU[module.approximate]
    if isinstance(module, nn.PReLU):
        return max(1.0, float(module.weight.detach().abs().max()))
    if type(module) in SLOPES:
        return SLOPES[type(module)]
    raise UnsupportedModel(f"no Lipschitz constant of {type(module).__name__} is known here")
