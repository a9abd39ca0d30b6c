r"""Training in closed form: how least squares with a fixed kernel learns, direction by direction.

A model whose tangent kernel $K$ does not change (linear in its parameters, or very wide) and
whose loss is $\frac\rho2\sum_i\|f(x_i)-y_i\|^2$ follows
$\dot f(x)=-\rho K(x,X)(f(X)-y)$. In the eigenbasis of $K(X,X)$ every direction is on
its own, and a rule of training is no more than two functions of the eigenvalue: how much of the
error is left, and how much the parameters have heard of it.

Sources: Foundations of Deep Learning, 7.1.2 and Theorem 54 ($\rho=1$, half the sum of
squares); The Modern Mathematics of Deep Learning, Eq. (1.24) ($\rho=2/m$, the mean of
squares).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchtheory.core.checks import (
    all_finite,
    as_symmetric,
    first_entry,
    number_between,
    open_fraction,
    positive_number,
)
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch

Times = Tensor | Sequence[float] | float


class Rule(Protocol):
    r"""How training acts on one eigen-direction with the eigenvalue $\lambda$.

    `eigenvalues` are `[N]`, `times` are `[T]` (numbers of steps where time is discrete),
    results `[T, N]`.
    """

    def residual(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        r"""The part $e_t(\lambda)$ of the error that is left."""

    def response(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        r"""$(1-e_t(\lambda))/\lambda$, without cancellation."""

    def contraction(self, eigenvalues: Tensor) -> Tensor:
        r"""The factor `[N]` by which the error shrinks in a unit of time, in the long run."""


@dataclass(frozen=True, slots=True)
class FlowRule:
    r"""Gradient flow: $e_t=e^{-\lambda t}$; times may be infinite.

    >>> zero_and_one = torch.tensor([0.0, 1.0])
    >>> FlowRule().residual(zero_and_one, torch.tensor([0.0, math.inf]))
    tensor([[1., 1.],
            [1., 0.]])
    >>> FlowRule().response(zero_and_one, torch.tensor([2.0]))       # t, and 1 - exp(-2)
    tensor([[2.0000, 0.8647]])
    """

    def residual(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        return torch.exp(-self._clock(eigenvalues, times))

    def response(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        learned = -torch.expm1(-self._clock(eigenvalues, times))
        return torch.where(eigenvalues > 0, learned / eigenvalues, times[:, None])

    def contraction(self, eigenvalues: Tensor) -> Tensor:
        return torch.exp(-eigenvalues)

    @staticmethod
    def _clock(eigenvalues: Tensor, times: Tensor) -> Tensor:
        # 0 times infinity is a direction that never moves
        return torch.where(eigenvalues > 0, eigenvalues * times[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class DescentRule:
    r"""Gradient descent with a constant step: $e_k=(1-\eta\lambda)^k$.

    It is exact on either side of the limit $\eta=2/\lambda_{\max}$: beyond it the numbers
    grow, without an error. Infinitely many steps are allowed below the limit only.

    >>> DescentRule(step=0.5).residual(torch.tensor([1.0, 4.0, 6.0]), torch.tensor([3.0]))
    tensor([[ 0.1250, -1.0000, -8.0000]])
    """

    step: float

    def __post_init__(self) -> None:
        positive_number(self.step, "the step")

    def residual(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        _check_steps(times, eigenvalues, 2 / self.step)
        return (1 - self.step * eigenvalues) ** times[:, None]

    def response(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        _check_steps(times, eigenvalues, 2 / self.step)
        return self.step * _geometric_sum(self.step * eigenvalues, times[:, None])

    def contraction(self, eigenvalues: Tensor) -> Tensor:
        return (1 - self.step * eigenvalues).abs()


@dataclass(frozen=True, slots=True)
class HeavyBallRule:
    r"""The heavy ball, $e_{k+1}=(1+\beta-\eta\lambda)e_k-\beta e_{k-1}$,
    $e_{-1}=e_0=1$.

    With the roots $z_{1,2}$ of $z^2-(1+\beta-\eta\lambda)z+\beta$ and
    $U_k=(z_1^k-z_2^k)/(z_1-z_2)$ it is $e_k=U_{k+1}-\beta U_k$. Where the roots are
    complex ($|1-\sqrt\beta|<\sqrt{\eta\lambda}<1+\sqrt\beta$) the error oscillates and
    shrinks by $\sqrt\beta$ a step whatever the eigenvalue. Both roots are inside the unit
    circle for $0<\eta\lambda<2(1+\beta)$; beyond, the numbers grow, without an error.
    `torch.optim.SGD(momentum=β)` makes the same steps.

    >>> rule = HeavyBallRule(step=1.0, momentum=0.25)
    >>> rule.residual(torch.tensor([1.0]), torch.tensor([1.0, 2.0, 3.0])).flatten()
    tensor([ 0.0000, -0.2500, -0.0625])
    """

    step: float
    momentum: float

    def __post_init__(self) -> None:
        positive_number(self.step, "the step")
        number_between(self.momentum, "the momentum", 0, 1, closed="left")

    def residual(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        if self.momentum == 0:
            return DescentRule(self.step).residual(eigenvalues, times)
        _check_steps(times, eigenvalues, 2 * (1 + self.momentum) / self.step)
        k = times[:, None]
        left = self._power_sum(eigenvalues, k + 1) - self.momentum * self._power_sum(eigenvalues, k)
        limit = torch.where(eigenvalues > 0, 0.0, 1.0).to(left)
        return torch.where(torch.isinf(k), limit, left)

    def response(self, eigenvalues: Tensor, times: Tensor) -> Tensor:
        r"""$(1-e_k)/\lambda=\eta\sum_{j\le k}U_j$.

        For small eigenvalues it is
        $\eta\bigl(\sum_{j\le k}z_1^j-\sum_{j\le k}z_2^j\bigr)/(z_1-z_2)$, where
        $1-z_1=\eta\lambda/(1-z_2)$ keeps the digits that $1-e_k$ would lose.
        """
        if self.momentum == 0:
            return DescentRule(self.step).response(eigenvalues, times)
        direct = (1 - self.residual(eigenvalues, times)) / eigenvalues
        size = self.step * eigenvalues
        trace = 1 + self.momentum - size
        gap = (trace.square() - 4 * self.momentum).clamp_min(0).sqrt()
        small = 2 * self.momentum / (trace + gap)
        below = size / (1 - small)
        k = times[:, None] + 1
        sums = _geometric_sum(below, k) - _geometric_sum(1 - small, k)
        overdamped = size < (1 - math.sqrt(self.momentum)) ** 2 / 2
        return torch.where(overdamped, self.step * sums / gap, direct)

    def contraction(self, eigenvalues: Tensor) -> Tensor:
        trace = (1 + self.momentum - self.step * eigenvalues).abs()
        gap = (trace.square() - 4 * self.momentum).clamp_min(0).sqrt()
        return torch.clamp_min((trace + gap) / 2, math.sqrt(self.momentum))

    def _power_sum(self, eigenvalues: Tensor, k: Tensor) -> Tensor:
        r"""$U_k=(z_1^k-z_2^k)/(z_1-z_2)$ for distinct, equal and complex roots."""
        trace = 1 + self.momentum - self.step * eigenvalues
        discriminant = trace.square() - 4 * self.momentum
        gap = discriminant.abs().sqrt()
        large = (trace.abs() + gap) / 2
        real = large ** (k - 1) * _geometric_sum(gap / large, k)
        angle = torch.atan2(gap, trace.abs())
        turns = torch.sin(k * angle) / torch.sin(angle)
        waves = self.momentum ** ((k - 1) / 2) * turns
        # roots of a negative trace are the negatives of those of a positive one
        sign = torch.where((trace < 0) & (k % 2 == 0), -1.0, 1.0)
        return torch.where(k == 0, 0.0, sign * torch.where(discriminant >= 0, real, waves))


class KernelTraining:
    r"""Least squares with a fixed kernel, solved for every time at once.

    The loss is $\frac\rho2\sum_i\|f(x_i)-y_i\|^2$. With
    $K(X,X)=V\operatorname{diag}(\lambda)V^\top$, residual $e_t$ and response
    $s_t(\lambda)=(1-e_t(\lambda))/\lambda$ of the rule,

    $$
    \begin{aligned}
    f_t(X)&=y+V\operatorname{diag}(e_t)V^\top(f_0(X)-y),\\
    f_t(x)&=f_0(x)+K(x,X)\,V\operatorname{diag}(s_t)V^\top(y-f_0(X)).
    \end{aligned}
    $$

    For gradient flow that is $f_t(X)=y+e^{-\rho Kt}(f_0(X)-y)$ (Theorem 54). No matrix is
    inverted, and $K(X,X)$ may be singular: along eigenvalues of at most
    $N\epsilon\lambda_{\max}$, which are rounding, nothing is learned.

    Args:
        kernel: $K(X,X)$; `[n, n]` where all outputs share it and are independent, or
            `[n, n, C, C]` as `empirical_ntk` gives it.
        y: targets `[n]` or `[n, C]`.
        start: $f_0(X)$, of the shape of `y`; zero unless given. With a shared kernel the
            columns of `y` and `start` may as well be the members of an ensemble.
        rate: $\rho$. 1 for half the sum of squares; $2/n$ for the mean over samples
            of $\|f(x_i)-y_i\|^2$; $2/(nC)$ for `torch.nn.functional.mse_loss`.
        rule: gradient flow, gradient descent or the heavy ball; time counts steps for the others.

    Setting up costs $O(N^3)$ time and $O(N^2)$ memory for the eigendecomposition,
    $N=n$ or $nC$; predictions at $T$ times on $m$ points cost
    $O(mN^2+TmNC)$ time and $O(T(m+N)C)$ memory ($C=1$ when $N=nC$).

    >>> training = KernelTraining(torch.diag(torch.tensor([1.0, 2.0])), torch.ones(2))
    >>> training.train([0.0, math.log(2.0), math.inf])       # 1 - exp(-t), 1 - exp(-2t)
    tensor([[0.0000, 0.0000],
            [0.5000, 0.7500],
            [1.0000, 1.0000]])
    >>> training.test(torch.tensor([[0.5, 0.5]]), math.inf)
    tensor([0.7500])
    """

    def __init__(
        self,
        kernel: Tensor,
        y: Tensor,
        start: Tensor | None = None,
        *,
        rate: float = 1.0,
        rule: Rule | None = None,
    ) -> None:
        positive_number(rate, "the rate")
        self.y: Tensor = _values(y, "y")
        if isinstance(kernel, Tensor) and kernel.ndim not in (2, 4):
            raise ShapeMismatch(
                f"a kernel is [n, n] or [n, n, C, C], and this one has shape {list(kernel.shape)}"
            )
        self.per_output = isinstance(kernel, Tensor) and kernel.ndim == 4
        square = _flat(kernel) if self.per_output else kernel
        square = as_symmetric(square, "the kernel")
        expected = self.y.numel() if self.per_output else len(self.y)
        if len(square) != expected or (self.per_output and kernel.shape[0] != len(self.y)):
            raise ShapeMismatch(
                f"a kernel {list(kernel.shape)} does not fit targets {list(self.y.shape)}"
            )
        if self.y.dtype != square.dtype:
            raise InvalidInput(f"the kernel is {square.dtype} and y is {self.y.dtype}")
        self.start = self._start(start, self.y, "the start")
        self.rate, self.rule = rate, FlowRule() if rule is None else rule
        eigenvalues, vectors = torch.linalg.eigh(square)
        rounding = len(square) * torch.finfo(square.dtype).eps * eigenvalues.abs().max()
        if bool(eigenvalues[0] < -8 * rounding):
            raise InvalidInput(
                f"a kernel has no negative eigenvalue, and one is {float(eigenvalues[0]):.3g}"
            )
        self.eigenvalues = torch.where(eigenvalues > rounding, eigenvalues, 0.0)
        self.eigenvectors: Tensor = vectors
        error = (self.y - self.start).reshape(len(square), -1)
        self.coefficients: Tensor = self.eigenvectors.mT @ error

    def with_rule(self, rule: Rule) -> KernelTraining:
        """The same problem under another rule; the eigendecomposition is shared."""
        other = object.__new__(KernelTraining)
        vars(other).update(vars(self), rule=rule)
        return other

    @property
    def rank(self) -> int:
        """Number of directions that are learned."""
        return int((self.eigenvalues > 0).sum())

    def residual(self, times: Times) -> Tensor:
        """What is left of the error along each eigenvector, `[..., N]`; 1 where none is learned.

        >>> KernelTraining(torch.eye(1), torch.ones(1)).residual([0.0, math.inf]).flatten()
        tensor([1., 0.])
        """
        moments, shape = self._times(times)
        return self._residual(moments).reshape(*shape, -1)

    def train(self, times: Times) -> Tensor:
        r"""$f_t(X)$ at times of any shape, `[..., n]` or `[..., n, C]` like `y`."""
        moments, shape = self._times(times)
        left = self._residual(moments)[:, :, None] * self.coefficients
        error = (self.eigenvectors @ left).reshape(*shape, *self.y.shape)
        return self.y - error

    def test(self, kernel: Tensor, times: Times, start: Tensor | None = None) -> Tensor:
        r"""$f_t(x)$ at other points and times of any shape, `[..., m]` or `[..., m, C]`.

        Args:
            kernel: $K(x,X)$, `[m, n]` or `[m, n, C, C]`.
            times: as for `train`.
            start: $f_0(x)$, `[m]` or `[m, C]`; zero unless given.
        """
        cross = self._cross(kernel)
        begin = self._start(start, self.y.new_empty(len(kernel), *self.y.shape[1:]), "the start")
        moments, shape = self._times(times)
        heard = self._response(moments)[:, :, None] * self.coefficients
        moved = (cross @ self.eigenvectors) @ heard
        return begin + moved.reshape(*shape, *begin.shape)

    def influence(self, kernel: Tensor, time: float) -> Tensor:
        r"""The matrix $C(t)=K(x,X)V\operatorname{diag}(s_t)V^\top$ with
        $f_t(x)=f_0(x)+C(t)(y-f_0(X))$, `[m, n]` (`[mC, nC]` for a kernel per output).

        For gradient flow and invertible $K$ it is
        $K(x,X)K^{-1}(I-e^{-\rho Kt})$.
        """
        moments, _ = self._times(time)
        weighted = self._cross(kernel) @ self.eigenvectors * self._response(moments)
        return weighted @ self.eigenvectors.mT

    def loss(self, times: Times) -> Tensor:
        r"""$\frac\rho2\sum_i\|f_t(x_i)-y_i\|^2$ at times of any shape."""
        moments, shape = self._times(times)
        left = self._residual(moments)[:, :, None] * self.coefficients
        return (self.rate / 2 * left.square().sum((1, 2))).reshape(shape)

    def stability_limit(self, momentum: float = 0.0) -> float:
        r"""The step $2(1+\beta)/(\rho\lambda_{\max})$ below which descent converges.

        $\beta$ is the momentum of the heavy ball, 0 for gradient descent.

        >>> KernelTraining(4 * torch.eye(3), torch.ones(3)).stability_limit()
        0.5
        """
        number_between(momentum, "the momentum", 0, 1, closed="left")
        top = float(self.eigenvalues[-1])
        return 2 * (1 + momentum) / (self.rate * top) if top > 0 else math.inf

    def time_to_fit(self, tolerance: float) -> Tensor:
        r"""The time `[N]` after which the error along each eigenvector is `tolerance` times
        the initial one, $\log\text{tolerance}/\log q(\lambda)$ with the rule's contraction
        $q$; infinite where it never shrinks.

        For gradient flow that is $\log(1/\text{tolerance})/(\rho\lambda)$, exactly; for
        gradient descent the number of steps before rounding up; for the heavy ball its slope in
        the long run. The order is that of `eigenvalues`, ascending.

        >>> flow = KernelTraining(torch.diag(torch.tensor([1.0, 2.0])), torch.ones(2))
        >>> flow.time_to_fit(math.exp(-4))
        tensor([4., 2.])
        """
        open_fraction(tolerance, "the tolerance")
        factor = self.rule.contraction(self.rate * self.eigenvalues)
        learned = (factor < 1) & (self.eigenvalues > 0)
        return torch.where(learned, math.log(tolerance) / factor.log(), math.inf)

    def _residual(self, times: Tensor) -> Tensor:
        left = self.rule.residual(self.rate * self.eigenvalues, times)
        return torch.where(self.eigenvalues > 0, left, 1.0)

    def _response(self, times: Tensor) -> Tensor:
        heard = self.rate * self.rule.response(self.rate * self.eigenvalues, times)
        return torch.where(self.eigenvalues > 0, heard, 0.0)

    def _times(self, times: Times) -> tuple[Tensor, torch.Size]:
        moments = torch.as_tensor(times, dtype=self.y.dtype, device=self.y.device)
        if bool((moments.isnan() | (moments < 0)).any()):
            raise InvalidInput(
                "times must be numbers >= 0, possibly infinite: "
                f"{first_entry(moments, 'times', moments.isnan() | (moments < 0))}"
            )
        return moments.reshape(-1), moments.shape

    def _cross(self, kernel: Tensor) -> Tensor:
        fits = (
            isinstance(kernel, Tensor)
            and kernel.ndim == (4 if self.per_output else 2)
            and kernel.shape[1] == len(self.y)
            and (not self.per_output or kernel.shape[2:] == (self.y[0].numel(),) * 2)
        )
        if not fits:
            form = "[m, n, C, C]" if self.per_output else "[m, n]"
            raise ShapeMismatch(
                f"the kernel between test and training points must be {form} for targets "
                f"{list(self.y.shape)}, not {list(getattr(kernel, 'shape', []))}"
            )
        all_finite(kernel, "the kernel between test and training points")
        return (_flat(kernel) if self.per_output else kernel).to(self.y)

    @staticmethod
    def _start(start: Tensor | None, like: Tensor, name: str) -> Tensor:
        if start is None:
            return torch.zeros_like(like)
        start = _values(start, name)
        if start.shape != like.shape:
            raise ShapeMismatch(
                f"{name} must have shape {list(like.shape)}, not {list(start.shape)}"
            )
        return start.to(like)


def _flat(kernel: Tensor) -> Tensor:
    """`[m, n, C, D]` as the matrix `[mC, nD]` on outputs listed sample by sample."""
    m, n, c, d = kernel.shape
    return kernel.transpose(1, 2).reshape(m * c, n * d)


def _geometric_sum(gap: Tensor, k: Tensor) -> Tensor:
    r"""$\sum_{j<k}(1-g)^j=(1-(1-g)^k)/g$, which is $k$ at $g=0$."""
    slow = -torch.expm1(k * torch.log1p(-gap)) / gap
    fast = (1 - (1 - gap) ** k) / gap
    return torch.where(gap == 0, k, torch.where(gap < 1, slow, fast))


def _values(values: Tensor, name: str) -> Tensor:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise InvalidType(f"{name} must be a tensor of floating-point numbers")
    if values.ndim not in (1, 2) or values.numel() == 0:
        raise ShapeMismatch(f"{name} must be [n] or [n, C], not {list(values.shape)}")
    all_finite(values, name)
    return values.detach()


def _check_steps(times: Tensor, eigenvalues: Tensor, limit: float) -> None:
    infinite = torch.isinf(times)
    if bool(((times != times.round()) & ~infinite).any()):
        raise InvalidInput(
            "time counts steps here: every time must be a whole number, and "
            f"{first_entry(times, 'times', (times != times.round()) & ~infinite)}"
        )
    if bool(infinite.any()) and bool((eigenvalues >= limit).any()):
        raise InvalidInput(
            "infinitely many steps have a limit only below the stability limit of the step"
        )
