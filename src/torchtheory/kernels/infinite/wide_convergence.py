r"""Why gradient descent on a wide network converges: the last layer alone is enough.

For $r(\theta)=\frac1m\sum_i(\Phi(x^{(i)},\theta)-y^{(i)})^2$ with a linear last layer of
$n$ units and residuals $e$, the gradient with respect to the last layer is
$\frac2mF^\top e$, so that

$$
\|\nabla r\|^2\ge\frac4{m^2}e^\top\bar Ke\ge\frac4m\lambda_{\min}(\bar K)\,r,
\qquad\bar K=FF^\top=\sum_{k=1}^nv_kv_k^\top .
$$

$\lambda_{\min}(\bar K)$ grows like $n$ when the first layer's law does not depend on
$n$, while the Hessian of $\Phi$ stays bounded: the inequality survives in a ball, and
the risk falls geometrically before the iterates leave it. Source: The Modern Mathematics of Deep
Learning, section 1.5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_points, as_targets, positive_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.model import PureFunction, flatten, global_randomness_kept, unflatten
from torchtheory.nets.activations.table import nth_derivative
from torchtheory.nets.biases import homogeneous
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.certificates.convergence import (
    geometric_bound,
)
from torchtheory.optimization.descent.iterates import Descent, gradient_descent
from torchtheory.tracing.chain import as_chain
from torchtheory.tracing.layer_features import last_hidden_features, last_layer


def wide_network(
    width: int,
    dimension: int,
    *,
    first_deviation: float = 1.0,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    r"""$\Phi(x,\theta)=\sum_{j=1}^n\theta_j^{(2)}\tanh\langle\theta_j^{(1)},(x,1)\rangle$
    at random parameters: $\theta^{(2)}_j\sim\mathcal N(0,\frac1n)$ and
    $\theta^{(1)}_j\sim\mathcal N(0,s^2I_{d+1})$.

    The deviation $s$ must not depend on the width. With $s=n^{-1/2}$, as the source
    prints, the features become $\tanh0$ for every sample as $n$ grows.

    >>> wide_network(100, 3)
    Sequential(
      (0): Linear(in_features=3, out_features=100, bias=True)
      (1): Tanh()
      (2): Linear(in_features=100, out_features=1, bias=False)
    )
    """
    whole_number(width, "width", least=1)
    whole_number(dimension, "dimension", least=1)
    positive_number(first_deviation, "first_deviation")
    generator = as_generator(generator)
    first = first_deviation * gaussian(width, dimension + 1, generator=generator, dtype=dtype)
    second = gaussian(1, width, generator=generator, dtype=dtype) / math.sqrt(width)
    return nn.Sequential(dense(first[:, :-1], first[:, -1]), nn.Tanh(), dense(second))


def last_layer_kernel(model: nn.Module, x: Tensor) -> Tensor:
    r"""$\bar K=FF^\top$, `[m, m]`: the tangent kernel with respect to the last layer alone.

    $F$ are the features `[m, n]` the last layer is given, with a column of ones where it
    has a bias. Works for any chain of layers that ends in an `nn.Linear`; with several outputs
    the kernel is the same for each. Costs a forward pass and $O(m^2n)$.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
    >>> last_layer_kernel(net, torch.tensor([[1.0, 0.0], [1.0, 3.0]]))
    tensor([[ 2.,  2.],
            [ 2., 11.]])
    """
    features = last_hidden_features(model, x)
    if last_layer(model).bias is not None:
        features = homogeneous(features)
    return features @ features.T


def _refuse_frozen_last_layer(model: nn.Module) -> None:
    """What the last layer contributes to a gradient, it does only if it is trained."""
    head = last_layer(model)
    free = PureFunction(model).trainable
    for name, p in model.named_parameters():
        if (p is head.weight or p is head.bias) and name not in free:
            raise UnsupportedModel(f"{name} is frozen, and the theorem is about its training")


@dataclass(frozen=True, slots=True)
class GradientDomination:
    r"""The chain of inequalities
    $\|\nabla r\|^2\ge\frac4{m^2}e^\top\bar Ke\ge \frac4m\lambda_{\min}(\bar K)r$ at one point.

    Attributes:
        risk: $r$, the mean over samples of the squared residual (summed over outputs).
        squared_gradient: $\|\nabla r\|^2$ with respect to all parameters.
        last_layer_part: $\frac4{m^2}e^\top\bar Ke$, the last layer's share of it.
        smallest_eigenvalue: $\lambda_{\min}(\bar K)$.
        samples: $m$.
    """

    risk: float
    squared_gradient: float
    last_layer_part: float
    smallest_eigenvalue: float
    samples: int

    @property
    def constant(self) -> float:
        r"""$\frac4m\lambda_{\min}(\bar K)$, a lower bound of $\|\nabla r\|^2/r$."""
        return 4 / self.samples * self.smallest_eigenvalue

    @property
    def ratio(self) -> float:
        r"""$\|\nabla r\|^2/r$; twice the Polyak-Łojasiewicz constant this point allows."""
        return self.squared_gradient / self.risk if self.risk else math.inf


def gradient_domination(model: nn.Module, x: Tensor, y: Tensor) -> GradientDomination:
    r"""The squared gradient of the risk, what the last layer contributes, and what is certain.

    Args:
        model: a chain of layers that ends in an `nn.Linear`.
        x: `[m, ...]`.
        y: `[m]` or `[m, outputs]`.

    Costs a forward and a backward pass and the eigenvalues of an `[m, m]` matrix.

    >>> net, x = wide_network(50, 2), torch.eye(2).double()
    >>> found = gradient_domination(net, x, torch.tensor([1.0, -1.0]))
    >>> found.squared_gradient >= found.last_layer_part >= found.constant * found.risk > 0
    True
    """
    risk = squared_risk(model, x, y)
    _refuse_frozen_last_layer(model)
    kernel = last_layer_kernel(model, x)
    f = PureFunction(model)
    theta = flatten(f.trainable).requires_grad_()
    with torch.enable_grad():
        value = risk(theta)
    (slope,) = torch.autograd.grad(value, theta)
    with torch.no_grad(), global_randomness_kept():
        residual = f(f.parameters, x) - as_targets(y, x).reshape(len(x), -1)
    m = len(x)
    return GradientDomination(
        risk=float(value.detach()),
        squared_gradient=float(slope.square().sum()),
        last_layer_part=float(4 / m**2 * (residual * (kernel @ residual)).sum()),
        smallest_eigenvalue=float(torch.linalg.eigvalsh(kernel)[0]),
        samples=m,
    )


def squared_risk(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    r"""$r(\theta)=\frac1m\sum_i\|\Phi(x^{(i)},\theta)-y^{(i)}\|^2$ as a function of the
    trainable parameters in one vector `[p]`, for `gradient_descent`
    and its relatives. The model is not changed.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> risk = squared_risk(net, torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0]))
    >>> risk(torch.tensor([2.0]))
    tensor(10.)
    """
    f = PureFunction(model)
    f.refuse_non_finite_parameters()
    y = as_targets(y, x).reshape(len(x), -1)
    with torch.no_grad(), global_randomness_kept():
        outputs = f(f.parameters, x)
    if outputs.shape != y.shape:
        raise InvalidInput(
            f"the model gives {list(outputs.shape)} for these inputs, the targets are "
            f"{list(y.shape)}"
        )

    def risk(theta: Tensor) -> Tensor:
        with global_randomness_kept():
            return (f(unflatten(theta, f.trainable), x) - y).square().sum(1).mean()

    return risk


@dataclass(frozen=True, slots=True)
class BallSearch:
    r"""The smallest $\|\nabla r\|^2/r$ met in a ball around the parameters.

    Attributes:
        center: the ratio at the center.
        sampled: the smallest at points drawn from the sphere.
        searched: the smallest met by descending on the ratio inside the ball.
        displacement: where that was, `[p]` relative to the center.
    """

    center: float
    sampled: float
    searched: float
    displacement: Tensor

    @property
    def smallest(self) -> float:
        """Of all points met."""
        return min(self.center, self.sampled, self.searched)


def ratio_in_ball(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    radius: float = 1.0,
    samples: int = 16,
    steps: int = 20,
    generator: RandomSource = None,
) -> BallSearch:
    r"""Look for a point of $B_\rho(\theta)$ where the gradient is small next to the risk.

    Points of the sphere are drawn; and $\|\nabla r\|^2/r$ is descended inside the ball, from
    the nearest point where the last layer leaves residuals along the smallest eigenvector of
    $\bar K$ (or on the way to it, where it is outside the ball). What is found is an upper
    bound of the infimum over the ball: a search can refute gradient domination, not prove it; see
    `ratio_certificate`. Costs `samples` gradients and `steps` second-order ones.

    >>> found = ratio_in_ball(wide_network(200, 2), torch.eye(2).double(), torch.ones(2), samples=4)
    >>> 0 < found.searched < found.center
    True
    """
    positive_number(radius, "radius")
    whole_number(samples, "samples", least=1)
    whole_number(steps, "steps", least=1)
    risk = squared_risk(model, x, y)
    _refuse_frozen_last_layer(model)
    start = flatten(PureFunction(model).trainable)
    generator = as_generator(generator)
    directions = gaussian(samples, len(start), generator=generator, dtype=start.dtype)
    moved = start + radius * (directions / directions.norm(dim=1, keepdim=True)).to(start)
    center = _ratio(risk, start)[0]
    sampled = min(_ratio(risk, point)[0] for point in moved)
    where = _onto_ball(_towards_smallest_eigenvector(model, x, y), radius)
    best, uphill = _ratio(risk, start + where, slope=True)
    size = radius / 4
    for _ in range(steps):
        tried = _onto_ball(where - size * uphill, radius)
        value, steepest = _ratio(risk, start + tried, slope=True)
        if value < best:
            best, where, uphill, size = value, tried, steepest, 1.5 * size
        else:
            size /= 4
    return BallSearch(center, sampled, best, where)


def _ratio(
    risk: Callable[[Tensor], Tensor], theta: Tensor, slope: bool = False
) -> tuple[float, Tensor]:
    """The squared gradient over the risk, and the unit vector along which it grows fastest."""
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        value = risk(theta)
        (gradient,) = torch.autograd.grad(value, theta, create_graph=slope)
        quotient = gradient.square().sum() / value
        if not slope:
            return float(quotient.detach()), torch.zeros_like(theta)
        (uphill,) = torch.autograd.grad(quotient, theta)
    return float(quotient.detach()), uphill / uphill.norm().clamp_min(
        torch.finfo(uphill.dtype).tiny
    )


def _onto_ball(offset: Tensor, radius: float) -> Tensor:
    return offset * min(1.0, radius / max(float(offset.norm()), torch.finfo(offset.dtype).tiny))


def _towards_smallest_eigenvector(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The smallest move of the last layer that leaves only residuals the kernel hardly sees."""
    f = PureFunction(model)
    head = last_layer(model)
    features = last_hidden_features(model, x)
    design = features if head.bias is None else homogeneous(features)
    with torch.no_grad(), global_randomness_kept():
        residual = f(f.parameters, x) - as_targets(y, x).reshape(len(x), -1)
    smallest = torch.linalg.eigh(design @ design.T).eigenvectors[:, :1]
    unwanted = residual - smallest @ (smallest.T @ residual)
    change = -torch.linalg.lstsq(design, unwanted, driver="gelsd").solution.T
    offsets = {name: torch.zeros_like(value) for name, value in f.trainable.items()}
    for name, value in model.named_parameters():
        if value is head.weight:
            offsets[name] = change[:, : head.in_features]
        elif value is head.bias:
            offsets[name] = change[:, -1]
    return flatten(offsets)


def ratio_certificate(
    model: nn.Module, x: Tensor, *, radius: float = 1.0, bound: float = 1.0
) -> float:
    r"""A lower bound of $\|\nabla r\|^2/r$ over the whole ball $B_\rho(\theta)$, for a
    two-layer network and any labels:

    $$
    \frac4m\max\Bigl(0,\sqrt{\lambda_{\min}(\bar K_\theta)}-B\rho\|\tilde X\|_F\Bigr)^2.
    $$

    A parameter vector of length $\rho$ changes the features by at most
    $B\rho\|\tilde X\|_F$ in operator norm, where $|\varrho'|\le B$, and singular values
    move no further. The eigenvalue itself moves by up to the order of its square root.

    Args:
        model: `Linear`, activation, `Linear`.
        x: `[m, d]`.
        radius: $\rho$.
        bound: $B$.

    >>> ratio_certificate(wide_network(2000, 1), torch.tensor([[0.0], [1.0]]).double()) > 0
    True
    """
    x = as_points(x)
    positive_number(radius, "radius")
    positive_number(bound, "the bound on the slope")
    first, _, _ = _two_layers(model)
    smallest = float(torch.linalg.eigvalsh(last_layer_kernel(model, x))[0])
    size = float((x if first.bias is None else homogeneous(x)).norm())
    return 4 / len(x) * max(0.0, math.sqrt(max(0.0, smallest)) - bound * radius * size) ** 2


def two_layer_hessian_norms(model: nn.Module, x: Tensor) -> Tensor:
    r"""$\|\nabla_\theta^2\Phi(x,\theta)\|_{\mathrm{op}}$ at every sample, `[m]`, in closed
    form.

    For $\Phi=\sum_j\theta^{(2)}_j\varrho(\langle\theta_j^{(1)},\tilde x\rangle)$ the Hessian
    is block-diagonal, one block a unit, and acts only on $\theta_j^{(2)}$ and the component
    of $\theta_j^{(1)}$ along $\tilde x=(x,1)$. There it is
    $\begin{pmatrix}0&a_j\\a_j&b_j\end{pmatrix}$ with $a_j=\varrho'\|\tilde x\|$,
    $b_j=\theta_j^{(2)}\varrho''\|\tilde x\|^2$, so the norm is
    $\max_j\frac12\bigl(|b_j|+\sqrt{b_j^2+4a_j^2}\bigr)$: bounded as the width grows.

    Args:
        model: `Linear`, activation, `Linear` with one output; biases are allowed.
        x: `[m, d]`.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Identity(), nn.Linear(1, 1, bias=False))
    >>> two_layer_hessian_norms(net, torch.tensor([[1.0], [-3.0]]))
    tensor([1., 3.])
    """
    x = as_points(x)
    first, activation, second = _two_layers(model)
    if second.out_features != 1:
        raise UnsupportedModel(f"the model has {second.out_features} outputs; one is needed")
    with torch.no_grad():
        z = first(x)
    slopes, bends = (nth_derivative(activation, z, k) for k in (1, 2))
    lengths = (x if first.bias is None else homogeneous(x)).norm(dim=1, keepdim=True)
    a = slopes * lengths
    b = second.weight.detach() * bends * lengths.square()
    norms: Tensor = (b.abs() + (b.square() + 4 * a.square()).sqrt()) / 2
    return norms.amax(1)


def _two_layers(model: nn.Module) -> tuple[nn.Linear, nn.Module, nn.Linear]:
    layers = [link.module for link in as_chain(model)]
    if len(layers) == 3:
        first, activation, second = layers
        if (
            isinstance(first, nn.Linear)
            and isinstance(second, nn.Linear)
            and next(activation.parameters(), None) is None
        ):
            return first, activation, second
    raise UnsupportedModel(
        "this is for a network of Linear, an activation without parameters, and Linear, not for "
        f"{', '.join(type(layer).__name__ for layer in layers)}"
    )


def step_size_limit(model: nn.Module, x: Tensor) -> float:
    r"""The largest step $m/\lambda_{\max}(K)$ at which linearized gradient descent on the
    squared risk converges, $K$ the tangent kernel of all parameters `[m, m]`.

    Near a wide network the Hessian of $r$ is about $\frac2mJ^\top J$, and steps of
    $2/\lambda_{\max}$ or more diverge. For one output.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> step_size_limit(net, torch.tensor([[1.0], [2.0]]))           # 2 / 5
    0.4...
    """
    kernel = empirical_ntk(model, x, outputs="full")
    if kernel.shape[-1] != 1:
        raise UnsupportedModel(f"the model has {kernel.shape[-1]} outputs; this limit is for one")
    return len(x) / float(torch.linalg.eigvalsh(kernel[:, :, 0, 0])[-1])


@dataclass(frozen=True, slots=True)
class WideDescent:
    r"""Gradient descent on the squared risk, with what gradient domination predicts.

    Attributes:
        run: points, values and gradient norms, time first.
        distances: $\|\Theta^{(k)}-\Theta^{(0)}\|$, `[K + 1]`.
        constant: $c=\frac4m\lambda_{\min}(\bar K_{\Theta^{(0)}})$.
        step: $\eta$.
        limit: $\eta_{\max}$, the `step_size_limit` at the start.
    """

    run: Descent
    distances: Tensor
    constant: float
    step: float
    limit: float

    @property
    def risks(self) -> Tensor:
        """`[K + 1]`."""
        return self.run.values

    @property
    def predicted(self) -> Tensor:
        r"""$\bigl(1-\eta c\,(1-\eta/\eta_{\max})\bigr)^kr(\Theta^{(0)})$, `[K + 1]`,
        with $c$ the constant at the start.

        (1.52) has the factor $1-\eta c$, right to first order in $\eta$; a step costs
        the share $\eta/\eta_{\max}$ of its gain, as the sufficient decrease of a function of
        smoothness $2/\eta_{\max}$ says.
        """
        if not self.constant > 0:
            raise InvalidInput(
                "the last-layer kernel is singular: nothing is promised (constant = "
                f"{self.constant!r})"
            )
        gain = 1 - self.step / self.limit
        if not gain > 0:
            raise InvalidInput(
                f"the step {self.step:.3g} is not below the limit {self.limit:.3g}: nothing is "
                "promised"
            )
        # geometric_bound has the step 1 / smoothness
        return geometric_bound(
            self.risks[0], self.constant * gain, 1 / self.step, len(self.risks) - 1
        )


def wide_descent(model: nn.Module, x: Tensor, y: Tensor, *, step: float, steps: int) -> WideDescent:
    r"""Train the parameters by gradient descent on the squared risk, from where they are.

    The given model is not changed. All iterates are kept: memory is `steps` times the number
    of parameters.

    >>> net, x = wide_network(400, 2), torch.eye(2).double()
    >>> eta = step_size_limit(net, x) / 2
    >>> found = wide_descent(net, x, torch.tensor([1.0, -1.0]), step=eta, steps=60)
    >>> bool((found.risks <= found.predicted + 1e-30).all()), bool(found.distances.max() < 1)
    (True, True)
    """
    whole_number(steps, "steps", least=1)
    if x.ndim == 0 or not len(x):
        raise EmptyData(f"x has no samples (the shape is {list(x.shape)})")
    _refuse_frozen_last_layer(model)
    smallest = float(torch.linalg.eigvalsh(last_layer_kernel(model, x))[0])
    start = flatten(PureFunction(model).trainable)
    run = gradient_descent(squared_risk(model, x, y), start, step, steps)
    distances = (run.points - start).norm(dim=1)
    return WideDescent(run, distances, 4 / len(x) * smallest, step, step_size_limit(model, x))
