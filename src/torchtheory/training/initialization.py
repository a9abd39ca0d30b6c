r"""How the weights of a layer are drawn before training: a table of variances, and orthogonality.

For a layer with $n$ inputs (fan-in) and $m$ outputs (fan-out) of one unit's
connections, $W\in\mathbb R^{m\times n}$ has independent entries of mean 0 and variance

- LeCun, $1/n$: keeps the variance of what goes forward through a linear layer
- Xavier, $2/(n+m)$: compromise between $1/n$ forward and $1/m$ backward
- He, $2/n$: keeps the second moment through ReLU, which halves it
- a number, $\sigma^2$: the variance itself

or is orthogonal: its singular values are all 1. Source: Deep Learning (notes), section 8.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from torchtheory.core.checks import as_module, one_of, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.moments import Function, second_moment

Named = Literal["lecun", "xavier", "he", "orthogonal"]
Scheme = Named | float
Distribution = Literal["normal", "uniform"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_WEIGHTED = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)


@dataclass(frozen=True, slots=True)
class LayerDraw:
    r"""What was drawn for one layer.

    Attributes:
        name: the layer's name in the model ("" for the model itself).
        shape: of its weight.
        fan_in: connections that arrive at one output.
        fan_out: connections that leave one input (a stride is not counted).
        variance: of an entry.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    variance: float

    @property
    def forward_gain(self) -> float:
        r"""$n\sigma^2$, by which the layer multiplies second moments going forward."""
        return self.fan_in * self.variance

    @property
    def backward_gain(self) -> float:
        r"""$m\sigma^2$, by which it multiplies those of the gradient going back."""
        return self.fan_out * self.variance


@dataclass(frozen=True, slots=True)
class Initialization:
    """What `initialize` did.

    Attributes:
        layers: one row per layer that was drawn, in the order of the model.
        untouched: names of the parameters that were left alone (those of normalization layers,
            embeddings, recurrent layers and the like).
    """

    layers: tuple[LayerDraw, ...]
    untouched: tuple[str, ...]


def weight_variance(
    scheme: Scheme, fan_in: int, fan_out: int, *, activation: Function = "relu"
) -> float:
    r"""Variance of one entry of the weight: the module's table.

    Args:
        scheme: a name of the table, or the variance itself. An entry of an orthogonal
            $m\times n$ matrix has mean square $1/\max(m,n)$.
        activation: used by `"he"` alone, whose general form is
            $1/(n\,\mathbb E\varrho(Z)^2)$ with $Z$ standard normal: 2/n for ReLU.

    >>> round(weight_variance("he", 8, 4), 6), round(weight_variance("xavier", 8, 4), 6)
    (0.25, 0.166667)
    """
    for fan, name in ((fan_in, "fan_in"), (fan_out, "fan_out")):
        whole_number(fan, name, least=1)
    if isinstance(scheme, str):
        match scheme:
            case "lecun":
                return 1 / fan_in
            case "xavier":
                return 2 / (fan_in + fan_out)
            case "he":
                return 1 / (fan_in * _unit_moment(activation))
            case "orthogonal":
                return 1 / max(fan_in, fan_out)
        raise UnknownName("initialization", scheme, get_args(Named))
    if isinstance(scheme, bool) or not isinstance(scheme, int | float):
        raise InvalidType(f"an initialization is a name or a variance, not {scheme!r}")
    if not (math.isfinite(scheme) and scheme >= 0):
        raise InvalidInput(f"a variance is a finite number >= 0, not {scheme!r}")
    return float(scheme)


def draw_weight(
    shape: Sequence[int],
    scheme: Scheme,
    *,
    distribution: Distribution = "normal",
    activation: Function = "relu",
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    r"""Weights `[m, n]`, or a stack of such matrices `[..., m, n]`.

    `"normal"` is $N(0,\sigma^2)$ and `"uniform"` is
    $U[-\sqrt3\sigma,\sqrt3\sigma]$: both have variance $\sigma^2$. An orthogonal matrix
    (orthonormal rows or columns where it is not square) is uniformly distributed among them: the
    $Q$ of a Gaussian matrix, with the signs of $R$'s diagonal taken out. Time
    $O(mn)$ a matrix, $O(mn\min(m,n))$ if orthogonal.

    >>> w = draw_weight((3, 5), "orthogonal")
    >>> torch.allclose(w @ w.T, torch.eye(3, dtype=torch.float64))
    True
    >>> bool(draw_weight((100, 3), "lecun", distribution="uniform").abs().max() <= 1)
    True
    """
    if len(shape) < 2 or any(isinstance(s, bool) or s < 1 for s in shape):
        raise InvalidInput(f"the shape of a weight is (..., m, n), each at least 1, not {shape}")
    m, n = shape[-2:]
    variance = weight_variance(scheme, n, m, activation=activation)
    return _draw(tuple(shape), scheme, variance, distribution, generator, dtype).to(device)


def initialize(
    model: nn.Module,
    scheme: Scheme,
    *,
    distribution: Distribution = "normal",
    activation: Function = "relu",
    generator: RandomSource = None,
) -> Initialization:
    r"""Draw the weights of every dense and convolutional layer anew, and set their biases to 0.

    This changes `model` in place: that is its purpose. Everything is checked before the first
    number is drawn, so that an error leaves the model as it was. In a convolution of kernel size
    $k$ with $g$ groups one output is fed by $n=kc_{\rm in}/g$ numbers and one
    input feeds $m=kc_{\rm out}/g$; an orthogonal one is orthogonal group by group.

    Args:
        model: any module.
        scheme: a name of `weight_variance`'s table, or a variance.
        distribution: of the entries; without effect on `"orthogonal"`.
        activation: what `"he"` compensates for.
        generator: generator or seed.

    >>> net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    >>> done = initialize(net, "he")
    >>> [(layer.name, layer.fan_in, round(layer.forward_gain, 6)) for layer in done.layers]
    [('0', 8, 2.0), ('3', 4, 2.0)]
    >>> done.untouched
    ('1.weight', '1.bias')
    """
    as_module(model)
    one_of(distribution, "distribution", get_args(Distribution))
    generator = as_generator(generator)
    found: list[tuple[nn.Module, LayerDraw]] = []
    drawn: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, _WEIGHTED) or id(module.weight) in drawn:
            continue
        _refuse_undrawable(name, module)
        fan_in, fan_out = fans(module)
        variance = weight_variance(scheme, fan_in, fan_out, activation=activation)
        shape = tuple(module.weight.shape)
        found.append((module, LayerDraw(name, shape, fan_in, fan_out, variance)))
        drawn |= {id(p) for p in module.parameters(recurse=False)}
    if not found:
        raise UnsupportedModel(
            f"{type(model).__name__} has no dense or convolutional layer to draw"
        )
    for module, layer in found:
        assert isinstance(module, _WEIGHTED)
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        rows = layer.shape[0] // groups
        matrices = (groups, rows, math.prod(layer.shape[1:]))
        weight = _draw(
            matrices, scheme, layer.variance, distribution, generator, module.weight.dtype
        )
        with torch.no_grad():
            module.weight.copy_(weight.reshape(layer.shape))
            if module.bias is not None:
                module.bias.zero_()
    rest = tuple(name for name, p in model.named_parameters() if id(p) not in drawn)
    return Initialization(tuple(layer for _, layer in found), rest)


def fans(layer: nn.Module) -> tuple[int, int]:
    """Connections that arrive at one output, and that leave one input, of a layer.

    >>> fans(nn.Linear(5, 3)), fans(nn.Conv2d(8, 16, 3)), fans(nn.Conv2d(8, 16, 3, groups=4))
    ((5, 3), (72, 144), (18, 36))
    """
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSED)):
        size = math.prod(layer.kernel_size)
        return (
            size * layer.in_channels // layer.groups,
            size * layer.out_channels // layer.groups,
        )
    raise UnsupportedModel(f"{type(layer).__name__} is neither a dense nor a convolutional layer")


def _draw(
    shape: tuple[int, ...],
    scheme: Scheme,
    variance: float,
    distribution: Distribution,
    generator: RandomSource,
    dtype: torch.dtype,
) -> Tensor:
    """A stack of matrices `[..., m, n]` on the generator's device."""
    one_of(distribution, "distribution", get_args(Distribution))
    if not dtype.is_floating_point:
        raise InvalidType(f"weights are real numbers, and {dtype} does not hold them")
    generator = as_generator(generator)
    # neither QR nor torch's own initializers are exact enough in half precision
    precise = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    weight = torch.empty(shape, dtype=precise, device=generator.device)
    if scheme == "orthogonal":
        for matrix in weight.view(-1, *shape[-2:]):
            nn.init.orthogonal_(matrix, generator=generator)
    elif distribution == "normal":
        nn.init.normal_(weight, std=math.sqrt(variance), generator=generator)
    else:
        end = math.sqrt(3 * variance)
        nn.init.uniform_(weight, -end, end, generator=generator)
    return weight.to(dtype)


def _unit_moment(activation: Function) -> float:
    moment = float(second_moment(activation, torch.ones((), dtype=torch.float64)))
    if not (math.isfinite(moment) and moment > 0):
        raise InvalidInput(
            f"an activation with E f(Z)^2 = {moment} has no variance that would keep its scale"
        )
    return moment


def _refuse_undrawable(name: str, module: nn.Module) -> None:
    where = name or type(module).__name__
    if is_parametrized(module):
        raise UnsupportedModel(
            f"{where} has a parametrized weight (weight or spectral normalization), which cannot "
            "be drawn directly; initialize it before it is parametrized"
        )
    for parameter in module.parameters(recurse=False):
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
            raise UnsupportedModel(
                f"{where} holds no values yet (lazy, or on the meta device); give it some first"
            )
        if not parameter.is_floating_point():
            raise UnsupportedModel(f"the weight of {where} is {parameter.dtype}, not real numbers")
