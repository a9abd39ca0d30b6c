r"""Lipschitz constants of small networks by semidefinite programming.

The product of the layers' norms lets every layer stretch along its worst direction. LipSDP
(Fazlyab, Robey, Hassani, Morari and Pappas 2019) knows that a unit with slopes in $[\alpha,\beta]$
takes $\Delta z$ to $\Delta x$ with

$$
(\Delta x-\alpha\,\Delta z)(\beta\,\Delta z-\Delta x)\ge0 ,
$$

weighs these inequalities by multipliers $T_1,\dots,T_h\ge0$, diagonal, one entry per unit, and
eliminates the units from the last layer to the first. With weights $W_1,\dots,W_{h+1}$,

$$
S_h=2T_h-W_{h+1}^\top W_{h+1},\qquad
S_l=2T_l-Q_{l+1},\qquad
Q_l=W_l^\top\bigl((\alpha+\beta)^2T_lS_l^{-1}T_l-2\alpha\beta\,T_l\bigr)W_l ,
$$

the Lipschitz constant in the Euclidean norm is at most $\sqrt{\lambda_{\max}(Q_1)}$ for *any*
multipliers that make all $S_l$ positive definite. So every step of the search for the best ones
gives a bound, and stopping early costs tightness, never truth. It starts where the bound is that of
the norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.budget import time_left
from torchtheory.core.checks import all_finite, module_with_values, whole_number
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.progress import track
from torchtheory.models.untouched import copied
from torchtheory.robustness.lipschitz.pointwise import pointwise_constant
from torchtheory.tracing.chain import Average, Rearrangement, Transposition, as_chain

#: Units of a layer, and entries of an input, up to which the matrices are small.
LARGEST = 2000

#: Room for rounding: bounds are this much larger, relatively, than what was computed.
_ROOM = 1e-9

_AFFINE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
    nn.ConvTranspose3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Flatten,
    nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    Rearrangement, Average, Transposition,
)  # fmt: skip

#: Functions that never fall, so that their least slope is at least 0.
_RISING = (
    nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign,
    nn.Tanhshrink, nn.Softshrink, nn.Hardsigmoid, nn.SELU, nn.CELU,
)  # fmt: skip

#: The least slope of Mish, at x = -2.25638, rounded down.
_MISH = -0.112527


@dataclass(frozen=True, slots=True)
class SemidefiniteBound:
    """A bound of the Lipschitz constant in the Euclidean norm, and what proves it.

    Attributes:
        constant: the bound.
        product: of the norms of the layers and the slopes between them: where the search began.
        multipliers: one tensor `[units]` per layer of units; see `bound_of_multipliers`.
    """

    constant: float
    product: float
    multipliers: tuple[Tensor, ...]

    def __float__(self) -> float:
        return self.constant


def semidefinite_lipschitz(
    model: nn.Module, input_shape: Sequence[int], *, steps: int = 200
) -> SemidefiniteBound:
    r"""An upper bound of $\sup\|f(x)-f(x')\|/\|x-x'\|$ of a chain of layers, by LipSDP.

    Costs `steps` decompositions of matrices as large as the layers: seconds for hundreds of units.
    It ends sooner where a time is planned for it (`core.budget.within`).

    Args:
        model: affine layers (linear, convolution, normalization in evaluation mode, average
            pooling) with activations between them, in one chain.
        input_shape: of one sample.
        steps: of the search.

    Raises:
        UnsupportedModel: if it is no such chain, or a layer has more than 2000 units.

    >>> a = torch.diag(torch.tensor([1.0, 3.0]))
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    >>> _ = net[0].weight.data.copy_(a), net[2].weight.data.copy_(a.flip(0, 1))
    >>> found = semidefinite_lipschitz(net, (2,))
    >>> round(found.constant, 3), round(found.product, 3)       # units of slope 1 or 3, never both
    (3.0, 9.0)
    """
    module_with_values(model)
    whole_number(steps, "steps", least=1)
    weights, slopes = affine_pieces(model, input_shape)
    for weight in weights:
        all_finite(weight, "a weight of the model")
    if not slopes:
        norm = float(torch.linalg.matrix_norm(weights[0], 2)) * (1 + _ROOM)
        return SemidefiniteBound(norm, norm, ())
    logs = [t.log() for t in _first_multipliers(weights, slopes)]
    best, chosen = _value(weights, slopes, [v.exp() for v in logs]), [v.clone() for v in logs]
    product = _product(weights, slopes)
    rate = 0.1
    moments = [(torch.zeros_like(v), torch.zeros_like(v)) for v in logs]
    for k in track(range(1, steps + 1), "semidefinite"):
        if time_left() <= 0:  # what has been found is a bound
            break
        own = [v.detach().requires_grad_(True) for v in logs]
        # a smooth maximum of the eigenvalues, sharper from step to step
        bent = 0.3 * (1e-3 / 0.3) ** (k / steps)
        value = _squared(weights, slopes, [v.exp() for v in own], bent)
        if value is None:  # outside: back to the best, with shorter steps
            logs, rate = [v.clone() for v in chosen], rate / 2
            moments = [(torch.zeros_like(v), torch.zeros_like(v)) for v in logs]
            continue
        gradients = torch.autograd.grad(value.log(), own)
        for i, g in enumerate(gradients):
            first, second = moments[i]
            moments[i] = (0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g.square())
            size = (moments[i][1] / (1 - 0.99**k)).sqrt() + 1e-12
            logs[i] = logs[i] - rate * (1 - 0.9 * k / steps) * moments[i][0] / (1 - 0.9**k) / size
        now = _value(weights, slopes, [v.exp() for v in logs])
        if now < best:
            best, chosen = now, [v.clone() for v in logs]
    constant = min(best * (1 + _ROOM), product)
    return SemidefiniteBound(constant, product, tuple(v.exp() for v in chosen))


def bound_of_multipliers(
    weights: Sequence[Tensor],
    slopes: Sequence[tuple[float, float]],
    multipliers: Sequence[Tensor],
) -> float:
    r"""$\sqrt{\lambda_{\max}(Q_1)}$ for given multipliers, infinite if they prove nothing.

    Args:
        weights: $W_1,\dots,W_{h+1}$.
        slopes: $[\alpha,\beta]$ of the $h$ layers of units.
        multipliers: $T_l$, one entry per unit.
    """
    return _value(weights, slopes, multipliers)


def affine_pieces(
    model: nn.Module, input_shape: Sequence[int]
) -> tuple[list[Tensor], list[tuple[float, float]]]:
    """Matrices `[out, in]` of the affine maps between activations, and the slopes of these.

    Memory is that of the matrices, and of one pass of as many inputs as the widest has columns.
    """
    module_with_values(model)
    chain = as_chain(copied(model).double().eval().requires_grad_(False))
    pieces: list[list[nn.Module]] = [[]]
    slopes: list[tuple[float, float]] = []
    for link in chain:
        if isinstance(link.module, _AFFINE):
            pieces[-1].append(link.module)
        else:
            slopes.append(slope_range(link.module))
            pieces.append([])
    shape, weights = tuple(input_shape), []
    for piece in pieces:
        segment = nn.Sequential(*piece)
        size = math.prod(shape)
        if size > LARGEST:
            raise UnsupportedModel(
                f"a layer has {size} units, and the matrices of semidefinite programming are made "
                f"for up to {LARGEST}: use lipschitz_bound"
            )
        inputs = torch.cat([torch.zeros(1, size), torch.eye(size)]).double()
        outputs = segment(inputs.reshape(size + 1, *shape))
        shape = tuple(outputs.shape[1:])
        rows = outputs.reshape(size + 1, -1)
        weights.append((rows[1:] - rows[:1]).T.contiguous())
    return weights, slopes


def slope_range(module: nn.Module) -> tuple[float, float]:
    """The least and the largest slope of an activation, or bounds of them.

    >>> slope_range(nn.ReLU()), slope_range(nn.LeakyReLU(0.1))
    ((0.0, 1.0), (0.1, 1.0))
    """
    largest = pointwise_constant(module)
    if isinstance(module, nn.Softmax):
        raise UnsupportedModel("softmax acts on all entries together, not on units one by one")
    if isinstance(module, nn.LeakyReLU):
        return min(1.0, module.negative_slope), max(1.0, module.negative_slope)
    if isinstance(module, nn.GELU | nn.SiLU | nn.Hardswish):
        return 1.0 - largest, largest  # the slopes at x and -x add up to 1
    if isinstance(module, nn.Mish):
        return _MISH, largest
    if isinstance(module, nn.PReLU):
        sides = module.weight.detach()
        return min(1.0, float(sides.min())), max(1.0, float(sides.max()))
    if isinstance(module, nn.ELU):
        return min(0.0, module.alpha), largest
    if isinstance(module, _RISING):
        return 0.0, largest
    return -largest, largest


def _first_multipliers(
    weights: Sequence[Tensor], slopes: Sequence[tuple[float, float]]
) -> list[Tensor]:
    """Multiples of the identity that every network admits."""
    found: list[Tensor] = []
    size = float(torch.linalg.matrix_norm(weights[-1], 2)) ** 2
    for weight, (low, high) in zip(reversed(weights[:-1]), reversed(slopes), strict=True):
        found.append(torch.full((len(weight),), max(size, 1e-30), dtype=torch.float64))
        norm = float(torch.linalg.matrix_norm(weight, 2))
        size *= (low**2 + high**2) * norm**2
    return found[::-1]


def _product(weights: Sequence[Tensor], slopes: Sequence[tuple[float, float]]) -> float:
    norms = [float(torch.linalg.matrix_norm(w, 2)) * (1 + _ROOM) for w in weights]
    return math.prod(norms) * math.prod(max(abs(low), abs(high)) for low, high in slopes)


def _value(
    weights: Sequence[Tensor],
    slopes: Sequence[tuple[float, float]],
    multipliers: Sequence[Tensor],
) -> float:
    with torch.no_grad():
        found = _squared(weights, slopes, multipliers, 0.0)
    return math.inf if found is None else math.sqrt(max(float(found), 0.0))


def _squared(
    weights: Sequence[Tensor],
    slopes: Sequence[tuple[float, float]],
    multipliers: Sequence[Tensor],
    bent: float,
) -> Tensor | None:
    """The largest eigenvalue of Q_1, or a smooth bound of it; None where an S is not positive."""
    behind = weights[-1].T @ weights[-1]
    last = len(slopes) - 1
    for k in range(last, -1, -1):
        t, (low, high) = multipliers[k], slopes[k]
        factor, failed = torch.linalg.cholesky_ex(torch.diag(2 * t) - behind)
        if bool(failed) or not bool(factor.isfinite().all()):
            return None
        half = torch.linalg.solve_triangular(factor, torch.diag(t), upper=False)
        inner = (low + high) ** 2 * half.T @ half - 2 * low * high * torch.diag(t)
        if k == 0 and weights[0].shape[0] < weights[0].shape[1]:
            # the eigenvalues of W'MW that are not 0 are those of C'MC with CC' = WW'
            values, vectors = torch.linalg.eigh(weights[0] @ weights[0].T)
            root = vectors * values.clamp_min(0.0).sqrt()
        else:
            root = weights[k]
        behind = root.T @ inner @ root
        behind = (behind + behind.T) / 2
    found: Tensor = torch.linalg.eigvalsh(behind)
    largest = found[-1]
    if not bent:
        return largest
    scale = bent * largest.detach().abs().clamp_min(1e-300)
    return scale * torch.logsumexp(found / scale, 0)
