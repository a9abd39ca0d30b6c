r"""Networks that go through given points exactly, written down instead of trained.

With $m$ neurons whose values at the $m$ inputs make an invertible matrix
$A_{ji}=\varrho(\langle w_j,x_i\rangle+b_j)$, the output weights $YA^{-1}$ fit any
labels $Y$. A first layer that projects the inputs on a line brings the number of parameters
from $O(m(d+k))$ down to $O(d+mk)$. Source: The Modern Mathematics of Deep Learning,
Proposition 1.17 and the remark that follows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import linalg
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.polynomials.divided_differences import (
    activation_derivative,
    good_bias,
)
from torchtheory.core.checks import as_points, as_targets, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense

#: Candidates a neuron is chosen from; more of them lower the condition number a little.
_CANDIDATES = 4


@dataclass(frozen=True, slots=True)
class Memorizer:
    r"""A network through given points.

    Attributes:
        network: from `[n, d]` to `[n, k]`.
        residual: the largest $|\Phi(x_i)-y_i|$.
        condition: $\kappa(A)$ of the matrix that was inverted.
        matrix: $A$, `[m, m]`: neuron by sample.
    """

    network: nn.Sequential
    residual: float
    condition: float
    matrix: Tensor

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(p.numel() for p in self.network.parameters())


def shallow_memorizer(
    x: Tensor, y: Tensor, activation: str = "tanh", *, generator: RandomSource = None
) -> Memorizer:
    r"""A network of $m$ neurons through $m$ points: $W^{(2)}=YA^{-1}$, no bias.

    With `"relu"` the inputs are projected on a line, $t_i=\langle w,x_i\rangle$, and one
    kink stands just before each of them: in the order of the $t_i$ the matrix $A$ is
    triangular with a positive diagonal. Every other activation is given four times as many random
    neurons as needed, centered between the points, of which a pivoted QR decomposition picks
    $m$ independent ones. The hidden layer does not depend on `y`.

    Args:
        x: `[m, d]`; of equal rows, which must have equal labels, one counts.
        y: `[m]` or `[m, k]`.
        activation: a continuous function that is no polynomial, by its name.

    Time $O(m^3+m^2d)$; $m(d+1)+km$ parameters.

    >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    >>> shallow_memorizer(x, torch.tensor([1.0, -1.0, 1.0]), "relu").network(x).flatten().tolist()
    [1.0, -1.0, 1.0]
    """
    x, y = _sample(x, y)
    source = as_generator(generator)
    if activation == "relu":
        direction, t = _separating_line(x, source)
        kinks = _kinks_before(t)
        weight = direction.expand(len(x), -1)
        return _solve([], (weight, -kinks), activation, x, y)
    weight, bias = _candidate_neurons(x, source)
    return _solve([], _independent(weight, bias, activation, x), activation, x, y)


def line_memorizer(
    x: Tensor, y: Tensor, activation: str = "relu", *, generator: RandomSource = None
) -> Memorizer:
    r"""The three-layer network through $m$ points with $O(d+mk)$ parameters.

    The first layer projects on a line that separates the points. For ReLU it is the single neuron
    $\varrho(\langle w,x\rangle+c)$ with $c$ so large that it is positive at every
    $x_i$: architecture $(d,1,m,k)$, $d+1+2m+k(m+1)$ parameters. For a smooth
    activation two neurons make an approximate identity,
    $[\varrho(\tfrac h2u+\lambda)-\varrho(-\tfrac h2u+\lambda)]/(h\varrho'(\lambda)) \approx u$:
    architecture $(d,2,m,k)$, $2(d+1)+3m+k(m+1)$ parameters. The last
    layer is solved for what comes out of the others, so the fit is exact in both.

    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> line_memorizer(x, torch.tensor([2.0, 3.0])).parameters
    10
    """
    x, y = _sample(x, y)
    source = as_generator(generator)
    direction, t = _separating_line(x, source)
    if activation == "relu":
        shift = 1 - t.min()
        first = (direction.unsqueeze(0), shift.reshape(1))
        kinks = _kinks_before(t + shift)
        return _solve([first], (torch.ones_like(kinks).unsqueeze(1), -kinks), activation, x, y)
    center, _ = good_bias(activation, 1)
    slope = float(activation_derivative(activation, torch.tensor([center]).double(), 1))
    middle, radius = (t.max() + t.min()) / 2, (t.max() - t.min()) / 2
    # small enough for the identity, large enough that its rounding stays below the gaps
    h = 0.1 / (float(radius) or 1.0)
    half = torch.stack([direction, -direction]) * (h / 2)
    offset = x.new_tensor([-1.0, 1.0]) * middle * (h / 2) + center
    read = x.new_tensor([[1.0, -1.0]]) / (h * slope)
    with torch.no_grad():
        u = as_layer(activation)(x @ half.T + offset) @ read.T
    weight, bias = _candidate_neurons(u, source)
    weight, bias = _independent(weight, bias, activation, u)
    return _solve([(half, offset)], (weight @ read, bias), activation, x, y)


def inverse_certificate(left: Tensor, matrix: Tensor) -> float:
    r"""A lower bound of the smallest singular value of a product that is nearly the identity,
    $\sigma_{\min}(BA)\ge1-m\max_{ij}|(BA-I)_{ij}|$, since
    $\|M\|_{\mathrm{op}}\le m\max_{ij}|M_{ij}|$.

    A positive value proves that the square matrix $BA$ is invertible and $A$ has full
    column rank: the criterion of Proposition 1.17.

    >>> inverse_certificate(torch.eye(2), torch.tensor([[1.0, 0.25], [0.0, 1.0]]))
    0.5
    """
    product = left @ matrix
    if product.ndim != 2 or product.shape[0] != product.shape[1]:
        raise InvalidInput(f"the product must be a square matrix, not {list(product.shape)}")
    far = float((product - torch.eye(len(product)).to(product)).abs().max())
    return 1 - len(product) * far


def _sample(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # the matrices are ill-conditioned: what single precision leaves of a fit is no fit
    x = as_points(x).double()
    y = as_targets(y, x)
    if y.ndim > 2:
        raise InvalidInput(f"y must be [samples] or [samples, outputs], not {list(y.shape)}")
    y = y.reshape(len(x), -1)
    distinct, place = torch.unique(x, dim=0, return_inverse=True)
    if len(distinct) == len(x):
        return x, y
    # the first of each group of equal inputs, in the order given
    number = torch.arange(len(x), device=x.device)
    first = torch.full_like(place[: len(distinct)], len(x)).scatter_reduce(0, place, number, "amin")
    if not torch.equal(y, y[first[place]]):
        odd = int((y != y[first[place]]).reshape(len(y), -1).any(1).nonzero()[0])
        raise InvalidInput(
            f"inputs {int(first[place][odd])} and {odd} are equal and have different labels: no "
            "function gives both"
        )
    kept = first.sort().values
    return x[kept], y[kept]


def _separating_line(x: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """The best of 16 random directions: the largest of the smallest gaps, relative to the range."""
    trials = gaussian(x.shape[1], 16, generator=source, dtype=x.dtype, device=x.device)
    t = x @ trials
    gaps = t.sort(0).values.diff(dim=0)
    if not len(gaps):
        return trials[:, 0], t[:, 0]
    share = gaps.amin(0) / gaps.sum(0)
    best = int(share.argmax())
    if not share[best] > 16 * torch.finfo(x.dtype).eps:
        raise InvalidInput(
            "two inputs are so close that no line tells them apart in this precision"
        )
    return trials[:, best], t[:, best]


def _kinks_before(t: Tensor) -> Tensor:
    """One kink in the middle of the gap before each point, in the order of the points."""
    ordered, order = t.sort()
    first = ordered[1] - ordered[0] if len(t) > 1 else t.new_tensor(1.0)
    kinks = torch.cat([ordered[:1] - first, (ordered[1:] + ordered[:-1]) / 2])
    return kinks[order.argsort()]


def _candidate_neurons(x: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Neurons of many slopes whose centers lie between two of the points."""
    m, d = x.shape
    n = _CANDIDATES * m
    weight = gaussian(n, d, generator=source, dtype=x.dtype, device=x.device)
    t = (x @ weight.T).sort(0).values
    # the place of the center among the sorted points, and a slope of a few steps to a few gaps
    place = torch.arange(n, device=x.device) % m
    here = t[place, torch.arange(n, device=x.device)]
    spread = t[-1] - t[0]
    spread = torch.where(spread > 0, spread, 1.0)  # a single sample has none
    beyond = (t[-1] + spread / m).unsqueeze(0)
    after = torch.cat([t, beyond])[place + 1, torch.arange(n, device=x.device)]
    share = torch.rand(n, generator=source, dtype=x.dtype).to(x.device)
    slope = 4 * (2.0 * m) ** share / spread
    # one in four is a step inside its gap: irregular gaps would stay unseen otherwise
    gap = after - here
    slope = torch.where((torch.arange(n, device=x.device) < m) & (gap > 0), 8 / gap, slope)
    return weight * slope.unsqueeze(1), -slope * (here + after) / 2


def _independent(weight: Tensor, bias: Tensor, activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """As many neurons as samples, whose values there are independent, by pivoted QR."""
    with torch.no_grad():
        values = as_layer(activation)(x @ weight.T + bias)
    _, _, order = linalg.qr(values.double().cpu().numpy(), mode="economic", pivoting=True)
    chosen = torch.as_tensor(order[: len(x)].copy(), device=x.device).long()
    return weight[chosen], bias[chosen]


def _solve(
    before: list[tuple[Tensor, Tensor]],
    hidden: tuple[Tensor, Tensor],
    activation: str,
    x: Tensor,
    y: Tensor,
) -> Memorizer:
    layer = as_layer(activation)
    m, k = y.shape
    with torch.no_grad():
        values = x
        for weight, bias in before:
            values = layer(values @ weight.T + bias)
        matrix = layer(values @ hidden[0].T + hidden[1]).T
        condition = float(torch.linalg.cond(matrix.double()))
        if not math.isfinite(condition) or condition * torch.finfo(x.dtype).eps > 1:
            raise NotConverged(
                f"the values of {m} {activation} neurons at the samples are dependent "
                f"(condition number {condition:.1e}): the function may be a polynomial, or "
                "samples too close"
            )
        # a three-layer memorizer has a bias in its last layer: it takes the mean of the labels
        shift = y.mean(0) if before else y.new_zeros(k)
        output = torch.linalg.solve(matrix.T, y - shift).T
    maps = [*before, hidden]
    inner = chain(maps, [as_layer(activation) for _ in before])
    last = dense(output, shift if before else None)
    network = nn.Sequential(*inner, as_layer(activation), last).requires_grad_(False)
    with torch.no_grad():
        residual = float((network(x) - y).abs().max())
    return Memorizer(network, residual, condition, matrix)


def memorizer_parameters(
    samples: int, inputs: int, outputs: int, *, line: bool = False, relu: bool = True
) -> int:
    """How many parameters the two memorizers have.

    >>> memorizer_parameters(100, 784, 10), memorizer_parameters(100, 784, 10, line=True)
    (79500, 1995)
    """
    m, d, k = (
        whole_number(v, n, least=1)
        for v, n in ((samples, "samples"), (inputs, "inputs"), (outputs, "outputs"))
    )
    if not line:
        return m * (d + 1) + k * m
    return (d + 1 + 2 * m if relu else 2 * (d + 1) + 3 * m) + k * (m + 1)
