"""Products along edges against dense matrices, with their derivatives."""

import networkx as nx
import pytest
import torch
from torch import Tensor

from torchtheory.core.errors import InvalidType, ShapeMismatch
from torchtheory.graphs.edge_products import (
    EdgePattern,
    SparseMatrix,
    edge_dots,
    edge_spread,
    edge_sums,
    incoming_pattern,
    row_maxima,
    row_softmax,
)
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.linalg.eigenvalues import top_eigenpairs

GRAPH = as_graph(nx.gnp_random_graph(9, 0.3, seed=5, directed=True))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pattern() -> EdgePattern:
    return incoming_pattern(GRAPH)[0]


def dense(values: Tensor) -> Tensor:
    """The matrices with these entries, `[H, M, M]`."""
    made = values.new_zeros(len(values), 9, 9)
    made[:, pattern().rows, pattern().columns] = values
    return made


def test_products_are_those_of_matrices() -> None:
    here = pattern()
    values, a, b = drawn(2, len(here.rows)), drawn(2, 9, 3, seed=1), drawn(2, 9, 3, seed=2)
    torch.testing.assert_close(edge_sums(values, a, here), dense(values) @ a)
    products = a @ b.transpose(1, 2)
    torch.testing.assert_close(edge_dots(a, b, here), products[:, here.rows, here.columns])
    spread = edge_spread(a[..., 0], b[..., 0], here)
    torch.testing.assert_close(spread, a[:, here.rows, 0] + b[:, here.columns, 0])
    q = dense(row_softmax(values, here))
    masked = torch.full((2, 9, 9), -torch.inf, dtype=torch.float64)
    masked[:, here.rows, here.columns] = values
    torch.testing.assert_close(q, masked.softmax(2).nan_to_num())
    turned, order = here.transposed()
    torch.testing.assert_close(turned.filled(values[0][order]).to_dense(), dense(values)[0].T)
    assert turned.transposed()[0] is here


def test_derivatives_of_every_order_that_is_asked_for() -> None:
    here = pattern()
    values = drawn(2, len(here.rows)).requires_grad_()
    a, b = drawn(2, 9, 2, seed=1).requires_grad_(), drawn(2, 9, 2, seed=2).requires_grad_()
    for function, inputs in (
        (lambda v, x: edge_sums(v, x, here), (values, a)),
        (lambda x, y: edge_dots(x, y, here), (a, b)),
        (lambda x, y: edge_spread(x[..., 0], y[..., 0], here), (a, b)),
        (lambda v: row_softmax(v, here), (values,)),
        (lambda x: row_maxima(x[0], here) ** 2, (a,)),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_vmap_of_every_product() -> None:
    here = pattern()
    values, a = drawn(3, 2, len(here.rows)), drawn(3, 2, 9, 2, seed=1)
    for function, inputs in (
        (lambda v, x: edge_sums(v, x, here), (values, a)),
        (lambda x: edge_dots(x, a[0], here), (a,)),
        (lambda x: edge_spread(x[..., 0], x[..., 1], here), (a,)),
        (lambda v: row_softmax(v, here), (values,)),
        (lambda x: row_maxima(x[0], here), (a,)),
    ):
        one_by_one = torch.stack([function(*(i[k] for i in inputs)) for k in range(3)])
        torch.testing.assert_close(torch.func.vmap(function)(*inputs), one_by_one)
    matrix = SparseMatrix(here, values[0, 0], symmetric=False)
    torch.testing.assert_close(
        torch.func.jacfwd(lambda x: matrix @ x)(a[0, 0, :, 0]), matrix.dense()
    )


def test_maxima_of_empty_rows_are_0() -> None:
    lonely = EdgePattern(3, torch.tensor([0, 0]), torch.tensor([1, 2]))
    x = torch.tensor([[5.0], [-1.0], [-2.0]])
    assert row_maxima(x, lonely).flatten().tolist() == [-1, 0, 0]


def test_a_matrix_and_its_transpose() -> None:
    values = drawn(len(pattern().rows))
    matrix = SparseMatrix(pattern(), values, symmetric=False)
    exact = dense(values[None])[0]
    x = drawn(9, 4, seed=3)
    torch.testing.assert_close(matrix @ x, exact @ x)
    torch.testing.assert_close(matrix @ x[:, 0], exact @ x[:, 0])
    torch.testing.assert_close(matrix.T @ x, exact.T @ x)
    assert matrix.T.T is matrix
    assert matrix.to(torch.float32).dtype == torch.float32
    torch.testing.assert_close(matrix.operator().T.to_dense(), exact.T)
    both = SparseMatrix(*symmetric(exact), symmetric=True)
    assert both.T is both
    wanted = torch.linalg.eigvalsh(exact + exact.T)[-1]
    found = top_eigenpairs(both.operator(), 1).values[0]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def symmetric(matrix: Tensor) -> tuple[EdgePattern, Tensor]:
    entries = (matrix + matrix.T).to_sparse_coo().coalesce()
    return EdgePattern(9, *entries.indices()), entries.values()


def test_refused() -> None:
    matrix = SparseMatrix(pattern(), drawn(len(pattern().rows)), symmetric=False)
    with pytest.raises(ShapeMismatch, match=r"9 nodes, and the features are \[4, 2\]"):
        matrix @ drawn(4, 2)
    with pytest.raises(InvalidType, match="floating-point"):
        matrix @ torch.ones(9, dtype=torch.int64)
