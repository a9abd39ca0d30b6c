r"""Linear maps given by what they do to a vector.

A Hessian, a Jacobian, a kernel or a convolution is too large to write down and cheap to apply.
`LinearOperator` holds the action $v \mapsto Av$ and, on request, the adjoint $u \mapsto A^\top u$;
`krylov`, `eigenvalues`, `singular_values`, `spectral_density`, `trace` and `conjugate_gradients`
need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.memory import bytes_of

Action = Callable[[Tensor], Tensor]


class LinearOperator:
    r"""A linear map $A : \mathbb{R}^n \to \mathbb{R}^m$ given by its action $v \mapsto Av$.

    Operators are applied, added, scaled, composed and transposed without being written down:
    `A @ v`, `A + B`, `2 * A`, `A @ B`, `A.T`.

    If `rmatvec` is missing, the adjoint comes from automatic differentiation, exactly: a linear
    map is its own derivative, so $u \mapsto A^\top u$ is its vector-Jacobian product at any point.
    The backward graph is recorded once per adjoint (each `A.adjoint` is a new one).

    Args:
        shape: $(m, n)$.
        matvec: The action. It is called with one vector `[n]` and returns `[m]`; a block of
            columns is passed through it one by one. With `batched=True` it is only ever called
            with a block `[n, k]` (also for $k = 1$) and returns `[m, k]`.
        rmatvec: The action of the adjoint, from `[m]` to `[n]`, under the same contract.
        batched: Whether `matvec` and `rmatvec` take blocks of columns. An action on vectors
            becomes one on blocks by `torch.func.vmap(f, in_dims=1, out_dims=1)`.
        symmetric: Declares $A^\top = A$, so that the adjoint is the operator itself. The solvers
            for symmetric maps check the symmetry as they go, declared or not.
        dtype: `torch.float32` or `torch.float64` (default: torch's default dtype).
        device: Where the vectors live.
        memory: Bytes that a solver may take for vectors of its own; None for no bound. Whoever
            makes an operator on very long vectors knows what there is.

    Results carry gradients if the action does (a convolution whose weight requires them); the
    solvers detach them.

    Example: the forward difference $(Dv)_i = v_{i+1} - v_i$, and $D D^\top$, which is
    $\operatorname{tridiag}(-1, 2, -1)$.

    >>> D = LinearOperator((3, 4), torch.diff, dtype=torch.float64)
    >>> D @ torch.tensor([0.0, 1.0, 4.0, 9.0], dtype=torch.float64)
    tensor([1., 3., 5.], dtype=torch.float64)
    >>> (D @ D.T).to_dense()
    tensor([[ 2., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  2.]], dtype=torch.float64)
    """

    def __init__(
        self,
        shape: tuple[int, int],
        matvec: Action,
        rmatvec: Action | None = None,
        *,
        batched: bool = False,
        symmetric: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        memory: int | None = None,
    ) -> None:
        self.shape = _checked_shape(shape)
        self.memory = memory
        self.dtype = checked_dtype(torch.get_default_dtype() if dtype is None else dtype)
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self.symmetric = symmetric
        if symmetric:
            check_square(self, "a symmetric operator")
        self._matvec = matvec
        self._rmatvec = rmatvec
        self._batched = batched
        self._adjoint: Callable[[], LinearOperator] | None = None

    # -- constructors ---------------------------------------------------------------------------

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> LinearOperator:
        r"""The map $v \mapsto Mv$ of a matrix `[m, n]`.

        >>> (LinearOperator.from_matrix(torch.eye(2)) @ torch.ones(2)).tolist()
        [1.0, 1.0]
        """
        if matrix.ndim != 2:
            raise ShapeMismatch(f"a matrix has 2 dimensions, this tensor has {matrix.ndim}")
        return cls(
            (matrix.shape[0], matrix.shape[1]),
            lambda v: matrix @ v,
            lambda u: matrix.T @ u,
            batched=True,
            symmetric=matrix.shape[0] == matrix.shape[1] and bool(torch.equal(matrix, matrix.T)),
            dtype=matrix.dtype,
            device=matrix.device,
        )

    @classmethod
    def identity(
        cls, n: int, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> LinearOperator:
        r"""The identity of $\mathbb{R}^n$; `A + damping * LinearOperator.identity(n)` shifts `A`.

        >>> (3 * LinearOperator.identity(2)).to_dense().tolist()
        [[3.0, 0.0], [0.0, 3.0]]
        """
        return cls((n, n), torch.clone, batched=True, symmetric=True, dtype=dtype, device=device)

    @classmethod
    def from_function(
        cls,
        function: Action,
        input_shape: Sequence[int],
        *,
        batched: bool = False,
        symmetric: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> LinearOperator:
        r"""A linear map between tensors of any shape, on their flattened entries.

        The output shape is read off $f(0)$, which must be 0: a layer with a bias is affine, and
        refused. The adjoint comes from automatic differentiation.

        Args:
            function: $f$, from `input_shape` to some output shape. With `batched=True`, from
                `[k, *input_shape]` to `[k, *output_shape]`, as the layers of `torch.nn` do.
            input_shape: The shape of one input, without the batch dimension.
            batched: Whether `function` takes a leading batch dimension.
            symmetric: Declares the map to be symmetric on the flattened entries.
            dtype: As for `LinearOperator`.
            device: As for `LinearOperator`.

        >>> from torch.nn.functional import conv2d
        >>> kernel = torch.ones(1, 1, 2, 2)
        >>> A = LinearOperator.from_function(lambda x: conv2d(x, kernel), (1, 3, 3), batched=True)
        >>> A.shape
        (4, 9)
        >>> A.T @ torch.ones(4)
        tensor([1., 2., 1., 2., 4., 2., 1., 2., 1.])
        """
        dtype = checked_dtype(torch.get_default_dtype() if dtype is None else dtype)
        input_shape = tuple(input_shape)
        zero = torch.zeros(
            (1, *input_shape) if batched else input_shape, dtype=dtype, device=device
        )
        image = function(zero)
        if not isinstance(image, Tensor) or image.dtype != dtype:
            kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise InvalidType(f"the function must return a tensor of {dtype}, it returned {kind}")
        _refuse_affine(image)

        def on_vector(v: Tensor) -> Tensor:
            return function(v.reshape(input_shape)).reshape(-1)

        def on_block(v: Tensor) -> Tensor:
            k = v.shape[1]
            return function(v.T.reshape(k, *input_shape)).reshape(k, -1).T

        return cls(
            (image.numel(), math.prod(input_shape)),
            on_block if batched else on_vector,
            batched=batched,
            symmetric=symmetric,
            dtype=dtype,
            device=device,
        )

    # -- the action -----------------------------------------------------------------------------

    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, other: LinearOperator) -> LinearOperator: ...
    def __matmul__(self, other: Tensor | LinearOperator) -> Tensor | LinearOperator:
        """`A @ v` for `v` of shape `[n]` or `[n, k]`, or the composition with an operator."""
        if isinstance(other, LinearOperator):
            return self._compose(other)
        if not isinstance(other, Tensor):
            return NotImplemented
        m, n = self.shape
        if other.ndim not in (1, 2) or other.shape[0] != n:
            raise ShapeMismatch(
                f"an operator of shape ({m}, {n}) applies to [{n}] or [{n}, k], "
                f"not to {list(other.shape)}"
            )
        if other.dtype != self.dtype:
            raise InvalidType(
                f"the operator is {self.dtype}, the vector {other.dtype}; convert one"
            )
        if self._batched:
            block = other if other.ndim == 2 else other[:, None]
            image = self._checked(self._matvec(block), (m, block.shape[1]))
            return image if other.ndim == 2 else image[:, 0]
        if other.ndim == 1:
            return self._checked(self._matvec(other), (m,))
        if other.shape[1] == 0:
            return other.new_zeros(m, 0)
        if other.shape[1] == 1:  # nothing to put side by side
            return self._checked(self._matvec(other[:, 0]), (m,))[:, None]
        columns = (self._checked(self._matvec(v), (m,)) for v in other.unbind(1))
        # one after the other in memory: interleaving them costs more than some of the products
        return torch.stack(list(columns)).T

    def _checked(self, image: Tensor, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(image, Tensor):
            raise InvalidType(f"the action must return a tensor, not {type(image).__name__}")
        if tuple(image.shape) != shape:
            raise ShapeMismatch(
                f"the action of an operator of shape {self.shape} must return {list(shape)} here, "
                f"it returned {list(image.shape)}"
            )
        if image.dtype != self.dtype:
            raise InvalidType(f"the operator is {self.dtype}, its action returned {image.dtype}")
        return image

    @property
    def adjoint(self) -> LinearOperator:
        r"""$A^\top$, with $\langle u, Av \rangle = \langle A^\top u, v \rangle$."""
        if self.symmetric:
            return self
        if self._adjoint is not None:
            return self._adjoint()
        rmatvec = adjoint_from_autograd(self) if self._rmatvec is None else self._rmatvec
        transposed = LinearOperator(
            (self.shape[1], self.shape[0]),
            rmatvec,
            batched=self._batched,
            dtype=self.dtype,
            device=self.device,
            memory=self.memory,
        )
        transposed._adjoint = lambda: self
        return transposed

    @property
    def T(self) -> LinearOperator:
        r"""The adjoint $A^\top$."""
        return self.adjoint

    def to_dense(self, *, limit: int = 25_000_000) -> Tensor:
        """The matrix `[m, n]`, column by column: `n` applications and `m n` numbers.

        Args:
            limit: The largest number of entries that is written down; more is refused.

        >>> (-LinearOperator.identity(2)).to_dense().tolist()
        [[-1.0, -0.0], [-0.0, -1.0]]
        """
        m, n = self.shape
        if m * n > limit:
            raise InvalidInput(
                f"a dense ({m}, {n}) matrix has {m * n} entries, the limit is {limit}; "
                f"apply the operator instead, or raise the limit"
            )
        dense = torch.empty(m, n, dtype=self.dtype, device=self.device)
        for columns in column_blocks(n, n):
            block = torch.zeros(n, len(columns), dtype=self.dtype, device=self.device)
            block[columns, range(len(columns))] = 1
            dense[:, columns] = (self @ block).detach()
        return dense

    # -- the algebra ----------------------------------------------------------------------------

    def __add__(self, other: LinearOperator) -> LinearOperator:
        if not isinstance(other, LinearOperator):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeMismatch(f"operators of shapes {self.shape} and {other.shape} do not add")
        _check_same_kind(self, other)
        return _derived(
            self.shape,
            lambda v: self @ v + other @ v,
            lambda: self.adjoint + other.adjoint,
            self,
            symmetric=self.symmetric and other.symmetric,
        )

    def __mul__(self, scalar: float | Tensor) -> LinearOperator:
        if isinstance(scalar, Tensor) and scalar.ndim > 0:
            raise InvalidType(
                "operators are scaled by a number; to compose or apply them use @ (given: "
                f"{described(scalar)})"
            )
        if not isinstance(scalar, int | float | Tensor):
            return NotImplemented
        return _derived(
            self.shape,
            lambda v: scalar * (self @ v),
            lambda: scalar * self.adjoint,
            self,
            symmetric=self.symmetric,
        )

    __rmul__ = __mul__

    def __truediv__(self, scalar: float | Tensor) -> LinearOperator:
        return self * (1 / scalar)

    def __neg__(self) -> LinearOperator:
        return self * -1.0

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        if not isinstance(other, LinearOperator):
            return NotImplemented
        return self + -other

    def _compose(self, other: LinearOperator) -> LinearOperator:
        if self.shape[1] != other.shape[0]:
            raise ShapeMismatch(
                f"operators of shapes {self.shape} and {other.shape} do not compose: "
                f"the first takes {self.shape[1]} numbers, the second gives {other.shape[0]}"
            )
        _check_same_kind(self, other)
        return _derived(
            (self.shape[0], other.shape[1]),
            lambda v: self @ (other @ v),
            lambda: other.adjoint @ self.adjoint,
            self,
        )

    def __repr__(self) -> str:
        return f"LinearOperator({self.shape[0]}x{self.shape[1]}, {self.dtype}, {self.device})"


def adjoint_from_autograd(A: LinearOperator) -> Action:
    r"""The action $u \mapsto A^\top u$ of the adjoint, by reverse-mode differentiation of $A$.

    For a linear map the vector-Jacobian product does not depend on the point, and one recorded
    at 0 serves all $u$. One product costs about as much as one application of $A$.

    >>> A = LinearOperator((2, 3), lambda v: v[:2] + v[1:])
    >>> adjoint_from_autograd(A)(torch.tensor([1.0, 10.0]))
    tensor([ 1., 11., 10.])
    """
    pullbacks: dict[torch.Size, Callable[[Tensor], tuple[Tensor]]] = {}

    def rmatvec(u: Tensor) -> Tensor:
        trailing = u.shape[1:]
        if trailing not in pullbacks:
            zero = torch.zeros(A.shape[1], *trailing, dtype=A.dtype, device=A.device)
            try:
                image, pullback, *_ = torch.func.vjp(lambda v: A @ v, zero)
            except RuntimeError as error:
                raise InvalidInput(
                    "the adjoint could not be had by differentiating the action; give rmatvec, "
                    f"or symmetric=True if the map is symmetric ({error})"
                ) from error
            _refuse_affine(image)
            pullbacks.clear()  # one recorded graph at a time
            pullbacks[trailing] = pullback
        return pullbacks[trailing](u)[0]

    return rmatvec


# -- what the solvers share ---------------------------------------------------------------------


def apply(A: LinearOperator, v: Tensor) -> Tensor:
    """`A @ v` without the graph of it: what every solver calls."""
    return (A @ v).detach()


def column_blocks(rows: int, columns: int, budget: int = 2**24) -> Iterator[range]:
    """Split columns into consecutive blocks of at most `budget` numbers (at least one column).

    >>> list(column_blocks(10, 5, budget=20))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    width = max(1, budget // max(1, rows))
    for start in range(0, columns, width):
        yield range(start, min(columns, start + width))


def vectors_within(A: LinearOperator, memory: str | int | None) -> int:
    """How many vectors `[n]` fit into the memory, that of the operator unless given."""
    room = A.memory if memory is None else bytes_of(memory)
    if room is None:
        return 10**12
    return room // (max(A.shape) * torch.finfo(A.dtype).bits // 8)


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype, if linear algebra works in it."""
    if dtype in (torch.float32, torch.float64):
        return dtype
    if dtype.is_complex:
        advice = "real maps only: use the real and imaginary parts as coordinates"
    else:
        advice = "convert the model and its data with .float() or .double()"
    raise InvalidType(f"linear algebra here needs float32 or float64, not {dtype}; {advice}")


def check_square(A: LinearOperator, who: str) -> int:
    """The dimension `n` of a square operator; others are refused."""
    if A.shape[0] != A.shape[1]:
        raise ShapeMismatch(f"{who} needs a square operator, this one has shape {A.shape}")
    return A.shape[0]


def check_finite(x: Tensor | float, what: str) -> None:
    """Refuse NaN and infinity."""
    finite = bool(torch.isfinite(x).all()) if isinstance(x, Tensor) else math.isfinite(x)
    if not finite:
        raise NonFinite(f"{what} is NaN or infinite; check the operator's action and its data")


def check_vector(A: LinearOperator, v: Tensor, what: str) -> None:
    """Refuse a vector or block that `A` cannot be applied to, or that is not finite."""
    if v.ndim not in (1, 2) or v.shape[0] != A.shape[1]:
        raise ShapeMismatch(f"{what} must have {A.shape[1]} rows, its shape is {list(v.shape)}")
    if v.dtype != A.dtype:
        raise InvalidType(f"the operator is {A.dtype}, {what} is {v.dtype}; convert one")
    check_finite(v, f"an entry of {what}")


def effective_tolerance(tolerance: float, dtype: torch.dtype) -> float:
    """The relative tolerance, not below the 50 machine epsilons rounding leaves of it."""
    if not 0 <= tolerance < 1:
        raise InvalidInput(f"a relative tolerance is from 0 to below 1, not {tolerance}")
    return max(tolerance, 50 * torch.finfo(dtype).eps)


def _checked_shape(shape: tuple[int, int]) -> tuple[int, int]:
    if len(shape) != 2 or any(s < 1 for s in shape):
        raise ShapeMismatch(f"the shape of an operator is (m, n) with m, n >= 1, not {shape}")
    return int(shape[0]), int(shape[1])


def _refuse_affine(image_of_zero: Tensor) -> None:
    check_finite(image_of_zero, "the image of 0")
    if bool(image_of_zero.any()):
        raise InvalidInput("the map does not send 0 to 0, so it is not linear; drop its bias")


def _check_same_kind(A: LinearOperator, B: LinearOperator) -> None:
    if A.dtype != B.dtype or A.device != B.device:
        raise InvalidType(
            f"operators of {A.dtype} on {A.device} and {B.dtype} on {B.device} do not combine"
        )


def _derived(
    shape: tuple[int, int],
    matvec: Action,
    adjoint: Callable[[], LinearOperator],
    like: LinearOperator,
    *,
    symmetric: bool = False,
) -> LinearOperator:
    operator = LinearOperator(
        shape,
        matvec,
        batched=True,
        symmetric=symmetric,
        dtype=like.dtype,
        device=like.device,
        memory=like.memory,
    )
    operator._adjoint = adjoint
    return operator
