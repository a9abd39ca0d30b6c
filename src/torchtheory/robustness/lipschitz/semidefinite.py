r"""Lipschitz constants of small networks by semidefinite programming.

The product of the layers' norms lets every layer stretch along its worst direction. LipSDP
(Fazlyab, Robey, Hassani, Morari and Pappas 2019) knows that a unit with slopes in $[\alpha,\beta]$
takes $\Delta z$ to $\Delta v$ with

$$
(\Delta v-\alpha\,\Delta z)(\beta\,\Delta z-\Delta v)\ge0 ,
$$

and weighs these inequalities by multipliers $T_1,\dots,T_h\ge0$, diagonal, one entry per unit. Any
network of affine maps and such units, with whatever branches, is

$$
z_k=\sum_{j<k}A_{kj}v_j,\qquad v_k=\varphi_k(z_k),\qquad y=\sum_{j\le h}A_{h+1,j}v_j,\qquad v_0=x
$$

up to constants. The quadratic form $\|y\|^2+2\sum_k(v_k-\alpha_kz_k)^\top T_k(\beta_kz_k-v_k)$ in
$(v_0,\dots,v_h)$ has blocks $P_{ij}$; taking the units off from the last layer to the first,

$$
S_k=-P_{kk},\qquad P_{ij}\leftarrow P_{ij}+P_{ik}S_k^{-1}P_{kj},
$$

leaves $Q=P_{00}$, and the Lipschitz constant in the Euclidean norm is at most
$\sqrt{\lambda_{\max}(Q)}$ for *any* multipliers that make all $S_k$ positive definite. So every
step of the search for the best ones gives a bound, and stopping early costs tightness, never truth.
It starts where the bound is at most that of the norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.budget import time_left
from torchtheory.core.checks import all_finite, whole_number
from torchtheory.core.progress import track
from torchtheory.robustness.lipschitz.implicit_form import LARGEST, ImplicitForm, implicit_form

#: Room for rounding: bounds are this much larger, relatively, than what was computed.
_ROOM = 1e-9


@dataclass(frozen=True, slots=True)
class SemidefiniteBound:
    """A bound of the Lipschitz constant in the Euclidean norm, and what proves it.

    Attributes:
        constant: the bound.
        product: of the norms of the layers and the slopes between them, summed over branches.
        multipliers: one tensor `[units]` per layer of units; see `bound_of_multipliers`.
    """

    constant: float
    product: float
    multipliers: tuple[Tensor, ...]

    def __float__(self) -> float:
        return self.constant


def semidefinite_lipschitz(
    model: nn.Module, input_shape: Sequence[int], *, steps: int = 200, largest: int = LARGEST
) -> SemidefiniteBound:
    r"""An upper bound of $\sup\|f(x)-f(x')\|/\|x-x'\|$ of a network, by LipSDP.

    Costs `steps` decompositions of matrices as large as the layers: seconds for hundreds of units.
    It ends sooner where a time is planned for it (`core.budget.within`).

    Args:
        model: affine operations (linear, convolution, normalization in evaluation mode, average
            pooling, sums, concatenations) and activations with bounded slopes, in any order and
            with any branches; residual networks, for example.
        input_shape: of one sample.
        steps: of the search.
        largest: units of a layer, and entries of an input, above which none is begun.

    Raises:
        UnsupportedModel: if the model has other operations, or more units.

    >>> a = torch.diag(torch.tensor([1.0, 3.0]))
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    >>> _ = net[0].weight.data.copy_(a), net[2].weight.data.copy_(a.flip(0, 1))
    >>> found = semidefinite_lipschitz(net, (2,))
    >>> round(found.constant, 3), round(found.product, 3)       # units of slope 1 or 3, never both
    (3.0, 9.0)
    """
    whole_number(steps, "steps", least=1)
    form = implicit_form(model, input_shape, largest=largest)
    for maps in form.maps:
        for matrix in maps.values():
            all_finite(matrix, "a weight of the model")
    product = _product(form)
    if not form.slopes or not product:
        return SemidefiniteBound(product, product, ())
    with torch.no_grad():
        first = _eliminated(form, None)
    assert first is not None
    start, matrix = first
    logs = [t.log() for t in start]
    best, chosen = math.sqrt(max(float(_largest(matrix)), 0.0)), [v.clone() for v in logs]
    rate = 0.1
    moments = [(torch.zeros_like(v), torch.zeros_like(v)) for v in logs]
    for k in track(range(1, steps + 1), "semidefinite"):
        if time_left() <= 0:  # what has been found is a bound
            break
        own = [v.detach().requires_grad_(True) for v in logs]
        # a smooth maximum of the eigenvalues, sharper from step to step
        bent = 0.3 * (1e-3 / 0.3) ** (k / steps)
        found = _eliminated(form, [v.exp() for v in own])
        if found is None:  # outside: back to the best, with shorter steps
            logs, rate = [v.clone() for v in chosen], rate / 2
            moments = [(torch.zeros_like(v), torch.zeros_like(v)) for v in logs]
            continue
        gradients = torch.autograd.grad(_largest(found[1], bent).log(), own)
        for i, g in enumerate(gradients):
            one, two = moments[i]
            moments[i] = (0.9 * one + 0.1 * g, 0.99 * two + 0.01 * g.square())
            size = (moments[i][1] / (1 - 0.99**k)).sqrt() + 1e-12
            logs[i] = logs[i] - rate * (1 - 0.9 * k / steps) * moments[i][0] / (1 - 0.9**k) / size
        now = bound_of_multipliers(form, [v.exp() for v in logs])
        if now < best:
            best, chosen = now, [v.clone() for v in logs]
    constant = min(best * (1 + _ROOM), product)
    return SemidefiniteBound(constant, product, tuple(v.exp() for v in chosen))


def bound_of_multipliers(form: ImplicitForm, multipliers: Sequence[Tensor]) -> float:
    r"""$\sqrt{\lambda_{\max}(Q)}$ for given multipliers, infinite if they prove nothing.

    Args:
        form: the network; see `implicit_form`.
        multipliers: $T_k$, one entry per unit.
    """
    with torch.no_grad():
        found = _eliminated(form, multipliers)
    return math.inf if found is None else math.sqrt(max(float(_largest(found[1])), 0.0))


def _product(form: ImplicitForm) -> float:
    """How much every layer stretches by the norms of what leads to it."""
    stretched = [1.0]
    for maps, (low, high) in zip(form.maps, [*form.slopes, (1.0, 1.0)], strict=True):
        norms = (
            float(torch.linalg.matrix_norm(a, 2)) * (1 + _ROOM) * stretched[j]
            for j, a in maps.items()
        )
        stretched.append(max(abs(low), abs(high)) * math.fsum(norms))
    return stretched[-1]


def _eliminated(
    form: ImplicitForm, multipliers: Sequence[Tensor] | None
) -> tuple[list[Tensor], Tensor] | None:
    """Multipliers and Q; None where an S is not positive.

    Without multipliers, multiples of the identity that make every S so: the largest eigenvalue of
    what stands against them.
    """
    last = len(form.slopes)
    p: dict[tuple[int, int], Tensor] = {}

    def add(i: int, j: int, block: Tensor) -> None:
        p[i, j] = p[i, j] + block if (i, j) in p else block

    def add_square(maps: dict[int, Tensor], weight: Tensor | None = None) -> None:
        for j, right in maps.items():
            for i, left in maps.items():
                if i <= j:
                    add(i, j, left.mT @ (right if weight is None else weight[:, None] * right))

    add_square(form.maps[last])
    chosen: list[Tensor] = []
    for k in range(last, 0, -1):
        maps, (low, high) = form.maps[k - 1], form.slopes[k - 1]
        units = form.sizes[k]
        against = p.pop((k, k), torch.zeros(units, units, dtype=torch.float64))
        if multipliers is None:
            size = torch.linalg.eigvalsh((against + against.mT) / 2)[-1].clamp_min(1e-30)
            t = size.expand(units)
        else:
            t = multipliers[k - 1]
        chosen.append(t)
        factor, failed = torch.linalg.cholesky_ex(torch.diag(2 * t) - against)
        if bool(failed) or not bool(factor.isfinite().all()):
            return None
        for j, matrix in maps.items():
            add(j, k, (low + high) * matrix.mT * t)
        if low * high:
            add_square(maps, -2 * low * high * t)
        before = [i for i in range(k) if (i, k) in p]
        halves = {
            i: torch.linalg.solve_triangular(factor, p.pop((i, k)).mT, upper=False) for i in before
        }
        add_square(halves)
    whole = p.get((0, 0), torch.zeros(1, 1, dtype=torch.float64))
    return chosen[::-1], (whole + whole.mT) / 2


def _largest(matrix: Tensor, bent: float = 0.0) -> Tensor:
    """The largest eigenvalue, or a smooth bound of it."""
    values: Tensor = torch.linalg.eigvalsh(matrix)
    if not bent:
        return values[-1]
    scale = bent * values[-1].detach().abs().clamp_min(1e-300)
    return scale * torch.logsumexp(values / scale, 0)
