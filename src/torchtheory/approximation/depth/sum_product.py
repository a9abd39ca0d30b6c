r"""Sum-product networks: layers of products and layers of weighted sums, nothing else.

The full binary tree over $d=4^i$ inputs multiplies pairs, adds pairs of the products with
weights, and repeats both $i$ times: $d-1$ neurons in $\log_2d$ layers. What it
computes is a polynomial of $m_i=2m_{i-1}^2$, that is $2^{\sqrt d-1}$, monomials, and a
shallow sum-product network (one layer of products, one sum) has a product neuron for each
monomial. Source: Mathematical Aspects of Deep Learning, section 3.7 (Delalleau and Bengio).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.approximation.polynomials.relu import Polynomial, polynomial_variables
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


class SumProductTree(nn.Module):
    r"""The full binary tree of $d=4^i$ inputs, from `[n, d]` to `[n, 1]`.

    Args:
        rounds: $i$, of a product layer and a sum layer each.
        weights: the weights $(\lambda,\mu)$ of the sums of each round, `[units, 2]` with
            $4^{i-1},\dots,4,1$ units; all 1 unless told.

    Time `O(n d)`.

    >>> tree = SumProductTree(1)                              # x1 x2 + x3 x4
    >>> tree(torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()).item(), tree.neurons, tree.depth
    (14.0, 3, 2)
    """

    def __init__(self, rounds: int, weights: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.rounds = whole_number(rounds, "rounds", least=1)
        self.inputs = 4**rounds
        units = [4 ** (rounds - r) for r in range(1, rounds + 1)]
        given = [torch.ones(u, 2, dtype=torch.float64) for u in units]
        if weights is not None:
            given = [w.detach().clone() for w in weights]
        if [tuple(w.shape) for w in given] != [(u, 2) for u in units]:
            raise ShapeMismatch(
                f"{rounds} rounds have weights {[[u, 2] for u in units]}, "
                f"not {[list(w.shape) for w in given]}"
            )
        if not all(bool(torch.isfinite(w).all()) for w in given):
            raise NonFinite("a weight of a sum is not a finite number")
        self.weights = nn.ParameterList([nn.Parameter(w) for w in given])

    @property
    def neurons(self) -> int:
        """Sums and products: $d-1$."""
        return sum(2 * len(w) + len(w) for w in self.weights)

    @property
    def depth(self) -> int:
        """Layers: $2i=\\log_2d$."""
        return 2 * self.rounds

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ShapeMismatch(f"the tree takes [n, {self.inputs}], not {list(x.shape)}")
        for weight in self.weights:
            products = x.reshape(len(x), -1, 2, 2).prod(-1)
            x = (products * weight).sum(-1)
        return x


def expand_tree(tree: SumProductTree) -> Polynomial:
    r"""The polynomial of a tree, term by term: terms with coefficient 0 are left out.

    Time and memory $O(d\,2^{\sqrt d})$: 128 terms for $d=64$, refused beyond 256.

    >>> expand_tree(SumProductTree(1))
    {(1, 1, 0, 0): 1.0, (0, 0, 1, 1): 1.0}
    """
    if tree.inputs > 256:
        raise InvalidInput(f"a tree of {tree.inputs} inputs has too many terms to write down")
    level: list[dict[frozenset[int], float]] = [{frozenset([i]): 1.0} for i in range(tree.inputs)]
    for weight in tree.weights:
        products = [
            {a | b: u * v for a, u in left.items() for b, v in right.items()}
            for left, right in zip(level[::2], level[1::2], strict=True)
        ]
        scaled = [
            {term: c * w for term, c in part.items() if c * w != 0}
            for part, w in zip(products, weight.flatten().tolist(), strict=True)
        ]
        # the two parts of a sum have no variable in common, and so no term
        level = [{**a, **b} for a, b in zip(scaled[::2], scaled[1::2], strict=True)]
    return {tuple(int(i in term) for i in range(tree.inputs)): c for term, c in level[0].items()}


class ShallowSumProduct(nn.Module):
    r"""One layer of products and one weighted sum, from `[n, d]` to `[n, 1]`.

    Args:
        terms: the polynomial; one product neuron for each term.

    >>> shallow = ShallowSumProduct({(1, 1): 2.0, (0, 2): -1.0})
    >>> shallow(torch.tensor([[3.0, 4.0]]).double()).item(), shallow.products
    (8.0, 2)
    """

    def __init__(self, terms: Polynomial) -> None:
        super().__init__()
        polynomial_variables(terms)
        self.register_buffer("exponents", torch.tensor(list(terms), dtype=torch.int64))
        values = torch.tensor(list(terms.values()), dtype=torch.float64)
        self.weight = nn.Parameter(values)

    @property
    def products(self) -> int:
        return len(self.weight)

    def monomials(self, x: Tensor) -> Tensor:
        """The product neurons, `[n, products]`."""
        exponents = self.get_buffer("exponents")
        if x.ndim != 2 or x.shape[1] != exponents.shape[1]:
            raise ShapeMismatch(f"the terms take [n, {exponents.shape[1]}], not {list(x.shape)}")
        made: Tensor = (x.unsqueeze(1) ** exponents).prod(-1)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return (self.monomials(x) @ self.weight).unsqueeze(1)
