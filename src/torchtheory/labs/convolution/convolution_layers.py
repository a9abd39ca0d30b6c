"""Convolution layers: their matrices, their gradients, filters made by hand and learned."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.edge_filters import apply_filters, edge_filter, gaussian_filter
from torchtheory.convolution.filter_gradients import convolution_backward, learn_filter, patches
from torchtheory.convolution.image_classifier import tiled
from torchtheory.convolution.layer_matrices import (
    convolution_layer,
    layer_matrix,
    layer_operator,
    toeplitz_matrix,
)
from torchtheory.convolution.layer_sizes import distinct_entries, output_size, weight_sharing
from torchtheory.convolution.pooling import ConvolutionBlock
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap

EXACT = 1e-12


@lab(
    "convolution-matrices",
    room="convolution",
    covers=["N-61", "N-62", "M-67", "M-76", "M-77", "M-116", "M-117", "A-128"],
    title="A convolution layer is a sparse matrix of few numbers",
    full={"length": 60, "side": 12},
    least={"length": 6, "side": 4},
)
def convolution_matrices(run: Run, length: int = 12, side: int = 6) -> None:
    """Toeplitz matrices against the sums that define convolutions, and what sharing weights saves.

    The matrix of a convolution is constant along its diagonals: K numbers stand in for D(D-K+1).
    With channels, stride and padding it is a block matrix of such, and torch's own layer is it
    after its filters are turned around. The picture shows the matrix of a layer with two channels.

    Args:
        length: of the signals.
        side: of the images.
    """
    one_dimension(run, length)
    exercise(run, length)
    layer_by_definition(run, side)
    sizes(run)
    subsampled_block(run, side // 2)
    layer = convolution_layer(run.randn(2, 2, 3, 3), padding=1)
    run.figure(
        "matrix",
        lambda ax: plot_matrix(ax, layer_matrix(layer, (2, 6, 6)).detach().to_dense()),
        caption="The matrix of a 3 × 3 layer from 2 to 2 channels on 6 × 6 places with zero padding: four blocks, "
        "each block Toeplitz with Toeplitz blocks.",
        size=(5, 4.2),
    )


def one_dimension(run: Run, n: int) -> None:
    h, f = run.randn(4), run.randn(n)
    matrix = toeplitz_matrix(h, n)
    by_sum = torch.stack([sum_of(h[t] * f[i - t] for t in range(4) if 0 <= i - t < n) for i in range(n + 3)])
    says = run.states("N-61", r"H^h_nf=f*h,\ H_{ij}=h_{i-j+1},\ H\in\mathbb R^{(n+m-1)\times n}")
    says.equal(matrix @ f, by_sum, EXACT)
    says.fails("the kernel is not turned around: cross-correlation", toeplitz_matrix(h.flip(0), n) @ f)
    g = run.randn(n + 3)
    correlated = torch.stack([sum_of(g[u] * h[u - t] for u in range(t, t + 4)) for t in range(n)])
    says = run.states("N-61", r"H^\top g=h\star g,\ (h\star g)[t]=\sum_ug[u]h[u-t]")
    says.equal(matrix.T @ g, correlated, EXACT)
    says.fails("the kernel turned around", toeplitz_matrix(h.flip(0), n).T @ g)


def exercise(run: Run, length: int) -> None:
    """The dense layer that a convolution is: its entries, and how many of them are free."""
    x, h = run.randn(length), run.randn(3)
    taps, windows = 3, length - 2
    # x and h count from 1, as the exercise does
    by_sum = torch.stack([sum_of(x[taps + k - i - 1] * h[i - 1] for i in (1, 2, 3)) for k in range(1, windows + 1)])
    says = run.states("M-116", r"(x*h)_k=\sum_{i=1}^Kx_{K+k-i}h_i=(W_hx)_k,\ (W_h)_{kj}=h_{K+k-j}")
    says.equal(toeplitz_matrix(h, length, "valid") @ x, by_sum, EXACT)
    says.fails("$W_{kj}=h_{j-k+1}$, the kernel not turned around", toeplitz_matrix(h.flip(0), length, "valid") @ x)
    hand = torch.tensor([[2.0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 2, 1]], dtype=torch.float64)
    run.states("M-116", r"D=4,\ K=2:\ \text{rows }(h_2,h_1,0,0),\ (0,h_2,h_1,0),\ (0,0,h_2,h_1)").equal(
        toeplitz_matrix(torch.tensor([1.0, 2.0], dtype=torch.float64), 4, "valid"), hand, where="h = (1, 2)"
    )
    layer = convolution_layer(h[None, None], flip=True)
    found = weight_sharing(layer, (1, length))
    run.states("M-117", r"D(D-K+1)\text{ entries, }K(D-K+1)\text{ of them not fixed to }0").equal(
        [found.entries, found.nonzero], [length * windows, taps * windows]
    )
    says = run.states("M-117", r"K\text{ free parameters: as many different numbers other than }0\text{ in }W_h")
    says.equal(distinct_entries(layer, (1, length)), taps)
    local = layer_matrix(layer, (1, length)).detach().to_dense() * run.rand(windows, 1)
    says.fails("a filter of its own at each place, nothing shared", len(set(local[local != 0].tolist())))


def layer_by_definition(run: Run, side: int) -> None:
    """Channels, stride, padding and bias, summed as printed; then parameters."""
    kernels, bias = run.randn(3, 2, 3, 2), run.randn(3)
    x, stride, padding = run.randn(2, side, side + 1), (2, 1), (1, 1)
    exact = summed(x, kernels, bias, stride, padding)
    options: dict[str, Any] = {"stride": stride, "padding": padding}
    layer = convolution_layer(kernels, bias, flip=True, **options)
    says = run.states(
        "M-76, N-62",
        r"Y_m[i,j]=\sum_c\sum_{u,v}X_c[is_h+u-p_h,js_w+v-p_w]\,K_{mc}[H-1-u,W-1-v]+b_m",
    )
    says.equal(layer(x[None])[0].detach(), exact, EXACT, where="2 to 3 channels, stride (2, 1), padding (1, 1)")
    says.fails(
        "torch's own convention, which does not turn filters around",
        convolution_layer(kernels, bias, **options)(x[None])[0].detach(),
    )
    says = run.states(
        "N-62, M-76", r"\operatorname{vec}(Y-b)=W\operatorname{vec}X,\ W\text{ the layer's sparse matrix}"
    )
    flat = (exact - bias[:, None, None]).flatten()
    shape = (2, side, side + 1)
    says.equal(gap(layer_matrix(layer, shape) @ x.flatten(), flat), within=EXACT)
    other = convolution_layer(kernels, bias, flip=True, padding_mode="circular", **options)
    says.fails("circular padding in place of zeros", gap(layer_matrix(other, shape) @ x.flatten(), flat))
    counts = [weight_sharing(layer, (2, n, n + 1)) for n in (side, 2 * side, 3 * side)]
    out = [(output_size(n, 3, 2, 1), output_size(n + 1, 2, 1, 1)) for n in (side, 2 * side, 3 * side)]
    says = run.states("M-67, M-76", r"C_{out}(K_hK_wC_{in}+1)\text{ parameters, whatever the size of the image}")
    says.equal([c.parameters for c in counts], 3 * (3 * 2 * 2 + 1), where="images of 3 sizes")
    says.fails("a dense layer between the same images", [c.dense for c in counts])
    says = run.states("M-67", r"\text{dense: }HWC_{in}\cdot H'W'C_{out}+H'W'C_{out}")
    says.equal(
        [c.dense for c in counts],
        [n * (n + 1) * 2 * a * b * 3 + a * b * 3 for n, (a, b) in zip((side, 2 * side, 3 * side), out, strict=True)],
    )
    says.fails("the same filter everywhere", [c.parameters for c in counts])
    square = [weight_sharing(nn.Conv2d(2, 3, 3, padding=1, bias=False), (2, n, n)) for n in (4, 8)]
    says = run.states(
        "N-62", r"c_{in}c_{out}k^2\text{ weights; a dense layer between }N\times N\text{ images has }c_{in}c_{out}N^4"
    )
    says.equal(
        [c.dense for c in square], [6 * n**4 for n in (4, 8)], where=f"against {square[0].parameters} shared ones"
    )
    valid = [weight_sharing(nn.Conv2d(2, 3, 3, bias=False), (2, n, n)) for n in (4, 8)]
    says.fails("images that shrink (no padding)", [c.dense for c in valid])


def sizes(run: Run) -> None:
    """Nine places and three taps; windows are counted one by one."""

    def counted(n: int, k: int, s: int, p: int, dilation: int = 1) -> int:
        places = range(-p, n + p - dilation * (k - 1))
        return len(places[::s])

    cases = [(9, 3, 1, 0), (9, 3, 3, 0), (9, 3, 1, 1)]
    says = run.states("M-77", r"\lfloor(n+2p-k)/s\rfloor+1:\ 9\to7,\ 9\to3\ (s=3),\ 9\to9\ (p=1)")
    says.equal([output_size(*c) for c in cases], [7, 3, 9])
    says.fails("taps two places apart", [output_size(*c, dilation=2) for c in cases])
    every = list(itertools.product(range(7, 12), (2, 3, 4), (1, 2, 3), (0, 1, 2)))
    says = run.states("M-77, N-62", r"\text{the number of windows}=\lfloor(n+2p-k)/s\rfloor+1")
    says.equal([output_size(*c) for c in every], [counted(*c) for c in every], where=f"{len(every)} cases, counted")
    says.fails("taps two places apart", [output_size(*c, dilation=2) for c in every])
    full = [output_size(n, k, padding=k - 1) for n, k in ((9, 3), (5, 4))]
    run.states("N-62", r"\text{full: }n+k-1,\ \text{valid: }n-k+1").equal(
        [*full, output_size(9, 3), output_size(5, 4)], [11, 8, 7, 2]
    )


def subsampled_block(run: Run, d: int) -> None:
    """Convolution on a torus and 2 x 2 subsampling: rows of a block-circulant matrix."""
    count = 3
    kernels, x = run.randn(count, 1, 3, 3), run.randn(1, 1, 2 * d, 2 * d)
    block = ConvolutionBlock(kernels, "subsample")
    strided = layer_matrix(block.strided_layer(), (1, 2 * d, 2 * d)).detach().to_dense()
    shifted = x.roll((1, 1), (2, 3)).flatten()  # torch pads both sides alike
    says = run.states("A-128", r"x\mapsto Wx,\ W\in\mathbb R^{Cd^2\times(2d)^2}")
    says.equal(strided @ shifted, block(x).detach().flatten(), EXACT)
    says.fails(
        "the maximum of 2 × 2 places",
        strided @ shifted,
        promised=ConvolutionBlock(kernels, "max")(x).flatten().detach(),
    )
    whole = layer_matrix(ConvolutionBlock(kernels).strided_layer(), (1, 2 * d, 2 * d)).detach().to_dense()
    rows = whole.reshape(count, 2 * d, 2 * d, 2 * d, 2 * d)
    moved = rows.roll((1, 1), (1, 3))
    says = run.states("A-128", r"\text{block circulant: a shift of windows is a shift of places}")
    says.equal(gap(rows, moved), within=EXACT)
    zeros = layer_matrix(convolution_layer(kernels, padding=1), (1, 2 * d, 2 * d)).detach().to_dense()
    zeros = zeros.reshape(rows.shape)
    says.fails("zero padding", gap(zeros, zeros.roll((1, 1), (1, 3))))
    kept = rows[:, ::2, ::2].reshape(count * d * d, -1)
    says = run.states("A-128", r"W\text{ has every second row of every second block of the block-circulant matrix}")
    says.equal(gap(kept, strided), within=EXACT)
    says.fails("those between them", gap(rows[:, 1::2, 1::2].reshape(kept.shape), strided))
    found = weight_sharing(block.strided_layer(), (1, 2 * d, 2 * d))
    run.states("A-128", r"C\cdot|\operatorname{supp}\kappa|\text{ free numbers against }4Cd^4").equal(
        [found.weights, found.entries], [9 * count, 4 * count * d**4]
    )


@lab(
    "filter-gradients",
    room="convolution",
    covers=["N-65", "M-78"],
    title="Gradients of a convolution, and filters learned by them",
    full={"images": 20, "side": 32, "steps": 1000},
    least={"images": 2, "side": 8, "steps": 15},
)
def filter_gradients(run: Run, images: int = 4, side: int = 16, steps: int = 100) -> None:
    """Back-propagation through a convolution by its formulas, then a Sobel filter found again.

    The gradient in the input is the transposed matrix applied to the output's, the one in the
    filter a correlation of input and output gradient. Descent with it on pairs of images recovers
    the filter that made one from the other, unless the images do not show it: constant images know
    its sum only.

    Args:
        images: random images.
        side: of the images.
        steps: of descent.
    """
    x, kernels = run.randn(2, 2, 9, 8), run.randn(4, 1, 3, 2)
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    layer = convolution_layer(kernels, torch.zeros(4, dtype=torch.float64), **options)
    operator = layer_operator(layer, (2, 9, 8))
    upstream = run.randn(*layer(x).shape)
    found = convolution_backward(x, kernels, upstream, **options)
    matrix = layer_matrix(layer, (2, 9, 8)).detach().to_dense()
    says = run.states("N-65", r"\partial L/\partial f=H^\top g=h\star g")
    says.equal(found.x.flatten(1), upstream.flatten(1) @ matrix, EXACT, where="stride 2, padding 1, 2 groups")
    wrong = convolution_backward(x, kernels, upstream, flip=True, **options)
    says.fails("g convolved with h, the kernel turned around once more", wrong.x.flatten(1))
    says = run.states("N-65", r"\langle f*h,g\rangle=\langle f,h\star g\rangle")
    u, v = run.randn(operator.shape[0]), run.randn(operator.shape[1])
    says.equal(float(u @ (operator @ v) - (operator.T @ u) @ v), within=EXACT * float(u.norm() * v.norm()))
    square = layer_operator(convolution_layer(run.randn(1, 1, 3), padding=1), (1, 50))
    u, v = run.randn(50), run.randn(50)
    says.fails("h * g in place of h ⋆ g (a map that is square)", float(u @ (square @ v) - (square @ u) @ v))
    with torch.no_grad():
        differences = quotients(lambda w: (convolution_layer(w, **options)(x) * upstream).sum(), kernels)
    says = run.states("N-65, M-78", r"\partial L/\partial h[t]=\sum_ug[u]\,f[su+t-p]=(f\star g)[t]")
    says.equal(found.weight, differences, 1e-6, where="central differences, summed over samples")
    says.fails("f convolved with g", wrong.weight)
    shifted = [(layer_with(kernels, b, options)(x) * upstream).sum() for b in (1e-5, -1e-5)]
    run.states("M-78", r"\partial L/\partial b_m=\sum_{n,i,j}g_m[i,j]").equal(
        float(found.bias.sum()), float((shifted[0] - shifted[1]).detach() / 2e-5), 1e-6
    )
    recover(run, images, side, steps)


def recover(run: Run, images: int, side: int, steps: int) -> None:
    sobel = edge_filter("sobel_vertical")[None, None]
    photos = run.randn(images, 1, side, side)
    made = convolution_layer(sobel, padding=1)(photos).detach()
    learned = learn_filter(photos, made, (3, 3), padding=1, steps=steps)
    says = run.states(
        "M-78", r"W\leftarrow W-\eta\,\partial L/\partial W\text{ recovers the filter that made the images}"
    )
    says.equal(learned.weight, sobel, 1e-6, where=f"Sobel's filter, {images} random images, {steps} steps from 0")
    flat = run.randn(images, 1, 1, 1).expand(images, 1, side, side)
    blur = gaussian_filter(0.6, 3)[None, None]
    unseen = learn_filter(flat, convolution_layer(blur)(flat).detach(), (3, 3), steps=steps)
    says.fails("constant images, whose patches do not span the filters", unseen.weight, promised=blur)
    rows = patches(photos, (3, 3), padding=1).flatten(0, -2)
    squares, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
    count, shrinks = 5, float(1 - squares[0] / squares[-1])
    slowest = directions[:, 0].reshape(1, 1, 3, 3)  # the filter that the images show least

    def left(kernel: Tensor, rate: float | None = None) -> float:
        target = convolution_layer(kernel, padding=1)(photos).detach()
        found = learn_filter(photos, target, (3, 3), padding=1, steps=count, rate=rate)
        return float((found.weight - kernel).norm())

    says = run.states("M-78", r"\eta=1/\lambda_{\max}:\ \|W_k-W_*\|\le(1-\lambda_{\min}/\lambda_{\max})^k\,\|W_0-W_*\|")
    promised = [shrinks**count * float(k.norm()) for k in (sobel, slowest)]
    says.at_most(
        [left(sobel), left(slowest)],
        promised,
        1e-10,
        where=f"{count} steps; λ of the second moments of the patches; Sobel's filter, and the worst one",
    )
    steep = 2.5 / float(squares[-1])
    says.fails("η = 2.5/λ", [left(sobel, steep), left(slowest, steep)])
    course_of_the_loss(run, images, side)
    shown = [learn_filter(photos, made, (3, 3), padding=1, steps=k).weight for k in (1, 3, 10)]
    run.figure(
        "learned",
        lambda axes: plot_filters(axes, [*(w[0, 0] for w in shown), learned.weight[0, 0], sobel[0, 0]]),
        caption=f"The filter after 1, 3, 10 and {steps} steps, and the one that made the images.",
        grid=(1, 5),
        size=(9, 1.9),
    )


def course_of_the_loss(run: Run, images: int, side: int, steps: int = 20) -> None:
    """The losses on the way are those of a quadratic: K filters of D channels, each direction by itself."""
    filters, channels = 3, 2
    photos = run.randn(images, channels, side, side) + 1
    kernels = run.randn(filters, channels, 3, 3)
    made = convolution_layer(kernels, padding=1)(photos).detach()
    rows = patches(photos, (3, 3), padding=1).flatten(0, -2)
    moments = rows.T @ rows / len(rows)
    rate = 1.5 / float(torch.linalg.eigvalsh(moments)[-1])
    left = -kernels.flatten(1).T
    losses = []
    for _ in range(steps):
        losses.append(float((left * (moments @ left)).sum() / 2))
        left = left - rate * moments @ left
    says = run.states(
        "M-78",
        r"\mathcal L(W_k)=\tfrac12\textstyle\sum_{j\le K}\|(I-\eta M)^k(W_0-W_*)^{(j)}\|_M^2"
        r"\text{, }M\text{ the second moments of the patches}",
    )
    found, noisy = (
        learn_filter(photos, y, (3, 3), padding=1, steps=steps, rate=rate).losses
        for y in (made, made + run.randn(*made.shape))
    )
    says.equal(found, losses, 1e-9, where=f"K = 3 filters of D = 2 channels, {steps} steps, η = 1.5/λ")
    says.fails("targets that no filter makes", noisy)


@lab(
    "edge-filters",
    room="convolution",
    covers=["M-79"],
    title="Filters made by hand find edges",
    full={"side": 200},
    least={"side": 8},
)
def edge_filters(run: Run, side: int = 40) -> None:
    """Filters of differences: nothing on constants, a response along edges across their direction.

    On a photograph the two Sobel filters answer at vertical and at horizontal edges; their root of
    squares is the length of the gradient.

    Args:
        side: of the images.
    """
    names = ["sobel_vertical", "prewitt_vertical", "scharr_vertical"]
    others = [n.replace("vertical", "horizontal") for n in names]
    level = float(run.randn(1))
    constant = torch.full((side, side), level, dtype=torch.float64)
    says = run.states("M-79", r"\sum_{u,v}K[u,v]=0:\ \text{the response to a constant image is }0")
    says.equal(apply_filters(constant, [*names, *others, "laplacian"]), within=EXACT)
    says.fails("a blur, whose entries add up to 1", apply_filters(constant, [gaussian_filter(1.0, 3)]))
    place = side // 2
    step = (torch.arange(side) >= place).double().expand(side, side)
    answers = apply_filters(step, names)
    promised = torch.zeros_like(answers)
    for k, name in enumerate(names):
        promised[k, :, place - 2 : place] = edge_filter(name)[:, 2].sum()
    says = run.states("M-79", r"\text{a vertical step: the same response along the edge, }0\text{ everywhere else}")
    says.equal(answers, promised, EXACT)
    says.fails("a slope in place of a step", apply_filters(step.cumsum(1) / side, names))
    says = run.states("M-79", r"\text{and no response of the filters for horizontal edges}")
    says.equal(float(apply_filters(step, others).abs().max()), within=EXACT, where="the largest")
    tilted = (torch.arange(side)[:, None] + torch.arange(side) >= side).double()
    says.fails("a step along the diagonal", float(apply_filters(tilted, others).abs().max()))
    image = photograph(side if run.preset == "full" else 120)
    edges = apply_filters(image, ["sobel_vertical", "sobel_horizontal"], padding=1)
    run.figure(
        "edges",
        lambda axes: plot_edges(axes, image, edges),
        caption="A photograph that comes with scikit-learn, Sobel's filters for vertical and for horizontal edges, and "
        "the root of the sum of their squares.",
        grid=(1, 4),
        size=(10, 2.4),
    )


# -- what the labs share ---------------------------------------------------------------------------


def sum_of(terms: Any) -> Tensor:
    total: Tensor = sum(terms, torch.zeros((), dtype=torch.float64))
    return total


def summed(x: Tensor, kernels: Tensor, bias: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """The layer by its definition, one product after another."""
    taps = kernels.shape[2:]
    rows, columns = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[1:], padding, taps, stride, strict=True))
    out = torch.zeros(len(kernels), rows, columns, dtype=torch.float64)
    for m, i, j in itertools.product(*map(range, out.shape)):
        total = float(bias[m])
        for c, u, v in itertools.product(range(x.shape[0]), range(taps[0]), range(taps[1])):
            a, b = i * stride[0] + u - padding[0], j * stride[1] + v - padding[1]
            if 0 <= a < x.shape[1] and 0 <= b < x.shape[2]:
                total += float(x[c, a, b] * kernels[m, c, taps[0] - 1 - u, taps[1] - 1 - v])
        out[m, i, j] = total
    return out


def layer_with(kernels: Tensor, bias: float, options: dict[str, Any]) -> nn.Module:
    return convolution_layer(kernels, torch.full((len(kernels),), bias, dtype=torch.float64), **options)


def quotients(value: Any, at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of a function of a tensor."""
    found = torch.zeros_like(at)
    for place in itertools.product(*map(range, at.shape)):
        ends = []
        for sign in (1, -1):
            moved = at.clone()
            moved[place] += sign * step
            ends.append(float(value(moved)))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def photograph(side: int) -> Tensor:
    """A gray square of the photograph of a temple that scikit-learn ships, `[side, side]`."""
    from sklearn.datasets import load_sample_image

    picture = torch.from_numpy(load_sample_image("china.jpg").copy()).double().mean(2) / 255
    square = picture[: min(picture.shape), : min(picture.shape)]
    return nn.functional.interpolate(square[None, None], (side, side), mode="area")[0, 0]


def plot_matrix(ax: Any, matrix: Tensor) -> None:
    largest = float(matrix.abs().max())
    ax.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    ax.axhline(len(matrix) / 2 - 0.5, color=COLORS[6], linewidth=0.6)
    ax.axvline(matrix.shape[1] / 2 - 0.5, color=COLORS[6], linewidth=0.6)
    ax.grid(False)
    ax.set(xlabel="input (channel, row, column)", ylabel="output")


def plot_filters(axes: Any, filters: list[Tensor]) -> None:
    titles = ("1 step", "3 steps", "10 steps", "all steps", "the filter")
    for ax, picture, title in zip(axes[0], filters, titles, strict=True):
        ax.imshow(tiled(picture[None]).numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        ax.set_title(title)
        ax.set_axis_off()


def plot_edges(axes: Any, image: Tensor, edges: Tensor) -> None:
    panels = (image, *edges, edges.square().sum(0).sqrt())
    titles = ("image", "vertical edges", "horizontal edges", "length of the gradient")
    for ax, panel, title in zip(axes[0], panels, titles, strict=True):
        signed = bool((panel < 0).any())
        limit = float(panel.abs().max())
        colors = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} if signed else {"cmap": "gray"}
        ax.imshow(panel.numpy(), **colors)
        ax.set_title(title)
        ax.set_axis_off()
