r"""How the blocks of a network stretch what goes through them, one by one and all together.

A residual block $g(x)=x+f(x)$ has $J_g=I+J_f$, and by Weyl's inequality

$$
1-\|J_f\|\le\sigma_{\min}(J_g)\le\sigma_{\max}(J_g)\le1+\|J_f\|,\qquad J_f=J_g-I.
$$

The same holds for *any* block whose input and output have one shape, with $\|J_g-I\|$ in place of
$\|J_f\|$: how far it is from doing nothing. Through $L$ blocks the singular values stay within
$(1\mp\varepsilon)^L$, which is near 1 only where $\varepsilon L$ is small. Sources: Foundations of
Deep Learning, section 10.2; Mathematical Aspects of Deep Learning, section 1.6.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, as_module, described, module_with_values
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import operator_norm
from torchtheory.models.evaluation import answered
from torchtheory.models.model import evaluation_mode, one_output, real_rows
from torchtheory.tracing.network import Network, Operation, Value, called, pair_up
from torchtheory.tracing.recorder import record

#: Jacobians of up to so many entries are written down, with all their singular values.
LARGEST_MATRIX = 2**22

#: Bytes that the copies of a sample, one for each row of a Jacobian, may take at once.
_ROWS_AT_ONCE = 2**25


@dataclass(frozen=True, slots=True)
class BlockJacobian:
    r"""The derivative of one block at the inputs it met.

    Attributes:
        name: the block's name in the model; `name (2)` where it was used a second time.
        inputs, outputs: entries of one sample's input and output.
        largest: $\sigma_{\max}(J_g)$, the largest over the samples.
        smallest: $\sigma_{\min}(J_g)$, the smallest over the samples (of $\min(m,n)$ values); None
            where the Jacobian is too large to write down.
        departure: $\|J_g-I\|$, the largest over the samples; None where shapes differ.
        change: $\|g(x)-x\|/\|x\|$ over all samples together; None where shapes differ.
    """

    name: str
    inputs: int
    outputs: int
    largest: float
    smallest: float | None
    departure: float | None
    change: float | None

    @property
    def bounds(self) -> tuple[float, float] | None:
        r"""$1\mp\|J_g-I\|$, between which the singular values lie; None where shapes differ."""
        if self.departure is None:
            return None
        return max(0.0, 1 - self.departure), 1 + self.departure


@dataclass(frozen=True, slots=True)
class JacobianProfile:
    r"""A network block by block.

    Attributes:
        blocks: in the order in which they ran.
        largest, smallest: `[L]`, of the Jacobian of the first $l$ blocks together, the largest
            and smallest over the samples. None where the blocks are no chain, or too large.
        skipped: blocks that do not map one tensor of floating-point numbers to another.
    """

    blocks: tuple[BlockJacobian, ...]
    largest: Tensor | None
    smallest: Tensor | None
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True, slots=True)
class GradientProfile:
    r"""How large signals are at every block of a network.

    Attributes:
        names: the blocks, in the order in which they ran.
        activations: `[L]`, root mean square of the blocks' outputs.
        gradients: `[L]`, length of the gradient in a block's output, root mean square over the
            samples.
        parameter_gradients: `[L]`, length of the gradient in a block's parameters, summed over
            the samples; 0 without parameters.
        skipped: blocks that do not map one tensor of floating-point numbers to another.
    """

    names: tuple[str, ...]
    activations: Tensor
    gradients: Tensor
    parameter_gradients: Tensor
    skipped: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        r"""$\frac1{L-1}\ln(g_1/g_L)$: the mean growth of gradients per block, going back.

        Below 0 they vanish with depth, above 0 they explode.
        """
        if len(self.names) < 2:
            raise InvalidInput("a rate over depth needs at least two blocks")
        first, last = float(self.gradients[0]), float(self.gradients[-1])
        if not (first > 0 and last > 0):
            return -math.inf if last > 0 else math.nan
        return math.log(first / last) / (len(self.names) - 1)


@dataclass(slots=True)
class _Use:
    """One use of a block: its own operations, what went in and what came out."""

    name: str
    network: Network
    entered: Tensor
    left: Tensor

    def __call__(self, samples: Tensor) -> Any:
        """What the block makes of other inputs."""
        (made,) = self.network.evaluate([samples], len(samples), called)
        return made


def gradient_profile(
    model: nn.Module,
    x: Tensor,
    *,
    blocks: Sequence[str] | None = None,
    loss: Callable[[Tensor], Tensor] | None = None,
    generator: RandomSource = None,
) -> GradientProfile:
    r"""Sizes of activations and gradients at every block of a network.

    The model runs once each way in evaluation mode and is left as it was.

    Args:
        model: any module with one input.
        x: `[s, ...]`.
        blocks: names of sub-modules; unless given, containers are opened, and every other module
            is one block.
        loss: from the model's outputs to a number, whose gradients are taken. Unless given, the
            gradient handed to the output is standard normal.
        generator: for that.

    >>> net = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(3)))
    >>> for layer in net:
    ...     _ = layer.weight.data.fill_(0.5)
    >>> found = gradient_profile(net, torch.ones(1, 1), loss=torch.sum)
    >>> found.gradients.tolist(), found.parameter_gradients.tolist()
    ([0.25, 0.5, 1.0], [0.25, 0.25, 0.25])
    """
    with evaluation_mode(as_module(model)), torch.enable_grad():
        uses, outputs, skipped, leaves = _run(model, x, blocks)
        real_rows(outputs, len(x))
        at_outputs, at_parameters = _gradients(uses, outputs, leaves, loss, generator)
    sizes = [_length([u.left]) / math.sqrt(u.left.numel()) for u in uses]
    return GradientProfile(
        tuple(u.name for u in uses),
        torch.tensor(sizes, dtype=torch.float64),
        torch.tensor(at_outputs, dtype=torch.float64),
        torch.tensor(at_parameters, dtype=torch.float64),
        tuple(skipped),
    )


def jacobian_profile(
    model: nn.Module, x: Tensor, *, blocks: Sequence[str] | None = None
) -> JacobianProfile:
    r"""Singular values of the Jacobian of every block of a network, at some inputs.

    The model runs once in evaluation mode and is left as it was. Singular values come from the
    Jacobian itself where it has at most four million entries; of a larger one only
    $\sigma_{\max}$ and $\|J_g-I\|$ are found, by products with it.

    Args:
        model: any module with one input; a block treats every sample for itself.
        x: `[s, ...]`; a few samples, since every one has a Jacobian.
        blocks: names of sub-modules; unless given, containers are opened, and every other module
            is one block.

    Time: for each sample and block, as many backward passes through the block as it has outputs,
    and a few singular value decompositions. Memory: a few Jacobians.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    >>> for layer, rows in zip(net, ([[1.5, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.5]])):
    ...     _ = layer.weight.data.copy_(torch.tensor(rows))
    >>> profile = jacobian_profile(net, torch.ones(1, 2).double())
    >>> [[round(v, 6) for v in (b.smallest, b.largest, *b.bounds)] for b in profile.blocks]
    [[1.0, 1.5, 0.5, 1.5], [0.5, 1.0, 0.5, 1.5]]
    >>> profile.largest, profile.smallest
    (tensor([1.5000, 1.5000], dtype=torch.float64), tensor([1.0000, 0.5000], dtype=torch.float64))
    """
    with evaluation_mode(as_module(model)), torch.enable_grad():
        uses, _, skipped, _ = _run(model, x, blocks)
        made: list[BlockJacobian] = []
        chain = _Chain(uses)
        for use in uses:
            if use.network.rows is not None:
                use.network = _row_by_row(use)
            matrices = _matrices(use)
            made.append(_describe(use, matrices))
            chain.follow(matrices)
    return JacobianProfile(tuple(made), *chain.ends(), tuple(skipped))


def block_jacobian(block: nn.Module, x: Tensor) -> Tensor:
    r"""The Jacobian `[s, m, n]` of a block at each of the samples `x[s, ...]`.

    In evaluation mode. Each row takes one backward pass of one sample, many of them at once.

    >>> block_jacobian(nn.Tanh(), torch.zeros(1, 2))
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    module_with_values(block)
    as_batch(x)
    like = next(iter(block.parameters()), None)
    with evaluation_mode(block), torch.enable_grad():
        answered(lambda t: block(t.clone()), x.detach()[:1], like)
        return torch.stack([_jacobian(block, sample) for sample in x.detach()])


# ------------------------------------------------------------------------------------ one run


def _run(
    model: nn.Module, x: Tensor, blocks: Sequence[str] | None
) -> tuple[list[_Use], Tensor, list[str], dict[Value, Tensor]]:
    """Every use of the blocks, what the model returned, the blocks that do not fit, parameters."""
    if not isinstance(x, Tensor) or x.is_floating_point():
        as_batch(x)  # whole numbers, such as tokens, have nothing to check
    entered = x.detach().clone()
    with torch.no_grad():
        like = next(iter(model.parameters()), None)
        answered(lambda t: one_output(model(t.clone())), entered, like)
    network = record(model, entered)
    names = None if blocks is None else _first_names(model, network, blocks)
    free = {k for k, p in model.named_parameters() if p.requires_grad}
    leaves = {
        value: network.tensors[value].clone().requires_grad_(name in free)
        for name, value in network.parameters.items()
    }
    entered.requires_grad_(entered.is_floating_point())
    held: dict[Value, Any] = {network.inputs[0]: entered}

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = called(op, args, kwargs)
        pair_up(op.result, made, held)
        return made

    outputs = one_output(network.evaluate([entered], len(entered), step, leaves))
    uses: list[_Use] = []
    unfit: dict[str, None] = {}
    counts: dict[str, int] = {}
    runs = _runs(network, names)
    for name, own in runs:
        ends = _ends(network, own)
        if ends is None:
            unfit[name] = None
            continue
        counts[name] = counts.get(name, 0) + 1
        shown = name or network.title
        shown = f"{shown} ({counts[name]})" if counts[name] > 1 else shown
        first, last = ends
        part = network.until(last, after=(first,))
        uses.append(_Use(shown, part, held[first].detach(), held[last]))
    ran = {name for name, _ in runs}
    skipped = [*unfit, *(b for b in (names or {}).values() if b not in ran)]
    if blocks is not None and skipped:
        raise UnsupportedModel(
            f"{skipped[0]} does not map one tensor of floating-point numbers to another, or did "
            "not run"
        )
    kept = [u for u in uses if u.left.requires_grad]
    if not kept:
        raise UnsupportedModel(f"no block of {type(model).__name__} maps a tensor to a tensor")
    return kept, outputs, skipped, leaves


def _first_names(model: nn.Module, network: Network, blocks: Sequence[str]) -> dict[str, str]:
    """The name that the network has for each block, and the one that was asked for."""
    modules = dict(model.named_modules(remove_duplicate=False))
    first = {id(module): name for name, module in model.named_modules()}
    visited = dict.fromkeys(visit.layer for op in network for visit in op.visits)
    found = {}
    for name in blocks:
        if name in visited:
            found[name] = name
        elif name in modules:  # used in several places, it has the name of the first
            found[first[id(modules[name])]] = name
        else:
            raise UnknownName("block", name, {**modules, **visited})
    return found


#: Modules that are opened: each of their parts is a block.
_CONTAINERS = ("Sequential", "ModuleList")


def _runs(network: Network, names: dict[str, str] | None) -> list[tuple[str, list[Operation]]]:
    """The operations of every use of the blocks; unless given, containers are opened."""
    found: dict[tuple[str, Any], list[Operation]] = {}
    for op in network:
        visits = {v.layer: v for v in reversed(op.visits)}
        if names is None:
            inside = [v for v in op.visits if v.layer and v.kind not in _CONTAINERS]
            visits = {v.layer: v for v in inside[:1]}
        for visit in visits.values():
            if names is None or visit.layer in names:
                found.setdefault((visit.layer, visit.call), []).append(op)
    if not found and names is None:
        return [("", network.operations)]
    return [((names or {}).get(layer, layer), own) for (layer, _), own in found.items()]


def _ends(network: Network, own: list[Operation]) -> tuple[Value, Value] | None:
    """The one tensor that a block takes and the one that it gives; None if there are others."""
    entering, leaving = network.boundary(own)
    ends = [*entering, *leaving]
    fits = len(entering) == len(leaving) == 1
    if not fits or not all(v.dtype.is_floating_point and v.shape for v in ends):
        return None
    return ends[0], ends[1]


def _gradients(
    uses: list[_Use],
    outputs: Tensor,
    leaves: dict[Value, Tensor],
    loss: Callable[[Tensor], Tensor] | None,
    generator: RandomSource,
) -> tuple[list[float], list[float]]:
    """Lengths of the gradients at the blocks' outputs, and in their parameters."""
    if loss is None:
        source = as_generator(generator)
        draw = torch.randn(
            outputs.shape, generator=source, dtype=outputs.dtype, device=source.device
        )
        value = (outputs * draw.to(outputs.device)).sum()
    else:
        value = loss(outputs)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InvalidInput(
                f"loss must return one number, a tensor with one entry, not {described(value)}"
            )
    if not value.requires_grad:
        raise UnsupportedModel(
            "no gradient leads from the outputs to the blocks: the model detaches them, or runs "
            "under no_grad"
        )
    places = [u.left for u in uses]
    parameters = [_parameters(u, leaves) for u in uses]
    flat = [p for some in parameters for p in some]
    found = torch.autograd.grad(value.reshape(()), [*places, *flat], allow_unused=True)
    samples = math.sqrt(len(outputs))
    at_outputs = [_length([g]) / samples for g in found[: len(places)]]
    rest = iter(found[len(places) :])
    at_parameters = [_length([next(rest) for _ in some]) for some in parameters]
    return at_outputs, at_parameters


def _parameters(use: _Use, leaves: dict[Value, Tensor]) -> list[Tensor]:
    """Those that a block uses, if they are free."""
    own = dict.fromkeys(v for op in use.network for v in op.inputs)
    return [leaves[v] for v in own if v in leaves and leaves[v].requires_grad]


def _length(tensors: Sequence[Tensor | None]) -> float:
    """Euclidean length of several tensors together, also where squares would underflow."""
    given = [t.detach().double() for t in tensors if t is not None]
    largest = max((float(t.abs().max()) for t in given if t.numel()), default=0.0)
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(sum(float((t / largest).square().sum()) for t in given))


# ------------------------------------------------------------------------------- the Jacobians


def _matrices(use: _Use) -> Tensor | None:
    """The Jacobians `[s, m, n]` in double precision, or None where they are too large."""
    n, m = use.entered[0].numel(), use.left[0].numel()
    if n * m > LARGEST_MATRIX:
        return None
    rows = [_jacobian(use, sample) for sample in use.entered.detach()]
    made = torch.stack(rows).double()
    if not bool(made.isfinite().all()):
        raise NonFinite(f"the Jacobian of {use.name} has entries that are not finite")
    return made


def _jacobian(block: Callable[[Tensor], Any], sample: Tensor) -> Tensor:
    """`[m, n]` of one sample: as many copies of it as there are rows, one backward pass."""
    outputs = _applied(block, sample.unsqueeze(0))[0].numel()
    most = max(1, _ROWS_AT_ONCE // (8 * max(sample.numel(), outputs)))
    rows = []
    for start in range(0, outputs, most):
        count = min(most, outputs - start)
        copies = sample.expand(count, *sample.shape).clone().requires_grad_()
        values = _applied(block, copies).reshape(count, -1)
        chosen = values[:, start : start + count].diagonal().sum()
        (gradient,) = torch.autograd.grad(chosen, copies, allow_unused=True)
        rows.append(torch.zeros_like(copies) if gradient is None else gradient)
    return torch.cat(rows).flatten(1)


def _applied(block: Callable[[Tensor], Any], samples: Tensor) -> Tensor:
    values = block(samples.clone())  # a copy: it may work in place
    if not isinstance(values, Tensor) or not values.ndim or len(values) != len(samples):
        raise ShapeMismatch(
            f"{type(block).__name__} does not return one row for each of {len(samples)} samples"
        )
    one_output(values)  # refuses what is no real number
    if not values.requires_grad:
        return values + 0 * samples.sum()  # it does not depend on its input
    return values


def _row_by_row(use: _Use) -> Network:
    """The block of a network that needs all its rows at once, if it does not need them itself."""
    network = replace(use.network, rows=None)
    first = use.left[:1].detach()
    try:
        with torch.no_grad():
            (alone,) = network.evaluate([use.entered[:1]], 1, called)
    except (RuntimeError, IndexError):
        alone = None
    if alone is None or alone.shape != first.shape or not torch.allclose(alone, first):
        raise UnsupportedModel(
            f"{use.name} mixes the rows of its input, and a Jacobian is of one of them: "
            f"{use.network.fixed_because}"
        )
    return network


def _describe(use: _Use, matrices: Tensor | None) -> BlockJacobian:
    n, m = use.entered[0].numel(), use.left[0].numel()
    same = use.entered.shape == use.left.shape
    departure: float | None = None
    smallest: float | None = None
    if matrices is not None:
        values = torch.linalg.svdvals(matrices)
        largest, smallest = float(values[:, 0].max()), float(values[:, -1].min())
        if same:
            eye = torch.eye(n, dtype=matrices.dtype, device=matrices.device)
            departure = float(torch.linalg.matrix_norm(matrices - eye, 2).max())
    else:
        operators = [_operator(use, sample) for sample in use.entered.detach()]
        largest = max(_norm(a) for a in operators)
        if same:
            departure = max(_norm(a - LinearOperator.identity(n, dtype=a.dtype, device=a.device))
                            for a in operators)  # fmt: skip
    left, entered = use.left.detach(), use.entered.detach()
    size = _length([entered])
    return BlockJacobian(
        use.name,
        n,
        m,
        largest,
        smallest,
        departure,
        _length([left - entered]) / size if same and size else None,
    )


def _operator(block: Callable[[Tensor], Any], sample: Tensor) -> LinearOperator:
    """The Jacobian at one sample, by its products."""
    point = sample.unsqueeze(0).clone().requires_grad_()
    value = _applied(block, point)
    shape, m = value.shape, value.numel()
    probe = torch.zeros_like(value).requires_grad_()
    # linear in the probe, so that its derivative in it is the product with the Jacobian
    (back,) = torch.autograd.grad(value, point, probe, create_graph=True)

    def forward(v: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(back, probe, v.reshape(back.shape), retain_graph=True)
        return found.flatten()

    def backward(u: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(value, point, u.reshape(shape), retain_graph=True)
        return found.flatten()

    return LinearOperator(
        (m, sample.numel()), forward, backward, dtype=value.dtype, device=value.device
    )


def _norm(A: LinearOperator) -> float:
    return float(operator_norm(A, tolerance=1e-4, generator=0))


class _Chain:
    """The product of the Jacobians so far, and that of their inverses, for each sample.

    The inverses, because a product of many matrices loses its small singular values in rounding:
    $\\sigma_{\\min}(P)=1/\\|P^{-1}\\|$.
    """

    def __init__(self, uses: Sequence[_Use]) -> None:
        fits = [
            a.left.shape == b.entered.shape and bool(torch.equal(a.left, b.entered))
            for a, b in itertools.pairwise(uses)
        ]
        self.alive = all(fits)
        self.product: Tensor | None = None
        self.inverse: Tensor | None = None
        self.largest: list[float] = []
        self.smallest: list[float] = []

    def follow(self, matrices: Tensor | None) -> None:
        if not self.alive or matrices is None:
            self.alive = False
            return
        first = self.product is None
        self.product = matrices if self.product is None else matrices @ self.product
        values = torch.linalg.svdvals(self.product)
        self.largest.append(float(values[:, 0].max()))
        square = matrices.shape[1] == matrices.shape[2]
        if square and (first or self.inverse is not None):
            inverted, flaws = torch.linalg.inv_ex(matrices)
            inverted = inverted if not bool(flaws.any()) else inverted * math.nan
            self.inverse = inverted if self.inverse is None else self.inverse @ inverted
        else:
            self.inverse = None
        if self.inverse is not None and bool(self.inverse.isfinite().all()):
            self.smallest.append(float(1 / torch.linalg.matrix_norm(self.inverse, 2).max()))
        else:
            self.smallest.append(float(values[:, -1].min()))
            self.inverse = None

    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        if not self.alive:
            return None, None
        return tuple(torch.tensor(v, dtype=torch.float64) for v in (self.largest, self.smallest))  # type: ignore[return-value]
