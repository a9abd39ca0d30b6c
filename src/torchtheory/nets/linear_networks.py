r"""Linear and affine maps: how to tell one, and what a deep network of them comes to.

Source: Foundations of Deep Learning, section 2.2; Deep Learning (notes), section 2.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.tracing.chain import as_chain

#: Standard deviation of the points at which a black box is tried.
_SPREAD = 3.0


@dataclass(frozen=True, slots=True)
class LinearityTest:
    r"""What random superpositions say about a black box $f:\mathbb R^n\to\mathbb R^m$.

    Attributes:
        matrix: $A\in\mathbb R^{m\times n}$ with columns $f(e_i)-f(0)$.
        offset: $f(0)$.
        linear_violation: largest $\|f(\alpha x+\beta y)-\alpha f(x)-\beta f(y)\|$ relative
            to the size of its terms.
        affine_violation: the same with $\beta=1-\alpha$.
        tolerance: what counts as rounding.
        witness: $(x,y,\alpha)$ of the largest affine violation.
    """

    matrix: Tensor
    offset: Tensor
    linear_violation: float
    affine_violation: float
    tolerance: float
    witness: tuple[Tensor, Tensor, float]

    @property
    def linear(self) -> bool:
        return self.linear_violation <= self.tolerance

    @property
    def affine(self) -> bool:
        return self.affine_violation <= self.tolerance


def probe_linearity(
    function: Callable[[Tensor], Tensor],
    inputs: int,
    *,
    trials: int = 200,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> LinearityTest:
    r"""Is a black box linear, affine or neither?

    Linear means $f(\alpha x+\beta y)=\alpha f(x)+\beta f(y)$ for all $\alpha,\beta$;
    affine means it for $\alpha+\beta=1$. Random $x,y,\alpha,\beta$ refute it with a
    counterexample, or leave it standing; the matrix is read off the unit vectors. A function that
    bends only where the Gaussian points of standard deviation 3 do not fall goes unnoticed.

    Args:
        function: maps rows `[s, n]` to rows `[s, m]`; a module is run without gradients.
        inputs: $n$.

    >>> test = probe_linearity(lambda x: x @ torch.tensor([[2.0], [3.0]]).double() + 1, 2)
    >>> test.linear, test.affine, test.matrix, test.offset
    (False, True, tensor([[2., 3.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    >>> probe_linearity(torch.relu, 2).affine
    False
    """
    whole_number(inputs, "inputs", least=1)
    whole_number(trials, "trials", least=1)
    source = as_generator(generator)
    x = _SPREAD * gaussian(trials, inputs, generator=source, dtype=dtype)
    y = _SPREAD * gaussian(trials, inputs, generator=source, dtype=dtype)
    a, b = (gaussian(trials, 1, generator=source, dtype=dtype) for _ in range(2))
    with torch.no_grad():
        fx, fy = function(x), function(y)
        if fx.ndim != 2 or len(fx) != trials:
            raise ShapeMismatch(f"the function must map rows to rows, not give {list(fx.shape)}")
        free = function(a * x + b * y)
        bound = function(a * x + (1 - a) * y)
        basis = torch.eye(inputs, dtype=dtype)
        offset = function(basis.new_zeros(1, inputs))[0]
        matrix = (function(basis) - offset).T
    linear = _relative(free, a * fx, b * fy)
    affine = _relative(bound, a * fx, (1 - a) * fy)
    worst = int(affine.argmax())
    return LinearityTest(
        matrix=matrix,
        offset=offset,
        linear_violation=float(linear.max()),
        affine_violation=float(affine.max()),
        tolerance=100 * inputs * torch.finfo(dtype).eps,
        witness=(x[worst], y[worst], float(a[worst])),
    )


def _relative(value: Tensor, *parts: Tensor) -> Tensor:
    size = value.norm(dim=1) + sum(part.norm(dim=1) for part in parts)
    gap = (value - torch.stack(parts).sum(0)).norm(dim=1)
    return torch.where(size > 0, gap / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


@dataclass(frozen=True, slots=True)
class CollapsedNetwork:
    r"""The one affine map $x\mapsto Wx+b$ a deep linear network computes.

    Attributes:
        weight: $W=W^L\cdots W^1$, `[m, n]`.
        bias: $b=\sum_\ell W^L\cdots W^{\ell+1}b^\ell$, `[m]`.
        rank: numerical rank of $W$.
        bottleneck: smallest width of the network, which bounds the rank.
    """

    weight: Tensor
    bias: Tensor
    rank: int
    bottleneck: int

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


def collapse_linear(model: nn.Module) -> CollapsedNetwork:
    """Multiply a chain of dense layers (identities allowed) into one matrix and one bias.

    >>> net = nn.Sequential(nn.Linear(5, 2), nn.Identity(), nn.Linear(2, 4)).double()
    >>> flat = collapse_linear(net)
    >>> tuple(flat.weight.shape), flat.rank, flat.bottleneck
    ((4, 5), 2, 2)
    """
    weight: Tensor | None = None
    bias: Tensor | None = None
    narrowest = 0
    for link in as_chain(model):
        module = link.module
        if isinstance(module, nn.Linear):
            w = module.weight.detach()
            w = w.to(torch.promote_types(w.dtype, torch.float32))  # half has no SVD
            if weight is None or bias is None:
                weight, bias = w, w.new_zeros(len(w))
                narrowest = min(w.shape)
            else:
                weight, bias = w @ weight, w @ bias
                narrowest = min(narrowest, *w.shape)
            if module.bias is not None:
                bias = bias + module.bias.detach()
        elif not isinstance(module, nn.Identity | nn.Dropout):
            raise UnsupportedModel(f"{module} is not linear: the network does not collapse")
    if weight is None or bias is None:
        raise UnsupportedModel("the network has no dense layer")
    return CollapsedNetwork(weight, bias, int(torch.linalg.matrix_rank(weight)), narrowest)
