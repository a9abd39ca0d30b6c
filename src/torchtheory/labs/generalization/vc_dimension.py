"""What can be shattered, what cannot, and what that says about networks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.vc.bounds import vc_sample_size
from torchtheory.generalization.vc.growth import (
    Restriction,
    halfspaces,
    intervals,
    rectangles,
    shatters,
    signed_thresholds,
    thresholds,
    vc_dimension_on,
)
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.generalization.vc.networks import (
    anthony_bartlett_vc_bound,
    network_vc_bound,
    piecewise_linear_vc_lower_order,
    piecewise_linear_vc_order,
    piecewise_polynomial_vc_order,
)
from torchtheory.generalization.vc.shattering import (
    linear_shattering,
    radon_partition,
    relu_shattering,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import parameter_count
from torchtheory.neurons.separability import separate


@lab(
    "vc-dimension",
    room="generalization",
    covers=["M-36", "M-37", "M-40", "A-36", "A-37", "A-62"],
    title="Half-spaces of $R^d$ shatter d + 1 points and never d + 2; networks shatter many more",
    errata=["samples-inverse-to-capacity"],
    full={"dimension": 12, "draws": 50, "hidden": 14},
    least={"dimension": 1, "draws": 2, "hidden": 2},
    most={"dimension": 14, "hidden": 14},
)
def vc_dimension(run: Run, dimension: int = 8, draws: int = 6, hidden: int = 10) -> None:
    """The VC dimension of a class, from below by witnesses and from above by obstructions.

    On finitely many points it is found by exhaustion for thresholds, intervals, boxes and
    half-spaces. For half-spaces of $R^d$ the lower bound is a formula for the weights of each
    labeling of the origin and the unit vectors; the upper bound is Radon's partition of d + 2
    points, which linear programs confirm is not separable. ReLU networks (d, n, 1) get output
    weights for all 2ⁿ labelings of n points. Above them stands a bound with every constant, from
    counting the sign patterns of polynomials; the orders of the literature are compared with each
    other, since their constants are not stated. Look at the gap between the two curves.

    Args:
        dimension: of the space of half-spaces, at most.
        draws: random placements of the points.
        hidden: units of the networks, and points that they shatter.
    """
    exhaustion(run)
    linear(run, dimension, draws)
    networks(run, hidden)
    orders(run)
    sample_sizes(run)


def exhaustion(run: Run) -> None:
    """Simple classes on point sets that hold a largest shattered set."""
    line = run.rand(6, 1)
    diamond = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]]).double()
    plane, space = run.randn(6, 2), run.randn(7, 3)
    boxed = torch.cat([diamond, 0.8 * run.randn(3, 2)])
    straight = run.randn(6, 1) * run.randn(1, 2)
    kinds: list[tuple[str, Restriction, Tensor, int]] = [
        ("thresholds", thresholds, line, 1),
        ("signed thresholds", signed_thresholds, line, 2),
        ("intervals", intervals, line, 2),
        ("lines in the plane", halfspaces, plane, 3),
        ("planes in space", halfspaces, space, 4),
        ("boxes in the plane", rectangles, boxed, 4),
    ]
    found = [vc_dimension_on(restriction(x)) for _, restriction, x, _ in kinds]
    says = run.states(
        ["M-36", "A-36"],
        r"\mathrm{VCdim}=\max\{n:S(n)=2^n\}=1,2,2,3,4,4\ \text{(thresholds, signed, intervals, lines, planes, boxes)}",
    )
    says.equal(found, [h for *_, h in kinds], where="all subsets of 6 or 7 points tried")
    says.fails(
        "points on one line: no good configuration among them", vc_dimension_on(halfspaces(straight)), promised=3
    )
    run.table(
        "simple-classes",
        ["class", "labelings of all points", "points", "VC dimension"],
        [[name, len(restriction(x)), len(x), h] for (name, restriction, x, _), h in zip(kinds, found, strict=True)],
    )
    run.states("M-36", r"\text{one good configuration is enough: lines shatter some triangle, not every one}").equal(
        [shatters(halfspaces, plane[:3]), shatters(halfspaces, straight[:3])], [1, 0]
    )


def linear(run: Run, dimension: int, draws: int) -> None:
    """d + 1 points with weights for each labeling; d + 2 points with Radon's."""
    margins, wrong = [], []
    for d in range(1, dimension + 1):
        witness = linear_shattering(d)
        margins.append((witness.scores() * witness.labels).min())
        plain = witness.labels[:, 1:] @ witness.points.T  # w = s, b = 0
        wrong.append((plain * witness.labels).min())
    says = run.states(
        ["M-37", "A-36"],
        rf"\min_{{s,i}}s_i(w_s^\top x_i+b_s)=\tfrac12\ \text{{ over all }} 2^{{d+1}}\ "
        rf"\text{{labelings of }} 0,e_1,\dots,e_d,\ d\le{dimension}",
    )
    says.equal(torch.stack(margins), 0.5)
    says.fails("no bias: the origin is on no side", torch.stack(wrong))
    separable, flipped, residual = [], [], []
    for d in range(1, dimension + 1):
        for _ in range(draws):
            x = run.randn(d + 2, d)
            split = radon_partition(x)
            residual.append(split.residual)
            separable.append(bool(separate(x, split.labels)))
            other = split.labels.clone()
            other[int(torch.randint(0, d + 2, (1,), generator=run.generator))] *= -1
            flipped.append(bool(separate(x, other)))
    says = run.states(
        ["M-37", "A-36"], r"\text{no half-space gives } d+2 \text{ points the labels of their Radon partition}"
    )
    says.equal(separable, where="decided by linear programs with certificates")
    says.fails("the label of one point changed", flipped)
    run.states("M-37", r"\Bigl\|\sum_{s_i=1}\alpha_ix_i-\sum_{s_i=-1}\alpha_ix_i\Bigr\|=0").equal(
        residual, within=1e-10
    )


def networks(run: Run, hidden: int) -> None:
    """ReLU networks (3, n, 1): all labelings of n points, and the bound from above."""
    realized, wanted, starved, explicit, literature = [], [], [], [], []
    sizes = list(range(2, hidden + 1))
    for n in sizes:
        x = run.randn(n, 3)
        net, weights = relu_shattering(x)
        with torch.no_grad():
            features = net[1](net[0](x))
        labels = all_labelings(n)
        scores = weights @ features.T
        realized.append(int((scores.sign() == labels).all(1).sum()))
        fewer = weights.clone()
        fewer[:, -1] = 0
        starved.append(int(((fewer @ features.T).sign() == labels).all(1).sum()))
        wanted.append(2**n)
        widths = (3, n, 1)
        explicit.append(network_vc_bound(widths))
        literature.append(anthony_bartlett_vc_bound(parameter_count(widths), n + 1, 2))
    says = run.states("A-36", r"\#\{\text{labelings of } n \text{ points by networks } (3,n,1)\}=2^n")
    says.equal(realized, wanted)
    says.fails("one unit taken out of the hidden layer", starved)
    says = run.states(
        ["A-36", "A-37"], r"n\le\mathrm{VCdim}(3,n,1)\le\max\{m:m\le\sum_i\log_2(2(2eM_iD_i/W_i)^{W_i})\}"
    )
    flat = (1, 10, 100)
    says.at_most(
        sizes + [d + 1 for d in flat],
        explicit + [network_vc_bound((d, 1)) for d in flat],
        loose="sign patterns of polynomials are counted with log2(2em/W) bits for each weight, 4.67 at the least",
        where="from below by the witness, from above by counting sign patterns of polynomials; and without a hidden "
        "layer, half-spaces of $R^d$, whose VC dimension is d + 1",
    )
    says.fails("without the hidden layer: half-spaces of $R^3$", sizes, promised=4)
    deep = [(3, *([10] * depth), 1) for depth in (2, 4, 8)]
    run.states("A-37", r"\max\{m:\dots\}\le2WL\log_2(4WLpk/\ln2)+2WL^2\log_2(\ell+1)+2L").at_most(
        explicit + [network_vc_bound(s) for s in deep],
        literature + [anthony_bartlett_vc_bound(parameter_count(s), sum(s[1:]), 2) for s in deep],
        where="the count layer by layer is sharper than the closed form that needs no widths; the less so, the deeper",
    )
    run.curves(
        "networks",
        sizes,
        {"shattered by the witness": sizes},
        {
            "sign patterns, layer by layer": explicit,
            "Anthony and Bartlett": literature,
            "parameters": [parameter_count((3, n, 1)) for n in sizes],
        },
        axes=("hidden units n", "VC dimension"),
        log="y",
        beside=True,
        caption="VC dimension of the ReLU networks (3, n, 1): at least the number of hidden units, "
        "at most the bound from sign patterns. Dotted, the number of parameters.",
    )


def orders(run: Run) -> None:
    """The orders of the literature against each other and against the explicit bound."""
    shapes = [(784, *([w] * depth), 1) for depth in (1, 2, 4, 8) for w in (16, 64, 256)]
    sizes = [(parameter_count(s), len(s) - 1) for s in shapes]
    lower = [piecewise_linear_vc_lower_order(p, depth) for p, depth in sizes]
    upper = [piecewise_linear_vc_order(p, depth) for p, depth in sizes]
    older = [piecewise_polynomial_vc_order(p, depth) for p, depth in sizes]
    shallow = [piecewise_linear_vc_order(p, 1) for p, _ in sizes]
    says = run.states(["A-62", "M-40"], r"PL\log(P/L)\le PL\log P")
    says.at_most(lower, upper, where="orders up to constants")
    says.fails("depth left out of the upper order", lower, promised=shallow)
    run.states(["A-62", "A-37"], r"PL\log P\le PL\log P+PL^2").at_most(upper, older)
    explicit = [network_vc_bound(s) for s in shapes]
    run.table(
        "orders",
        ["widths", "P", "L", "P L log(P/L)", "P L log P", "P L log P + P L²", "explicit bound"],
        [
            ["-".join(map(str, s)), p, depth, round(a), round(b), round(c), e]
            for s, (p, depth), a, b, c, e in zip(shapes, sizes, lower, upper, older, explicit, strict=True)
        ],
        caption="Orders are up to constants that are not stated; the last column is a theorem.",
    )
    rising = [b - a for k in range(0, 12, 3) for a, b in _steps(explicit[k : k + 3])]
    rising += [b - a for k in range(3) for a, b in _steps(explicit[k::3])]
    rising += [b - a for k in range(3) for a, b in _steps(upper[k::3])]
    swapped = [a - b for a, b in _steps(explicit[:3])]
    says = run.states(["M-40", "A-37"], r"\text{both the order and the explicit bound grow with width and with depth}")
    says.above(rising, 0)
    says.fails("from the wider network to the narrower", swapped)


def _steps(values: list[Any]) -> list[tuple[Any, Any]]:
    return list(itertools.pairwise(values))


def sample_sizes(run: Run) -> None:
    """How many samples the bound needs grows with the VC dimension."""
    radius, delta = 0.5, 0.05
    dimensions = [piecewise_linear_vc_order(p, 3) for p in (100, 1000, 10_000, 100_000)]
    needed = [vc_sample_size(round(h), radius, delta) for h in dimensions]
    says = run.states(
        ["M-40", "A-62"],
        r"2\sqrt{2(h(\log(2n)+1)+\log(2/\delta))/n}\le\varepsilon\ \Rightarrow\ n\ge8h(\log(2n)+1)/\varepsilon^2",
    )
    says.at_least(
        needed,
        [8 * round(h) * (math.log(2 * n) + 1) / radius**2 for h, n in zip(dimensions, needed, strict=True)],
        where="h the order P L log P of networks with 3 layers, up to its constant",
    )
    says.fails("as many samples as parameters", [100, 1000, 10_000, 100_000])
    run.refutes(
        "samples-inverse-to-capacity", r"n\,h=\text{const: the samples needed are inversely proportional to } WL\log W"
    ).equal(needed[-1], needed[0] * dimensions[0] / dimensions[-1], 0.5, where="from P = 100 to P = 100000 at 3 layers")
