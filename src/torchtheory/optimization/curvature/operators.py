r"""Curvature of the mean loss $L(\theta)$ of a problem, as operators on parameter vectors.

With outputs $f(\theta)$ and a loss $\ell$ of them, the Hessian is

$$
\nabla^2L=\underbrace{J^\top(\nabla_f^2\ell)J}_{\text{Gauss-Newton}}
+\sum_k\frac{\partial\ell}{\partial f_k}\nabla^2f_k,\qquad J=\partial f/\partial\theta.
$$

Products with them need derivatives only. What the backward pass needs is recorded once and kept for
all products where it fits into a quarter of the problem's memory; where it does not, the data are
run through in chunks and recorded anew for every product. A product itself takes five vectors of
the parameters' size besides, and three more for every further thread that shares it; what is left
of the problem's memory is the operator's `memory`, which the solvers keep their vectors in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ModelRaised,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.mapping import Mapped
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.losses import USUAL_LOSS
from torchtheory.models.model import (
    Parameters,
    PureFunction,
    global_randomness_kept,
    unflatten,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.task import TASK_WORDS
from torchtheory.optimization.curvature.convolution_derivatives import lean_step, takes_lean_steps
from torchtheory.optimization.curvature.layer_products import (
    VECTORS,
    Curvature,
    LayerProducts,
    layer_products,
)
from torchtheory.optimization.stages.convolutions import channels_last
from torchtheory.optimization.stages.network import recorded
from torchtheory.tracing.network import Network
from torchtheory.tracing.passes import network_of, run

#: Vectors of the parameters' size that a product takes: what autograd returns and adds up, the sum
#: of it, the gradient whose graph is kept, and a copy of the weights in another layout.
_VECTORS = 5

#: Bytes of a graph that the caches of processors hold a good part of. Twice as fast as one graph of
#: everything for a small convolutional network, whose layers read and write more than they compute.
_CACHED = 2**26

#: Samples at least, so that the cost of calls does not matter.
_FEWEST = 64

#: Of outputs and targets: the derivative of the mean loss in the outputs, and how it moves with
#: them; None in place of the derivative leaves the network's own curvature out.
_Head = Callable[[Tensor, Tensor], tuple[Tensor | None, Curvature]]

#: From directions, one a parameter, to their images.
_Product = Callable[[Sequence[Tensor]], list[Tensor]]


def gradient(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> Tensor:
    r"""$\nabla L(\theta)$ as a vector `[p]`, summed over chunks of the samples.

    See `hessian_operator` for the arguments. Costs one forward and one backward pass over the
    samples; memory is that of one chunk.
    """
    samples, point = _checked(problem, samples, parameters)
    total = _zeros(point)

    def loss(named: Parameters, part: Samples) -> Tensor:
        return problem.loss(problem.function(named, part.x), part.y).reshape(())

    with global_randomness_kept():
        for x, y in samples.chunks(problem.chunk):
            part = torch.func.grad(loss)(point, Samples(x, y))
            _add(total, [part.pop(name) for name in point], len(x) / len(samples))
    return total


def hessian_operator(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""The Hessian $\nabla^2 L(\theta)$ of the mean loss, given by its action.

    $$
    v \mapsto \nabla_\theta \langle \nabla_\theta L(\theta), v \rangle
    $$

    One product costs about six times the multiplications of a forward pass behind the first layer
    and twice those of the first, whose input needs no derivative; three times a forward pass more
    where what it needs does not fit into a quarter of `problem.memory`. A block of directions
    `[p, k]` costs less than one after the other.

    Args:
        problem: model, loss and data.
        samples: the data of the loss; the training data unless given.
        parameters: the point $\theta$; the model's own trainable parameters unless given.
            Derivatives are taken in the parameters it names, frozen or not; others keep their
            values.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> hessian_operator(p).to_dense()          # 2 * mean of x squared
    tensor([[5.]])
    """

    def record(part: Samples, leaves: Parameters) -> _Product:
        outputs = _outputs(problem, leaves, part)
        loss = problem.loss(outputs, part.y).reshape(())
        slopes = _pulled([loss], leaves.values(), [torch.ones_like(loss)], graph=True)
        return lambda directions: _pulled(slopes, leaves.values(), directions)

    def head(outputs: Tensor, y: Tensor) -> tuple[Tensor, Curvature]:
        free, slope = _slope(problem, outputs, y)
        return slope.detach(), _loss_curvature(problem, free, slope, y)

    return _summed(problem, samples, parameters, record, head)


def gauss_newton_operator(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""The Gauss-Newton matrix $\frac1n\sum_iJ_i^\top(\nabla_f^2\ell_i)J_i$.

    The Hessian without the curvature of the network; positive semi-definite where the loss is
    convex in the outputs, and equal to the Hessian where the network is linear in its parameters
    or fits the data exactly. See `hessian_operator` for arguments and cost.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> gauss_newton_operator(p).to_dense()
    tensor([[5.]])
    """

    def record(part: Samples, leaves: Parameters) -> _Product:
        outputs = _outputs(problem, leaves, part)
        return _between(outputs, leaves, head(outputs, part.y)[1])

    def head(outputs: Tensor, y: Tensor) -> tuple[None, Curvature]:
        return None, _loss_curvature(problem, *_slope(problem, outputs, y), y)

    return _summed(problem, samples, parameters, record, head)


def fisher_operator(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""Fisher's information of the model's own predictions, averaged over the inputs.

    $$
    F=\frac1n\sum_i\mathbb E_{y\sim p_\theta(\cdot|x_i)}
    \nabla_\theta\log p_\theta(y|x_i)\,\nabla_\theta\log p_\theta(y|x_i)^\top
    =\frac1n\sum_iJ_i^\top\Lambda_iJ_i
    $$

    with $\Lambda=\operatorname{diag}(p)-pp^\top$ for classes with probabilities
    $p=\operatorname{softmax}(f)$, $\Lambda=p(1-p)$ for one logit or each of several labels,
    $\Lambda=e^f$ for Poisson counts by the logarithms of their rates ($1/f$ by rates), and the
    identity for regression with unit Gaussian noise. Other tasks have no law. It does not look at
    the targets. For the cross-entropy it is the Gauss-Newton matrix.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> fisher_operator(p).to_dense()           # mean of x squared
    tensor([[2.5000]])
    """

    def head(outputs: Tensor, y: Tensor) -> tuple[None, Curvature]:
        return None, _information(problem, outputs.detach())

    def record(part: Samples, leaves: Parameters) -> _Product:
        outputs = _outputs(problem, leaves, part)
        return _between(outputs, leaves, head(outputs, part.y)[1])

    return _summed(problem, samples, parameters, record, head)


def empirical_fisher_operator(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""The mean of squared gradients, $\frac1n\sum_i\nabla\ell_i\nabla\ell_i^\top$.

    Called empirical Fisher matrix; unlike `fisher_operator` it takes the targets as they
    are, and at a point that fits them all it vanishes.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> _ = p.model.weight.data.fill_(2.0)       # residuals 1 and 2, gradients -2 and -8
    >>> empirical_fisher_operator(p).to_dense()
    tensor([[34.]])
    """

    def record(part: Samples, leaves: Parameters) -> _Product:
        outputs = _outputs(problem, leaves, part)
        return _between(each(outputs, part.y), leaves, lambda u: u / len(part))

    def _own_loss(f: Tensor, y: Tensor) -> Tensor:
        return problem.loss(f.unsqueeze(0), y.unsqueeze(0)).reshape(())

    each = Mapped(_own_loss)
    return _summed(problem, samples, parameters, record)


def _checked(
    problem: Problem, samples: Samples | None, parameters: Parameters | None
) -> tuple[Samples, Parameters]:
    """The data and the point that are meant, if they fit the problem."""
    samples = problem.train if samples is None else samples
    if len(samples) == 0:
        raise EmptyData("a mean loss needs at least one sample, and there is none")
    if parameters is None:
        return samples, problem.trainable
    own = problem.parameters
    for name, given in parameters.items():
        if name not in own:
            raise InvalidInput(f"the point has {name!r}, which is no parameter of the model")
        if given.shape != own[name].shape:
            raise ShapeMismatch(
                f"{name} is {list(given.shape)} in the point and {list(own[name].shape)} in the "
                "model"
            )
        if given.dtype != own[name].dtype:
            raise InvalidType(
                f"{name} is {given.dtype} in the point and {own[name].dtype} in the model"
            )
    return samples, {name: parameters[name] for name in own if name in parameters}


def _outputs(problem: Problem, leaves: Parameters, part: Samples) -> Tensor:
    """The model's outputs, with lean derivatives where it is made of known operations."""
    function, network = problem.function, recorded(problem.function, part.x[:2])
    if network is None or not takes_lean_steps(network):
        network = _normalizing(function, part.x)
    if network is None:
        return function(leaves, part.x)
    own = {network.parameters[k]: p for k, p in leaves.items() if k in network.parameters}
    return run(function, network, part.x, lean_step, own)


def _normalizing(function: PureFunction, x: Tensor) -> Network | None:
    """The operations of a model that normalizes weights, which torch differentiates once only."""
    try:
        network = network_of(function, x)
    except (UnsupportedModel, ModelRaised):
        return None
    return network if any(op.name == "_weight_norm" for op in network) else None


def _slope(problem: Problem, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of the outputs, and the derivative of the mean loss in it, with its graph."""
    with torch.enable_grad():
        free = outputs.detach().requires_grad_()
        loss = problem.loss(free, y).reshape(())
        return free, _pulled([loss], [free], [torch.ones_like(loss)], graph=True)[0]


def _information(problem: Problem, outputs: Tensor) -> Curvature:
    """Fisher's information of the predictions in the outputs, averaged over the samples."""
    count = len(outputs)
    numbers = problem.task == "ordinal" and outputs[0].numel() == 1
    if problem.task == "regression" or numbers:
        return lambda u: u / count
    if problem.task in ("binary", "multilabel", "ordinal"):
        p = torch.sigmoid(outputs)
        spread = p * (1 - p) / count
        return lambda u: spread * u
    if problem.task == "count":
        logarithms = problem.outputs_are_logarithms
        spread = (outputs.exp() if logarithms else 1 / outputs.clamp_min(1e-8)) / count
        return lambda u: spread * u
    if problem.task not in ("multiclass", "labeling"):
        raise InvalidInput(
            f"this is {TASK_WORDS[problem.task]}, and no law of its targets is known"
        )
    p = F.softmax(outputs, -1)
    share = p / count
    return lambda u: share * (u - torch.linalg.vecdot(p, u).unsqueeze(-1))


def _loss_curvature(problem: Problem, outputs: Tensor, slope: Tensor, y: Tensor) -> Curvature:
    """The second derivative of the mean loss in the outputs, whose first one was recorded."""
    usual = problem.task == "multiclass" and problem.loss is USUAL_LOSS["multiclass"]
    if usual and outputs.ndim == 2 and y.ndim == 1 and bool((y >= 0).all()):
        return _information(problem, outputs.detach())  # the same, in fewer steps
    return lambda u: _pulled([slope], [outputs], [u])[0]


def _between(outputs: Tensor, leaves: Parameters, middle: Curvature) -> _Product:
    r"""$v\mapsto J^\top M(Jv)$ for the derivative $J$ of recorded outputs.

    $Jv$ is the derivative in $u$ of $\langle J^\top u,v\rangle$, so that the
    recorded graph serves it as well.
    """
    free = torch.zeros_like(outputs, requires_grad=True)
    adjoint = _pulled([outputs], leaves.values(), [free], graph=True)

    def product(directions: Sequence[Tensor]) -> list[Tensor]:
        (pushed,) = _pulled(adjoint, [free], directions)
        return _pulled([outputs], leaves.values(), [middle(pushed)])

    return product


def _pulled(
    values: Sequence[Tensor],
    at: Iterable[Tensor],
    weights: Sequence[Tensor],
    *,
    graph: bool = False,
) -> list[Tensor]:
    """The derivative of the weighted sum of values in each of `at`; 0 where there is none."""
    inputs = list(at)
    moving = [(v, w) for v, w in zip(values, weights, strict=True) if v.requires_grad]
    if not moving:
        return [torch.zeros_like(p) for p in inputs]
    found = torch.autograd.grad(
        [v for v, _ in moving],
        inputs,
        grad_outputs=[w for _, w in moving],
        retain_graph=True,
        create_graph=graph,
        allow_unused=True,
    )
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, inputs, strict=True)]


def _summed(
    problem: Problem,
    samples: Samples | None,
    parameters: Parameters | None,
    record: Callable[[Samples, Parameters], _Product],
    head: _Head | None = None,
) -> LinearOperator:
    """The mean over the samples of what is recorded of them.

    Networks of known stages are recorded by `head`, if there is one, and others by `record`.
    """
    samples, point = _checked(problem, samples, parameters)
    count, like = sum(p.numel() for p in point.values()), _zeros(point, 0)
    staged = None
    if head is not None:
        staged = layer_products(problem.function, point, samples.x[:1], problem.memory // 4)
    if staged is not None and 4 * staged.bytes * len(samples) > problem.memory:
        staged = None
    vectors = _VECTORS if staged is None else 2 + VECTORS * staged.threads()
    return LinearOperator(
        (count, count),
        _in_pieces(staged, samples, head)
        if head is not None and staged is not None
        else _in_chunks(problem, samples, point, record),
        batched=staged is not None,
        symmetric=True,
        dtype=like.dtype,
        device=like.device,
        memory=max(0, problem.memory - vectors * count * like.element_size()),
    )


def _in_pieces(staged: LayerProducts, samples: Samples, head: _Head) -> Callable[[Tensor], Tensor]:
    """Products of a network of known stages with blocks of directions."""

    def weighed(outputs: Tensor, y: Tensor) -> tuple[Tensor | None, Curvature]:
        slope, curvature = head(outputs, y)
        share = len(y) / len(samples)
        return None if slope is None else share * slope, lambda u: share * curvature(u)

    with global_randomness_kept():
        pieces = [
            staged.recorded(x, lambda outputs, y=y: weighed(outputs, y))  # type: ignore[misc]
            for x, y in samples.chunks(staged.pieces_of(len(samples)))
        ]
    return lambda V: staged.product(pieces, V)


def _in_chunks(
    problem: Problem,
    samples: Samples,
    point: Parameters,
    record: Callable[[Samples, Parameters], _Product],
) -> Callable[[Tensor], Tensor]:
    """Products by autograd, of one chunk of the samples after the other."""
    leaves = {k: channels_last(p.detach()).requires_grad_() for k, p in point.items()}

    def recorded(x: Tensor, y: Tensor) -> _Product:
        with torch.enable_grad(), global_randomness_kept():
            return record(Samples(channels_last(x), y), leaves)

    fits = len(samples) <= problem.capacity
    most = max(_FEWEST, _CACHED // max(1, problem.graph_bytes))
    most = min(most, len(samples) if fits else problem.chunk)
    pieces = math.ceil(len(samples) / most)
    chunks = list(samples.chunks(math.ceil(len(samples) / pieces)))
    kept = [recorded(x, y) for x, y in chunks] if fits else None

    def product(v: Tensor) -> Tensor:
        directions = list(unflatten(v, point).values())
        total = _zeros(point)
        for i, (x, y) in enumerate(chunks):
            act = recorded(x, y) if kept is None else kept[i]
            _add(total, act(directions), len(x) / len(samples))
            del act  # and its graphs, before the next are recorded
        return total

    return product


def _zeros(point: Parameters, count: int | None = None) -> Tensor:
    """A vector of zeros for all numbers of a point, or for so many, as `flatten` would make it."""
    first = next(iter(point.values()))
    kinds = {p.dtype for p in point.values()}
    return torch.zeros(
        sum(p.numel() for p in point.values()) if count is None else count,
        dtype=reduce(torch.promote_types, kinds),
        device=first.device,
    )


def _add(total: Tensor, parts: list[Tensor], weight: float) -> None:
    """Add tensors to the vector they make up; the list is emptied, so that each is freed then."""
    end = len(total)
    while parts:
        part = parts.pop()
        total[end - part.numel() : end].add_(part.reshape(-1), alpha=weight)
        end -= part.numel()
