"""Sum-product networks: the same polynomial with d - 1 neurons or with exponentially many."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.approximation.depth.sum_product import (
    ShallowSumProduct,
    SumProductTree,
    expand_tree,
)
from torchtheory.approximation.polynomials.relu import polynomial_values
from torchtheory.labs.engine import Run, lab


@lab(
    "sum-product-networks",
    room="approximation",
    covers=["X-66"],
    title="A tree of d - 1 sums and products is a sum of $2^{√d - 1}$ products",
    full={"points": 4000},
    least={"points": 200},
)
def sum_product_networks(run: Run, points: int = 400) -> None:
    """Trees over 4, 16 and 64 inputs with random positive weights are multiplied out.

    The number of monomials is $2^{√d - 1}$, the shallow network with one product neuron for each
    computes the same numbers, and it cannot do with fewer: the monomials are linearly independent
    functions, which the rank of their values at random points shows. With a weight 0 in every sum
    the tree is one single product. Look at the last column of the table.

    Args:
        points: random inputs.
    """
    rows, gaps, bent, ranks, lost, counts, single = [], [], [], [], [], [], []
    for rounds in (1, 2, 3):
        weights = [0.5 + run.rand(4 ** (rounds - r), 2) for r in range(1, rounds + 1)]
        tree = SumProductTree(rounds, weights)
        terms = expand_tree(tree)
        shallow = ShallowSumProduct(terms)
        # inputs around 1, so that products of many of them neither vanish nor explode
        x = 0.5 + run.rand(points, tree.inputs)
        with torch.no_grad():
            deep, wide = tree(x)[:, 0], shallow(x)[:, 0]
            by_terms = polynomial_values(terms, x)
            gaps.append(float(((deep - wide) / deep).abs().max()))
            gaps.append(float(((deep - by_terms) / deep).abs().max()))
            bent.append(float(((activated(tree, x) - wide) / wide).abs().max()))
            values = shallow.monomials(x)
            ranks.append(int(torch.linalg.matrix_rank(values / values.norm(dim=0))))
        counts.append(len(terms))
        one_sided = [w * torch.tensor([1.0, 0.0], dtype=torch.float64) for w in weights]
        product = expand_tree(SumProductTree(rounds, one_sided))
        single.append(len(product))
        lost.append(int(torch.linalg.matrix_rank(ShallowSumProduct(product).monomials(x))))
        rows.append((tree.inputs, tree.depth, tree.neurons, len(terms), ranks[-1], gaps[-2]))
    sizes = [row[0] for row in rows]
    promised = [2 ** (math.isqrt(d) - 1) for d in sizes]
    says = run.states("X-66", r"\text{monomials of the tree over } d=4^i \text{ inputs: } 2^{\sqrt d-1}")
    says.equal(counts, promised)
    says.fails("one weight of every sum is 0", single)
    says = run.states(
        "X-66",
        r"\text{the shallow network of } 2^{\sqrt d-1} \text{ products computes the same: largest relative difference}",
    )
    says.equal(gaps, within=1e-12)
    says.fails("sums with an activation, tanh: no sum-product network", bent)
    says = run.states("X-66", r"\text{no product neuron can be spared: rank of the monomials' values}")
    says.at_least(ranks, promised)
    says.fails("one weight of every sum is 0", lost)
    run.states("X-66", r"\text{neurons of the tree: } d-1; \text{ layers: } \log_2d").equal(
        [v for row in rows for v in (row[2], row[1])], [v for d in sizes for v in (d - 1, math.log2(d))]
    )
    run.table(
        "deep-and-shallow",
        ["inputs d", "layers", "deep neurons", "shallow products", "rank", "difference"],
        rows,
        caption="The same function, deep and shallow",
    )
    d = [4, 9, 16, 25, 36, 49, 64, 100, 144, 196, 256]
    counted = dict(zip(sizes, counts, strict=True))
    run.curves(
        "neurons",
        d,
        {"deep: $d - 1$": [n - 1 for n in d], "monomials counted": [counted.get(n, math.nan) for n in d]},
        {"shallow: $2^{\\sqrt{d} - 1}$": [2.0 ** (n**0.5 - 1) for n in d]},
        axes=("inputs d", "neurons"),
        log="xy",
        caption="Neurons of the tree (d - 1) and product neurons of the shallow network: counted "
        "(marks) and $2^{√d - 1}$ (line).",
    )


def activated(tree: SumProductTree, x: Tensor) -> Tensor:
    """The tree with tanh after every sum."""
    for weight in tree.weights:
        x = torch.tanh((x.reshape(len(x), -1, 2, 2).prod(-1) * weight).sum(-1))
    return x[:, 0]
