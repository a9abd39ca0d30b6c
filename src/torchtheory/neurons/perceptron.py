r"""Rosenblatt's perceptron: the unit, its margin, its algorithm, and Novikoff's mistake bound.

The unit is $f[w,b](x) = \operatorname{sgn}(w^\top x + b)$ with the three-valued sign, so
that a point on the hyperplane counts as a mistake for either label. Labels are $\pm1$,
samples are rows. Source: notes "Deep Learning", section 1.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_points, described, labeled_samples, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.separability import max_margin


@dataclass(frozen=True, slots=True)
class Perceptron:
    r"""The unit $f[w,b](x) = \operatorname{sgn}(w^\top x + b)$.

    Attributes:
        weight: `[d]`, not zero.
        bias: one number; the threshold on $w^\top x$ is its negative.

    >>> unit = Perceptron(torch.tensor([3.0, 4.0]), torch.tensor(-10.0))
    >>> unit(torch.tensor([[2.0, 1.0], [2.0, 2.0], [0.0, 0.0]]))
    tensor([ 0.,  1., -1.])
    >>> unit.hesse_form()
    (tensor([0.6000, 0.8000]), tensor(2.))
    """

    weight: Tensor
    bias: Tensor

    def __post_init__(self) -> None:
        _hyperplane(self.weight, self.bias, as_points(self.weight.reshape(1, -1), "weight"))

    @classmethod
    def from_linear(cls, head: nn.Linear) -> Perceptron:
        """The unit a linear layer is when its decision is the sign of one output, or the larger
        of two (then positive means the second class).

        >>> Perceptron.from_linear(nn.Linear(5, 2)).weight.shape
        torch.Size([5])
        """
        if not isinstance(head, nn.Linear) or head.out_features not in (1, 2):
            raise UnsupportedModel(f"a perceptron is an nn.Linear with 1 or 2 outputs, not {head}")
        weight = head.weight.detach()
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach()
        if len(weight) == 2:
            return cls(weight[1] - weight[0], bias[1] - bias[0])
        return cls(weight[0].clone(), bias[0].clone())

    def __call__(self, x: Tensor) -> Tensor:
        """-1, 0 or +1 for every row of `x[s, d]`."""
        x = as_points(x)
        w, b = _hyperplane(self.weight, self.bias, x)
        return torch.sign(x @ w + b)

    def hesse_form(self) -> tuple[Tensor, Tensor]:
        r"""The boundary as $n^\top x - \delta = 0$: unit normal and signed offset.

        $n = w/\|w\|$, $\delta = -b/\|w\|$. The plane's distance from the origin is
        $|\delta|$; the sign says on which side of the origin it lies, along $n$.
        """
        norm = self.weight.norm()
        return self.weight / norm, -self.bias / norm

    def nearest_to_origin(self) -> Tensor:
        r"""The point of the boundary closest to the origin, $-b\,w/\|w\|^2$."""
        normal, offset = self.hesse_form()
        return offset * normal


@dataclass(frozen=True, slots=True)
class Margin:
    """Signed distances of a sample to a hyperplane.

    Attributes:
        distances: `[s]`, positive where the point is on the side its label asks for.
        minimum: the margin, the least of them.
        tightest: index of the point that attains it.
    """

    distances: Tensor
    minimum: float
    tightest: int

    @property
    def separates(self) -> bool:
        """Whether every point is classified correctly."""
        return self.minimum > 0


def margin(weight: Tensor, bias: Tensor | float, x: Tensor, y: Tensor) -> Margin:
    r"""Signed distances $\gamma[w,b](x,y) = y(w^\top x+b)/\|w\|$ and their minimum.

    `x[s, d]` may be anything: raw points, or the features a frozen network hands to a linear
    head. The result does not change when `(weight, bias)` is multiplied by a positive number.

    >>> x, y = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([1, -1])
    >>> m = margin(torch.tensor([3.0, 4.0]), -5.0, x, y)
    >>> m.distances, m.minimum, m.tightest
    (tensor([4., 1.]), 1.0, 1)
    """
    x, y = labeled_samples(x, y)
    w, b = _hyperplane(weight, bias, x)
    distances = y * (x @ w + b) / w.norm()
    tightest = int(distances.argmin())
    return Margin(distances, float(distances[tightest]), tightest)


@dataclass(frozen=True, slots=True)
class PerceptronFit:
    """What the perceptron algorithm did.

    Attributes:
        weight: `[d]`.
        bias: one number; 0 when fitted without a bias.
        mistakes: `[updates]`, which sample caused each update. The trajectory follows from it.
        sweeps: passes over the sample, the last clean one included.
        converged: whether the last pass was clean.
    """

    weight: Tensor
    bias: Tensor
    mistakes: Tensor
    sweeps: int
    converged: bool

    @property
    def updates(self) -> int:
        return self.mistakes.numel()

    def trajectory(self, x: Tensor, y: Tensor, *, bias: bool = False) -> Tensor:
        r"""The weights after each update, `[updates + 1, d]` ($d+1$ with the bias).

        Row $t$ is $w_t = \sum_{\tau<t} y_{i_\tau}x_{i_\tau}$; row 0 is zero.

        >>> x, y = torch.eye(2), torch.ones(2)
        >>> perceptron_fit(x, y, bias=False, max_sweeps=9).trajectory(x, y)
        tensor([[0., 0.],
                [1., 0.],
                [1., 1.]])
        """
        x, y = labeled_samples(x, y)
        z = y.unsqueeze(1) * (homogeneous(x) if bias else x)
        if self.updates and int(self.mistakes.max()) >= len(z):
            raise ShapeMismatch(
                f"the perceptron was fitted to more than {int(self.mistakes.max())} samples, and "
                f"these are {len(z)}: give those it was fitted to"
            )
        return torch.cat([z.new_zeros(1, z.shape[1]), z[self.mistakes].cumsum(0)])


def perceptron_fit(x: Tensor, y: Tensor, *, max_sweeps: int, bias: bool = True) -> PerceptronFit:
    r"""The perceptron algorithm, from $w=0$, $b=0$ and in the order of the sample.

    At each mistake, $w\leftarrow w+yx$ and $b\leftarrow b+y$; it stops after a sweep
    without mistakes. On data that no hyperplane separates it never would, hence the cap.

    Args:
        x: `[s, d]`.
        y: `[s]` of ±1.
        max_sweeps: the most passes over the sample.
        bias: without it, hyperplanes through the origin.

    The search for the next mistake looks at a growing block of points at once:
    $O(sd)$ a sweep and a few calls an update.

    >>> x = torch.tensor([[2.0, 1.0], [1.0, 3.0], [-1.0, 0.0]])
    >>> fit = perceptron_fit(x, torch.tensor([1, 1, -1]), max_sweeps=100)
    >>> fit.converged, fit.updates
    (True, 1)
    """
    whole_number(max_sweeps, "max_sweeps", least=1)
    x, y = labeled_samples(x, y)
    z = y.unsqueeze(1) * (homogeneous(x) if bias else x)
    w = z.new_zeros(z.shape[1])
    mistakes: list[int] = []
    converged, sweeps = False, 0
    while sweeps < max_sweeps and not converged:
        sweeps += 1
        before = len(mistakes)
        start = 0
        while (found := _next_mistake(z, w, start)) is not None:
            w = w + z[found]
            mistakes.append(found)
            start = found + 1
        converged = len(mistakes) == before
    weight, offset = (w[:-1], w[-1]) if bias else (w, w.new_zeros(()))
    where = torch.tensor(mistakes, dtype=torch.int64, device=x.device)
    return PerceptronFit(weight, offset, where, sweeps, converged)


def _next_mistake(z: Tensor, w: Tensor, start: int) -> int | None:
    """The first row from `start` on with `z·w <= 0`, looking ahead in doubling blocks."""
    block = 32
    while start < len(z):
        wrong = (z[start : start + block] @ w <= 0).nonzero()
        if len(wrong):
            return start + int(wrong[0])
        start, block = start + block, 2 * block
    return None


@dataclass(frozen=True, slots=True)
class TrajectoryBounds:
    r"""Both sides of both lemmas behind Novikoff's theorem, for $t=0,1,\dots$.

    Attributes:
        alignment: $w^\top w_t$, `[t]`.
        alignment_bound: $t\gamma$, which it is at least.
        norm: $\|w_t\|$, `[t]`.
        norm_bound: $R\sqrt t$, which it is at most.
        alignment_steps: $w^\top w_{t+1}-w^\top w_t$, at least $\gamma$.
        norm_steps: $\|w_{t+1}\|^2-\|w_t\|^2$, at most $R^2$.
        margin: $\gamma$.
        radius: $R$.
    """

    alignment: Tensor
    alignment_bound: Tensor
    norm: Tensor
    norm_bound: Tensor
    alignment_steps: Tensor
    norm_steps: Tensor
    margin: float
    radius: float

    @property
    def holds(self) -> bool:
        """Whether every inequality holds at every step, up to the rounding of its terms."""
        slack = 8 * torch.finfo(self.norm.dtype).eps * float(self.norm_bound.max())
        return bool(
            (self.alignment >= self.alignment_bound - slack).all()
            and (self.norm <= self.norm_bound + slack).all()
        )


def trajectory_bounds(
    trajectory: Tensor, reference: Tensor, x: Tensor, y: Tensor
) -> TrajectoryBounds:
    r"""Lemmas 1.1 and 1.2 along a run of the perceptron without bias.

    For a unit vector $w$ of margin $\gamma=\gamma[w](S)>0$,
    $w^\top w_t\ge t\gamma$; and $\|w_t\|\le R\sqrt t$ with $R=\max\|x\|$, the
    latter on any data. For a run with bias pass $(x,1)$ and `trajectory(..., bias=True)`.

    Args:
        trajectory: `[t + 1, d]` from `PerceptronFit.trajectory`.
        reference: the unit vector $w$, `[d]`.
        x, y: the sample.

    >>> x, y = torch.eye(3).double(), torch.ones(3)
    >>> run = perceptron_fit(x, y, bias=False, max_sweeps=9).trajectory(x, y)
    >>> w = torch.full((3,), 3 ** -0.5, dtype=torch.float64)
    >>> trajectory_bounds(run, w, x, y).holds          # with equality, at every step
    True
    """
    x, y = labeled_samples(x, y)
    w, _ = _hyperplane(reference, 0.0, x)
    if trajectory.ndim != 2 or trajectory.shape[1] != x.shape[1]:
        raise ShapeMismatch(
            f"the trajectory must be [updates + 1, {x.shape[1]}], not {list(trajectory.shape)}"
        )
    if abs(float(w.norm()) - 1) > 1e3 * torch.finfo(w.dtype).eps:
        raise InvalidInput(f"the reference must be a unit vector; its norm is {w.norm():g}")
    gamma = margin(w, 0.0, x, y).minimum
    radius = float(x.norm(dim=1).max())
    t = torch.arange(len(trajectory), dtype=x.dtype, device=x.device)
    alignment = trajectory @ w
    norm = trajectory.norm(dim=1)
    return TrajectoryBounds(
        alignment=alignment,
        alignment_bound=t * gamma,
        norm=norm,
        norm_bound=radius * t.sqrt(),
        alignment_steps=alignment.diff(),
        norm_steps=norm.square().diff(),
        margin=gamma,
        radius=radius,
    )


@dataclass(frozen=True, slots=True)
class NovikoffBound:
    r"""The most updates the perceptron can make on a sample.

    Attributes:
        radius: $R=\max\|x\|$, in the coordinates the algorithm works in.
        margin: $\gamma$, a margin that a unit vector certainly attains there.
        updates: $\lfloor R^2/\gamma^2\rfloor$.
    """

    radius: float
    margin: float
    updates: int


def novikoff_bound(x: Tensor, y: Tensor, *, bias: bool = True) -> NovikoffBound:
    r"""At most $\lfloor R^2/\gamma^2\rfloor$ updates, with the best margin of the sample.

    With a bias the algorithm runs on $\tilde x=(x,1)$, so that
    $\tilde R^2=\max\|x\|^2+1$ and
    $\tilde\gamma=\max_{w,b}\min y(w^\top x+b)/\sqrt{\|w\|^2+b^2}$ take the places of
    $R$ and $\gamma$. The margin is lowered by what rounding could have added to it,
    so the integer is a bound for the algorithm in exact arithmetic.

    Raises:
        NotSeparable: if no hyperplane separates the sample.

    >>> novikoff_bound(torch.eye(7).double(), torch.ones(7), bias=False).updates   # attained
    7
    """
    x, y = labeled_samples(x, y)
    z = (homogeneous(x) if bias else x).double()
    best = max_margin(z, y.double(), bias=False)
    rounding = 8 * (z.shape[1] + 4) * torch.finfo(torch.float64).eps
    radius = float(z.norm(dim=1).max())
    gamma = best.margin - rounding * radius
    if gamma <= 0:
        raise InvalidInput(
            f"the margin {best.margin:.3g} is lost in rounding next to the radius {radius:.3g}"
        )
    return NovikoffBound(radius, gamma, math.floor((radius / gamma) ** 2 * (1 + rounding)))


def _hyperplane(weight: Tensor, bias: Tensor | float, x: Tensor) -> tuple[Tensor, Tensor]:
    """`(w[d], b)` in the dtype of `x`, finite, and with `w` not zero."""
    if not isinstance(weight, Tensor):
        raise InvalidType(f"the weight must be a torch tensor, not {described(weight)}")
    if weight.shape != x.shape[1:]:
        raise ShapeMismatch(f"x has {x.shape[1]} features and the weight is {list(weight.shape)}")
    w = all_finite(weight.detach().to(x), "the weight")
    b = torch.as_tensor(bias).detach().to(x)
    if b.numel() != 1:
        raise ShapeMismatch(f"the bias must be one number, not {list(b.shape)}")
    if not w.any():
        raise InvalidInput(
            f"the weight is 0 in all {len(w)} entries: it defines no hyperplane and no distance"
        )
    return w, all_finite(b.reshape(()), "the bias")
