r"""The infinite-width limit of a user's own network: both kernels, read off its operations.

The covariances of its units and their tangents are carried through the network by the rules of
`torchtheory.nets.infinite_width.rules`. A layer adds $\gamma_wK+\gamma_b$ to the tangent, for its
own weights and biases: $\gamma_w=n_{\rm in}\operatorname{Var}W$, $\gamma_b=\operatorname{Var}b$ if
the parameters are those of the neural tangent parametrization, and $\gamma_w=n_{\rm in}$,
$\gamma_b=1$ if they are the weights themselves. Sources: Foundations of Deep Learning, Theorem 57
and section 7.3; Mathematical Aspects of Deep Learning, section 1.2.1.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite.dense import LimitKernels
from torchtheory.kernels.learning.functions import Kernel
from torchtheory.models.model import PureFunction
from torchtheory.nets.infinite_width.fields import Raw, output_field
from torchtheory.nets.infinite_width.rules import (
    largest_places,
    layer_variances,
    limit_rules,
    refuse_shared_weights,
)
from torchtheory.tracing.interpret import Call, Rules, interpret
from torchtheory.tracing.network import Network
from torchtheory.tracing.recorder import record

Parametrization = Literal["ntk", "standard"]

#: Entries of one block of the covariance between all samples and places.
_AT_ONCE = 4_000_000


def module_limit(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    parametrization: Parametrization = "ntk",
) -> LimitKernels:
    r"""Both kernels of a network as its hidden widths grow, on the samples of `x1` and `x2`.

    The variances of its random weights are those of the weights that it has: pass a network as it
    was initialized.

    Args:
        model: dense, convolutional or residual, with sums, concatenations, pooling and layer
            normalization; it is read as it is, and left alone.
        x1, x2: inputs `[n, ...]` and `[m, ...]`; without `x2`, those of `x1` with themselves.
        parametrization: `ntk`: of the parameters $\omega$ in $W=\sigma\omega/\sqrt{n_{\rm in}}$,
            whose kernel has a limit; `standard`: of the weights themselves, at the widths that the
            model has, which is what `empirical_ntk` measures.

    Returns:
        `[n, m]` each; `[n, *places, m, *places]` for a network whose output has places.

    Raises:
        UnsupportedModel: where no limit is known: attention, gates, a weight that is used twice, an
            activation of what is no Gaussian (a ReLU behind the sum of a residual block whose
            shortcut comes out of a ReLU, or is the input); with the operation and its place.

    Time and memory: those of all pairs of samples and places at once, in blocks of pairs of
    samples. No gradient flows to the inputs.

    >>> from torchtheory.kernels.infinite.dense import limit_kernels
    >>> x = torch.randn(3, 5, dtype=torch.float64)
    >>> net = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    >>> for p in net.parameters():                         # variance 2 / n, exactly
    ...     _ = nn.init.constant_(p, (2 / p.shape[1]) ** 0.5)
    >>> torch.allclose(module_limit(net, x).ntk, limit_kernels(x, depth=2).ntk)
    True
    """
    if parametrization not in ("ntk", "standard"):
        raise UnknownName("parametrization", str(parametrization), ("ntk", "standard"))
    a = _samples(x1, "x1")
    b = None if x2 is None else _samples(x2, "x2")
    if b is not None and b.shape[1:] != a.shape[1:]:
        raise ShapeMismatch(
            f"the samples of x1 are {list(a.shape[1:])} and those of x2 {list(b.shape[1:])}"
        )
    function = PureFunction(model).in_precision(torch.float64)
    network = record(function, a[:4])
    refuse_shared_weights(network)
    rules = limit_rules(partial(_own_parameters, parametrization))
    with torch.no_grad():
        if b is None:
            return _blocks(network, rules, a, a, x1.dtype, symmetric=True)
        return _blocks(network, rules, a, b, x1.dtype, symmetric=False)


def limit_kernel(
    model: nn.Module,
    which: Literal["nngp", "ntk"] = "ntk",
    *,
    parametrization: Parametrization = "ntk",
) -> Kernel:
    """Either kernel of a network of infinite width as an object, for regression and processes.

    See `module_limit`.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> k = limit_kernel(net, "nngp")
    >>> k(torch.ones(3, 2)).shape, k
    (torch.Size([3, 3]), nngp(Sequential))
    """
    if which not in ("nngp", "ntk"):
        raise UnknownName("kernel", str(which), ("nngp", "ntk"))

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        both = module_limit(model, a, b, parametrization=parametrization)
        return both.nngp if which == "nngp" else both.ntk

    def on_diagonal(x: Tensor) -> Tensor:
        return torch.cat([matrix(row, row).reshape(1) for row in torch.split(x, 1)])

    return Kernel(matrix, on_diagonal, f"{which}({type(model).__name__})")


def _samples(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2 or not len(x):
        raise InvalidType(f"{name} must be a tensor of real numbers, [n, ...] with n >= 1")
    all_finite(x, name)
    return x.detach().double()


def _blocks(
    network: Network, rules: Rules, a: Tensor, b: Tensor, dtype: torch.dtype, *, symmetric: bool
) -> LimitKernels:
    """All pairs, in blocks of so many samples that their places fit into memory."""
    step = max(1, math.isqrt(_AT_ONCE) // (2 * largest_places(network)))
    rows_nngp, rows_ntk, error = [], [], 0.0
    for start in range(0, len(a), step):
        rows = a[start : start + step]
        parts = []
        for other in range(0, len(b), step):
            columns = b[other : other + step]
            same = symmetric and other == start
            together = rows if same else torch.cat([rows, columns])
            made = interpret(network, rules, [Raw(together)], len(together))
            field = output_field(made)
            k, t = field.mean_over_units()
            count = k.ndim // 2 - 1
            own = (slice(0, len(rows)), *(slice(None),) * count)
            theirs = (slice(0 if same else len(rows), None), *(slice(None),) * count)
            parts.append((k[own + theirs], t[own + theirs]))
            error = max(error, field.error)
        along = 1 + count
        rows_nngp.append(torch.cat([k for k, _ in parts], along))
        rows_ntk.append(torch.cat([t for _, t in parts], along))
    return LimitKernels(torch.cat(rows_nngp).to(dtype), torch.cat(rows_ntk).to(dtype), error)


def _own_parameters(
    parametrization: Parametrization, call: Call, seen: Tensor, made: Tensor
) -> Tensor:
    """The tangent kernel of a layer's own weights and biases, or gains and shifts."""
    del made
    if call.name in ("layer_norm", "batch_norm"):
        w, b = 1.0, 1.0
    elif parametrization == "ntk":
        w, b = layer_variances(call)
    else:
        w, b = float(call["weight"][0].numel()), 1.0
    own = torch.zeros_like(seen) if call.get("weight") is None else w * seen
    return own if call.get("bias") is None else own + b
