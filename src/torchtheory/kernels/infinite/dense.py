r"""Fully connected networks of infinite width: the kernel at initialization and the tangent kernel.

For the network $f^l=\frac{\sigma_w}{\sqrt{n_{l-1}}}W^l\varphi(f^{l-1})+\sigma_bb^l$ with
standard normal parameters, as the widths grow, the outputs become a Gaussian process with the
kernel (NNGP, Foundations of Deep Learning, Theorem 57)

$$
\Sigma^1=\sigma_w^2\frac{\langle x,x'\rangle}{d}+\sigma_b^2,\qquad
\Sigma^l=\sigma_w^2\,\mathbb E\,\varphi(z)\varphi(z')+\sigma_b^2,
\quad(z,z')\sim N(0,\Sigma^{l-1}|_{\{x,x'\}}),
$$

and the tangent kernel becomes deterministic (NTK, section 7.3 there; Mathematical Aspects of Deep
Learning, section 1.2.1):

$$
\Theta^1=\Sigma^1,\qquad
\Theta^l=\Theta^{l-1}\cdot\sigma_w^2\,\mathbb E\,\varphi'(z)\varphi'(z')+\Sigma^l.
$$

Theorem 57 has no $d$ in $\Sigma^1$ (`scaling="unscaled_input"`). The depth $L$
counts affine layers, and the kernels of the network are $\Sigma^L$ and $\Theta^L$; a
network with several outputs has these times the identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite.parametrization import check_variances
from torchtheory.kernels.learning.functions import Kernel, squared_distances
from torchtheory.nets.infinite_width.dual_activations import AnyActivation, dual_activation
from torchtheory.nets.infinite_width.duals.angles import half_angle_and_rest
from torchtheory.nets.infinite_width.duals.closed_forms import PiecewiseLinear, Step
from torchtheory.nets.infinite_width.duals.moments import DualActivation, Prepared

#: Which first layer: divided by the root of the input's dimension, or not at all (Theorem 57).
InputScaling = Literal["fan_in", "unscaled_input"]

_BAND = 512  # rows of one matrix product
_STRIP = 250_000  # entries of one strip: its few buffers stay in the cache
_NEARLY_OPPOSITE = 1.99  # 1 - cos t from which on the angle has lost a digit


@dataclass(frozen=True, slots=True)
class LimitKernels:
    r"""The two kernels of a network of infinite width.

    Attributes:
        nngp: $\Sigma^L$, `[n, m]`: the covariance of the outputs at initialization.
        ntk: $\Theta^L$, `[n, m]`: what drives training.
        error: how far a Hermite expansion may be off in one layer, for the worst layer and pair;
            0 where the activation's dual is a closed form.
    """

    nngp: Tensor
    ntk: Tensor
    error: float = 0.0


def limit_kernels(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    depth: int,
    activation: AnyActivation = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    scaling: InputScaling = "fan_in",
) -> LimitKernels:
    r"""Both kernels, $\Sigma^L$ and $\Theta^L$, on the rows of `x1` and `x2`.

    Args:
        x1, x2: `[n, d]` and `[m, d]`; without `x2` the rows of `x1` with themselves, of
            which half the matrix is computed.
        depth: $L$, the number of affine layers; 1 is a linear model.
        activation: whatever `dual_activation` takes.
        weight_variance, bias_variance: $\sigma_w^2$, $\sigma_b^2$.
        scaling: of the first layer.

    Piecewise linear activations and steps follow $1-\cos t$ instead of $\cos t$ from layer to
    layer, and $1+\cos t$ for nearly opposite inputs, so that the kernels of nearly equal and
    opposite inputs keep their digits in float32 as well.
    Time $O(nm(d+L))$, memory that of the result. No gradient flows to the inputs.

    Example: with $\sigma_w^2=2$ and unit vectors at 60 degrees, Theorem 57's kernels.

    >>> x = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    >>> k = limit_kernels(x, depth=2, scaling="unscaled_input")
    >>> k.nngp
    tensor([[2.0000, 1.2180],
            [1.2180, 2.0000]], dtype=torch.float64)
    >>> k.ntk
    tensor([[4.0000, 1.8847],
            [1.8847, 4.0000]], dtype=torch.float64)
    """
    plan = _Plan(x1, x2, depth, activation, weight_variance, bias_variance, scaling)
    sigma, theta = plan.compute(nngp=True, ntk=True)
    assert sigma is not None
    assert theta is not None
    return LimitKernels(sigma, theta, plan.error)


def nngp(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    depth: int,
    activation: AnyActivation = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    scaling: InputScaling = "fan_in",
) -> Tensor:
    r"""The kernel at initialization, $\Sigma^L$ `[n, m]`; see `limit_kernels`.

    >>> nngp(torch.tensor([[1.0, 1.0]]), depth=3)      # ReLU with weight variance 2 keeps |x|^2 / d
    tensor([[2.]])
    """
    plan = _Plan(x1, x2, depth, activation, weight_variance, bias_variance, scaling)
    sigma, _ = plan.compute(nngp=True, ntk=False)
    assert sigma is not None
    return sigma


def ntk(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    depth: int,
    activation: AnyActivation = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    scaling: InputScaling = "fan_in",
) -> Tensor:
    r"""The tangent kernel, $\Theta^L$ `[n, m]`; see `limit_kernels`.

    >>> ntk(torch.tensor([[1.0, 1.0]]), depth=3)
    tensor([[6.]])
    """
    plan = _Plan(x1, x2, depth, activation, weight_variance, bias_variance, scaling)
    _, theta = plan.compute(nngp=False, ntk=True)
    assert theta is not None
    return theta


def dense_limit_kernel(
    which: Literal["nngp", "ntk"],
    *,
    depth: int,
    activation: AnyActivation = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    scaling: InputScaling = "fan_in",
) -> Kernel:
    """Either kernel as an object, for regression and Gaussian processes.

    >>> k = dense_limit_kernel("ntk", depth=3)
    >>> k(torch.tensor([[1.0, 1.0]])), k
    (tensor([[6.0000]]), ntk(depth=3))
    """
    if which not in ("nngp", "ntk"):
        raise UnknownName("kernel", str(which), ("nngp", "ntk"))

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        plan = _Plan(a, b, depth, activation, weight_variance, bias_variance, scaling)
        sigma, theta = plan.compute(nngp=which == "nngp", ntk=which == "ntk")
        found = sigma if which == "nngp" else theta
        assert found is not None
        return found

    def on_diagonal(x: Tensor) -> Tensor:
        plan = _Plan(x, None, depth, activation, weight_variance, bias_variance, scaling)
        return plan.diagonals(slopes=True)[0 if which == "nngp" else 1]

    return Kernel(matrix, on_diagonal, f"{which}(depth={depth})")


class _Plan:
    """The checked arguments, and the loop over bands and strips that both recursions share."""

    def __init__(
        self,
        x1: Tensor,
        x2: Tensor | None,
        depth: int,
        activation: AnyActivation,
        weight_variance: float,
        bias_variance: float,
        scaling: InputScaling,
    ) -> None:
        self.a, self.b = as_points(x1, "x1"), None if x2 is None else as_points(x2, "x2")
        if self.b is not None and self.b.shape[1] != self.a.shape[1]:
            raise ShapeMismatch(
                f"x1 has {self.a.shape[1]} features and x2 has {self.b.shape[1]}: they must agree"
            )
        if self.b is not None and (self.a.dtype, self.a.device) != (self.b.dtype, self.b.device):
            raise InvalidInput(
                f"x1 is {self.a.dtype} on {self.a.device} and x2 {self.b.dtype} on "
                f"{self.b.device}: convert one"
            )
        self.depth = whole_number(depth, "depth", least=1)
        check_variances(weight_variance, bias_variance)
        if scaling not in ("fan_in", "unscaled_input"):
            raise UnknownName("scaling", str(scaling), ("fan_in", "unscaled_input"))
        self.dual = dual_activation(activation)
        self.weight, self.bias = float(weight_variance), float(bias_variance)
        self.first = self.weight / (self.a.shape[1] if scaling == "fan_in" else 1)
        self.error = 0.0

    @torch.no_grad()
    def compute(self, *, nngp: bool, ntk: bool) -> tuple[Tensor | None, Tensor | None]:
        """The wanted kernels."""
        b = self.a if self.b is None else self.b
        shape = (len(self.a), len(b))
        sigma = self.a.new_empty(shape) if nngp else None
        theta = self.a.new_empty(shape) if ntk else None
        kind = _ByAngle if isinstance(self.dual, PiecewiseLinear | Step) else _ByCovariance
        recursion: _ByAngle | _ByCovariance = kind(self, self.a, b)
        for start in range(0, len(self.a), _BAND):
            rows = slice(start, min(start + _BAND, len(self.a)))
            # of a symmetric matrix, only what is right of the band's first column
            columns = slice(start if self.b is None else 0, len(b))
            band = recursion.start(rows, columns)
            for part in _strips(*band.shape):
                here = slice(rows.start + part.start, rows.start + part.stop)
                parts = (None if k is None else k[here, columns] for k in (sigma, theta))
                recursion.advance(band[part], here, columns, *parts)
            if self.b is None:
                for kernel in (sigma, theta):
                    if kernel is not None:
                        _mirror(kernel, rows)
        if self.b is None:
            for kernel, diagonal in zip((sigma, theta), self.diagonals(slopes=ntk), strict=True):
                if kernel is not None:
                    kernel.diagonal().copy_(diagonal)
        self.error = recursion.error
        return sigma, theta

    @torch.no_grad()
    def diagonals(self, *, slopes: bool) -> tuple[Tensor, Tensor]:
        """A point with itself: one-dimensional expectations, without any angle."""
        k = self.variances(self.a)
        tangent = k
        for _ in range(self.depth - 1):
            found = self.dual.on_diagonal(k, slopes=slopes)
            k = self.weight * found.values + self.bias
            if found.slopes is not None:
                tangent = tangent * found.slopes * self.weight + k
        return k, tangent

    def variances(self, x: Tensor) -> Tensor:
        r"""$\Sigma^1(x,x)$ for each row."""
        return x.square().sum(1).mul_(self.first).add_(self.bias)


def _strips(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _STRIP // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _mirror(kernel: Tensor, rows: slice) -> None:
    """Copy the band's part right of the diagonal below it, and make its square symmetric."""
    square = kernel[rows, rows]
    square.copy_(square.triu() + square.triu(1).T)
    kernel[rows.stop :, rows] = kernel[rows, rows.stop :].T


class _ByCovariance:
    """The recursion on covariances, for any activation."""

    def __init__(self, plan: _Plan, a: Tensor, b: Tensor) -> None:
        self.plan, self.a, self.b = plan, a, b
        self.layers: list[tuple[Prepared, Prepared]] = []
        self.error = 0.0
        k1 = plan.variances(a)
        k2 = k1 if b is a else plan.variances(b)
        for _ in range(plan.depth - 1):
            one = plan.dual.prepare(k1)
            other = one if b is a else plan.dual.prepare(k2)
            self.layers.append((one, other))
            k1 = self._next(plan.dual, k1)
            k2 = k1 if b is a else self._next(plan.dual, k2)

    def _next(self, dual: DualActivation, k: Tensor) -> Tensor:
        values = dual.on_diagonal(k, slopes=False).values
        return self.plan.weight * values + self.plan.bias

    def start(self, rows: slice, columns: slice) -> Tensor:
        product = self.a[rows] @ self.b[columns].T
        return product.mul_(self.plan.first).add_(self.plan.bias)

    def advance(
        self,
        sigma: Tensor,
        rows: slice,
        columns: slice,
        sigma_out: Tensor | None,
        theta_out: Tensor | None,
    ) -> None:
        weight, bias = self.plan.weight, self.plan.bias
        theta = None if theta_out is None else sigma.clone()
        for left, right in self.layers:
            one = tuple(t[..., rows, None] for t in left)
            other = tuple(t[..., None, columns] for t in right)
            found = self.plan.dual.pair(sigma, one, other, slopes=theta is not None)
            self.error = max(self.error, found.error)
            sigma = found.values.mul_(weight).add_(bias)
            if theta is not None and found.slopes is not None:
                theta = theta.mul_(found.slopes.mul_(weight)).add_(sigma)
        if theta_out is not None and theta is not None:
            theta_out.copy_(theta)
        if sigma_out is not None:
            sigma_out.copy_(sigma)


class _ByAngle:
    r"""The recursion on $\delta=1-\cos t$, for piecewise linear activations and steps.

    An affine layer adds a constant: the unit vectors become $(g\,u,\,b)$ with
    $g^2=p/(p+\sigma_b^2)$, $b^2=1-g^2$ for a point whose variance without bias is
    $p$, so $\delta\mapsto g_ig_j\delta+\frac12(g_i-g_j)^2+\frac12(b_i-b_j)^2$. A piecewise
    linear activation does $\delta\mapsto\delta-\frac rm(\sin t-t\cos t)$, a step
    $\delta\mapsto\frac h\pi t$ with $h$ its `half_turn`. Nothing here cancels, but for nearly
    opposite points, which `_of_pairs` follows by $1+\cos t$ as well. The kernels are divided by the
    points' standard deviations on the way and multiplied at the end.
    """

    error = 0.0

    def __init__(self, plan: _Plan, a: Tensor, b: Tensor) -> None:
        assert isinstance(plan.dual, PiecewiseLinear | Step)
        self.dual, self.weight, self.bias = plan.dual, plan.weight, plan.bias
        self.depth = plan.depth
        self.one = self._points(a, plan.first)
        self.other = self.one if b is a else self._points(b, plan.first)
        mean = self.other.unit.mean(0)
        self.other.center(mean)
        if self.one is not self.other:
            self.one.center(mean)

    def _points(self, x: Tensor, first: float) -> _Directions:
        norm = x.norm(dim=1)
        unit = x / norm.where(norm > 0, 1.0)[:, None]
        p = first * norm.square()
        shares, constants, still = [], [], []
        for _ in range(self.depth):
            size = p + self.bias
            root = size.where(size > 0, 1.0).sqrt()
            shares.append(p.sqrt() / root if self.bias else torch.ones_like(p))
            constants.append(math.sqrt(self.bias) / root)
            still.append(size == 0)
            p = self.weight * self.dual.on_diagonal(size, slopes=False).values
        return _Directions(
            unit,
            norm == 0,
            torch.stack(shares),
            torch.stack(constants),
            torch.stack(still),
            size.sqrt(),
        )

    def start(self, rows: slice, columns: slice) -> Tensor:
        return self.one.centered[rows] @ self.other.centered[columns].T

    def _distance(self, product: Tensor, rows: slice, columns: slice) -> Tensor:
        r"""$\frac12\|u_i-u_j\|^2$ from the inner products around the mean, in their place.

        Pairs for which that would lose two digits or more are done from their differences, as in
        `squared_distances`, which takes over where they are
        many; here the passes run on a strip that is in the cache.
        """
        one, other = self.one, self.other
        size = one.half_square[rows, None] + other.half_square[columns]
        distance = torch.sub(size, product, out=product)
        if one is other:  # a point with itself is near, and the diagonal is known without this
            distance.diagonal(rows.start - columns.start).fill_(1.0)
        near = distance < size.mul_(1e-2)
        if bool(near.any()):
            i, j = near.nonzero(as_tuple=True)
            a, b = one.centered[rows], other.centered[columns]
            if len(i) > max(100, near.numel() // 100):
                distance = squared_distances(a, b).mul_(0.5)
            else:
                distance[i, j] = (a[i] - b[j]).square().sum(1).mul_(0.5)
        # the zero vector has no direction: it stands at a right angle to all
        if one.zero is not None:
            distance[one.zero[rows]] = 1.0
        if other.zero is not None:
            distance[:, other.zero[columns]] = 1.0
        return distance.clamp_(0.0, 2.0)

    def advance(
        self,
        product: Tensor,
        rows: slice,
        columns: slice,
        sigma_out: Tensor | None,
        theta_out: Tensor | None,
    ) -> None:
        distance = self._distance(product, rows, columns)
        opposite = (distance > _NEARLY_OPPOSITE).nonzero(as_tuple=True)
        distance = self._affine(distance, 0, rows, columns)
        theta = None if theta_out is None else 1 - distance
        for layer in range(1, self.depth):
            if isinstance(self.dual, Step):
                distance = self._after_step(distance, layer, rows, columns)
                if theta is not None:
                    theta.zero_()
            else:
                half, rest = half_angle_and_rest(distance)
                distance.sub_(rest, alpha=self.dual.bend).clamp_(min=0.0)
                if theta is not None:
                    theta.addcmul_(theta, half, value=-2 * self.dual.bend)
                    if self.bias:
                        theta.mul_(self._shares(layer, rows, columns))
            distance = self._affine(distance, layer, rows, columns)
            if theta is not None:
                theta.add_(1).sub_(distance)
        size = self.one.size[rows, None] * self.other.size[columns]
        if theta_out is not None and theta is not None:
            torch.mul(theta, size, out=theta_out)
        if sigma_out is not None:
            torch.addcmul(size, size, distance, value=-1, out=sigma_out)
        at_once = max(1, _STRIP // self.one.unit.shape[1])
        for begin in range(0, len(opposite[0]), at_once):
            i, j = place = tuple(index[begin : begin + at_once] for index in opposite)
            kernels = self._of_pairs(i + rows.start, j + columns.start)
            for out, kernel in zip((sigma_out, theta_out), kernels, strict=True):
                if out is not None:
                    out[place] = kernel * size[place]

    def _after_step(self, distance: Tensor, layer: int, rows: slice, columns: slice) -> Tensor:
        assert isinstance(self.dual, Step)
        half = distance.mul_(0.5).sqrt_().asin_()
        distance = half.mul_(2 * self.dual.half_turn / math.pi)
        still = self.one.still[layer - 1, rows, None]
        other = self.other.still[layer - 1, columns]
        if bool(still.any()) or bool(other.any()):
            # what stays at 0 is constant: with the others it shares no more than their mean
            shared = self.dual.mean / math.sqrt(self.dual.mean_square) if self.dual.at_zero else 0
            distance = distance.where(~(still | other), 1 - shared).where(~(still & other), 0.0)
        return distance

    def _of_pairs(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        r"""Both kernels of single pairs of points, from $1-\cos t$ and $1+\cos t$ side by side.

        Either is exact to rounding where it is small. With $s=\pi-t$, the piecewise linear
        activation's $\sin t-t\cos t$ is $\pi\cos s+(\sin s-s\cos s)$.
        """
        one, other = self.one, self.other
        near = (one.unit[i] - other.unit[j]).square().sum(1).mul_(0.5)
        far = (one.unit[i] + other.unit[j]).square().sum(1).mul_(0.5)
        cosine = torch.where(near < far, 1 - near, far - 1)
        theta = torch.zeros_like(cosine)
        for layer in range(self.depth):
            slope = torch.zeros_like(cosine)
            if layer:
                near, far, cosine, slope = self._turned(near, far)
            g1, g2 = one.shares[layer, i], other.shares[layer, j]
            b1, b2 = one.constants[layer, i], other.constants[layer, j]
            apart = (g1 - g2).square() / 2
            near = g1 * g2 * near + apart + (b1 - b2).square() / 2
            far = g1 * g2 * far + apart + (b1 + b2).square() / 2
            cosine = g1 * g2 * cosine + b1 * b2
            theta = theta * slope * g1 * g2 + cosine
        return cosine, theta

    def _turned(self, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One minus and one plus the cosine, the cosine, and the slope after the activation."""
        dual, acute = self.dual, near <= far
        half, rest = half_angle_and_rest(torch.minimum(near, far))
        if isinstance(dual, Step):
            turn, h = 2 * dual.half_turn / math.pi * half, dual.half_turn
            near = torch.where(acute, turn, h - turn)
            far = torch.where(acute, 2 - turn, (2 - h) + turn)
            cosine = torch.where(acute, 1 - turn, (1 - h) + turn)
            return near, far, cosine, torch.zeros_like(near)
        bent, whole = dual.bend * rest, dual.half_turn
        inside = (near - bent).clamp(min=0.0)
        beyond = 1 - far
        cosine = torch.where(acute, 1 - inside, (whole - 1) * beyond + bent)
        slope = torch.where(acute, 1 - 2 * dual.bend * half, (1 - whole) + 2 * dual.bend * half)
        left = torch.where(acute, 2 - inside, whole * beyond + far + bent)
        gone = torch.where(acute, inside, (2 - whole) * beyond + (far - bent).clamp(min=0.0))
        return gone, left, cosine, slope

    def _shares(self, layer: int, rows: slice, columns: slice) -> Tensor:
        return self.one.shares[layer, rows, None] * self.other.shares[layer, columns]

    def _affine(self, distance: Tensor, layer: int, rows: slice, columns: slice) -> Tensor:
        if not self.bias:
            return distance
        distance.mul_(self._shares(layer, rows, columns))
        for left, right in (
            (self.one.shares, self.other.shares),
            (self.one.constants, self.other.constants),
        ):
            gap = left[layer, rows, None] - right[layer, columns]
            distance.addcmul_(gap, gap, value=0.5)
        return distance


class _Directions:
    """Points as unit vectors, with what each layer's bias makes of them and their final size.

    `still` says at which layers a point has the variance 0.
    """

    def __init__(
        self,
        unit: Tensor,
        zero: Tensor,
        shares: Tensor,
        constants: Tensor,
        still: Tensor,
        size: Tensor,
    ) -> None:
        self.unit, self.shares, self.constants, self.size = unit, shares, constants, size
        self.still = still
        self.zero = zero if bool(zero.any()) else None

    def center(self, point: Tensor) -> None:
        self.centered = self.unit - point
        self.half_square = self.centered.norm(dim=1).square_().mul_(0.5)
