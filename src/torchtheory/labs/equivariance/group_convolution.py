"""Convolution on finite groups, commutative and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.equivariance.groups import (
    FiniteGroup,
    cyclic_group,
    dihedral_group,
    finite_group,
    group_characters,
    group_convolve,
    group_cross_correlate,
    product_group,
    symmetric_group,
    translate,
)
from torchtheory.labs.engine import Run, lab

#: What rounding may change in sums of some hundred terms of size 1.
ROUNDING = 1e-12

#: A Latin square with a neutral element whose product is not associative.
LOOP = ((0, 1, 2, 3, 4), (1, 0, 3, 4, 2), (2, 4, 0, 1, 3), (3, 2, 4, 0, 1), (4, 3, 1, 2, 0))


@lab(
    "group-convolution",
    room="equivariance",
    covers=["A-126"],
    title="Convolution on a finite group: what needs a commutative group, and what does not",
    full={"cases": 100, "largest": 5},
    least={"largest": 2},
)
def group_convolution(run: Run, cases: int = 10, largest: int = 4) -> None:
    """Functions on cyclic groups and their products, on dihedral and symmetric groups are convolved.

    Associativity and the equivariance under translations from the left hold on every group; that
    the order of the factors does not matter, and that characters make a product of the
    convolution, on commutative groups only. On tori the convolution is the circular one of images.

    Args:
        cases: random functions per group.
        largest: degree of the largest symmetric group.
    """
    abelian = [cyclic_group(12), product_group(cyclic_group(4), cyclic_group(6)), dihedral_group(2)]
    others = [dihedral_group(4), dihedral_group(5), symmetric_group(3), symmetric_group(largest)]
    groups = [*abelian, *others]

    def draws(group: FiniteGroup, count: int = 2) -> list[tuple[Tensor, ...]]:
        return [tuple(run.randn(group.order) for _ in range(count)) for _ in range(cases)]

    def orders(group: FiniteGroup) -> Tensor:
        gaps = [(group_convolve(a, b, group) - group_convolve(b, a, group)).abs().max() for a, b in draws(group)]
        return torch.stack(gaps)

    says = run.states("A-126", r"a*b=b*a\text{ for all }a,b\iff G\text{ is commutative}")
    says.equal(torch.cat([orders(g) for g in abelian]), 0.0, ROUNDING, where=", ".join(g.name for g in abelian))
    says.fails(", ".join(g.name for g in others) + ": not commutative", torch.cat([orders(g) for g in others]))

    loop = FiniteGroup("loop", torch.tensor(LOOP), tuple(range(5)))

    def grouping(group: FiniteGroup) -> Tensor:
        gaps = []
        for a, b, c in draws(group, 3):
            left = group_convolve(group_convolve(a, b, group), c, group)
            gaps.append((left - group_convolve(a, group_convolve(b, c, group), group)).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(a*b)*c=a*(b*c),\quad(a*b)_i=\sum_{j\in G}a_j\,b_{j^{-1}i}")
    says.equal(torch.cat([grouping(g) for g in groups]), 0.0, 1e-11)
    says.fails("a multiplication table that is not associative", grouping(loop))

    def translated(group: FiniteGroup, side: str) -> Tensor:
        gaps = []
        for (a, b), g in zip(draws(group), range(1, cases + 1), strict=True):
            element = g % (group.order - 1) + 1
            right = group.table[:, group.inverse[element]]

            def move(x: Tensor, element: int = element, right: Tensor = right) -> Tensor:
                return translate(x, element, group) if side == "left" else x[right]

            gaps.append((group_convolve(move(a), b, group) - move(group_convolve(a, b, group))).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(L_ga)*b=L_g(a*b),\quad(L_ga)_j=a_{g^{-1}j}")
    says.equal(torch.cat([translated(g, "left") for g in groups]), 0.0, 1e-11)
    says.fails("translations from the right, on S3", translated(symmetric_group(3), "right"))

    scrambled = torch.randperm(24, generator=run.generator)
    table = scrambled.argsort()[abelian[1].table[scrambled][:, scrambled]]
    hidden = finite_group(table, name="a table of Z/4 x Z/6 in a random order")

    def spectra(group: FiniteGroup, characters: FiniteGroup) -> Tensor:
        chi = group_characters(characters).conj()
        gaps = []
        for a, b in draws(group):
            product = (chi @ a.to(chi)) * (chi @ b.to(chi))
            gaps.append((chi @ group_convolve(a, b, group, method="sum").to(chi) - product).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"\widehat{a*b}=\hat a\,\hat b,\quad\hat a(\chi)=\sum_ja_j\overline{\chi(j)}")
    says.equal(torch.cat([spectra(g, g) for g in (*abelian, hidden)]), 0.0, 1e-11)
    says.fails("characters of another group with 24 elements, Z/24", spectra(hidden, cyclic_group(24)))

    def torus(method: Callable[[Tensor, Tensor, FiniteGroup], Tensor]) -> Tensor:
        group, gaps = abelian[1], []
        for image, kernel in draws(group):
            grid = image.reshape(1, 1, 4, 6)
            layer = F.conv2d(F.pad(grid, (0, 5, 0, 3), mode="circular"), kernel.reshape(1, 1, 4, 6))
            gaps.append((layer.reshape(-1) - method(kernel, image, group)).abs().max())
        return torch.stack(gaps)

    says = run.states("A-126", r"(b\star a)_i=\sum_jb_{i^{-1}j}\,a_j=(a*\bar b)_i,\ \bar b_j=b_{j^{-1}}")
    says.equal(
        torus(group_cross_correlate), 0.0, ROUNDING, where="what torch's layer computes on a torus of 4 x 6 places"
    )
    says.fails("the kernel not reversed", torus(lambda b, a, g: group_convolve(a, b, g)))
    says = run.states(
        "A-126", r"G=\mathbb Z/4\times\mathbb Z/6:\ \text{the sum over }G\text{ is the product of the transforms}"
    )
    torus_pairs = draws(abelian[1])

    def transforms(group: FiniteGroup) -> list[float]:
        made = [group_convolve(a, b, group, method="fft") for a, b in torus_pairs]
        exact = [group_convolve(a, b, abelian[1], method="sum") for a, b in torus_pairs]
        return [float((m - e).abs().max()) for m, e in zip(made, exact, strict=True)]

    says.equal(transforms(abelian[1]), 0.0, ROUNDING)
    says.fails("the transform of Z/2 x Z/12", transforms(product_group(cyclic_group(2), cyclic_group(12))))

    shown = [cyclic_group(8), product_group(cyclic_group(2), cyclic_group(4)), dihedral_group(4)]

    def tables(axes: Any) -> None:
        for ax, group in zip(axes[0], shown, strict=True):
            ax.imshow(group.left_division.T.numpy(), cmap="tab10", vmin=0, vmax=9)
            ax.set(title=f"{group.name}{'' if group.is_abelian else ', not commutative'}", xlabel="$j$", ylabel="$i$")
            ax.grid(False)

    run.figure(
        "group-tables",
        tables,
        grid=(1, 3),
        size=(9.0, 3.3),
        caption="Which entry of the kernel stands where in the matrix of a convolution, the number of the element "
        "j⁻¹i in row i and column j: circulant, block circulant, and a third kind.",
    )
