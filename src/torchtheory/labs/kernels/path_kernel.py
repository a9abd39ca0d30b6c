"""Networks as sums over paths: their kernel without a list."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits
from torchtheory.kernels.paths.deep_paths import PathFeatures, path_features
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.training.loop.trainer import fit


@lab(
    "deep-path-kernel",
    room="kernels",
    covers=["B-16"],
    title="Inner products over all paths of a network, without listing one",
    full={"networks": 500, "width": 1000, "sampled": 400_000},
    least={"points": 3, "networks": 20, "width": 20, "sampled": 10_000},
)
def deep_path_kernel_lab(
    run: Run, points: int = 12, networks: int = 60, width: int = 200, sampled: int = 50_000
) -> None:
    """An output of a ReLU network is a sum over paths; the features of two inputs are compared.

    On networks small enough to write every path down the recursion gives the same inner products
    as the list: dense with and without biases, convolutional, with shared weights, overlapping
    pools and groups. On a network with more paths than could ever be listed, random paths give an
    unbiased estimate that agrees. The spectrum of the difference of two second moments comes out
    of the kernel too. The kernel sees which units fire together and nothing of their weights: it
    does not change with the last layer, nor when units are rescaled. In the figure, the kernel of
    random networks falls with the angle of the inputs, the faster the deeper.

    Args:
        points: inputs between which the kernel is taken.
        networks: random networks.
        width: of the hidden layers.
        sampled: paths that are drawn where there are too many to list.
    """
    against_the_list(run, points)
    dense_product(run, points)
    positive(run, points)
    spectrum(run, points)
    invisible_weights(run, points)
    many_paths(run, width, sampled)
    angles = random_weights(run, networks)
    run.figure(
        "angles",
        lambda axes: plot_kernels(axes, angles, *digit_kernel(run)),
        caption="Left, the normalized path kernel of two inputs at an angle, for random networks "
        "of 1, 2 and 4 hidden layers (dots, one network of width 600 each) and its limit of "
        "infinite width (lines). Right, the normalized kernel of a trained network on ten "
        "samples of each handwritten digit: a digit shares more paths with its like than with "
        "others.",
        grid=(1, 2),
        size=(10, 4),
    )


def filled(run: Run, *layers: nn.Module) -> nn.Sequential:
    """A network whose numbers come from the run, at the size that keeps signals alive."""
    net = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(run.randn(*parameter.shape) * math.sqrt(2 / fan))
        for name, buffer in net.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.5 + run.rand(*buffer.shape))
            elif name.endswith("running_mean"):
                buffer.copy_(run.randn(*buffer.shape))
    return net


def small_networks(run: Run) -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    return {
        "dense, no biases": (mlp([3, 4, 4, 2], bias=False, generator=run.generator), (3,)),
        "dense": (mlp([3, 4, 4, 2], generator=run.generator), (3,)),
        "leaky ReLU, batch norm": (
            filled(run, nn.Linear(3, 5), nn.BatchNorm1d(5), nn.LeakyReLU(0.2), nn.Linear(5, 2)),
            (3,),
        ),
        "convolution, max pool": (
            filled(run, nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                   nn.Linear(8, 2)),
            (1, 4, 4),
        ),
        "overlapping max pool": (
            filled(run, nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(2, 2, 2),
                   nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)),
            (1, 5, 5),
        ),
        "groups, average pool": (
            filled(run, nn.Conv2d(2, 4, 2, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2),
                   nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
            (2, 4, 4),
        ),
    }  # fmt: skip


def layer(net: nn.Sequential, place: int) -> nn.Linear:
    found = net[place]
    assert isinstance(found, nn.Linear)
    return found


def gram(found: PathFeatures) -> Tensor:
    return found.features @ found.features.mT


def relative(a: Tensor, b: Tensor) -> float:
    """Largest difference, in units of the largest entry."""
    return float((a - b).abs().max() / b.abs().max())


def against_the_list(run: Run, points: int) -> None:
    """The recursion against every path written down."""
    apart, unaware, outputs, norms, rows = [], [], [], [], []
    for name, (net, shape) in small_networks(run).items():
        x = run.randn(points, *shape)
        listed = path_features(net, x)
        kernel = deep_path_kernel(net, x)
        apart.append(relative(kernel, gram(listed)))
        linear = nn.Sequential(*(nn.Identity() if isinstance(m, nn.ReLU | nn.LeakyReLU) else m
                                 for m in net))  # fmt: skip
        unaware.append(relative(deep_path_kernel(linear, x), gram(listed)))
        with torch.no_grad():
            outputs.append(float((listed.outputs - net(x)).abs().max()))
        norms.append(relative(path_norms(net, shape), listed.weights.norm(dim=1)))
        rows.append((name, int(number_of_paths(net, shape)), listed.features.shape[1], apart[-1]))
    says = run.states("B-16", r"K(x,x')=z(x)^\top z(x'):\ \text{largest relative difference, every path listed}")
    says.equal(apart, within=1e-12)
    says.fails("every unit counted as active", unaware)
    run.states("B-16", r"f_k(x)=z(x)^\top\bar w_k:\ \text{largest difference}").equal(outputs, within=1e-12)
    run.states("B-16", r"\|\bar w_k\|_2 \text{ by one pass with squared weights: largest relative difference}").equal(
        norms, within=1e-12
    )
    run.table(
        "networks",
        ("network", "paths counted", "paths listed", "relative difference of the kernels"),
        rows,
        caption="Networks small enough to list their paths.",
    )


def product_formula(net: nn.Sequential, x: Tensor) -> Tensor:
    """Inner products of the inputs times, for every hidden layer, the units active for both."""
    kernel, value = x @ x.mT, x
    with torch.no_grad():
        for layer in list(net)[:-1]:
            value = layer(value)
            if isinstance(layer, nn.ReLU):
                active = (value > 0).double()
                kernel = kernel * (active @ active.mT)
    return kernel


def dense_product(run: Run, points: int) -> None:
    """Dense layers without biases: a product of counts."""
    x = run.randn(points, 5)
    nets = [mlp([5, *[8] * depth, 2], bias=False, generator=run.generator) for depth in range(5)]
    biased = [mlp([5, *[8] * depth, 2], generator=run.generator) for depth in range(5)]
    says = run.states(
        "B-16",
        r"K(x,x')=x^\top x'\prod_\ell\dot\sigma^\ell(x)^\top\dot\sigma^\ell(x'):"
        r"\ \text{largest relative difference, 0 to 4 hidden layers}",
    )
    says.equal([relative(product_formula(n, x), deep_path_kernel(n, x)) for n in nets], within=1e-12)
    says.fails(
        "with biases, from which paths start too",
        [relative(product_formula(n, x), deep_path_kernel(n, x)) for n in biased],
    )


def positive(run: Run, points: int) -> None:
    """A Gram matrix has no negative eigenvalue."""
    net = mlp([5, 8, 8, 1], bias=False, generator=run.generator)
    x = run.randn(4 * points, 5)
    kernel = deep_path_kernel(net, x)
    with torch.no_grad():
        one, two = net[1](net[0](x)), net[3](net[2](net[1](net[0](x))))
    either = x @ x.mT
    for values in (one, two):
        idle = (values <= 0).double()
        either = either * (8 - idle @ idle.mT)
    says = run.states("B-16", r"K\succeq0:\ \lambda_{\min}(K)/\lambda_{\max}(K)")
    says.at_least(smallest_share(kernel), 0.0, 1e-12)
    says.fails("units active for either input counted, not for both", smallest_share(either))


def smallest_share(matrix: Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix)
    return float(values[0] / values[-1])


def spectrum(run: Run, points: int) -> None:
    """The difference of two second moments, from the kernel of all points."""
    x = run.randn(2 * points + 5, 3)
    share = run.rand(points + 5)
    difference = torch.cat([torch.full((points,), -1.0 / points).double(), share / share.sum()])
    found, listed, summed = [], [], []
    for net in (
        mlp([3, 4, 2], generator=run.generator),
        mlp([3, 4, 4, 1], generator=run.generator),
    ):
        z = path_features(net, x).features
        kernel = deep_path_kernel(net, x)
        moments = z.mT @ (difference[:, None] * z)
        count = min(len(x), z.shape[1])
        listed.append(extreme(torch.linalg.eigvalsh(moments), count))
        found.append(extreme(torch.linalg.eigvals(difference[:, None] * kernel).real, count))
        summed.append(extreme(torch.linalg.eigvals(difference.abs()[:, None] * kernel).real, count))
    says = run.states("B-16", r"\text{nonzero eigenvalues of } G=Z^\top DZ \text{ are those of } DK")
    says.equal(torch.cat(found), torch.cat(listed), 1e-10)
    says.fails("the sample added to the population, not subtracted", torch.cat(summed))


def extreme(values: Tensor, count: int) -> Tensor:
    """The eigenvalues of largest modulus, in order."""
    kept = values[values.abs().argsort(descending=True)[:count]]
    return kept.sort().values


def invisible_weights(run: Run, points: int) -> None:
    """What the kernel does not see: the last layer, and the scale of units."""
    x = run.randn(points, 3)
    net = mlp([3, 6, 6, 2], generator=run.generator)
    other = copy.deepcopy(net)
    early = copy.deepcopy(net)
    with torch.no_grad():
        layer(other, 4).weight.copy_(run.randn(2, 6))
        layer(early, 0).weight.copy_(run.randn(6, 3))
        change = float((other(x) - net(x)).abs().max())
        none = float((copy.deepcopy(net)(x) - net(x)).abs().max())
    before = deep_path_kernel(net, x)
    says = run.states("B-16", r"K \text{ is the same for another last layer: largest relative difference}")
    says.equal(
        relative(deep_path_kernel(other, x), before),
        where=f"the outputs change by up to {change:.3g}: they cannot be read off the kernel",
    )
    says.fails("another first layer", relative(deep_path_kernel(early, x), before))
    says = run.states("B-16", r"\ldots \text{ while the outputs differ: largest difference}")
    says.above(change, 0.0)
    says.fails("a copy with the same last layer", none)
    scales = 10 ** run.randn(6)

    def rescaled(factors: Tensor) -> nn.Sequential:
        made = copy.deepcopy(net)
        with torch.no_grad():
            layer(made, 0).weight.mul_(factors[:, None])
            layer(made, 0).bias.mul_(factors)
            layer(made, 2).weight.div_(factors)
        return made

    says = run.states("B-16", r"K \text{ is the same for rescaled units, } a>0 \text{ in and } 1/a \text{ out}")
    says.equal(relative(deep_path_kernel(rescaled(scales), x), before))
    says.fails("a < 0", relative(deep_path_kernel(rescaled(-scales), x), before))


def many_paths(run: Run, width: int, sampled: int) -> None:
    """A network whose paths nobody could list, against paths drawn at random."""
    x, y = digits(torch.float64)
    widths = [64, width, width, width, 10]
    net = mlp(widths, bias=False, generator=run.generator)
    pair = torch.stack([x[y == 3][0], x[y == 8][0]])
    kernel = deep_path_kernel(net, pair)
    total = number_of_paths(net, (64,))
    ends = [torch.randint(0, n, (sampled,), generator=run.generator) for n in widths[:-1]]
    features = []
    for value in pair:
        factor, value = value[ends[0]], value[None]
        with torch.no_grad():
            for layer, end in zip((0, 2, 4), ends[1:], strict=True):
                value = net[layer](value).relu()
                factor = factor * (value[0, end] > 0)
        features.append(factor)
    says = run.states("B-16", r"K(x,x')/d_z=\mathbb E_j[z_j(x)z_j(x')] \text{ over paths } j \text{ drawn uniformly}")
    says.mean(
        features[0] * features[1],
        float(kernel[0, 1]) / total,
        against=(float(pair[0] @ pair[1]) / 64, float(pair[0] @ pair[1]) / 64 / 8),
        confidence=0.999,
        where=f"{total:.3g} paths, {sampled} of them drawn; two handwritten digits; neither all paths "
        "active nor half of the units of each layer",
    )
    says.fails("the features of one of the inputs with themselves", features[0].square())


def random_weights(run: Run, networks: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Gaussian weights: both inputs activate a unit with probability (π - θ) / 2π."""
    angle = torch.tensor(1.0, dtype=torch.float64)
    x = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.tensor([1.0, 0.0]).double()])
    width = 200

    def shares(shift: float) -> Tensor:
        found = []
        for _ in range(networks):
            layer = dense(run.randn(width, 2) + shift)
            net = nn.Sequential(layer, nn.ReLU(), dense(torch.ones(1, width).double()))
            found.append(deep_path_kernel(net, x)[0, 1] / (width * angle.cos()))
        return torch.stack(found)

    says = run.states(
        "B-16", r"\mathbb E\,K(x,x')=n\,x^\top x'\,(\pi-\theta)/2\pi,\ w\sim N(0,I):\ \mathbb E\,K/(n\,x^\top x')"
    )
    says.mean(
        shares(0.0),
        float((math.pi - angle) / (2 * math.pi)),
        against=(0.25, float(1 + angle.cos()) / 4, 0.5),
        confidence=0.999,
        where=f"one hidden layer of {width} units, {networks} networks, inputs at an angle of 1",
    )
    says.fails("weights of mean 1", shares(1.0))
    theta = torch.linspace(0.02, math.pi / 2, 24, dtype=torch.float64)
    circle = torch.stack([theta.cos(), theta.sin()], 1)
    circle = torch.cat([torch.tensor([[1.0, 0.0]]).double(), circle])
    found = {}
    for depth in (1, 2, 4):
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([2, *[600] * depth]):
            layers += [dense(run.randn(outputs, inputs)), nn.ReLU()]
        net = nn.Sequential(*layers, dense(torch.ones(1, 600).double()))
        kernel = deep_path_kernel(net, circle)
        found[depth] = (theta, normalized(kernel)[0, 1:])
    return found


def normalized(kernel: Tensor) -> Tensor:
    size = kernel.diagonal().sqrt()
    return kernel / (size[:, None] * size)


def wide_limit(theta: Tensor, depth: int) -> Tensor:
    """The normalized kernel at infinite width: the angle shrinks from layer to layer."""
    value = theta.cos()
    for _ in range(depth):
        value = value * (1 - theta / math.pi)
        cosine = (theta.sin() + (math.pi - theta) * theta.cos()) / math.pi
        theta = cosine.clamp(-1, 1).arccos()
    return value


def digit_kernel(run: Run) -> tuple[Tensor, Tensor]:
    """The normalized kernel of a small trained network on ten samples of each digit."""
    x, y = digits(torch.float64)
    net = mlp([64, 32, 32, 10], generator=run.generator)
    fit(net, (x[:800], y[:800]), epochs=10, batch_size=100, learning_rate=0.01)
    chosen = torch.cat([(y == k).nonzero().flatten()[:10] for k in range(10)])
    return normalized(deep_path_kernel(net, x[chosen])), y[chosen]


def plot_kernels(axes: Any, angles: dict[int, tuple[Tensor, Tensor]], kernel: Tensor, labels: Tensor) -> None:
    left, right = axes[0]
    fine = torch.linspace(0, math.pi / 2, 200, dtype=torch.float64)
    for (depth, (theta, values)), color in zip(angles.items(), COLORS, strict=False):
        left.plot(fine, wide_limit(fine, depth), color=color, linewidth=1)
        word = "layer" if depth == 1 else "layers"
        left.plot(theta, values, "o", color=color, markersize=3.5, label=f"{depth} {word}")
    left.plot(fine, fine.cos(), "--", color="0.5", linewidth=1, label="inputs alone")
    left.set(xlabel="angle between the inputs", ylabel="K(x, x') / √(K(x, x) K(x', x'))")
    left.legend()
    image = right.imshow(kernel, cmap="viridis", vmin=0, vmax=1)
    places = torch.arange(10) * 10 + 4.5
    right.set(xticks=places, yticks=places, xticklabels=range(10), yticklabels=range(10))
    right.set(xlabel="digit", ylabel="digit")
    right.grid(False)
    right.figure.colorbar(image, ax=right, label="normalized path kernel")
