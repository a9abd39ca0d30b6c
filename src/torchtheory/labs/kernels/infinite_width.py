"""Infinite width: the recursions of the two kernels, against quadrature and random networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.kernels.infinite.dense import limit_kernels, nngp
from torchtheory.kernels.infinite.parametrization import ScaledLinear, ntk_mlp
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.models.model import PureFunction
from torchtheory.nets.activations.moments import slope_of
from torchtheory.nets.infinite_width.dual_activations import activation_layer, dual_activation, dual_moments
from torchtheory.primer.gaussian_pairs import gaussian_pair_mean

NAMES = ("relu", "leaky relu", "abs", "erf", "gelu", "sin", "tanh", "softplus")
WEIGHT = 2.0


def pair_at(cosine: float) -> Tensor:
    """Two unit vectors in the plane with the given inner product."""
    return torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)


def random_outputs(run: Run, net: nn.Module, x: Tensor, networks: int) -> Tensor:
    """Outputs `[networks, n]` of the module with all parameters drawn anew from N(0, 1)."""
    f = PureFunction(net)
    drawn = {k: run.randn(networks, *p.shape) for k, p in f.parameters.items()}
    outputs: Tensor = torch.func.vmap(lambda theta: f(theta, x))(drawn)
    return outputs[..., 0]


def hidden_covariances(run: Run, x: Tensor, hidden: Sequence[int], networks: int, *, copies: bool = False) -> Tensor:
    """Covariance `[networks, n, n]` of a ReLU network's output given its hidden layers.

    The weights of the last layer are integrated out: what is left is random through the hidden
    layers only. With `copies`, all units of the last hidden layer share their weights.
    """
    h = x.expand(networks, -1, -1)
    before = 1  # the first layer divides by nothing, as in Theorem 57
    for place, width in enumerate(hidden):
        alone = 1 if copies and place == len(hidden) - 1 else width
        w = run.randn(networks, h.shape[2], alone)
        h = torch.relu(h @ w * math.sqrt(WEIGHT / before))
        before = alone
    return WEIGHT / before * h @ h.mT


@lab(
    "nngp-recursion",
    room="kernels",
    covers=["M-18", "A-57", "M-17"],
    title="Random networks become a Gaussian process: the recursion of its kernel",
    errata=[
        "nngp-gaussian-at-finite-width",
        "nngp-variance-by-fan-out",
        "wide-network-kernel-index",
    ],
    full={"networks": 60_000, "widths": (16, 32, 64, 128, 256)},
    least={"networks": 2000, "widths": 2},
    items={"widths": 5},
)
def nngp_recursion(run: Run, networks: int = 20_000, widths: tuple[int, ...] = (16, 23, 32, 45, 64, 91, 128)) -> None:
    """The outputs of a random network, as its width grows, against the recursion of Theorem 57.

    The expectation of each layer is checked against two-dimensional quadrature for eight
    activations, the kernel against random networks. With one hidden layer the covariance is exact
    at any width and only the fourth moment is not Gaussian, by the factor 1 + 5/n for ReLU; with
    two, the covariance of narrow networks is off by a multiple of 1/n, and that of a single
    network by 1/√n. Look at the right panel for these rates.

    Args:
        networks: random networks that covariances are averaged over.
        widths: of their hidden layers.
    """
    x = pair_at(0.5)
    golden(run, x)
    expectations(run)
    one_hidden_layer(run, x, networks)
    gaussianity(run, networks)
    bias, spread = rates(run, x, networks, widths)
    fan_out(run)
    run.figure(
        "nngp",
        lambda axes: plot_nngp(axes, widths, bias, spread),
        caption="Left: the kernel of two unit vectors after L layers (ReLU, weight variance 2): "
        "depth pulls all angles together. Right: distance of finite networks of depth 3 from it.",
        grid=(1, 2),
        size=(10, 3.6),
    )


def golden(run: Run, x: Tensor) -> None:
    two = nngp(x, depth=2, scaling="unscaled_input")
    divided = nngp(x, depth=2, scaling="fan_in")
    angle = math.pi / 3
    by_hand = 2 * (2 / (2 * math.pi)) * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    says = run.states(
        "M-18, A-57",
        r"\Sigma^2(x,x')=1.21800,\ \Sigma^2(x,x)=2 \text{ for ReLU, } \sigma_w^2=2,\ \sigma_b=0,\ "
        r"\|x\|=\|x'\|=1,\ \langle x,x'\rangle=\tfrac12",
    )
    says.equal(
        [float(two[0, 1]), float(two[0, 0]), float(two[1, 1])],
        [by_hand, 2.0, 2.0],
        1e-12,
        where="the first layer of Theorem 57 does not divide by the dimension",
    )
    says.fails(
        "a first layer that divides by √d, as the second source has it",
        [float(divided[0, 1]), float(divided[0, 0]), float(divided[1, 1])],
    )


def expectations(run: Run) -> None:
    """The layer's expectation, closed form or expansion, against quadrature in the plane."""
    k11, k22 = 0.2 + 2 * run.rand(6), 0.2 + 2 * run.rand(6)
    k12 = torch.linspace(-0.95, 0.95, 6).double() * (k11 * k22).sqrt()
    rows, ours, theirs, alone = [], [], [], []
    for name in NAMES:
        layer = activation_layer(name)
        slope = slope_of(layer)
        found = dual_moments(name, k11, k12, k22)
        assert found.slopes is not None
        exact = gaussian_pair_mean(layer, layer, k11, k22, k12)
        exact_slopes = gaussian_pair_mean(slope, slope, k11, k22, k12)
        ours += [found.values, found.slopes]
        theirs += [exact, exact_slopes]
        free = dual_moments(name, k11, torch.zeros_like(k12), k22)
        assert free.slopes is not None
        alone += [free.values, free.slopes]
        kind = type(dual_activation(name)).__name__
        gaps = [float((a - b).abs().max()) for a, b in ((found.values, exact),)]
        rows.append((name, kind, gaps[0], float((found.slopes - exact_slopes).abs().max())))
    says = run.states(
        "M-18, A-57",
        r"\mathbb E\varphi(z)\varphi(z') \text{ and } \mathbb E\varphi'(z)\varphi'(z') "
        r"\text{ for } (z,z')\sim N(0,\Sigma)",
    )
    says.equal(
        torch.cat(ours),
        torch.cat(theirs),
        1e-9,
        where=f"quadrature in polar coordinates; {len(NAMES)} activations at six covariances",
    )
    says.fails("z and z' taken as independent", torch.cat(alone))
    run.table(
        "activations",
        ["activation", "how", "error of E φφ'", "error of E φ'φ'"],
        rows,
        caption="Largest difference from two-dimensional quadrature.",
    )


def one_hidden_layer(run: Run, x: Tensor, networks: int) -> None:
    """E f(x) f(x') is Σ² at any width; and it is not Σ³."""
    net = ntk_mlp([2, 8, 1], scaling="unscaled_input", dtype=torch.float64)
    outputs = random_outputs(run, net, x, networks)
    products = mean_interval(outputs.prod(1))
    sigma, deeper = (nngp(x, depth=d, scaling="unscaled_input") for d in (2, 3))
    halved = ntk_mlp([2, 8, 1], scaling="fan_in", dtype=torch.float64)
    other = mean_interval(random_outputs(run, halved, x, networks).prod(1))
    says = run.states("M-18, A-57, M-17", r"\text{one hidden layer of 8 units: } \mathbb E f(x)f(x')=\Sigma^2(x,x')")
    says.mean(
        products,
        float(sigma[0, 1]),
        against=(float(sigma[0, 1]) / 2, 1.0, float(deeper[0, 1]), float(sigma[0, 0])),
        where=f"{networks} networks, 99 % interval; with one hidden layer the covariance is exact at every width",
    )
    says.fails("the first layer divided by √d: another kernel", other)
    run.refutes(
        "wide-network-kernel-index", r"\text{a network of } L=2 \text{ layers has the covariance } \Sigma^{L+1}"
    ).mean(products, float(deeper[0, 1]), where=f"Σ³ = {float(deeper[0, 1]):.4f}, Σ² = {float(sigma[0, 1]):.4f}")


def gaussianity(run: Run, networks: int) -> None:
    """Fourth moments 1 + 5/n, and a test of normality."""
    x = pair_at(0.5)[:1]
    ratios = {}
    for width in (2, 8, 32):
        variance = hidden_covariances(run, x, [width], networks)[:, 0, 0] / 2
        # given its hidden layer f is Gaussian: E f^4 is three times the square of its variance
        ratios[width] = mean_interval(variance.square())
    eight, two = ratios[8], ratios[2]
    says = run.states("M-18", r"\text{ReLU, one hidden layer: } \mathbb E f^4=3\,\Sigma^2(x,x)^2\,(1+5/n),\ n=8")
    says.mean(
        eight,
        1 + 5 / 8,
        against=(1.0, 1 + 3 / 8, 1 + 6 / 8),
        where=f"{networks} networks, 99 % interval, given the hidden layer; derived from E max(z,0)⁴ = 3/2",
    )
    says.fails("n = 2", two)
    run.refutes(
        "nngp-gaussian-at-finite-width", r"f^2(x,\theta_0) \text{ is Gaussian, so } \mathbb E f^4=3\,(\mathbb E f^2)^2"
    ).mean(two, 1.0, where="two hidden units; the exact ratio is 1 + 5/2")
    chosen, samples = min(networks, 4000), 5

    def distances(width: int) -> list[float]:
        """Kolmogorov's distance from the limit, of samples of networks."""
        found = []
        for _ in range(samples):
            spread = hidden_covariances(run, x, [width], chosen)[:, 0, 0].sqrt()
            outputs = spread * run.randn(chosen) / math.sqrt(2)
            found.append(float(stats.kstest(outputs.numpy(), "norm").statistic))
        return found

    says = run.states(
        "A-57, M-18",
        r"\text{outputs of width 256 are not told from } N(0,\Sigma^2): \text{ Kolmogorov's distance}",
    )
    says.at_most(
        distances(256),
        math.sqrt(math.log(2 * samples / 0.001) / (2 * chosen)),
        where=f"{samples} times {chosen} networks; draws from N(0, Σ²) exceed it with probability 0.001 at most",
    )
    says.fails("width 2", distances(2))


def rates(run: Run, x: Tensor, networks: int, widths: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Depth 3: the mean covariance is off by order 1/n, that of one network by 1/√n."""
    limit = nngp(x, depth=3, scaling="unscaled_input")[0, 1]
    second = nngp(x, depth=2, scaling="unscaled_input")
    bias, spread = [], []
    single: dict[bool, list[Tensor]] = {False: [], True: []}
    few = max(100, networks // 33)
    for width in widths:
        given = hidden_covariances(run, x, [width], networks)
        # the second hidden layer's mean is the recursion itself, applied to the random covariance
        means = WEIGHT * dual_moments("relu", given[:, 0, 0], given[:, 0, 1], given[:, 1, 1], slopes=False).values
        known = torch.stack([given[:, i, j] - second[i, j] for i, j in ((0, 0), (0, 1), (1, 1))], 1)
        design = torch.cat([torch.ones(networks, 1).double(), known], 1)
        intercept = torch.linalg.lstsq(design, means[:, None]).solution[0, 0]
        bias.append(abs(float(intercept - limit)))
        for copies, kept in single.items():
            one = hidden_covariances(run, x, [width, width], few, copies=copies)[:, 0, 1]
            kept.append((one / limit - 1).abs())
        spread.append(float(single[False][-1].square().mean().sqrt()))
    repeated = torch.tensor(widths).repeat_interleave(few)
    slow, fixed = (fit_slope(repeated, torch.cat(single[copies])) for copies in (False, True))
    says = run.states("A-57, M-18", r"\text{depth 3: } |\mathbb E f(x)f(x')-\Sigma^3(x,x')|\sim n^{-1}")
    says.slope(
        widths,
        bias,
        -1.0,
        0.1,
        against=(-2.0, -0.5, 0.0),
        where=f"{networks} networks a width; the second hidden layer is integrated exactly and "
        "the first layer's known mean is used as a control variate",
    )
    says.fails("a single network's covariance", slow)
    says = run.states("M-18", r"\text{depth 3: a single network's covariance is off by } n^{-1/2}")
    says.slope(
        slow,
        -0.5,
        0.05,
        against=(-1.0, -0.25, 0.0),
        where=f"{few} networks at each width from {min(widths)} to {max(widths)}, 99 % interval",
    )
    says.fails("hidden units that are copies of one: nothing averages out", fixed)
    return bias, spread


def fan_out(run: Run) -> None:
    """Variance σ_w²/N_l instead of σ_w²/N_{l-1}: with biases the output's variance diverges."""
    x = pair_at(0.5)[:1]
    limit = float(nngp(x, depth=3, bias_variance=1.0)[0, 0])
    measured = []
    for width in (16, 64, 256):
        chosen = {"bias_variance": 1.0, "scaling": "fan_out", "dtype": torch.float64}
        net = ntk_mlp([2, width, width, 1], **chosen)  # type: ignore[arg-type]
        outputs = random_outputs(run, net, x, 200 if width < 100 else 50)
        measured.append(float(outputs.square().mean()))
    run.refutes(
        "nngp-variance-by-fan-out", r"\text{weights of variance } \sigma_w^2/N_\ell: \ \mathbb E f(x)^2\to\Sigma^3(x,x)"
    ).equal(
        measured,
        limit,
        1.0,
        where="widths 16, 64, 256 with σ_b = 1; E f² was "
        + ", ".join(f"{m:.0f}" for m in measured)
        + f", the limit with fan-in is {limit:.0f}",
    )


def plot_nngp(axes: Any, widths: tuple[int, ...], bias: list[float], spread: list[float]) -> None:
    left, right = axes[0]
    cosines = torch.linspace(-1, 1, 101).double()
    x = torch.stack([cosines, (1 - cosines.square()).clamp_min(0).sqrt()], 1)
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for color, depth in zip(COLORS, (1, 2, 3, 6, 20), strict=False):
        k = nngp(one, x, depth=depth, scaling="unscaled_input")[0]
        left.plot(cosines, k, color=color, label=f"L = {depth}")
    left.set_xlabel("inner product of the inputs")
    left.set_ylabel("kernel at initialization")
    left.legend()
    right.loglog(widths, bias, "o-", color=COLORS[0], label="mean over networks")
    right.loglog(widths, spread, "s-", color=COLORS[1], label="single network (relative)")
    for start, power, style in ((bias[0], -1.0, ":"), (spread[0], -0.5, "--")):
        guide = [start * (w / widths[0]) ** power for w in widths]
        right.loglog(widths, guide, style, color="gray", label=f"slope {power:g}")
    right.set_xticks(widths, [str(w) for w in widths])
    right.set_xticks([], minor=True)
    right.set_xlabel("width n")
    right.set_ylabel("distance from the limit")
    right.legend()


@lab(
    "tangent-kernel-recursion",
    room="kernels",
    covers=["M-19", "A-58", "M-17"],
    title="The tangent kernel of infinitely wide networks, layer by layer",
    full={"width": 2048, "networks": 40, "depth": 20},
    least={"width": 16, "networks": 8, "depth": 3},
)
def tangent_kernel_recursion(run: Run, width: int = 512, networks: int = 10, depth: int = 8) -> None:
    """The recursion of the tangent kernel, its golden values, and which kernel controls what.

    The recursion is compared with its value by hand and with the mean kernel of finite networks; on
    one set of points all four kernels of Table 7.1 are computed: for a feature model the two
    coincide, for a network they do not. Distinct inputs have a positive definite kernel, which is
    why wide networks can fit anything; look at the table for how the smallest eigenvalue depends
    on depth.

    Args:
        width: of the finite networks.
        networks: that are averaged over.
        depth: of the recursion on the diagonal.
    """
    golden_tangent(run)
    diagonal(run, depth)
    finite_networks(run, width, networks)
    which_kernel(run)
    definiteness(run, depth)
    run.figure(
        "kernels",
        lambda axes: plot_tangent(axes),
        caption="Both kernels of two unit vectors, divided by their value at equal inputs (ReLU). "
        "The tangent kernel has a kink at equal inputs, the other one has not.",
        grid=(1, 2),
        size=(10, 3.6),
    )


def golden_tangent(run: Run) -> None:
    x = pair_at(0.5)
    k1, k2 = (limit_kernels(x, depth=d, scaling="unscaled_input") for d in (1, 2))
    slopes = float((k2.ntk - k2.nngp)[0, 1] / k1.ntk[0, 1])
    angle = math.pi / 3
    sigma = (2 / math.pi) * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    without = float(k2.nngp[0, 1])
    says = run.states(
        "M-19, A-58",
        r"\dot\Sigma^2=\tfrac23,\ \Theta^1=1,\ \Theta^2=\Theta^1\dot\Sigma^2+\Sigma^2=1.88466 "
        r"\text{ for ReLU, } \sigma_w^2=2,\ \text{unit vectors at } 60^\circ",
    )
    says.equal([slopes, float(k1.ntk[0, 1]), float(k2.ntk[0, 1])], [2 / 3, 1.0, 2 / 3 + sigma], 1e-12)
    says.fails("$Θ^1$ = 0, the base case left out", [0.0, 0.0, without], promised=[2 / 3, 1.0, 2 / 3 + sigma])


def diagonal(run: Run, depth: int) -> None:
    x = run.randn(5, 7)
    lengths = x.square().sum(1)
    measured, biased, promised = [], [], []
    for d in range(1, depth + 1):
        plain = limit_kernels(x, depth=d, scaling="unscaled_input")
        measured.append(plain.ntk.diagonal())
        with_bias = limit_kernels(x, depth=d, scaling="unscaled_input", bias_variance=0.1)
        biased.append(with_bias.ntk.diagonal())
        promised.append(2 * d * lengths)
    says = run.states("M-19", r"\text{ReLU, } \sigma_w^2=2,\ \sigma_b=0: \ \Theta^l(x,x)=2l\,\|x\|^2")
    says.equal(
        torch.cat(measured),
        torch.cat(promised),
        1e-12,
        where=f"five points, l = 1..{depth}: every layer contributes the same",
    )
    says.fails("with biases", torch.cat(biased))


def finite_networks(run: Run, width: int, networks: int) -> None:
    """Mean tangent kernel of networks of one hidden layer: the limit, exactly, at any width."""
    x = pair_at(0.5)
    limit = float(limit_kernels(x, depth=2, scaling="unscaled_input").ntk[0, 1])

    def sampled(scaling: str) -> Interval:
        values = [
            float(
                empirical_ntk(
                    ntk_mlp(
                        [2, width, 1],
                        scaling=scaling,  # type: ignore[arg-type]
                        generator=run.generator,
                        dtype=torch.float64,
                    ),
                    x[:1],
                    x[1:],
                    outputs="trace",
                )
            )
            for _ in range(networks)
        ]
        return mean_interval(values)

    ours, other = sampled("unscaled_input"), sampled("fan_in")
    says = run.states("M-19, A-58", r"\text{one hidden layer: } \mathbb E\,\nabla f(x)^\top\nabla f(x')=\Theta^2(x,x')")
    # the parts of the last and of the first layer, and the kernel of a first layer divided by √d
    last = float(nngp(x, depth=2, scaling="unscaled_input")[0, 1])
    alone = (last, limit - last, limit / 2)
    says.mean(
        ours,
        limit,
        against=alone,
        where=f"{networks} networks of width {width}, 99 % interval; exact in the mean at any width",
    )
    says.fails("the first layer divided by √d: another kernel", other)


def which_kernel(run: Run) -> None:
    """Table 7.1 on one data set: features have one kernel, networks have two."""
    x = run.randn(4, 3)
    features = torch.cos(x @ run.randn(3, 50) + 2 * math.pi * run.rand(50))
    readout = ScaledLinear(50, 1, scale=1 / math.sqrt(50), dtype=torch.float64)
    training = empirical_ntk(readout, features, outputs="trace")
    # f is linear in its normal parameters: its covariance is that of the images of the unit vectors
    with torch.no_grad():
        images = [readout.scale * features @ e for e in torch.eye(50).double()]
    initial = torch.stack(images, 1) @ torch.stack(images)
    network = limit_kernels(x, depth=2, bias_variance=0.1)
    says = run.states("M-17", r"\text{feature regression: the kernel at initialization is the kernel of training}")
    says.equal(training, initial, 1e-12)
    says.fails("a wide network with one hidden layer: Σ² against Θ²", network.ntk, promised=network.nngp)
    run.table(
        "which-kernel",
        ["pair", "features: initial", "features: training", "network: NNGP", "network: NTK"],
        [
            (
                f"{i + 1}, {j + 1}",
                float(initial[i, j]),
                float(training[i, j]),
                float(network.nngp[i, j]),
                float(network.ntk[i, j]),
            )
            for i in range(3)
            for j in range(i, 3)
        ],
        caption="Table 7.1 on four random points: 50 cosine features, and ReLU with one hidden "
        "layer (σ_w² = 2, σ_b² = 0.1).",
    )


def definiteness(run: Run, depth: int) -> None:
    x = nn.functional.normalize(run.randn(30, 5), dim=1)
    twice = torch.cat([x, x[:1]])
    depths = (2, 3, depth)
    kernels = [limit_kernels(x, depth=d) for d in depths]

    def above_rounding(gram: Tensor) -> float:
        """The smallest eigenvalue over the largest, less what rounding makes of 0."""
        values = torch.linalg.eigvalsh(gram)
        return float(values[0] / values[-1]) - len(gram) * torch.finfo(gram.dtype).eps

    says = run.states(
        "A-58",
        r"\lambda_{\min}(\Theta)/\lambda_{\max}(\Theta)>0 \text{ for distinct points of a sphere, less rounding}",
    )
    says.above([above_rounding(k.ntk) for k in kernels], 0.0, where="30 points in five dimensions")
    says.fails("one point twice", [above_rounding(limit_kernels(twice, depth=d).ntk) for d in depths])
    run.table(
        "smallest-eigenvalue",
        ["depth", "NNGP", "NTK"],
        [
            (d, *(float(torch.linalg.eigvalsh(m)[0] / m.diagonal().mean()) for m in (k.nngp, k.ntk)))
            for d, k in zip(depths, kernels, strict=True)
        ],
        caption="Smallest eigenvalue on 30 points of the sphere, divided by the mean diagonal.",
    )


def plot_tangent(axes: Any) -> None:
    angle = torch.linspace(0, math.pi, 181).double()
    x = torch.stack([angle.cos(), angle.sin()], 1)
    for panel, which in zip(axes[0], ("nngp", "ntk"), strict=True):
        for color, depth in zip(COLORS, (2, 3, 5, 10), strict=False):
            k = getattr(limit_kernels(x[:1], x, depth=depth, scaling="unscaled_input"), which)[0]
            panel.plot(torch.rad2deg(angle), k / k[0], color=color, label=f"L = {depth}")
        panel.set_xlabel("angle between the inputs, degrees")
        panel.set_ylabel("relative to equal inputs")
        panel.set_title("at initialization (NNGP)" if which == "nngp" else "tangent (NTK)")
        panel.legend()
