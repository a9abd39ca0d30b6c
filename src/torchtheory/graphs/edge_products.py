r"""Products along the edges of a graph, without a feature vector per edge.

A layer on a graph multiplies by a sparse matrix whose entries are fixed (a coupling matrix, a
Laplacian) or learned (attention). Gathering the features of all edges takes memory
$O(E\cdot\text{width})$; here nothing larger than $O(E)$ numbers per head is ever made. The two
products with learned entries are each other's derivatives, so they can be differentiated any
number of times, in reverse and forward mode; all three work under `torch.func`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidType, ShapeMismatch
from torchtheory.graphs.graph import Graph, csr, row_pointers
from torchtheory.linalg.operators import LinearOperator

# from this width on, torch's weighted bags are faster than its CSR product (float32 only)
_WIDE = 32


class EdgePattern:
    """Where the entries of a sparse square matrix stand: row by row, columns ascending.

    Attributes:
        size: number of rows and columns.
        rows, columns: of the entries, `[E]`.
        pointers: where each row begins, `[size + 1]`.
    """

    def __init__(self, size: int, rows: Tensor, columns: Tensor) -> None:
        self.size = size
        self.rows, self.columns = rows, columns
        self.pointers = row_pointers(rows, size)
        self._turned: tuple[EdgePattern, Tensor] | None = None
        self._ones: Tensor | None = None

    def transposed(self) -> tuple[EdgePattern, Tensor]:
        """The pattern of the transpose, and the order that takes the entries there `[E]`."""
        if self._turned is None:
            order = torch.argsort(self.columns, stable=True)
            turned = EdgePattern(self.size, self.columns[order], self.rows[order])
            turned._turned = (self, torch.argsort(order))
            self._turned = (turned, order)
        return self._turned

    def filled(self, values: Tensor) -> Tensor:
        """The CSR tensor with these entries `[E]`."""
        return csr(self.pointers, self.columns, values)

    def times(self, values: Tensor, x: Tensor) -> Tensor:
        """The matrix with entries `values[E]` times `x[size, c]`, without derivatives."""
        x, values = x.detach().contiguous(), values.detach().contiguous()
        if _is_wide(x):
            return F.embedding_bag(
                self.columns,
                x,
                self.pointers,
                mode="sum",
                per_sample_weights=values,
                include_last_offset=True,
            )
        return self.filled(values) @ x

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Scalar products of the rows of `a[size, c]` and `b[size, c]` at the entries `[E]`."""
        if self._ones is None or self._ones.dtype != a.dtype:
            self._ones = self.filled(a.new_ones(len(self.columns)))
        made: Tensor = torch.sparse.sampled_addmm(
            self._ones, a.contiguous(), b.contiguous().T, beta=0.0
        ).values()
        return made


def _is_wide(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.shape[1] >= _WIDE and x.device.type == "cpu"


class SparseMatrix:
    r"""A fixed sparse square matrix $S$ that features are multiplied by: `S @ x`.

    `x` is `[M, c]`, `[M]`, or `[..., M, c]` for several sets of features. The product is
    differentiable in `x`, any number of times; the transpose that this needs is made once and
    kept, and is the matrix itself if it is symmetric.

    Attributes:
        pattern: where the entries stand.
        values: the entries, `[E]`.
        symmetric: whether $S^\top=S$.

    Time $O(Ec)$, memory $O(E)$ besides the result.

    >>> swap = SparseMatrix(EdgePattern(2, torch.tensor([0, 1]), torch.tensor([1, 0])),
    ...                     torch.ones(2), symmetric=True)
    >>> (swap @ torch.tensor([[1.0], [2.0]])).tolist()
    [[2.0], [1.0]]
    """

    def __init__(self, pattern: EdgePattern, values: Tensor, *, symmetric: bool) -> None:
        self.pattern = pattern
        self.values = values
        self.symmetric = symmetric
        self._turned: SparseMatrix | None = None
        self._others: dict[torch.dtype, SparseMatrix] = {}
        self._csr: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.size, self.pattern.size

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def T(self) -> SparseMatrix:
        """The transpose."""
        if self.symmetric:
            return self
        if self._turned is None:
            pattern, order = self.pattern.transposed()
            self._turned = SparseMatrix(pattern, self.values[order], symmetric=False)
            self._turned._turned = self
        return self._turned

    def to(self, dtype: torch.dtype) -> SparseMatrix:
        """The matrix in another precision, kept for the next time."""
        if dtype == self.dtype:
            return self
        if dtype not in self._others:
            self._others[dtype] = SparseMatrix(
                self.pattern, self.values.to(dtype), symmetric=self.symmetric
            )
        return self._others[dtype]

    def __matmul__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise InvalidType(f"features must be floating-point numbers, not {described(x)}")
        vector = x.ndim == 1
        columns = x.unsqueeze(-1) if vector else x
        if columns.shape[-2] != self.pattern.size:
            raise ShapeMismatch(
                f"there are {self.pattern.size} nodes, and the features are {list(x.shape)}: "
                f"one row per node is needed"
            )
        if x.dtype not in (torch.float32, torch.float64):
            raise InvalidType(
                f"products along edges are computed in single or double precision, and the "
                f"features are {x.dtype}: convert them"
            )
        matrix, size = self.to(x.dtype), self.pattern.size
        if columns.ndim == 2:
            made = _applied(_Product, columns, matrix)
        else:  # several sets of features stand side by side
            beside = columns.reshape(-1, size, columns.shape[-1]).transpose(0, 1)
            made = _applied(_Product, beside.reshape(size, -1), matrix)
            made = made.reshape(beside.shape).transpose(0, 1).reshape(columns.shape)
        return made.squeeze(-1) if vector else made

    def csr(self) -> Tensor:
        """As torch's CSR tensor `[M, M]`."""
        if self._csr is None:
            self._csr = self.pattern.filled(self.values)
        return self._csr

    def times(self, x: Tensor) -> Tensor:
        """The product with `x[M, c]`, without derivatives."""
        if _is_wide(x):
            return self.pattern.times(self.values, x)
        return self.csr() @ x.detach().contiguous()

    def dense(self) -> Tensor:
        """Written down, `[M, M]`."""
        return self.csr().to_dense()

    def operator(self) -> LinearOperator:
        """For the eigenvalue methods of `torchtheory.linalg`, which need products only."""
        return LinearOperator(
            self.shape,
            self.times,
            None if self.symmetric else lambda u: self.T.times(u),
            batched=True,
            symmetric=self.symmetric,
            dtype=self.dtype,
            device=self.values.device,
        )

    def __repr__(self) -> str:
        kind = "symmetric, " if self.symmetric else ""
        return f"SparseMatrix({self.shape[0]} x {self.shape[1]}, {kind}{len(self.values)} entries)"


def incoming_pattern(graph: Graph, *, loops: bool = False) -> tuple[EdgePattern, Tensor]:
    """Row $m$: the nodes whose edges reach $m$; with `loops`, also $m$ itself.

    Returns the pattern and, for each entry, the number of its edge in the graph (-1 for a loop
    that was added). A loop of the graph stays where it is. Kept with the graph.
    """
    return graph.kept(("incoming", loops), lambda: _incoming(graph, loops))


def _incoming(graph: Graph, loops: bool) -> tuple[EdgePattern, Tensor]:
    rows, columns = graph.targets, graph.sources
    number = torch.arange(rows.shape[0], device=graph.device)
    if loops:
        alone = torch.ones(graph.nodes, dtype=torch.bool, device=graph.device)
        alone[rows[rows == columns]] = False
        added = alone.nonzero().flatten()
        rows, columns = torch.cat([rows, added]), torch.cat([columns, added])
        order = torch.argsort(rows * graph.nodes + columns)
        rows, columns = rows[order], columns[order]
        number = torch.cat([number, torch.full_like(added, -1)])[order]
    return EdgePattern(graph.nodes, rows, columns), number


def edge_sums(values: Tensor, x: Tensor, pattern: EdgePattern) -> Tensor:
    r"""$y_{hm}=\sum_{n}v_{h,mn}\,x_{hn}$ for each head $h$: `[H, E]`, `[H, M, c]` to `[H, M, c]`.

    Differentiable in both. Time $O(HEc)$, memory $O(HMc)$ besides the arguments.
    """
    return _applied(_Sums, values, x, pattern)


def edge_dots(a: Tensor, b: Tensor, pattern: EdgePattern) -> Tensor:
    r"""$v_{h,mn}=\langle a_{hm},b_{hn}\rangle$ at the entries: two `[H, M, c]` to `[H, E]`.

    Differentiable in both. Time $O(HEc)$, memory $O(HE)$.
    """
    return _applied(_Dots, a, b, pattern)


def edge_spread(rows: Tensor, columns: Tensor, pattern: EdgePattern) -> Tensor:
    r"""$v_{h,mn}=r_{hm}+s_{hn}$ at the entries: two `[H, M]` to `[H, E]`; differentiable."""
    return _applied(_Spread, rows, pattern, False) + _applied(_Spread, columns, pattern, True)


def row_softmax(scores: Tensor, pattern: EdgePattern) -> Tensor:
    r"""$q_{h,mn}=e^{z_{h,mn}}/\sum_{n'}e^{z_{h,mn'}}$ over the entries of each row, `[H, E]`.

    Differentiable; the largest score of a row is taken off first, so no exponential overflows.

    >>> path = EdgePattern(2, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    >>> row_softmax(torch.tensor([[0.0, 0.0, 900.0]]), path).tolist()
    [[0.5, 0.5, 1.0]]
    """
    return _applied(_RowSoftmax, scores, pattern)


def row_maxima(x: Tensor, pattern: EdgePattern) -> Tensor:
    r"""$y_{mc}=\max_nx_{nc}$ over the entries of row $m$, and 0 where it has none: `[M, c]`.

    Where the maximum is attained twice, the derivative goes to the first. Memory $O(Mc)$.
    """
    place = _applied(_Largest, x.detach(), pattern)
    empty = (pattern.pointers.diff() == 0).unsqueeze(-1)
    return x.gather(0, place).masked_fill(empty, 0.0)


# -- derivatives -----------------------------------------------------------------------------------


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    made: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return made


class _Product(torch.autograd.Function):
    """A fixed matrix times `x[M, c]`; the derivative is the product with its transpose."""

    @staticmethod
    def forward(x: Tensor, matrix: SparseMatrix) -> Tensor:
        return matrix.times(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.matrix = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _applied(_Product, g, ctx.matrix.T), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> Tensor:
        return _applied(_Product, dx, ctx.matrix)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], x: Tensor, matrix: SparseMatrix
    ) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 1)
        made = _applied(_Product, x.flatten(1), matrix)
        return made.reshape(-1, *x.shape[1:]), 1


def _both(
    function: type[torch.autograd.Function],
    first: tuple[Tensor | None, Tensor],
    second: tuple[Tensor, Tensor | None],
    pattern: EdgePattern,
) -> Tensor:
    """The two terms of a product rule, where one of them may be absent."""
    terms = [
        _applied(function, *t, pattern) for t in (first, second) if all(v is not None for v in t)
    ]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _as_heads(t: Tensor, dim: int | None, size: int) -> Tensor:
    """A batched argument with its batch among the heads."""
    t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.flatten(0, 1)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, x: Tensor, pattern: EdgePattern) -> Tensor:
        made = torch.empty_like(x, memory_format=torch.contiguous_format)
        for h in range(len(x)):
            made[h] = pattern.times(values[h], x[h])
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, x, ctx.pattern = inputs
        ctx.save_for_backward(values, x)
        ctx.save_for_forward(values, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, x = ctx.saved_tensors
        d_values = d_x = None
        if ctx.needs_input_grad[0]:
            d_values = _applied(_Dots, g, x, ctx.pattern)
        if ctx.needs_input_grad[1]:
            turned, order = ctx.pattern.transposed()
            d_x = _applied(_Sums, values.index_select(1, order), g, turned)
        return d_values, d_x, None

    @staticmethod
    def jvp(ctx: Any, d_values: Tensor | None, d_x: Tensor | None, _: None) -> Tensor:
        values, x = ctx.saved_tensors
        return _both(_Sums, (d_values, x), (values, d_x), ctx.pattern)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], values: Tensor, x: Tensor, pattern: EdgePattern
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        folded = (_as_heads(t, d, size) for t, d in zip((values, x), dims[:2], strict=True))
        made = _applied(_Sums, *folded, pattern)
        return made.reshape(size, -1, *made.shape[1:]), 0


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, pattern: EdgePattern) -> Tensor:
        made = a.new_empty(len(a), len(pattern.columns))
        for h in range(len(a)):
            made[h] = pattern.dots(a[h], b[h])
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.pattern = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        d_a = d_b = None
        if ctx.needs_input_grad[0]:
            d_a = _applied(_Sums, g, b, ctx.pattern)
        if ctx.needs_input_grad[1]:
            turned, order = ctx.pattern.transposed()
            d_b = _applied(_Sums, g.index_select(1, order), a, turned)
        return d_a, d_b, None

    @staticmethod
    def jvp(ctx: Any, d_a: Tensor | None, d_b: Tensor | None, _: None) -> Tensor:
        a, b = ctx.saved_tensors
        return _both(_Dots, (d_a, b), (a, d_b), ctx.pattern)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], a: Tensor, b: Tensor, pattern: EdgePattern
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        folded = (_as_heads(t, d, size) for t, d in zip((a, b), dims[:2], strict=True))
        made = _applied(_Dots, *folded, pattern)
        return made.reshape(size, -1, *made.shape[1:]), 0


class _Spread(torch.autograd.Function):
    """Numbers of rows (or columns) `[H, M]` at the entries of each, `[H, E]`."""

    @staticmethod
    def forward(v: Tensor, pattern: EdgePattern, by_column: bool) -> Tensor:
        return v.index_select(1, pattern.columns if by_column else pattern.rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.pattern, ctx.by_column = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _applied(_Collect, g, ctx.pattern, ctx.by_column), None, None

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, *_: None) -> Tensor:
        return _applied(_Spread, dv, ctx.pattern, ctx.by_column)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], v: Tensor, pattern: EdgePattern, by_column: bool
    ) -> tuple[Tensor, int]:
        made = _applied(_Spread, _as_heads(v, dims[0], info.batch_size), pattern, by_column)
        return made.reshape(info.batch_size, -1, *made.shape[1:]), 0


class _Collect(torch.autograd.Function):
    """Sums over the entries of each row (or column), `[H, E]` to `[H, M]`: adjoint to the above."""

    @staticmethod
    def forward(v: Tensor, pattern: EdgePattern, by_column: bool) -> Tensor:
        if by_column:
            pattern, order = pattern.transposed()
            v = v.index_select(1, order)
        made = v.new_empty(len(v), pattern.size)
        for h in range(len(v)):
            made[h] = _row_reduced(v[h], "sum", pattern)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.pattern, ctx.by_column = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _applied(_Spread, g, ctx.pattern, ctx.by_column), None, None

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, *_: None) -> Tensor:
        return _applied(_Collect, dv, ctx.pattern, ctx.by_column)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], v: Tensor, pattern: EdgePattern, by_column: bool
    ) -> tuple[Tensor, int]:
        made = _applied(_Collect, _as_heads(v, dims[0], info.batch_size), pattern, by_column)
        return made.reshape(info.batch_size, -1, *made.shape[1:]), 0


def _row_reduced(v: Tensor, how: str, pattern: EdgePattern) -> Tensor:
    """The sum or maximum of the entries `[E]` of each row, `[M]`."""
    return torch.segment_reduce(v.contiguous(), how, offsets=pattern.pointers, unsafe=True)


class _RowSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, pattern: EdgePattern) -> Tensor:
        made = torch.empty_like(scores)
        for h in range(len(scores)):
            largest = _row_reduced(scores[h], "max", pattern)
            row = torch.sub(scores[h], largest.index_select(0, pattern.rows), out=made[h]).exp_()
            row.div_(_row_reduced(row, "sum", pattern).index_select(0, pattern.rows))
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.pattern = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _RowSoftmax.jvp(ctx, g, None), None

    @staticmethod
    def jvp(ctx: Any, dz: Tensor, _: None) -> Tensor:
        """The derivative of a softmax is a symmetric matrix: it serves both ways."""
        (q,) = ctx.saved_tensors
        weighted = q * dz
        means = _applied(_Collect, weighted, ctx.pattern, False)
        made: Tensor = weighted - q * _applied(_Spread, means, ctx.pattern, False)
        return made

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, pattern: EdgePattern
    ) -> tuple[Tensor, int]:
        made = _applied(_RowSoftmax, _as_heads(scores, dims[0], info.batch_size), pattern)
        return made.reshape(info.batch_size, -1, *made.shape[1:]), 0


class _Largest(torch.autograd.Function):
    """Which row of `x[M, c]` has the largest entry among the columns of each row, `[M, c]`."""

    @staticmethod
    def forward(x: Tensor, pattern: EdgePattern) -> Tensor:
        *_, place = torch.embedding_bag(
            x.contiguous(), pattern.columns, pattern.pointers, mode=2, include_last_offset=True
        )
        return place.clamp_(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], x: Tensor, pattern: EdgePattern
    ) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 1)
        made = _applied(_Largest, x.flatten(1), pattern)
        return made.reshape(-1, *x.shape[1:]), 1


for _function in (_Product, _Sums, _Dots, _Spread, _Collect, _RowSoftmax, _Largest):
    # torch looks a function's signature up at each call; kept, that takes a tenth of the time
    _forward: Any = _function.forward
    _forward.__signature__ = inspect.signature(_forward)
