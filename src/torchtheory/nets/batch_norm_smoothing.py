r"""What batch normalization does to the first and second derivatives of a loss.

For a batch $b\in\mathbb R^m$ of one unit's values, $s_b=\sqrt{\sigma_b^2+\delta}$,
$\hat B=(b-\mu_b)/s_b$ and $\mathcal B(b)=\gamma\hat B+\beta$ let

$$
P=I-\tfrac1m\mathbf1\mathbf1^\top-\tfrac1m\hat B\hat B^\top,\qquad
G=\nabla r(\mathcal B(b)),\quad H=\nabla^2r(\mathcal B(b)).
$$

Then, for every $\delta\ge0$ with $s_b>0$,

$$
\mathcal B'(b)=\frac\gamma{s_b}P,\qquad
\nabla(r\circ\mathcal B)(b)=\frac\gamma{s_b}PG,\qquad
\nabla^2(r\circ\mathcal B)(b)=\frac{\gamma^2}{s_b^2}PHP-\frac\gamma{m s_b^2}
\bigl[PG\,\hat B^\top+\hat B(PG)^\top+\langle\hat B,G\rangle P\bigr].
$$

With $\delta=0$, $P$ is the orthogonal projection that takes out the mean and the direction of
$\hat B$. $G$ and $H$ are taken where the loss is evaluated, at $\mathcal B(b)$ and not at $b$.
Source: Mathematical Aspects of Deep Learning, Proposition 1.28 (Santurkar et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, as_module, described, nonnegative_number
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.models.evaluation import answered
from torchtheory.models.model import PureFunction
from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import Operation
from torchtheory.tracing.passes import run
from torchtheory.tracing.recorder import record

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class NormalizedBatch:
    r"""A batch of values and its normalization, unit by unit.

    Attributes:
        deviation: `[...]`, $s_b=\sqrt{\sigma_b^2+\delta}$.
        normalized: `[..., m]`, $\hat B$.
    """

    deviation: Tensor
    normalized: Tensor

    @classmethod
    def of(cls, b: Tensor, eps: float = 0.0) -> NormalizedBatch:
        """Normalize `b[..., m]` along its last dimension."""
        nonnegative_number(eps, "eps")
        if not isinstance(b, Tensor) or not b.is_floating_point():
            raise InvalidInput(f"a batch is a tensor of floating-point numbers, not {described(b)}")
        if b.ndim < 1 or b.shape[-1] < 2:
            raise ShapeMismatch(f"a batch has at least two values, not {list(b.shape)}")
        if not bool(b.isfinite().all()):
            raise NonFinite("the batch has values that are not finite")
        variance = b.var(-1, correction=0)
        # equal values have a mean that rounding may put beside them, and so a variance
        constant = (variance == 0) | (b.amax(-1) == b.amin(-1))
        if eps == 0 and bool(constant.any()):
            raise InvalidInput("a unit is constant on the batch, so it cannot be normalized")
        deviation = (variance + eps).sqrt()
        return cls(deviation, (b - b.mean(-1, keepdim=True)) / deviation[..., None])

    def project(self, v: Tensor) -> Tensor:
        r"""$Pv$ for `v[..., m]`."""
        along = (self.normalized * v).mean(-1, keepdim=True)
        return v - v.mean(-1, keepdim=True) - along * self.normalized


def batch_norm_jacobian(b: Tensor, scale: Tensor | float = 1.0, *, eps: float = 0.0) -> Tensor:
    r"""$\partial\mathcal B/\partial b=\frac\gamma{s_b}P$, `[..., m, m]`, of batches `b[..., m]`.

    Args:
        scale: $\gamma$, one number or `[...]`.
        eps: $\delta$.

    >>> batch_norm_jacobian(torch.tensor([-1.0, 0.0, 1.0])).abs().max() < 1
    tensor(True)
    >>> batch_norm_jacobian(torch.tensor([-1.0, 1.0]))              # two values: nothing is left
    tensor([[0., 0.],
            [0., 0.]])
    """
    batch = NormalizedBatch.of(b, eps)
    eye = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
    outer = batch.normalized[..., :, None] * batch.normalized[..., None, :]
    factor = torch.as_tensor(scale, dtype=b.dtype, device=b.device) / batch.deviation
    return factor[..., None, None] * (eye - (1 + outer) / b.shape[-1])


def batch_norm_gradient(
    gradient: Tensor, b: Tensor, scale: Tensor | float = 1.0, *, eps: float = 0.0
) -> Tensor:
    r"""$\nabla(r\circ\mathcal B)(b)=\frac\gamma{s_b}PG$, from $G$ at $\mathcal B(b)$.

    Args:
        gradient: `[..., m]`, $G=\nabla r(\mathcal B(b))$.
        b: `[..., m]`.
        scale, eps: as in `batch_norm_jacobian`.

    >>> b = torch.tensor([0.0, 1.0, 2.0])
    >>> batch_norm_gradient(torch.ones(3), b)            # moving all values together does nothing
    tensor([0., 0., 0.])
    """
    _check_shapes(gradient, b)
    batch = NormalizedBatch.of(b, eps)
    factor = torch.as_tensor(scale, dtype=b.dtype, device=b.device) / batch.deviation
    return factor[..., None] * batch.project(gradient)


def batch_norm_gradient_norm(
    gradient: Tensor, b: Tensor, scale: Tensor | float = 1.0, *, eps: float = 0.0
) -> Tensor:
    r"""$\|\nabla(r\circ\mathcal B)(b)\|^2=\frac{\gamma^2}{s_b^2}\bigl(\|G\|^2
    -\tfrac1m\langle\mathbf1,G\rangle^2-\tfrac{2-\rho}m\langle\hat B,G\rangle^2\bigr)$, `[...]`.

    $\rho=\sigma_b^2/(\sigma_b^2+\delta)$ is 1 without $\delta$, and the formula that of the
    proposition.

    >>> b, G = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, -2.0, 1.0])
    >>> batch_norm_gradient_norm(G, b), batch_norm_gradient(G, b).norm()
    (tensor(9.0000), tensor(3.0000))
    """
    _check_shapes(gradient, b)
    batch = NormalizedBatch.of(b, eps)
    m = b.shape[-1]
    share = batch.normalized.square().mean(-1)
    removed = gradient.sum(-1).square() + (2 - share) * (batch.normalized * gradient).sum(-1) ** 2
    factor = torch.as_tensor(scale, dtype=b.dtype, device=b.device) / batch.deviation
    return factor.square() * (gradient.square().sum(-1) - removed / m)


def batch_norm_second_derivative(
    hessian: Callable[[Tensor], Tensor],
    gradient: Tensor,
    b: Tensor,
    v: Tensor,
    scale: Tensor | float = 1.0,
    *,
    eps: float = 0.0,
) -> Tensor:
    r"""$\nabla^2(r\circ\mathcal B)(b)\,v$ by the formula of this module, `[..., m]`.

    Units may be coupled by the loss: $H$ acts on all of them, $P$ on each for itself.

    Args:
        hessian: $v\mapsto Hv$, from `[..., m]` to `[..., m]`, at $\mathcal B(b)$.
        gradient: `[..., m]`, $G$ at $\mathcal B(b)$.
        b: `[..., m]`, the batch of every unit.
        v: `[..., m]`, a direction.
        scale, eps: as in `batch_norm_jacobian`.

    >>> b, v = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    >>> batch_norm_second_derivative(lambda v: v, torch.zeros(3), b, v)
    tensor([ 0.2500, -0.5000,  0.2500])
    """
    _check_shapes(gradient, b)
    _check_shapes(v, b)
    batch = NormalizedBatch.of(b, eps)
    m = b.shape[-1]
    factor = torch.as_tensor(scale, dtype=b.dtype, device=b.device)[..., None]
    s, hat = batch.deviation[..., None], batch.normalized
    projected, moved = batch.project(gradient), batch.project(v)
    first = batch.project(hessian(factor / s * moved)) * factor / s
    along = (hat * v).sum(-1, keepdim=True)
    across = (projected * v).sum(-1, keepdim=True)
    size = (hat * gradient).sum(-1, keepdim=True)
    return first - factor / (m * s.square()) * (projected * along + hat * across + size * moved)


@dataclass(frozen=True, slots=True)
class LayerSmoothing:
    r"""What one batch normalization layer of a network does to the gradient of a loss.

    Attributes:
        layer: its name.
        units: channels.
        values: values per channel in the batch, $m$.
        after: $\|G\|$, the gradient in the layer's outputs.
        before: $\|\nabla(r\circ\mathcal B)(b)\|$, the gradient in its inputs, by autograd.
        predicted: the same by the formula.
        bound: $\bigl(\sum\frac{\gamma^2}{s_b^2}\|G\|^2\bigr)^{1/2}$, what it would be without the
            projection.
        scale: $|\gamma|/s_b$, the median over the units.
        mean_share, own_share: shares of $\frac{\gamma^2}{s_b^2}\|G\|^2$ that the projections along
            $\mathbf1$ and along $\hat B$ take away.
        curvature: $v^\top\nabla^2(r\circ\mathcal B)v/\|v\|^2$ along the gradient $v$ in the
            inputs, by autograd.
        predicted_curvature: the same by the formula.
        curvature_after: $G^\top HG/\|G\|^2$, that of the loss in the layer's outputs.
    """

    layer: str
    units: int
    values: int
    after: float
    before: float
    predicted: float
    bound: float
    scale: float
    mean_share: float
    own_share: float
    curvature: float
    predicted_curvature: float
    curvature_after: float

    @property
    def reduction(self) -> float:
        r"""$\|\nabla(r\circ\mathcal B)(b)\|/\|G\|$: below 1 where normalization smooths."""
        return self.before / self.after if self.after else float("nan")


def batch_norm_smoothing(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    loss: Loss | None = None,
    *,
    names: Sequence[str] | None = None,
) -> list[LayerSmoothing]:
    r"""The smoothing of every batch normalization layer of a network, on a batch of its data.

    Normalizations are in training mode, so that the batch's own statistics count; everything else
    is in evaluation mode, and the model is left as it was (running statistics included).

    Args:
        model: a network with batch normalizations, each used once; also from an archive.
        batch: `(x, y)` with at least two samples.
        loss: of outputs and `y`; cross-entropy for whole-number labels and mean squared error
            otherwise, unless given.
        names: the layers to look at; all unless given.

    Cost: one forward and one backward pass, and two backward passes of second order per layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1))
    >>> x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    >>> (found,) = batch_norm_smoothing(net, (x, x[:, :1]))
    >>> found.layer, found.before <= found.bound, abs(found.before / found.predicted - 1) < 1e-3
    ('1', True, True)
    """
    as_module(model)
    x, y = _pair(batch)
    as_batch(x)
    if len(x) < 2:
        raise InvalidInput("one sample has no batch statistics: give at least two")
    function = PureFunction(model)
    network = answered(lambda t: record(function, t), x, function.reference())
    layers = [op.layer for op in network if op.name == "batch_norm"]
    if names is not None:
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            if name not in layers:
                raise UnknownName("batch normalization layer", name, layers)
        layers = [name for name in layers if name in wanted]
    if not layers:
        raise UnsupportedModel(f"{type(model).__name__} has no such batch normalization layer")
    twice = next((name for name in layers if layers.count(name) > 1), None)
    if twice is not None:
        raise UnsupportedModel(f"{twice} is used twice: it has no batch of its own")
    kept: dict[str, _Normalized] = {}

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.name != "batch_norm" or op.layer not in layers:
            return op.function(*args, **kwargs)
        call = Call(op, args, kwargs, len(x))
        # part of the graph, also where nothing before it is trained
        entered = call["input"].clone()
        entered = entered if entered.requires_grad else entered.requires_grad_()
        weight, eps = call["weight"], float(call["eps"])
        left = nn.functional.batch_norm(
            entered, None, None, weight, call["bias"], training=True, eps=eps
        )
        kept[op.layer] = _Normalized(entered, left, weight, eps)
        return left

    with torch.enable_grad():
        outputs = run(function, network, x, step)
        value = (_usual_loss(y) if loss is None else loss)(outputs, y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InvalidInput(
                f"the loss must be one number, a tensor with one entry, not {described(value)}"
            )
        if not bool(value.isfinite()):
            raise NonFinite("the loss on the batch is not finite")
        return [_measure(name, kept[name], value.reshape(())) for name in layers]


@dataclass(frozen=True, slots=True)
class _Normalized:
    """What entered and left a layer, and its scale and constant."""

    entered: Tensor
    left: Tensor
    weight: Tensor | None
    eps: float


def _pair(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InvalidInput("a batch is a pair (x, y)")
    if not isinstance(batch[1], Tensor):
        raise InvalidInput(f"y must be a tensor, not {type(batch[1]).__name__}")
    x, y = batch
    if isinstance(x, Tensor) and x.ndim and (not y.ndim or len(x) != len(y)):
        raise ShapeMismatch(f"x is {list(x.shape)} and y {list(y.shape)}: a target per sample")
    return x, y


def _usual_loss(y: Tensor) -> Loss:
    return _squared_error if y.is_floating_point() else nn.functional.cross_entropy


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.shape != y.shape:  # torch would compare every output with every target
        raise ShapeMismatch(f"y is {list(y.shape)} and the outputs are {list(outputs.shape)}")
    return nn.functional.mse_loss(outputs, y)


def _measure(name: str, layer: _Normalized, value: Tensor) -> LayerSmoothing:
    """First and second derivatives at one layer, by autograd and by the formulas."""
    entered, left, eps = layer.entered, layer.left, layer.eps
    before, after = torch.autograd.grad(
        value, [entered, left], create_graph=True, retain_graph=True, materialize_grads=True
    )
    length = before.detach().norm()
    direction = before.detach() / length if length > 0 else before.detach()

    def product(gradient: Tensor, place: Tensor, v: Tensor) -> Tensor:
        # zero where nothing bends: a loss that is piecewise linear in this layer
        if not gradient.requires_grad:
            return torch.zeros_like(v)
        (found,) = torch.autograd.grad(
            gradient, place, v, retain_graph=True, materialize_grads=True
        )
        return found

    bend = product(before, entered, direction)
    units = len(entered[0])
    b, G = (_by_unit(t.detach().double()) for t in (entered, after))
    gamma = torch.ones(units, dtype=b.dtype, device=b.device)
    if layer.weight is not None:
        gamma = layer.weight.detach().double()
    normal = NormalizedBatch.of(b, eps)
    factor = gamma / normal.deviation
    m = b.shape[-1]
    whole = factor.square() * G.square().sum(-1)
    total = float(whole.sum())
    means = factor.square() * G.sum(-1).square() / m
    squares = batch_norm_gradient_norm(G, b, gamma, eps=eps)
    v = _by_unit(direction.double())

    def hessian(flat: Tensor) -> Tensor:
        shaped = _as_given(flat, left).to(left.dtype)
        return _by_unit(product(after, left, shaped).double())

    curved = batch_norm_second_derivative(hessian, G, b, v, gamma, eps=eps)
    size = float(G.norm())
    unit = G / size if size > 0 else G
    return LayerSmoothing(
        layer=name,
        units=units,
        values=m,
        after=size,
        before=float(length),
        predicted=float(squares.clamp(min=0).sum().sqrt()),
        bound=total**0.5,
        scale=float(factor.abs().median()),
        mean_share=float(means.sum()) / total if total else 0.0,
        own_share=float((whole - means - squares).sum()) / total if total else 0.0,
        curvature=float((bend * direction).sum()),
        predicted_curvature=float((curved * v).sum()),
        curvature_after=float((hessian(unit) * unit).sum()),
    )


def _by_unit(t: Tensor) -> Tensor:
    """`[s, c, ...]` as `[c, m]`: every channel's values."""
    return t.transpose(0, 1).flatten(1)


def _as_given(flat: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_by_unit`."""
    return flat.view(like.shape[1], like.shape[0], *like.shape[2:]).transpose(0, 1)


def _check_shapes(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ShapeMismatch(
            f"a gradient has the shape of the batch, {list(b.shape)}, not {list(a.shape)}"
        )
