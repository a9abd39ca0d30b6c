"""The Gram matrix of a finite network is close to its expectation, and so are its eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from torchtheory.kernels.infinite.gram_concentration import (
    compare_gram,
    gram_radius,
    rademacher_draws,
    slope_bound,
    unit_gram_norms,
    weyl_bounds,
    width_for_accuracy,
)
from torchtheory.kernels.infinite.two_layer import (
    TwoLayerNetwork,
    expected_gram,
    relu_gram_limit,
    sampled_gram,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import Run, lab, mean_interval, quantile_interval
from torchtheory.nets.activations.table import activation


@lab(
    "gram-matrix-concentration",
    room="kernels",
    covers=["M-53", "M-54", "M-55", "M-56"],
    title="The kernel of a network with m hidden units is within order 1/√m of its expectation",
    errata=["concentration-in-the-number-of-points"],
    full={"points": 20, "dimension": 10, "width": 2000, "draws": 2000, "pairs": 2000},
    least={"points": 2, "draws": 50, "dimension": 2, "width": 15, "delta": 0.0005},
    most={"delta": 0.25},
)
def gram_matrix_concentration(
    run: Run,
    points: int = 8,
    dimension: int = 4,
    width: int = 200,
    draws: int = 200,
    delta: float = 0.05,
    pairs: int = 200,
) -> None:
    """Hidden units are independent draws, so the Gram matrix of the network is a mean of them.

    Each unit's matrix is bounded, hence so is the Rademacher complexity of their linear
    functions, hence the distance to the expected matrix is at most ★ with probability 1 - δ, and
    by Weyl's inequality no extreme eigenvalue moves further. Every step is checked for ReLU, tanh
    and the logistic unit, the last over many networks, also for one point that is repeated, where
    the distance is as large as it can be. Look at how far ★ is from what happens, at
    the width it would take for it to say anything, and at the printed version of the theorem,
    which counts data points where it has to count hidden units.

    Args:
        points: inputs on the unit sphere, between which the kernel is taken.
        dimension: of the inputs.
        width: hidden units of the network.
        draws: networks in which the bounds may fail.
        delta: probability with which they may.
        pairs: random symmetric matrices for Weyl's inequality.
    """
    x = normalize(run.randn(points, dimension), dim=1)
    definitions(run, x, width)
    bounds(run, x, width)
    distances = coverage(run, x, width, draws, delta)
    weyl(run, points, pairs)
    wrong_count(run, draws, delta)
    rates = decay(run, x)
    run.table(
        "widths",
        [
            "activation",
            "B",
            "λmin(G)",
            "★ at this width",
            "typical distance",
            "width for ★ ≤ λmin/2",
        ],
        [
            (
                name,
                slope_bound(name),
                (found := compare_gram(x, run.randn(width, dimension), name)).expected_smallest,
                found.radius,
                found.distance,
                found.required_width,
            )
            for name in ("relu", "tanh", "logistic")
        ],
        caption=f"{points} points of dimension {dimension}, {width} hidden units, δ = {delta}",
    )
    run.figure(
        "concentration",
        lambda axes: plot_concentration(axes, distances, rates),
        caption="Left: distances of sampled ReLU Gram matrices to their expectation, far below ★. "
        "Right: both fall like $m^{-1/2}$; the expected smallest eigenvalue is where ★ has to get.",
        grid=(1, 2),
    )


def definitions(run: Run, x: Tensor, width: int) -> None:
    """The sampled matrix is the kernel of the first layer, the expected one its mean."""
    net = TwoLayerNetwork.random(width, x.shape[1], activation="tanh", generator=run.generator)
    weight = net.weight.detach()
    uneven = TwoLayerNetwork(weight, 2 * run.rand(width) - 1, "tanh")
    says = run.states("M-53", r"|a_k|=1:\ \hat G \text{ is the tangent kernel of the first layer}")
    says.equal(empirical_ntk(net, x, outputs="trace"), sampled_gram(x, weight, "tanh"), 1e-12)
    says.fails(
        "output weights in [-1, 1]: each term of the kernel has the factor aₖ²",
        empirical_ntk(uneven, x, outputs="trace"),
    )
    says = run.states(
        ["M-53", "M-24"],
        r"\text{ReLU: } G_{ij}=x_i^\top x_j\,\frac{\pi-\arccos(x_i^\top x_j)}{2\pi}, \text{ by quadrature}",
    )
    says.equal(expected_gram(x, "relu"), relu_gram_limit(x), 1e-12)
    says.fails("leaky ReLU in its place", expected_gram(x, "leaky relu"))
    inner = x @ x.T
    lengths = 1 + 2 * inner.diagonal()
    exact = inner * (4 / math.pi) / (torch.outer(lengths, lengths) - 4 * inner.square()).sqrt()
    says = run.states(
        "M-53",
        r"\sigma=\operatorname{erf}:\ G_{ij}=\frac4\pi\,x_i^\top x_j\bigl((1+2\|x_i\|^2)"
        r"(1+2\|x_j\|^2)-4(x_i^\top x_j)^2\bigr)^{-1/2}",
    )
    says.equal(expected_gram(x, torch.erf), exact, 1e-12)
    says.fails("tanh in its place", expected_gram(x, "tanh"))


def bounds(run: Run, x: Tensor, width: int) -> None:
    """Frobenius norms and the Rademacher complexity."""
    size = float(x.square().sum())
    weight = run.randn(width, x.shape[1])
    names = ("relu", "tanh", "logistic")
    squares = activation("power relu", k=2.0)
    says = run.states("M-54", r"\|H_k\|_F\le B^2\|X\|_F^2:\ \|H_k\|_F/(B^2\|X\|_F^2)")
    says.at_most(torch.cat([unit_gram_norms(x, weight, a) / slope_bound(a) ** 2 for a in names]) / size, 1.0)
    says.fails(
        "squared ReLU, whose slope is not bounded by the B = 1 that was given",
        unit_gram_norms(x, weight, squares) / size,
    )
    # one short point, repeated: all units have nearly the largest slope, and their matrices one direction
    equal = 0.01 * x[:1].expand_as(x)

    def complexity(points: Tensor, weight: Tensor, a: Any) -> float:
        """The lower end of its interval, in units of the size of the points."""
        signs = rademacher_draws(points, weight, a, draws=200, generator=run.generator)
        return mean_interval(signs / points.square().sum()).low

    for a in names:
        says = run.states(
            "M-54",
            r"\mathcal R(\mathcal F|_{\mathcal H})=\frac1m\mathbb E\Bigl\|\sum_k\epsilon_kH_k"
            r"\Bigr\|_F\le\frac{B^2\|X\|_F^2}{\sqrt m}: \text{ divided by } \|X\|_F^2",
        )
        says.at_most(
            [complexity(points, weight, a) for points in (x, equal)],
            slope_bound(a) ** 2 / math.sqrt(width),
            where=f"{a}, 200 sign vectors, lower ends of 99 % intervals: random points, and a short one repeated",
        )
        if a == "relu":
            says.fails("squared ReLU at three times the weights, with B = 1", complexity(x, 3 * weight, squares))


def coverage(run: Run, x: Tensor, width: int, draws: int, delta: float) -> dict[str, Any]:
    """How often the distance is within ★, and the eigenvalues with it."""

    def drawn(units: int, count: int, mean: float | Tensor = 0.0) -> Iterator[Tensor]:
        return (run.randn(units, x.shape[1]) + mean for _ in range(count))

    # one point, repeated: all of a unit's matrix stands in one direction, and is there or is not
    one = x[:1].expand_as(x)
    distances, shifts, _ = moved(one, drawn(width, draws))
    away, _, _ = moved(one, drawn(40 * width, 60, 3 * x[0]))
    radius = gram_radius(one, width, delta=delta)
    sixth = (
        "0 ≤ uᵀHₖu ≤ B²|X|², so that Hoeffding's inequality for one u has a sixth of the second term of ★: its "
        "range is taken twice as long and paid three times, for the supremum over u; and no fluctuations are larger "
        "than those of a fair coin, as here"
    )
    says = run.states(
        "M-55",
        r"P\Bigl(\sup_{\|u\|\le1}|u^\top Gu-u^\top\hat Gu|\le\star\Bigr)\ge1-\delta: \text{ quantile at } 1-\delta",
    )
    says.at_most(
        quantile_interval(distances, 1 - delta),
        radius,
        loose=sixth,
        where=f"ReLU, one point that is repeated, m = {width}, {draws} networks",
    )
    says.fails(
        f"weights drawn around 3x₁ instead of 0, m = {40 * width}",
        quantile_interval(away, 1 - delta),
        promised=gram_radius(one, 40 * width, delta=delta),
    )
    run.states(
        "M-56",
        r"P\bigl(\lambda_{\min}(\hat G)\ge\lambda_{\min}(G)-\star,\ \lambda_{\max}(\hat G)\le"
        r"\lambda_{\max}(G)+\star\bigr)\ge1-\delta: \text{ quantile at } 1-\delta \text{ of the larger shift}",
    ).at_most(quantile_interval(shifts, 1 - delta), radius, loose=sixth, where=f"the same {draws} networks")
    typical, apart, crossed = moved(x, drawn(width, draws))
    says = run.states(
        "M-55",
        r"x_1=\dots=x_n:\ \mathbb E\|\hat G-G\|^2=\|X\|_F^4/4m,\ \text{the most that } 0\le u^\top H_ku\le\|X\|_F^2"
        r"\text{ allows: } 4m\,\mathbb E\|\hat G-G\|^2/\|X\|_F^4",
    )
    squares = [4 * width * (d / x.square().sum()).square() for d in (distances, typical)]
    says.mean(squares[0], 1.0, against=(0.25, 4.0), where=f"ReLU, m = {width}, {draws} networks")
    says.fails("points in several directions", squares[1])
    smallest = float(torch.linalg.eigvalsh(relu_gram_limit(x))[0])
    needed = width_for_accuracy(x, smallest / 2, delta=delta)
    says = run.states(["M-55", "M-56"], r"\star\le\tfrac12\lambda_{\min}(G) \text{ at the width asked for}")
    says.at_most(gram_radius(x, needed, delta=delta), smallest / 2, where=f"m = {needed}")
    says.fails("one unit less", gram_radius(x, needed - 1, delta=delta))
    says = run.states(
        "M-56",
        r"\max\bigl(\lambda_{\min}(G)-\lambda_{\min}(\hat G),\lambda_{\max}(\hat G)-"
        r"\lambda_{\max}(G)\bigr)\le\|\hat G-G\|",
    )
    says.at_most(apart, typical, 1e-12)
    says.fails("the smallest next to the largest eigenvalue", crossed)
    return {"distances": typical, "radius": gram_radius(x, width, delta=delta), "width": width}


def moved(points: Tensor, weights: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Distances of sampled matrices to their expectation, and how far extreme eigenvalues moved.

    The last are the largest eigenvalues less the smallest expected one.
    """
    expected = relu_gram_limit(points)
    smallest, largest = torch.linalg.eigvalsh(expected)[[0, -1]]
    grams = torch.stack([sampled_gram(points, weight) for weight in weights])
    values = torch.linalg.eigvalsh(grams)
    shifts = torch.maximum(smallest - values[:, 0], values[:, -1] - largest)
    return torch.linalg.matrix_norm(grams - expected, 2), shifts, values[:, -1] - smallest


def weyl(run: Run, size: int, pairs: int) -> None:
    """Random symmetric matrices; and one that is not."""
    found = []
    for _ in range(pairs):
        A, B = run.randn(size, size), run.randn(size, size)
        found.append(weyl_bounds(A + A.T, B + B.T))
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    top = float(torch.linalg.eigvals(nilpotent + nilpotent.T).real.max())
    says = run.states("M-56", r"\lambda_1(A+B)\le\lambda_1(A)+\lambda_1(B)")
    says.at_most([w.largest for w in found], [w.upper for w in found], 1e-12)
    says.fails("A nilpotent and B its transpose: not symmetric", top, promised=0.0)
    says = run.states("M-56", r"\lambda_n(A+B)\ge\lambda_n(A)+\lambda_n(B)")
    says.at_least([w.smallest for w in found], [w.lower for w in found], 1e-12)
    says.fails("A nilpotent and B its transpose: not symmetric", -top, promised=0.0)


def wrong_count(run: Run, draws: int, delta: float, points: int = 1000) -> None:
    """One hidden unit and many points: n in place of m would promise far too much."""
    # F has the one function f(H) = H_11 with values in [0, 1]: its Rademacher complexity is 0
    first = run.randn(draws) > 0  # the single unit's w·x_1, for a unit vector x_1
    deviations = 0.5 - first.double()
    radius = 3 * math.sqrt(math.log(2 / delta) / (2 * points))
    run.refutes(
        "concentration-in-the-number-of-points",
        r"P\Bigl(\mathbb Ef(H)-\frac1m\sum_kf(H_k)\le2\mathcal R+3(b-a)\sqrt{\log(2/\delta)/2n}\Bigr)\ge1-\delta",
    ).share(
        deviations <= radius,
        1 - delta,
        confidence=0.95,
        where=f"ReLU, m = 1, n = {points}, f(H) = H₁₁, a fair coin: the printed bound is "
        f"{radius:.3g}, the deviation is 1/2 half of the time",
    )
    correct = 3 * math.sqrt(math.log(2 / delta) / 2)
    run.note(
        f"With the number m = 1 of hidden units in its place the same bound is {correct:.3g}, "
        "which the deviation of at most 1/2 never exceeds."
    )


def decay(run: Run, x: Tensor, repeats: int = 20) -> list[tuple[int, float, float, float]]:
    """Distance and ★ over the width."""
    expected = relu_gram_limit(x)
    smallest = float(torch.linalg.eigvalsh(expected)[0])
    widths = (50, 200, 800, 3200, 12800)

    drawn = [width for width in widths for _ in range(repeats)]

    def distances(mean: float) -> list[float]:
        """Of every draw, with weights around this mean."""
        grams = (sampled_gram(x, mean + run.randn(width, x.shape[1])) for width in drawn)
        return [float(torch.linalg.matrix_norm(gram - expected, 2)) for gram in grams]

    far = distances(0.0)
    says = run.states("M-55", r"\|\hat G-G\|\sim m^{-1/2}")
    says.slope(drawn, far, -0.5, against=(-1.0, -0.25, 0.0), confidence=0.999)
    says.fails("weights with mean 0.3", drawn, distances(0.3))
    means = torch.tensor(far).view(-1, repeats).mean(1).tolist()
    return [(width, mean, gram_radius(x, width), smallest) for width, mean in zip(widths, means, strict=True)]


def plot_concentration(axes: Any, found: dict[str, Any], rows: list[tuple[int, float, float, float]]) -> None:
    left, right = axes[0]
    low, high = float(found["distances"].min()), float(found["distances"].max())
    bins = torch.logspace(math.log10(low), math.log10(high), 20).tolist()
    left.hist(found["distances"].numpy(), bins=bins, alpha=0.8, label="sampled networks")
    left.axvline(found["radius"], color="black", ls="--", label="★ at δ")
    left.set(xlabel=r"$\|\hat{G}-G\|$", ylabel="networks", title=f"m = {found['width']}")
    left.set(xscale="log", xlim=(low / 2, 2 * found["radius"]))
    left.legend(loc="upper center")
    m = [r[0] for r in rows]
    right.loglog(m, [r[2] for r in rows], "k--", label="★")
    right.loglog(m, [r[1] for r in rows], "o-", label="mean distance")
    right.axhline(rows[0][3], color="#D55E00", ls=":", label=r"$\lambda_{\min}(G)$")
    right.set(xlabel="hidden units m", ylabel="distance")
    right.legend()
