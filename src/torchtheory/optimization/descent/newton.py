r"""The quadratic model of a function at a point, its minimizer, and cheaper curvature in its place.

$$
m(\Delta)=f(x)+\nabla f(x)^\top\Delta+\tfrac12\Delta^\top B\Delta
$$

With $B=\nabla^2f(x)$ its minimizer is Newton's step; with the diagonal or the diagonal blocks
of the Hessian a cheaper one; with $B=\frac1\eta I$ the step $-\eta\nabla f(x)$ of
gradient descent. Source: Foundations of Deep Learning, section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_vector, nonnegative_number, positive_number
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch
from torchtheory.core.mapping import hessian
from torchtheory.linalg.conjugate_gradients import conjugate_gradients
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator, apply, check_square
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import gradient, hessian_operator
from torchtheory.optimization.descent.iterates import Direction
from torchtheory.primer.differences import Function, hessian_at

Blocks = Literal["full", "diagonal"] | Sequence[int]
"""Which curvature is kept: all of it, the diagonal, or diagonal blocks of these sizes."""


@dataclass(frozen=True, slots=True)
class QuadraticModel:
    r"""$m(\Delta)=f+g^\top\Delta+\frac12\Delta^\top B\Delta$.

    Attributes:
        value: $f$.
        slope: $g$, `[p]`.
        curvature: $B$, symmetric.
    """

    value: float
    slope: Tensor
    curvature: LinearOperator

    def __call__(self, move: Tensor) -> float:
        r"""$m(\Delta)$ for `[p]`."""
        return self.value + float(self.slope @ move) + float(move @ (self.curvature @ move)) / 2

    def minimizer(self, damping: float = 0.0) -> Tensor:
        r"""$-(B+\delta I)^{-1}g$, `[p]`, by conjugate gradients.

        Only a positive definite $B+\delta I$ has one; otherwise the model has no minimum,
        and `NotPositiveDefinite` carries a direction
        in which it falls without end (directions that the slope does not reach stay unseen).

        >>> B = LinearOperator.from_matrix(torch.eye(2) * 2)
        >>> QuadraticModel(0.0, torch.tensor([2.0, 4.0]), B).minimizer()
        tensor([-1., -2.])
        """
        nonnegative_number(damping, "the damping")
        matrix = self.curvature
        if damping:
            shift = LinearOperator.identity(
                len(self.slope), dtype=matrix.dtype, device=matrix.device
            )
            matrix = matrix + damping * shift
        finest = max(1e-12, 10 * torch.finfo(self.slope.dtype).eps)
        solved = conjugate_gradients(matrix, -self.slope, tolerance=finest)
        if not solved.converged and float(solved.residual_norms[-1]) > 1e-6 * float(
            self.slope.norm()
        ):
            raise NotConverged(
                "the minimizer of the quadratic model was not found: the curvature is too "
                "ill-conditioned; add damping"
            )
        return solved.x


def quadratic_model(function: Function, point: Tensor) -> QuadraticModel:
    r"""The second-order Taylor polynomial of a function of `[p]` at a point.

    >>> model = quadratic_model(lambda x: (x**2).sum(), torch.tensor([3.0]))
    >>> model.minimizer(), model(torch.tensor([-3.0]))
    (tensor([-3.]), 0.0)
    """
    point = as_vector(point, "the point")
    slope, value = torch.func.grad_and_value(function)(point)
    return QuadraticModel(float(value), slope, hessian_at(function, point))


def quadratic_model_of(problem: Problem, parameters: Parameters | None = None) -> QuadraticModel:
    """The same for the training loss of a network, its Hessian as an operator on parameters.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> line = nn.Linear(1, 1, bias=False)
    >>> model = quadratic_model_of(Problem(line, (x, 3 * x)))
    >>> bool((line.weight.detach()[0] + model.minimizer() - 3).abs() < 1e-5)     # least squares
    True
    """
    at = problem if parameters is None else problem.at(parameters)
    return QuadraticModel(at.risk(at.train), gradient(at), hessian_operator(at))


def isotropic_model(function: Function, point: Tensor, step: float) -> QuadraticModel:
    r"""The model with $B=\frac1\eta I$, whose minimizer is the step of gradient descent.

    It is an upper bound of the function if $\eta\le1/L$; it is the second-order model itself
    only where $\nabla^2f=\frac1\eta I$.

    >>> isotropic_model(lambda x: (x**2).sum(), torch.tensor([3.0]), 0.1).minimizer()
    tensor([-0.6000])
    """
    positive_number(step, "the step")
    point = as_vector(point, "the point")
    slope, value = torch.func.grad_and_value(function)(point)
    same = LinearOperator.identity(len(point), dtype=point.dtype, device=point.device)
    return QuadraticModel(float(value), slope, (1 / step) * same)


@dataclass(frozen=True, slots=True)
class DiagonalBlocks:
    """The diagonal blocks of a symmetric matrix.

    Attributes:
        blocks: square matrices along the diagonal.
    """

    blocks: tuple[Tensor, ...]

    @property
    def operator(self) -> LinearOperator:
        """The block-diagonal matrix."""
        sizes = [len(b) for b in self.blocks]
        like = self.blocks[0]

        def product(v: Tensor) -> Tensor:
            parts = torch.split(v, sizes)
            return torch.cat([b @ p for b, p in zip(self.blocks, parts, strict=True)])

        n = sum(sizes)
        return LinearOperator(
            (n, n), product, batched=True, symmetric=True, dtype=like.dtype, device=like.device
        )

    def solve(self, v: Tensor, damping: float = 0.0) -> Tensor:
        r"""$(B+\delta I)^{-1}v$ for `[p]`.

        >>> DiagonalBlocks((torch.eye(1) * 2, torch.eye(1) * 4)).solve(torch.ones(2))
        tensor([0.5000, 0.2500])
        """
        sizes = [len(b) for b in self.blocks]
        if v.shape != (sum(sizes),):
            raise ShapeMismatch(
                f"blocks of {sum(sizes)} rows are solved for a vector of as many entries, not for "
                f"{list(v.shape)}"
            )
        solved = []
        for block, part in zip(self.blocks, torch.split(v, sizes), strict=True):
            shift = damping * torch.eye(len(block), dtype=block.dtype, device=block.device)
            solution, failed = torch.linalg.solve_ex(block + shift, part)
            if int(failed):
                raise InvalidInput("a block of the curvature is singular; add damping")
            solved.append(solution)
        return torch.cat(solved)


def diagonal_blocks(matrix: LinearOperator, sizes: Blocks = "diagonal") -> DiagonalBlocks:
    r"""The diagonal, or the diagonal blocks, of a symmetric operator.

    Args:
        matrix: on $\mathbb R^p$, such as `hessian_operator(problem)`.
        sizes: `diagonal`, `full`, or the sizes of the blocks, which add up to $p$;
            `layer_sizes` gives one block a layer.

    Costs $p$ products with the operator, in batches; memory $p$ times the largest
    block, or 4 million numbers.

    >>> A = LinearOperator.from_matrix(torch.tensor([[2.0, 1.0], [1.0, 3.0]]))
    >>> [b.item() for b in diagonal_blocks(A).blocks]
    [2.0, 3.0]
    """
    n = check_square(matrix, "a block-diagonal approximation")
    blocks: list[Tensor] = []
    first = 0
    for widths in _batches(_widths(sizes, n), max(1, 2**22 // n)):
        count = sum(widths)
        columns = torch.zeros(n, count, dtype=matrix.dtype, device=matrix.device)
        columns[range(first, first + count), range(count)] = 1
        rows = apply(matrix, columns)[first : first + count]
        at = 0
        for width in widths:
            block = rows[at : at + width, at : at + width]
            blocks.append((block + block.T) / 2)
            at += width
        first += count
    return DiagonalBlocks(tuple(blocks))


def _batches(widths: list[int], most: int) -> Iterator[list[int]]:
    """Neighboring blocks together, up to so many columns: products come in batches."""
    batch: list[int] = []
    for width in widths:
        if batch and sum(batch) + width > most:
            yield batch
            batch = []
        batch.append(width)
    yield batch


def approximation_error(matrix: LinearOperator, blocks: DiagonalBlocks) -> float:
    r"""$\|H-B\|_2$, by Lanczos on the difference.

    >>> A = LinearOperator.from_matrix(torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double())
    >>> round(approximation_error(A, diagonal_blocks(A)), 9)
    1.0
    """
    rest = matrix - blocks.operator
    return float(top_eigenpairs(rest, which="magnitude").values.abs().max())


def layer_sizes(problem: Problem) -> list[int]:
    """How many trainable parameters each module has of its own, in the order of the vector.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> layer_sizes(Problem(net, (torch.zeros(2, 2), torch.zeros(2, 1))))
    [9, 4]
    """
    sizes: dict[str, int] = {}
    for name, p in problem.trainable.items():
        owner = name.rpartition(".")[0]
        sizes[owner] = sizes.get(owner, 0) + p.numel()
    return list(sizes.values())


def newton_direction(function: Function, blocks: Blocks = "full") -> Direction:
    r"""The direction $B(x)^{-1}\nabla f(x)$ for
    `descend`, with the Hessian or a part of it.

    With `full` and steps of 1 it is Newton's method, which solves a quadratic in one step and
    near a minimum with a definite Hessian roughly doubles the number of correct digits each time.
    Where the Hessian is indefinite it walks towards saddles and maxima as well.

    Args:
        function: of `[p]`, one value, twice differentiable.
        blocks: what to keep of the Hessian.

    Costs a dense Hessian a step, $O(p^2)$ memory and $O(p^3)$ time.

    >>> from torchtheory.optimization.descent.iterates import last_iterate
    >>> f = lambda x: ((x - 3) ** 2).sum() + (x[0] + x[1]) ** 2
    >>> last_iterate(newton_direction(f), torch.zeros(2).double(), [1.0])
    tensor([1., 1.], dtype=torch.float64)
    """

    def direction(theta: Tensor, _: int) -> Tensor:
        if theta.ndim != 1:
            raise ShapeMismatch(f"Newton's method moves one point [p], not {list(theta.shape)}")
        bends = LinearOperator.from_matrix(hessian(function)(theta))
        slope = torch.func.grad(function)(theta)
        return diagonal_blocks(bends, blocks).solve(slope)

    return direction


def _widths(sizes: Blocks, n: int) -> list[int]:
    if isinstance(sizes, str):
        if sizes not in ("full", "diagonal"):
            raise InvalidInput(f"blocks are 'full', 'diagonal' or sizes, not {sizes!r}")
        return [n] if sizes == "full" else [1] * n
    widths = [int(s) for s in sizes]
    if sum(widths) != n or any(w < 1 for w in widths):
        raise ShapeMismatch(f"blocks of {widths} do not make up {n} parameters")
    return widths
