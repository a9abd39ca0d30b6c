r"""Lipschitz constants: of each layer, of the chain, and what is met at given points.

For a chain $f = f_L \circ \dots \circ f_1$ the product
$\prod_\ell \mathrm{Lip}(f_\ell)$ bounds $\mathrm{Lip}(f) = \sup_x \|J_f(x)\|_2$.
All constants here are with respect to Euclidean norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import CONVOLUTIONS, TRANSPOSED, convolution_map
from torchtheory.convolution.spectra import DENSE_ENTRIES, norm_of_map
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.mapping import Mapped
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import (
    DENSE,
    FAILURE,
    operator_norm_upper_bound,
    spectral_norm,
)
from torchtheory.models.evaluation import answered
from torchtheory.models.model import PureFunction, evaluation_mode
from torchtheory.models.problem import Problem
from torchtheory.robustness.lipschitz.maxima import windows_of_an_entry
from torchtheory.robustness.lipschitz.pointwise import pointwise_constant
from torchtheory.tracing.chain import Rearrangement, as_chain, has_own_forward
from torchtheory.tracing.layers import LayerMaker
from torchtheory.tracing.network import Network, Operation, Value
from torchtheory.tracing.recorder import record

_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LINEAR_POOLS = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
)  # fmt: skip
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, *_NORMALIZATIONS)

#: Layers that only move entries about, or pass them on in evaluation mode.
_PASSING = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, Rearrangement,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Norms of one layer of a chain.

    Attributes:
        name, kind: of the layer.
        lipschitz: its Lipschitz constant, or an upper bound of it. For a dense layer of up to 512
            units on one side, and for a convolution that is small or has circular padding, this is
            exactly the spectral norm. For other convolutions it is a bound for certain where one is
            within 1% of the norm, and else, as for larger dense layers, one that fails with
            probability 1e-6; `torchtheory.convolution.spectra.convolution_norm` says which.
        frobenius: Frobenius norm of its linear map; None for a layer without weights.
        lower: what the spectral norm is at least, `lipschitz` itself where that is exact; None for
            a layer without weights, and for a larger dense layer.
    """

    name: str
    kind: str
    lipschitz: float
    frobenius: float | None
    lower: float | None = None

    @property
    def stable_rank(self) -> float | None:
        r"""$\|W\|_F^2 / \|W\|_2^2$, between 1 and the rank."""
        if self.frobenius is None or self.lipschitz == 0:
            return None
        return (self.frobenius / self.lipschitz) ** 2


def layer_norms(model: nn.Module, input_shape: Sequence[int]) -> list[LayerNorm]:
    """Norms of every layer of a chain, in order, in evaluation mode.

    Args:
        model: an `nn.Sequential`, or any module that is a chain of layers.
        input_shape: shape of one input, without the batch dimension.

    Raises:
        UnsupportedModel: if a layer has no rule here; the message names it.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sigmoid())
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> [(n.lipschitz, n.frobenius) for n in layer_norms(net, (2,))]
    [(4.0, 5.0), (0.25, None)]
    """
    found = []
    like = PureFunction(model).reference()
    x = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
    with torch.no_grad(), evaluation_mode(model):
        for link in as_chain(model):
            if isinstance(vars(link.module).get("weight"), Tensor):
                link.module(x)  # the weight is no parameter: a hook computes it in each pass
            norms = _norms(link.module, x, link.name)
            found.append(LayerNorm(link.name, type(link.module).__name__, *norms))
            link.module.training = False
            x = link.module(x)
    return found


def weight_norms(model: nn.Module, x: Tensor) -> Iterator[LayerNorm]:
    """Norms of the dense, convolution and batch normalization layers of any module, one by one.

    In the order in which they run, each for the shape of input that it met first; functions such as
    `F.linear` are layers as well, and those that do not run are none.

    Args:
        model: any module with one input, also from an archive.
        x: inputs `[n, ...]`, of which a few are used.

    >>> class Sum(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(2, 2, bias=False)
    ...     def forward(self, x):
    ...         return x + self.layer(x)
    >>> net = Sum()
    >>> _ = net.layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> [(n.name, n.lipschitz) for n in weight_norms(net, torch.ones(1, 2))]
    [('layer', 4.0)]
    """
    function = PureFunction(model)
    network = answered(lambda t: record(function, t, known=_is_whole), x, function.reference())
    met = set()
    for name, layer, value in _weighted(network, function.model):
        if name in met:
            continue
        met.add(name)
        sizes = [s if isinstance(s, int) else s.of(1) for s in value.shape[1:]]
        given = torch.zeros(1, *sizes, dtype=value.dtype, device=x.device)
        try:
            with torch.no_grad():
                norms = _norms(layer, given, name)
        except UnsupportedModel:
            continue
        yield LayerNorm(name, type(layer).__name__.removeprefix("Parametrized"), *norms)


def _weighted(network: Network, model: nn.Module) -> Iterator[tuple[str, nn.Module, Value]]:
    """Layers with weights by name, and what each takes: modules, else functions as layers."""
    maker, modules = LayerMaker(network, model), dict(model.named_modules())
    calls: dict[tuple[str, object], list[Operation]] = {}
    for op in network:
        if op.follows and op.calls:
            calls.setdefault(op.calls[-1], []).append(op)
    for op in network:
        if not op.follows or op.name not in _WITH_WEIGHTS:
            continue
        module = modules.get(op.layer)
        if isinstance(module, _LAYERS) and op.calls:  # it may do more, such as pad
            (value, *_), _ = network.boundary(calls[op.calls[-1]])
            yield op.layer, module, value
            continue
        found = maker.layer(op)
        if found is not None:
            path, layer = found
            yield path or op.layer, layer, next(v for v in op.inputs if v.follows)


def _is_whole(name: str) -> bool:
    """The dense layers inside of attention are layers of their own."""
    return name != "multi_head_attention_forward"


#: Operations that are layers with weights.
_WITH_WEIGHTS = frozenset(
    ("linear", "batch_norm", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
)


def jacobian_norms(problem: Problem, points: Tensor) -> Tensor:
    r"""Spectral norms $\|J_f(x)\|_2$ at points `[n, ...]`, as `[n]`.

    Costs one backward pass per output and point, as many at once as the problem differentiates
    samples at once; memory is kept below about 2²⁴ Jacobian entries.
    """

    def single(x: Tensor) -> Tensor:
        return problem.function(problem.parameters, x[None])[0].reshape(-1)

    outputs = single(points[0]).numel()
    entries = outputs * points[0].numel()
    together = max(1, problem.capacity)
    chunk = max(1, min(2**24 // entries, together // outputs))

    def alone(x: Tensor) -> Tensor:
        rows: Tensor = torch.autograd.functional.jacobian(single, x)  # type: ignore[no-untyped-call]
        return rows

    jacobians = Mapped(torch.func.jacrev(single, chunk_size=together), alone=alone)
    norms = []
    for part in torch.split(points, chunk):
        rows = jacobians(part).reshape(len(part), outputs, -1)
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))  # half has no SVD
        norms.append(torch.linalg.matrix_norm(rows, 2))
    return torch.cat(norms)


def _norms(module: nn.Module, x: Tensor, name: str) -> tuple[float, float | None, float | None]:
    """The Lipschitz constant, the Frobenius norm, and what the spectral norm is at least."""
    if not has_own_forward(module):
        raise UnsupportedModel(
            f"layer {name or type(module).__name__} is a {type(module).__name__} with a forward "
            "of its own, whose Lipschitz constant no rule here gives"
        )
    if isinstance(module, nn.Linear):
        norm = spectral_norm(module.weight)
        exact = min(module.weight.shape) <= DENSE
        return norm, float(module.weight.double().norm()), norm if exact else None
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        found = convolution_map(module, x.shape[1:])
        bounds = norm_of_map(found)
        return bounds.upper, found.frobenius_norm(), bounds.lower
    if isinstance(module, _NORMALIZATIONS):
        largest, frobenius = _normalization_norms(module, x, name)
        return largest, frobenius, largest
    if isinstance(module, _LINEAR_POOLS):
        return _action_norm(module, x[:, :1]), None, None  # every channel by itself, and alike
    if isinstance(module, _MAX_POOLS):
        return _max_pool_constant(module, x), None, None
    if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.MultiheadAttention):
        raise UnsupportedModel(
            f"layer {name or type(module).__name__} is a {type(module).__name__}, whose Lipschitz "
            "constant depends on the ball its inputs are in; lipschitz_bound bounds it there"
        )
    if isinstance(module, _PASSING):
        return 1.0, None, None
    if isinstance(module, nn.Softmax):
        return 0.5, None, None
    try:
        return pointwise_constant(module), None, None
    except UnsupportedModel:
        raise UnsupportedModel(
            f"layer {name or type(module).__name__} is a {type(module).__name__}, "
            "whose Lipschitz constant no rule here gives"
        ) from None


def _action_norm(action: Callable[[Tensor], Tensor], x: Tensor) -> float:
    operator = LinearOperator.from_function(
        action, x.shape[1:], batched=True, dtype=torch.float64, device=x.device
    )
    if min(operator.shape) <= DENSE and math.prod(operator.shape) <= DENSE_ENTRIES:
        thin = operator if operator.shape[1] <= DENSE else operator.adjoint
        return float(torch.linalg.matrix_norm(thin.to_dense(), 2))
    return operator_norm_upper_bound(operator, steps=60, failure_probability=FAILURE)


def _normalization_norms(module: nn.Module, x: Tensor, name: str) -> tuple[float, float]:
    assert isinstance(module, _NORMALIZATIONS)
    if module.running_var is None:
        raise UnsupportedModel(
            f"layer {name} normalizes by the statistics of its batch even in evaluation mode, "
            "so its output is not a function of one input"
        )
    scale = (module.running_var.double() + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * module.weight.double().abs()
    return float(scale.max()), float(scale.norm()) * math.sqrt(math.prod(x.shape[2:]))


def _max_pool_constant(module: nn.Module, x: Tensor) -> float:
    """An input entry may win in as many windows as cover it."""
    assert isinstance(module, _MAX_POOLS)
    dimensions = x.ndim - 2

    def each(value: int | Sequence[int]) -> tuple[int, ...]:
        return (value,) * dimensions if isinstance(value, int) else tuple(value)

    sizes = (each(v) for v in (module.kernel_size, module.stride, module.dilation))
    windows = math.prod(map(windows_of_an_entry, *sizes))
    return math.sqrt(windows)
