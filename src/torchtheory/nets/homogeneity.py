r"""Networks homogeneous in their parameters, and the margins of a classifier.

$f(\alpha\theta;x)=\alpha^Lf(\theta;x)$ for every $\alpha>0$. Networks of $L$
layers without biases and with positively homogeneous activations are, and so is one hidden layer
with biases, $\sum_jv_j\phi(w_j^\top x+b_j)$, of degree 2. Making the weights larger then
changes neither the decision nor its geometry, only how sure the loss believes it to be.
Source: Foundations of Deep Learning, section 11.1.2, Definition 31.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import as_generator, gaussian
from torchtheory.models.model import (
    Parameters,
    PureFunction,
    flatten,
    global_randomness_kept,
    real_rows,
    unflatten,
)

#: $\theta\mapsto$ the margins, `[p]` to `[n]` or `[n, k]`.
Margins = Callable[[Tensor], Tensor]

_FACTORS = (2.0, 0.5, 3.0)
_TOLERANCE = 1e-6  # relative deviation that counts as rounding


@dataclass(frozen=True, slots=True)
class Homogeneity:
    r"""Whether a network is homogeneous in what is trained.

    Attributes:
        degree: $L$, or None where there is none.
        deviation: largest $\|f(\alpha\theta)-\alpha^Lf(\theta)\|/(\alpha^L\|f(\theta)\|)$
            found.
        reason: one sentence: the degree, or what stands in the way.
    """

    degree: float | None
    deviation: float
    reason: str


def measure_homogeneity(model: nn.Module, x: Tensor) -> Homogeneity:
    r"""The $L$ with $f(\alpha\theta;x)=\alpha^Lf(\theta;x)$, or why there is none.

    Measured on the inputs `x[n, ...]` for $\alpha=2$ (which gives $L$), 1/2 and 3, at
    the network's parameters and at a point near them, so that biases that happen to be 0 do not
    pass. In double precision. Only parameters with `requires_grad` are scaled (all, if none has
    it): a network whose first layer is frozen has the degree of the rest. Where biases are what
    breaks it, the sentence names them.

    Cost: eight forward passes, and eight more for each bias.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> measure_homogeneity(net, x).degree
    2.0
    >>> net[2] = nn.Linear(3, 1)
    >>> measure_homogeneity(net, x).reason
    'not homogeneous; with 2.bias at 0 it is, of degree 2'
    """
    function = PureFunction(model).in_precision(torch.float64)
    function.refuse_non_finite_parameters()
    check_inputs(x)
    if x.is_floating_point():
        x = x.double()
    theta = function.trainable
    found = _measured(function, theta, x, frozenset())
    if found.degree is not None:
        return found
    biases = {k for k in theta if k.rsplit(".", 1)[-1] == "bias"}
    without = _measured(function, theta, x, frozenset(biases)) if biases else found
    if without.degree is None:
        return found
    for name in sorted(biases):
        fewer = frozenset(biases - {name})
        if _measured(function, theta, x, fewer).degree is not None:
            biases.remove(name)
    return Homogeneity(
        None,
        found.deviation,
        f"not homogeneous; with {', '.join(sorted(biases))} at 0 it is, of degree "
        f"{without.degree:g}",
    )


def require_homogeneous(model: nn.Module, x: Tensor) -> float:
    r"""The degree $L>0$ of a homogeneous network.

    Raises:
        UnsupportedModel: if it is not homogeneous, with the reason.

    >>> require_homogeneous(nn.Linear(2, 1, bias=False), torch.eye(2))
    1.0
    """
    found = measure_homogeneity(model, x)
    if found.degree is None or found.degree <= 0:
        raise UnsupportedModel(
            f"the network must be homogeneous, of positive degree: it is {found.reason}"
        )
    return found.degree


def network_margins(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Margins, Tensor]:
    r"""The margins of a classifier as a function of its trained parameters, and these as a vector.

    With one output and labels $\pm1$ the margin of a sample is $y_if(\theta;x_i)$, and
    the function's values are `[n]`; with $C$ outputs and labels $0,\dots,C-1$ there
    are $C-1$ of them, $f_{y_i}-f_j$, in the order of the other classes: `[n, C - 1]`.

    Args:
        model: run in evaluation mode, and left as it was.
        x: `[n, ...]`.
        y: `[n]`.

    >>> net = nn.Linear(2, 1, bias=False).double()
    >>> margins, theta = network_margins(net, torch.eye(2).double(), torch.tensor([1, -1]))
    >>> bool((margins(theta) == theta * torch.tensor([1, -1])).all())
    True
    """
    function = PureFunction(model)
    function.refuse_non_finite_parameters()
    check_inputs(x)
    theta = function.trainable
    with torch.no_grad(), global_randomness_kept():
        outputs = function({**function.parameters, **theta}, x)
    if real_rows(outputs, len(x)).ndim > 2:
        raise ShapeMismatch(f"the outputs must be [samples, classes], not {list(outputs.shape)}")
    sign, others = _sides(outputs.reshape(len(x), -1).shape[1], y, len(x), outputs)

    def margins(point: Tensor) -> Tensor:
        with global_randomness_kept():
            outputs = function({**function.parameters, **unflatten(point, theta)}, x)
        if others is None:
            return sign * outputs.reshape(-1)
        return outputs.gather(1, sign) - outputs.gather(1, others)

    return margins, flatten(theta)


def check_inputs(x: Tensor) -> None:
    """Refuse what is no batch of finite inputs."""
    if not isinstance(x, Tensor):
        raise InvalidType(f"x must be a torch tensor, not {type(x).__name__}")
    if x.ndim == 0 or len(x) == 0:
        raise EmptyData(f"x must be [samples, ...] with a sample, not {list(x.shape)}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise NonFinite(f"x contains NaN or infinity: {first_entry(x, 'x', ~torch.isfinite(x))}")


def _measured(
    function: PureFunction, theta: Parameters, x: Tensor, zero: frozenset[str]
) -> Homogeneity:
    """The degree with some parameters at 0."""
    size = math.sqrt(sum(float(p.square().sum()) for p in theta.values()) / function.count)
    source = as_generator(0)
    kept = {k: p for k, p in theta.items() if k not in zero}
    near = {
        k: p + 0.3 * size * gaussian(*p.shape, generator=source, dtype=p.dtype, device=p.device)
        for k, p in kept.items()
    }
    nothing = {k: torch.zeros_like(theta[k]) for k in zero}

    def outputs(point: Parameters, alpha: float) -> Tensor:
        scaled = {k: alpha * p for k, p in point.items()}
        with torch.no_grad(), global_randomness_kept():
            return function({**function.parameters, **nothing, **scaled}, x)

    here = real_rows(outputs(near, 1.0), len(x))
    norm = float(here.norm())
    if not math.isfinite(norm):
        raise NonFinite(
            f"the outputs of the network are NaN or infinite on these inputs (norm = {norm!r})"
        )
    if norm == 0:
        raise InvalidInput("the network is 0 on all of these inputs: give others")
    ratio = float((outputs(near, 2.0) * here).sum()) / norm**2
    if ratio <= 0:
        return Homogeneity(None, math.inf, "not homogeneous: scaling the weights turns the outputs")
    degree = math.log2(ratio)
    if abs(degree - round(degree)) < _TOLERANCE:
        degree = float(round(degree))
    worst = 0.0
    for point in (near, kept):
        base = outputs(point, 1.0)
        for alpha in _FACTORS:
            scale = alpha**degree
            gap = float((outputs(point, alpha) - scale * base).norm())
            worst = max(worst, gap / (scale * (float(base.norm()) or norm)))
    if worst > _TOLERANCE:
        return Homogeneity(None, worst, "not homogeneous: the outputs are no power of the scale")
    if degree == 0:
        return Homogeneity(0.0, worst, "of degree 0: scaling the weights changes nothing")
    return Homogeneity(degree, worst, f"homogeneous of degree {degree:g}")


def _sides(classes: int, y: Tensor, count: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """The signs of a binary problem; or each sample's class and its other classes."""
    if not isinstance(y, Tensor):
        raise InvalidType(f"y must be a torch tensor, not {type(y).__name__}")
    if classes == 1 and y.shape == (count, 1):
        y = y[:, 0]
    if y.shape != (count,):
        raise ShapeMismatch(f"x has {count} rows and y is {list(y.shape)}: one label per row")
    if classes == 1:
        sign = y.detach().to(like)
        if bool((sign.abs() != 1).any()):
            raise LabelOutOfRange(
                "a network with one output needs labels -1 and 1: give 2 * y - 1 ("
                f"{first_entry(sign, 'the value', sign.abs() != 1)})"
            )
        return sign, None
    if y.is_floating_point() or y.is_complex():
        raise InvalidType(f"the labels of {classes} classes must be integers, not {y.dtype}")
    label = y.detach().to(device=like.device, dtype=torch.int64)
    if bool(((label < 0) | (label >= classes)).any()):
        raise LabelOutOfRange(f"labels must be from 0 to {classes - 1}, as the network has outputs")
    every = torch.arange(classes, device=like.device).expand(count, classes)
    others = every[every != label[:, None]].reshape(count, classes - 1)
    return label[:, None], others
