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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    """One use of a block: what went in and what came out."""

    name: str
    module: nn.Module
    entered: Tensor
    left: Tensor


def block_names(model: nn.Module) -> list[str]:
    """The blocks of a model: containers are opened, every other module is one block.

    >>> from torchtheory.nets.residual.layers import residual_network
    >>> block_names(nn.Sequential(nn.Linear(2, 3), residual_network(3, 2), nn.Linear(3, 1)))
    ['0', '1.0', '1.1', '2']
    """
    found: list[str] = []
    seen: set[nn.Module] = set()

    def walk(module: nn.Module, name: str) -> None:
        if module in seen:  # used in several places, it has the name of the first
            return
        seen.add(module)
        opened = not name or type(module) in (nn.Sequential, nn.ModuleList)
        if not opened or next(module.children(), None) is None:
            found.append(name)
            return
        for child, part in module.named_children():
            walk(part, f"{name}.{child}" if name else child)

    walk(as_module(model), "")
    return found


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
        blocks: names of sub-modules; unless given, see `block_names`.
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
        uses, outputs, skipped = _run(model, x, blocks)
        real_rows(outputs, len(x))
        at_outputs, at_parameters = _gradients(uses, outputs, loss, generator)
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
        blocks: names of sub-modules; unless given, see `block_names`.

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
        uses, _, skipped = _run(model, x, blocks)
        made: list[BlockJacobian] = []
        chain = _Chain(uses)
        for use in uses:
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
) -> tuple[list[_Use], Tensor, list[str]]:
    """Every use of the named blocks, what the model returned, and the blocks that do not fit."""
    if not isinstance(x, Tensor) or x.is_floating_point():
        as_batch(x)  # whole numbers, such as tokens, have nothing to check
    names = block_names(model) if blocks is None else list(blocks)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in modules:
            raise UnknownName("block", name, modules)
    uses: list[_Use] = []
    unfit: set[str] = set()
    waiting: list[list[Any]] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], named: Any) -> None:
        # copies: the block, or what adds to its input later, may work in place
        given = [*inputs, *named.values()]
        waiting.append([v.detach().clone() if isinstance(v, Tensor) else v for v in given])

    def recorder(name: str) -> Callable[..., Any]:
        def record(module: nn.Module, inputs: tuple[Any, ...], named: Any, output: Any) -> Any:
            given = waiting.pop()
            tensors = [v for v in (*given, output) if isinstance(v, Tensor)]
            fits = len(given) == 1 and len(tensors) == 2
            if not fits or not all(t.is_floating_point() and t.ndim for t in tensors):
                unfit.add(name)
                return None
            count = 1 + sum(u.module is module for u in uses)
            shown = name or type(module).__name__
            uses.append(
                _Use(f"{shown} ({count})" if count > 1 else shown, module, given[0], output)
            )
            # a copy goes on: an activation that works in place would overwrite what is measured
            return output.clone()

        return record

    entered = x.detach().clone()
    if entered.is_floating_point():
        entered.requires_grad_()
    like = next(iter(model.parameters()), None)
    with _hooks(modules, names, keep, recorder):
        # of a copy: a leaf cannot be changed in place
        outputs = answered(lambda t: one_output(model(t.clone())), entered, like)
    ran = {id(u.module) for u in uses}
    skipped = [n for n in names if n in unfit or id(modules[n]) not in ran]
    if blocks is not None and skipped:
        raise UnsupportedModel(
            f"{skipped[0]} does not map one tensor of floating-point numbers to another, or did "
            "not run"
        )
    kept = [u for u in uses if u.left.requires_grad]
    if not kept:
        raise UnsupportedModel(f"no block of {type(model).__name__} maps a tensor to a tensor")
    return kept, outputs, skipped


@contextmanager
def _hooks(
    modules: dict[str, nn.Module],
    names: Sequence[str],
    keep: Callable[..., None],
    recorder: Callable[[str], Any],
) -> Iterator[None]:
    handles = []
    for module, name in {modules[n]: n for n in reversed(names)}.items():
        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
        handles.append(module.register_forward_hook(recorder(name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gradients(
    uses: list[_Use],
    outputs: Tensor,
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
    parameters = [[p for p in u.module.parameters() if p.requires_grad] for u in uses]
    flat = [p for some in parameters for p in some]
    found = torch.autograd.grad(value.reshape(()), [*places, *flat], allow_unused=True)
    samples = math.sqrt(len(outputs))
    at_outputs = [_length([g]) / samples for g in found[: len(places)]]
    rest = iter(found[len(places) :])
    at_parameters = [_length([next(rest) for _ in some]) for some in parameters]
    return at_outputs, at_parameters


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
    rows = [_jacobian(use.module, sample) for sample in use.entered.detach()]
    made = torch.stack(rows).double()
    if not bool(made.isfinite().all()):
        raise NonFinite(f"the Jacobian of {use.name} has entries that are not finite")
    return made


def _jacobian(block: nn.Module, sample: Tensor) -> Tensor:
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


def _applied(block: nn.Module, samples: Tensor) -> Tensor:
    values = block(samples.clone())  # a copy: it may work in place
    if not isinstance(values, Tensor) or not values.ndim or len(values) != len(samples):
        raise ShapeMismatch(
            f"{type(block).__name__} does not return one row for each of {len(samples)} samples"
        )
    one_output(values)  # refuses what is no real number
    if not values.requires_grad:
        return values + 0 * samples.sum()  # it does not depend on its input
    return values


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
        operators = [_operator(use.module, sample) for sample in use.entered.detach()]
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


def _operator(block: nn.Module, sample: Tensor) -> LinearOperator:
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
