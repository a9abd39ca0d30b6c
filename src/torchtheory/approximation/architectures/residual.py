r"""Residual networks: their blocks, the plain network inside, memorizing and one neuron a block.

A block adds to its input, $z(x)=x+V\sigma(Wx+b)$. A plain ReLU network carries $x$ in
$\varrho(x),\varrho(-x)$ and so computes the same. Blocks write a sample down one part at a
time (Hardt and Ma), and a single neuron in each is enough to fold the plane
(`folding_network_of_norm`), which plain networks of width 2 cannot. Source: Mathematical
Aspects of Deep Learning, section 3.8.2, Eq. (3.7) and Theorem 3.28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import as_points, described, equal_rows, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.feedforward import dense


class ResidualBlock(nn.Module):
    r"""$z(x)=x+V\sigma(Wx+b)$.

    Args:
        inner: $W$ `[r, k]` and $b$ `[r]`.
        outer: $V$ `[k, r]`.
        activation: $\sigma$; ReLU unless told.

    >>> zero = ResidualBlock(torch.eye(2), torch.zeros(2), torch.zeros(2, 2))
    >>> zero(torch.tensor([[-1.0, 2.0]])).tolist()
    [[-1.0, 2.0]]
    """

    def __init__(
        self, inner: Tensor, bias: Tensor, outer: Tensor, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        if inner.ndim != 2 or outer.shape != inner.T.shape or bias.shape != inner.shape[:1]:
            raise ShapeMismatch(
                "a block has W [r, k], b [r] and V [k, r], not "
                f"{list(inner.shape)}, {list(bias.shape)}, {list(outer.shape)}"
            )
        self.inner, self.outer = dense(inner, bias), dense(outer)
        self.activation = nn.ReLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.outer(self.activation(self.inner(x)))
        return out


class ResidualNetwork(nn.Sequential):
    r"""$T\circ z^{[L]}\circ\sigma\circ z^{[L-1]}\circ\dots\circ\sigma\circ z^{[1]}\circ S$.

    Args:
        blocks: $z^{[1]},\dots,z^{[L]}$.
        first, last: the affine maps $S,T$ into and out of the blocks, where there are any.
        activation_between: whether $\sigma$, a ReLU, stands after every block but the last,
            as in Eq. (3.7); then $V=0$ is the identity on non-negative inputs only.

    >>> block = ResidualBlock(torch.eye(1), torch.zeros(1), -2 * torch.ones(1, 1))
    >>> ResidualNetwork([block])(torch.tensor([[-3.0], [3.0]])).flatten().tolist()
    [-3.0, -3.0]
    """

    def __init__(
        self,
        blocks: Sequence[ResidualBlock],
        *,
        first: nn.Linear | None = None,
        last: nn.Linear | None = None,
        activation_between: bool = False,
    ) -> None:
        if not blocks:
            raise InvalidInput("a residual network has at least one block")
        middle: list[nn.Module] = []
        for block in blocks:
            middle += [nn.ReLU(), block] if activation_between and middle else [block]
        ends = [[first] if first is not None else [], [last] if last is not None else []]
        super().__init__(*ends[0], *middle, *ends[1])
        self.requires_grad_(False)

    @property
    def weights(self) -> int:
        """Weights and biases altogether."""
        return sum(p.numel() for p in self.parameters())


def unroll_residual(network: ResidualNetwork) -> nn.Sequential:
    r"""The plain ReLU network that computes the same as a residual one.

    Each block of $r$ units on $k$ coordinates becomes a layer of $r+2k$ units,
    $\varrho(Wx+b),\varrho(x),\varrho(-x)$, or of $r+k$ where a ReLU comes before it
    and $x\ge0$; that ReLU is a layer of $k$ units.

    >>> block = ResidualBlock(torch.eye(2), torch.zeros(2), torch.ones(2, 2))
    >>> [list(m.weight.shape) for m in unroll_residual(ResidualNetwork([block]))[::2]]
    [[6, 2], [2, 6]]
    """
    if not isinstance(network, ResidualNetwork):
        raise UnsupportedModel(f"a ResidualNetwork is needed, not {type(network).__name__}")
    weight: Tensor | None = None
    bias: Tensor | None = None
    maps: list[tuple[Tensor, Tensor]] = []
    positive_now = False

    def after(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (w, b) if weight is None or bias is None else (w @ weight, w @ bias + b)

    for part in network:
        if isinstance(part, ResidualBlock):
            if not isinstance(part.activation, nn.ReLU):
                raise UnsupportedModel(
                    f"only ReLU carries an input along exactly (given: {described(part.activation)}"
                    ")"
                )
            w, b, v = part.inner.weight, part.inner.bias, part.outer.weight
            eye = torch.eye(w.shape[1]).to(w)
            carried = [eye] if positive_now else [eye, -eye]
            wide = torch.cat([w, *carried])
            maps.append(after(wide, torch.cat([b, b.new_zeros(len(wide) - len(b))])))
            weight, bias = torch.cat([v, *carried], dim=1), v.new_zeros(len(v))
            positive_now = False
        elif isinstance(part, nn.ReLU):
            assert weight is not None
            assert bias is not None
            maps.append((weight, bias))
            weight, bias = torch.eye(len(weight)).to(weight), torch.zeros_like(bias)
            positive_now = True
        else:
            assert isinstance(part, nn.Linear)
            weight, bias = after(part.weight, part.bias)
            positive_now = False
    assert weight is not None
    assert bias is not None
    return chain([*maps, (weight, bias)], [nn.ReLU() for _ in maps])


@dataclass(frozen=True, slots=True)
class ResidualMemorizer:
    r"""A residual network that gives every sample its class.

    Attributes:
        network: from `[n, d]` to `[n, s]`.
        residual: the largest $|\Phi(x_i)-e_{y_i}|$.
        width: $k$, the coordinates between the blocks.
        blocks: how many blocks write samples down.
    """

    network: ResidualNetwork
    residual: float
    width: int
    blocks: int


def residual_memorizer(
    x: Tensor, labels: Tensor, width: int, *, generator: RandomSource = None
) -> ResidualMemorizer:
    r"""The residual network of Hardt and Ma: $\Phi(x_i)=e_{y_i}$ for every sample.

    A random linear map, drawn again where it does not separate, sends the inputs to
    $z_i\in\mathbb R^k$. Each block takes care of
    $k$ samples: neuron $i$ is $\varrho(\langle z_i,z\rangle-\theta_i)$ with
    $\max_{j\ne i}\langle z_i,z_j\rangle<\theta_i<|z_i|^2$, which fires at $z_i$ only,
    and its column of $V$ moves $z_i$ to the point $q_{y_i}$ of its class, so
    small that no neuron fires there again. The last block sends $q_j$ to $e_j$.
    $\lceil n/k\rceil(2k^2+k)\approx2nk$ weights, and $k=O(\log n)$ suffices for
    inputs on a sphere that are well apart.

    Args:
        x: `[n, d]`, no two rows equal.
        labels: `[n]`, classes from 0 on.
        width: $k$; where the images are not told apart by it an error says so.

    >>> x = torch.eye(6).double()
    >>> residual_memorizer(x, torch.tensor([0, 1, 2, 0, 1, 2]), 30, generator=0).residual < 1e-9
    True
    """
    x = as_points(x)
    n = len(x)
    k = whole_number(width, "width", least=1)
    if labels.shape != (n,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeMismatch(f"labels must be whole numbers [{n}], not {list(labels.shape)}")
    if int(labels.min()) < 0:
        raise LabelOutOfRange(f"classes are numbered from 0 on, and one is {int(labels.min())}")
    if same := equal_rows(x):
        raise InvalidInput(
            f"inputs {same[0]} and {same[1]} are equal, not to be told apart: drop one"
        )
    classes = int(labels.max()) + 1
    source = as_generator(generator)
    into, z, thresholds, sizes = _separating_map(
        x, k, source, f"{k} coordinates do not tell the samples apart"
    )
    radius = float(thresholds.min() / z.norm(dim=1).max()) / 2
    directions = _spread_directions(classes, k, source, x)
    q = radius * directions
    blocks = []
    for start in range(0, n, k):
        part = slice(start, min(start + k, n))
        step = (q[labels[part]] - z[part]) / (sizes[part] - thresholds[part]).unsqueeze(1)
        blocks.append(ResidualBlock(z[part], -thresholds[part], step.T))
    if classes <= k:
        # q_j are multiples of unit vectors, which a linear map sends to e_j
        last = dense(torch.eye(classes, k).to(x) / radius, x.new_zeros(classes))
        network = ResidualNetwork(blocks, first=dense(into, x.new_zeros(k)), last=last)
    else:
        out, p, own, size = _separating_map(
            directions, classes, source, f"{classes} classes need a larger width than {k}"
        )
        step = (torch.eye(classes).to(x) - p) / (size - own).unsqueeze(1)
        network = ResidualNetwork(blocks, first=dense(into, x.new_zeros(k)))
        network.append(dense(out / radius, x.new_zeros(classes)))
        network.append(ResidualBlock(p, -own, step.T)).requires_grad_(False)
    wanted = nn.functional.one_hot(labels, classes).to(x)
    residual = float((network(x) - wanted).abs().max())
    return ResidualMemorizer(network, residual, k, len(blocks))


#: So often a map is drawn: for k of the order of log n most of them separate, but not every one.
_DRAWS = 20


def _separating_map(
    x: Tensor, k: int, source: torch.Generator, problem: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear map to `k` coordinates, the images it separates, their thresholds and squares."""
    for draw in range(_DRAWS):
        into = gaussian(
            k, x.shape[1], generator=source, dtype=x.dtype, device=x.device
        ) / math.sqrt(k)
        z = x @ into.T
        try:
            return into, z, *_own_thresholds(z, problem)
        except InvalidInput:
            if draw == _DRAWS - 1:
                raise
    raise AssertionError  # the last draw has returned or raised


def _own_thresholds(z: Tensor, problem: str) -> tuple[Tensor, Tensor]:
    """Halfway between the largest product with another row and the own square; and the squares."""
    size = z.square().sum(1)
    largest = torch.zeros_like(size)
    for start in range(0, len(z), 1024):  # a tile of the Gram matrix at a time
        rows = z[start : start + 1024] @ z.T
        rows[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = 0.0
        largest[start : start + 1024] = rows.amax(1).clamp(min=0)
    if not bool((largest < size * (1 - 1e-9)).all()):
        raise InvalidInput(f"{problem}: widen the network, or scale the inputs to one length")
    return (largest + size) / 2, size


def _spread_directions(classes: int, k: int, source: torch.Generator, like: Tensor) -> Tensor:
    """Unit vectors, one a class: coordinate axes while they last."""
    if classes <= k:
        return torch.eye(classes, k).to(like)
    draws = gaussian(classes, k, generator=source, dtype=like.dtype, device=like.device)
    made: Tensor = draws / draws.norm(dim=1, keepdim=True)
    return made


def _fold_blocks(folds: int) -> list[ResidualBlock]:
    """Reflections of the plane, one neuron each, onto the angles from 0 to 2 pi / 2^folds."""
    blocks = []
    for i in range(folds):
        angle = math.pi / 2**i if i else 0.0
        normal = [0.0, -1.0] if i == 0 else [-math.sin(angle), math.cos(angle)]
        u = torch.tensor([normal], dtype=torch.float64)
        blocks.append(ResidualBlock(u, torch.zeros(1).double(), -2 * u.T))
    return blocks


def folding_network_of_norm(folds: int, radius: float = 1.0) -> Approximant:
    r"""$|x|$ in the plane by blocks of one neuron: every block folds the plane once.

    $x\mapsto x-2u\varrho(u\cdot x)$ reflects one side of a line onto the other. After
    $m$ folds all points lie at angles between 0 and $2\beta$,
    $\beta=\pi/2^m$, where $x\cdot(\cos\beta,\sin\beta)$ is within
    $(1-\cos\beta)|x|$ of $|x|$. On the disc of the radius, inside the square.

    >>> two = folding_network_of_norm(2)
    >>> round(two.bound, 6), len([m for m in two.network if isinstance(m, ResidualBlock)])
    (0.414214, 2)
    """
    whole_number(folds, "folds", least=1)
    positive_number(radius, "radius")
    beta = math.pi / 2**folds
    read = torch.tensor([[math.cos(beta), math.sin(beta)]], dtype=torch.float64)
    network = ResidualNetwork(_fold_blocks(folds), last=dense(read, torch.zeros(1).double()))
    corner = math.sqrt(2) * radius
    box = ((-radius, radius), (-radius, radius))
    return Approximant(network, (1 - math.cos(beta)) * corner, box, "X-87")


def radial_network(knots: Tensor, values: Tensor, folds: int, radius: float = 1.0) -> Approximant:
    r"""A radial function $h(|x|)$ in the plane, by blocks of one neuron.

    `folding_network_of_norm` leaves $p\cdot x\approx|x|$; every further block adds
    $c_k\varrho(p\cdot x-t_k)$ in the direction orthogonal to $p$, which does not
    disturb $p\cdot x$. For the broken line $h$ of slopes at most $S$ the error
    is at most $R[S(1-\cos\beta)+\sin\beta]$, $\beta=\pi/2^m$,
    $R=\sqrt2\,$radius.

    Args:
        knots, values: `[p + 1]`, the broken line; the first knot is 0, and beyond the last one
            the last piece goes on.
        folds: $m$.
        radius: of the square $[-r,r]^2$ on which the bound holds.

    >>> ramp = radial_network(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0]), 8, 2.0)
    >>> round(ramp(torch.tensor([[0.3, 0.4]]).double()).item(), 1)
    0.5
    """
    whole_number(folds, "folds", least=1)
    positive_number(radius, "radius")
    t, y = knots.double(), values.double()
    if t.ndim != 1 or t.shape != y.shape or len(t) < 2:
        raise ShapeMismatch(
            f"a broken line has as many knots [p + 1] as values, at least two (t is {list(t.shape)}"
            f", y is {list(y.shape)})"
        )
    if float(t[0]) != 0.0 or not bool((t.diff() > 0).all()):
        raise InvalidInput(
            f"the knots of a radial function start at 0 and increase, not {described(t.tolist())}"
        )
    slopes = y.diff() / t.diff()
    bends = slopes.diff()
    beta = math.pi / 2**folds
    p = torch.tensor([[math.cos(beta), math.sin(beta)]], dtype=torch.float64)
    across = torch.tensor([[-math.sin(beta), math.cos(beta)]], dtype=torch.float64)
    blocks = _fold_blocks(folds)
    blocks += [
        ResidualBlock(p, -t[k + 1].reshape(1), bends[k] * across.T) for k in range(len(bends))
    ]
    last = dense(across + slopes[0] * p, y[:1])
    corner = math.sqrt(2) * radius
    steepest = float(slopes.abs().max())
    bound = corner * (steepest * (1 - math.cos(beta)) + math.sin(beta))
    box = ((-radius, radius), (-radius, radius))
    return Approximant(ResidualNetwork(blocks, last=last), bound, box, "X-87")
