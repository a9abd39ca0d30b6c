"""Two-layer ReLU networks of which the first layer is trained: their kernel in closed form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from torchtheory.data.real import digits
from torchtheory.kernels.infinite.two_layer import (
    TwoLayerNetwork,
    expected_gram,
    relu_gram_coefficients,
    relu_gram_limit,
    relu_gram_series,
    sampled_gram,
)
from torchtheory.kernels.learning.complexity import (
    label_complexity,
    linear_target_complexity,
    squared_kernel_norm,
)
from torchtheory.kernels.learning.functions import Kernel, arc_cosine, linear
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.optimization.descent.iterates import gradient_of
from torchtheory.primer.spectra import loewner_order


@lab(
    "two-layer-relu-kernel",
    room="kernels",
    covers=["M-22", "M-23", "M-24", "M-26"],
    title="A two-layer ReLU network moves its predictions through a kernel known in closed form",
    full={"points": 40, "dimension": 20, "width": 4096, "draws": 2000, "widest": 400_000},
    least={"points": 3, "dimension": 2, "draws": 20, "widest": 1_500},
)
def two_layer_relu_kernel(
    run: Run,
    points: int = 12,
    dimension: int = 6,
    width: int = 256,
    draws: int = 400,
    widest: int = 100_000,
) -> None:
    """Only the first layer of a ReLU network with one hidden layer is trained, on unit vectors.

    Its predictions then follow u' = H(t)(y - u), where H counts the hidden units on which two
    points are both active. Checked against automatic differentiation and against a small gradient
    step; then the width grows, and H becomes x·x'(π - angle)/2π, in closed form and as a power
    series with positive coefficients. Look at the golden values 1/6, 1/2, 0, 0, at the rate
    $m^{-1/2}$ at which the finite kernel arrives, and at how slowly the series converges at z = 1.

    Args:
        points: inputs on the unit sphere.
        dimension: of the inputs.
        width: hidden units.
        draws: networks that initial outputs are averaged over.
        widest: most units of the sampled kernel.
    """
    x = normalize(run.randn(points, dimension), dim=1)
    y = run.randn(points)
    net = TwoLayerNetwork.random(width, dimension, generator=run.generator)
    gradient_and_flow(run, net, x, y)
    initial_mean(run, x[:1], width, draws)
    closed_form(run, x)
    arrival = concentration(run, x, widest)
    series(run, x)
    run.figure(
        "kernel",
        lambda axes: plot_kernel(axes, arrival),
        caption="Left: the kernel of the infinitely wide network as a function of the cosine, with "
        "the first partial sums of its power series. Right: the finite kernel arrives at the rate "
        "of a mean of m independent units.",
        grid=(1, 2),
    )


def gradient_and_flow(run: Run, net: TwoLayerNetwork, x: Tensor, y: Tensor) -> None:
    """The gradient, the Gram matrix and the motion of the predictions."""
    weight, signs = net.weight.detach(), net.outputs
    width = len(weight)

    def outputs(flat: Tensor) -> Tensor:
        return torch.relu(x @ flat.view_as(weight).T) @ signs / math.sqrt(width)

    def loss(flat: Tensor) -> Tensor:
        return (outputs(flat) - y).square().sum() / 2

    start = weight.flatten()
    u = outputs(start)
    slope = gradient_of(loss)(start, 0).view_as(weight)
    active = (x @ weight.T > 0).to(x)

    def formula(residual: Tensor) -> Tensor:
        return (signs[:, None] / math.sqrt(width)) * ((active * residual[:, None]).T @ x)

    says = run.states(
        "M-22", r"\frac{\partial\ell}{\partial w_r}=\sum_i(u_i-y_i)\frac{\partial f(W,x_i)}{\partial w_r}"
    )
    says.equal(formula(u - y).flatten(), slope.flatten(), 1e-12)
    says.fails("the labels in place of the residuals", formula(-y).flatten())
    gram = sampled_gram(x, weight)
    step = 1e-7
    motion = (outputs(start - step * slope.flatten()) - u) / step
    says = run.states("M-22", r"\frac{u(W-\eta\nabla\ell)-u(W)}\eta\to H(y-u) \text{ as } \eta\to0")
    says.equal(motion, gram @ (y - u), 1e-6, where=f"a step of {step:g}")
    says.fails("a kernel of linear units: every unit active", (x @ x.T) @ (y - u) + 0 * motion)
    automatic = empirical_ntk(net, x, outputs="trace")
    says = run.states(
        ["M-22", "M-23"],
        r"H_{ij}=\sum_r\Bigl\langle\frac{\partial f(x_i)}{\partial w_r},\frac{\partial f(x_j)}{\partial "
        r"w_r}\Bigr\rangle=\frac1m\sum_rx_i^\top x_j\,1\{w_r^\top x_i\ge0,\,w_r^\top x_j\ge0\}",
    )
    says.equal(gram, automatic, 1e-12)
    says.fails(
        "the units active on one of the two points", (x @ x.T) * (active[:, None] + active[None] > 0).to(x).mean(2)
    )


def initial_mean(run: Run, x: Tensor, width: int, draws: int) -> None:
    """All output weights +1 shift the initial predictions by √(m/2π); signs do not."""
    pre = run.randn(draws, width) * float(x.norm())  # w·x for standard normal w
    hidden = torch.relu(pre) / math.sqrt(width)
    ones = mean_interval(hidden.sum(1))
    signed = mean_interval((hidden * run.signs(draws, width)).sum(1))
    says = run.states("M-22", r"a_r=1:\ \mathbb E\,f(W(0),x)=\sqrt{m/2\pi}\,\|x\|")
    says.mean(
        ones,
        shift := math.sqrt(width / (2 * math.pi)) * float(x.norm()),
        against=(0.0, shift / 2, shift * math.sqrt(math.pi / 2), shift * math.sqrt(2)),
        where="it grows with the width: an infinitely wide network would start at infinity",
    )
    says.fails("random signs as output weights", signed)
    says = run.states("M-22", r"a_r=\pm1 \text{ at random}:\ \mathbb E\,f(W(0),x)=0,\ \text{and the same } H")
    says.mean(signed, 0, against=(-shift / math.sqrt(width), shift / math.sqrt(width), shift))
    says.fails("all output weights +1", ones)


def closed_form(run: Run, x: Tensor) -> None:
    """Golden values, and points of any length."""
    cosines = torch.tensor([0.5, 1.0, 0.0, -1.0], dtype=torch.float64)
    golden = torch.tensor([1 / 6, 1 / 2, 0.0, 0.0], dtype=torch.float64)
    says = run.states("M-24", r"H^\infty=\tfrac16,\tfrac12,0,0 \text{ at } x^\top x'=\tfrac12,1,0,-1")
    says.equal(_limit(cosines), golden, 1e-15)
    says.fails("leaky ReLU in place of ReLU", expected_gram(_on_circle(cosines), "leaky relu")[0, 1:])
    lengths = 0.1 + 3 * run.rand(len(x), 1)
    scaled = lengths * x
    inner = (scaled @ scaled.T).clamp(-1, 1)
    says = run.states("M-24", r"H^\infty_{ij}=x_i^\top x_j\,\frac{\pi-\angle(x_i,x_j)}{2\pi} \text{ for any lengths}")
    says.equal(relu_gram_limit(scaled), (lengths @ lengths.T) * relu_gram_limit(x), 1e-12)
    says.fails(
        "the arc cosine of the inner product, which is the angle for unit vectors only",
        (scaled @ scaled.T) * (math.pi - inner.acos()) / (2 * math.pi),
    )


def concentration(run: Run, x: Tensor, widest: int) -> list[tuple[int, float]]:
    """The sampled kernel against its limit, at the rate of a mean."""
    limit = relu_gram_limit(x)
    widths = [widest // 4**k for k in range(5, -1, -1)]
    draws = 10
    drawn = [width for width in widths for _ in range(draws)]
    errors = torch.stack([(sampled_gram(x, run.randn(width, x.shape[1])) - limit).norm() for width in drawn])
    sampled = sampled_gram(x, run.randn(widest, x.shape[1]))
    shifted = sampled_gram(x, run.randn(widest, x.shape[1]) + 0.3)
    says = run.states("M-24", r"|H_{ij}(0)-H^\infty_{ij}|\le4\cdot\tfrac12/\sqrt m")
    says.at_most(
        (sampled - limit).abs().max(), 2 / math.sqrt(widest), where=f"four standard deviations at most, m = {widest}"
    )
    says.fails("weights with mean 0.3 in every coordinate", (shifted - limit).abs().max())
    run.states("M-24", r"\|H(0)-H^\infty\|_F\sim m^{-1/2}").slope(
        drawn, errors, -0.5, against=(-1.0, -0.25, 0.0), confidence=0.999
    )
    return list(zip(widths, errors.view(-1, draws).mean(1).tolist(), strict=True))


def series(run: Run, x: Tensor, terms: int = 200) -> None:
    """The power series, its positive coefficients, and how good it is."""
    coefficients = relu_gram_coefficients(terms)
    factorials = torch.tensor(
        [math.factorial(2 * k) / (2 ** (2 * k) * math.factorial(k) ** 2) / (2 * k + 1) for k in range(terms)],
        dtype=torch.float64,
    )
    says = run.states(
        "M-26", r"\frac{(2l)!}{2^{2l}(l!)^2(2l+1)}:\ \text{relative difference of product and factorials}"
    )
    says.equal((coefficients / factorials - 1).abs().max(), within=1e-12)
    says.fails(
        "(2l)! / (l!)² without the powers of 2",
        (4.0 ** torch.arange(terms, dtype=torch.float64) * coefficients / factorials - 1).max(),
    )
    says = run.states("M-26", r"\text{the smallest of the first 200 coefficients is positive}")
    says.above(factorials.min(), 0)
    says.fails("the coefficients of arccos, which are minus these", (-factorials).min())
    z = torch.linspace(-0.9, 0.9, 181, dtype=torch.float64)
    exact, total = _limit(z), _partial_sum(z, terms)
    says = run.states(
        "M-26",
        r"H^\infty=\frac z4+\frac1{2\pi}\sum_{l<200}\frac{(2l)!}{2^{2l}(l!)^2}"
        r"\frac{z^{2l+2}}{2l+1} \text{ for } |z|\le0.9",
    )
    says.equal(total, exact, 1e-12)
    says.fails("without the linear term z/4", total - z / 4)
    order = loewner_order(relu_gram_limit(x), x @ x.T / 4)
    wrong = loewner_order(relu_gram_limit(x), x @ x.T / 2)
    says = run.states(
        ["M-26", "M-27"], r"\lambda_{\min}(H^\infty-\tfrac14XX^\top)\ge0: \text{ all coefficients are positive}"
    )
    says.at_least(order.smallest, 0, 1e-10)
    says.fails("a half in place of a quarter", wrong.smallest)
    run.table(
        "series",
        ["terms", "error at z = 0.5", "error at z = 0.9", "error at z = 1"],
        [
            (count, *(float((_partial_sum(v, count) - _limit(v)).abs()) for v in (0.5, 0.9, 1.0)))
            for count in (1, 5, 20, 100, 1000)
        ],
        caption="Partial sums of the power series: geometric inside, $l^{-1/2}$ at the end",
    )


def _on_circle(z: Tensor | float) -> Tensor:
    z = torch.as_tensor(z, dtype=torch.float64).reshape(-1)
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return torch.cat([first, torch.stack([z, (1 - z.square()).sqrt()], 1)])


def _limit(z: Tensor | float) -> Tensor:
    return relu_gram_limit(_on_circle(z))[0, 1:]


def _partial_sum(z: Tensor | float, terms: int) -> Tensor:
    return relu_gram_series(_on_circle(z), terms)[0, 1:]


def plot_kernel(axes: Any, arrival: list[tuple[int, float]]) -> None:
    left, right = axes[0]
    z = torch.linspace(-1, 1, 201, dtype=torch.float64)
    left.plot(z, _limit(z), color="black", label=r"$z(\pi-\arccos z)/2\pi$")
    for terms in (1, 3, 10):
        left.plot(z, _partial_sum(z, terms), "--", lw=1.2, label=f"{terms} term{'s'[: terms > 1]}")
    left.set(xlabel="cosine z of the two points", ylabel="kernel")
    left.legend()
    widths, errors = zip(*arrival, strict=True)
    right.loglog(widths, errors, "o-", label="measured")
    right.loglog(widths, [errors[0] * math.sqrt(widths[0] / m) for m in widths], "k:", label="$m^{-1/2}$")
    right.set(xlabel="hidden units m", ylabel=r"$\|H-H^\infty\|_F$")
    right.legend()


@lab(
    "kernel-complexity-of-labels",
    room="kernels",
    covers=["M-25", "M-27"],
    title="Real labels are simple for the kernel of a wide network, random ones are not",
    errata=["complexity-bounds-classification-error", "projection-with-x-transposed"],
    full={"samples": 800, "shuffles": 40, "sizes": (20, 50, 200, 800)},
    least={"samples": 40, "shuffles": 5, "trials": 1, "dimension": 5},  # 20 true labels are hardly simpler than coins
)
def kernel_complexity_of_labels(
    run: Run,
    samples: int = 200,
    shuffles: int = 20,
    dimension: int = 50,
    sizes: tuple[int, ...] = (20, 50, 200),
    trials: int = 10,
) -> None:
    """The measure √(2 yᵀH⁻¹y · tr H)/n, with H the kernel of a wide two-layer ReLU network.

    On handwritten digits (odd against even) it is computed for the true labels, for labels of
    which more and more are replaced by coin flips, and for linear targets, where it is at most
    2|β|/√n. It is a measure of complexity and not a bound on the classification error: look at
    the erratum, where it is near 0 while more than a quarter of fresh points is classified wrongly.

    Args:
        samples: digits whose labels are judged.
        shuffles: random labelings for comparison.
        dimension: of the inputs for linear targets.
        sizes: numbers of points for linear targets.
        trials: draws of these points for each size.
    """
    mixing = true_and_random_labels(run, samples, shuffles)
    rows = linear_targets(run, dimension, sizes, trials)
    facts(run, dimension)
    printed_statements(run, dimension)
    run.table(
        "linear-targets",
        ["n", "d", "largest measure / |β|", "2/√n", "2√2/√n"],
        rows,
        caption="Linear targets on the unit sphere: the measure and both bounds",
    )
    run.figure(
        "labels",
        lambda axes: plot_labels(axes, mixing, rows),
        caption="Left: the more labels of the digits are replaced by coin flips, the larger the "
        "complexity. Right: for linear targets it stays below both bounds.",
        grid=(1, 2),
    )


Mixing = list[tuple[float, list[float]]]


def true_and_random_labels(run: Run, samples: int, shuffles: int) -> Mixing:
    """Digits: odd against even, against coin flips."""
    pixels, labels = digits(torch.float64)
    chosen = torch.randperm(len(pixels), generator=run.generator)[:samples]
    x = normalize(pixels[chosen], dim=1)
    y = 2 * (labels[chosen] % 2).double() - 1
    gram = relu_gram_limit(x)
    true = label_complexity(gram, y)
    shuffled = [label_complexity(gram, y[torch.randperm(samples, generator=run.generator)]) for _ in range(shuffles)]
    coins = [label_complexity(gram, run.signs(samples)) for _ in range(shuffles)]
    ratio = mean_interval([c / true for c in coins])
    says = run.states(
        "M-25",
        r"\text{random labels are more complex than true ones: } "
        r"\frac{C(\text{random})}{C(\text{true})}\ge2 \text{ in the mean}",
    )
    says.at_least(ratio, 2.0, where=f"{samples} digits, odd against even; true labels have C = {true:.3g}")
    says.fails("the 'true' labels are coin flips as well", mean_interval([c / coins[0] for c in coins[1:]]))
    says = run.states("M-25", r"C(\text{true labels})<C(\text{the same labels in random order})")
    says.below(true, min(shuffled), where=f"the smallest of {shuffles} random orders")
    says.fails("a random order in place of the true labels", max(shuffled))
    mixing = []
    for share in (0.0, 0.05, 0.1, 0.25, 0.5, 1.0):
        found = []
        for _ in range(max(5, shuffles // 4)):
            flip = run.rand(samples) < share
            found.append(label_complexity(gram, torch.where(flip, run.signs(samples), y)))
        mixing.append((share, found))
    expected = 2 * float(torch.linalg.inv(gram).diagonal().sum()) * float(gram.trace())
    says = run.states("M-25", r"\mathbb E\,C(\text{random})^2=\frac2{n^2}\operatorname{tr}(H^{-1})\operatorname{tr}(H)")
    # the second alternative is that of a kernel whose eigenvalues are all equal
    says.mean([c**2 for c in coins], expected / samples**2, against=(expected / samples**2 / 2, 2.0))
    says.fails("only a tenth of the labels are coin flips", [c**2 for c in mixing[2][1]])
    return mixing


Row = tuple[int, int, float, float, float]


def linear_targets(run: Run, dimension: int, sizes: tuple[int, ...], trials: int) -> list[Row]:
    """Both bounds, for fewer and for more points than dimensions."""
    rows: list[Row] = []
    measures, bounds, printed, halves = [], [], [], []
    for n in sizes:
        found = []
        for _ in range(trials):
            x = normalize(run.randn(n, dimension), dim=1)
            beta = run.randn(dimension)
            both = linear_target_complexity(x, beta)
            found.append(both.measure / float(beta.norm()))
            measures.append(both.measure)
            bounds.append(both.bound)
            printed.append(both.printed_bound)
            gram = relu_gram_limit(x)
            halves.append(float(gram.trace()) / n)
        rows.append((n, dimension, max(found), 2 / math.sqrt(n), 2 * math.sqrt(2 / n)))
    # with more points than dimensions most targets are no linear function of the points
    many = normalize(run.randn(10 * dimension, dimension), dim=1)
    gram, beta = relu_gram_limit(many), run.randn(dimension)
    linear_part = linear_target_complexity(many, beta)
    targets = run.randn(trials, len(many))
    targets *= (many @ beta).norm() / targets.norm(dim=1, keepdim=True)
    curved = [label_complexity(gram, target) for target in targets]
    says = run.states(
        "M-27",
        r"\frac{\sqrt{2\,y^\top(H^\infty)^{-1}y\,\operatorname{tr}H^\infty}}n\le"
        r"\frac{2\sqrt2\,\|\beta\|}{\sqrt n},\quad y=X\beta",
    )
    says.at_most(measures, printed, where=f"d = {dimension}, n = {', '.join(map(str, sizes))}, {trials} draws each")
    says.fails(
        "targets of the same length that are no linear function of x", curved, promised=linear_part.printed_bound
    )
    says = run.states(
        "M-27", r"\frac{\sqrt{2\,y^\top(H^\infty)^{-1}y\,\operatorname{tr}H^\infty}}n\le\frac{2\|\beta\|}{\sqrt n}"
    )
    says.at_most(measures, bounds, where="sharper by √2, since the trace is n/2")
    says.fails("targets of the same length that are no linear function of x", curved, promised=linear_part.bound)
    says = run.states("M-27", r"\operatorname{tr}H^\infty=\tfrac n2\le n \text{ for unit vectors}: \operatorname{tr}/n")
    says.equal(halves, 0.5, 1e-12)
    says.fails("points of length 2", float(relu_gram_limit(2 * normalize(run.randn(9, 5), dim=1)).trace()) / 9)
    return rows


def facts(run: Run, dimension: int) -> None:
    """The matrix inequality with an inverse, and with a pseudo-inverse on the range."""
    few = normalize(run.randn(dimension // 2, dimension), dim=1)
    inverse_few = torch.linalg.inv(relu_gram_limit(few))
    kernel_inverse = torch.linalg.inv(few @ few.T)
    says = run.states("M-27", r"n\le d:\ \lambda_{\min}(4K^{-1}-(H^\infty)^{-1})\ge0,\quad K=XX^\top")
    says.at_least(loewner_order(4 * kernel_inverse, inverse_few).smallest, 0, 1e-10)
    says.fails("without the factor 4", loewner_order(kernel_inverse, inverse_few).smallest)
    many = normalize(run.randn(3 * dimension, dimension), dim=1)
    gram = relu_gram_limit(many)
    pseudo = torch.linalg.pinv(many @ many.T, hermitian=True)
    inside = [many @ run.randn(dimension) for _ in range(10)]
    outside = [run.randn(len(many)) for _ in range(10)]

    def excess(y: Tensor) -> float:
        return squared_kernel_norm(gram, y) - 4 * float(y @ pseudo @ y)

    says = run.states("M-27", r"n>d:\ y^\top(H^\infty)^{-1}y-4\,y^\top K^+y\le0 \text{ for } y\in\operatorname{range}K")
    says.at_most(
        [excess(y) for y in inside], 0, where="K is singular there, and 4K⁺ - H⁻¹ is not positive semidefinite"
    )
    says.fails("labels outside the range of K", [excess(y) for y in outside])


def printed_statements(run: Run, dimension: int) -> None:
    """What the source prints, refuted."""
    square = normalize(run.randn(8, 8), dim=1)
    run.refutes("projection-with-x-transposed", r"\|X(XX^\top)^{-1}X^\top\|\le1").at_most(
        torch.linalg.matrix_norm(square @ torch.linalg.inv(square @ square.T) @ square.T, 2),
        1.0,
        1e-6,
        where="n = d = 8, the only case in which the shapes fit",
    )
    x = normalize(run.randn(20, dimension), dim=1)
    fresh = normalize(run.randn(2000, dimension), dim=1)
    beta = normalize(run.randn(dimension), dim=0)
    predict: Kernel = linear() * arc_cosine(0)
    coefficients = torch.linalg.solve(predict(x), x @ beta)
    wrong = (torch.sign(predict(fresh, x) @ coefficients) != torch.sign(fresh @ beta)).double()
    tiny = 0.01
    run.refutes(
        "complexity-bounds-classification-error",
        r"\text{classification error}\le\frac{\sqrt{2\,y^\top(H^\infty)^{-1}y\,"
        r"\operatorname{tr}H^\infty}}n\le\frac{2\sqrt2\,\|\beta\|}{\sqrt n}",
    ).at_most(
        mean_interval(wrong),
        linear_target_complexity(x, tiny * beta).printed_bound,
        where=f"n = 20, d = {dimension}, |β| = {tiny}: the signs do not depend on |β|, the 'bound' does",
    )


def plot_labels(axes: Any, mixing: Mixing, rows: list[Row]) -> None:
    left, right = axes[0]
    shares = [100 * s for s, _ in mixing]
    left.fill_between(shares, [min(v) for _, v in mixing], [max(v) for _, v in mixing], alpha=0.25)
    left.plot(shares, [sum(v) / len(v) for _, v in mixing], "o-")
    left.set(
        xlabel="labels replaced by coin flips (%)",
        ylabel="complexity of the labels",
        ylim=(0, None),
        title="digits, odd against even",
    )
    n = [r[0] for r in rows]
    right.plot(n, [r[4] for r in rows], "k:", label=r"$2\sqrt{2}/\sqrt{n}$, as printed")
    right.plot(n, [r[3] for r in rows], "k--", label=r"$2/\sqrt{n}$")
    right.plot(n, [r[2] for r in rows], "o-", label="largest measured")
    right.set(xlabel="samples n", ylabel=r"complexity / $\|\beta\|$", title="linear targets")
    right.set(ylim=(0, None))
    right.legend()
