"""The norm of all path weights from one forward pass, and its angle to the path features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.generalization.complexity.norm_products import compare_norms
from torchtheory.kernels.paths.angles import PathAngles, path_cosines
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.graph import every_path, graph_path_norms
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.generalization.deep_paths import chains, filled, skipping
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.symmetries import rescalable_layers, rescale_units, with_parameters
from torchtheory.training.loop.trainer import fit


def dense_layers(net: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in net if isinstance(layer, nn.Linear)]


@lab(
    "path-norm-in-one-pass",
    room="generalization",
    covers=["B-14"],
    title="The norm of all path weights, from one forward pass, below the product of norms",
    errata=["path-norm-identity-input"],
    full={"networks": 2000, "width": 100, "deepest": 12},
    least={"networks": 10, "width": 2, "deepest": 2},
)
def path_norm_in_one_pass(run: Run, networks: int = 100, width: int = 30, deepest: int = 8) -> None:
    """Squared weights, an input of ones and no nonlinearity give the norm of all path weights.

    The list of all paths gives the same norms, for convolutions, pools and skip connections too.
    The sum of squares is at most the product of squared Frobenius norms, with equality when
    hidden layers have one unit; the matrix of a convolution holds a filter once for every place,
    and with the filter alone the inequality fails. Rescaling units changes the products and not
    the path norm. Look at the figure: with depth the products leave the path norm, and the
    outputs, behind.

    Args:
        networks: random networks.
        width: of their hidden layers.
        deepest: number of layers at most.
    """
    one_pass(run)
    below_the_product(run, networks)
    equality(run)
    rescaling(run)
    bounds_outputs(run)
    depths(run, width, deepest)


def one_pass(run: Run) -> None:
    passed, listed, active = [], [], []
    for net, shape in chains(run).values():
        x = run.randn(1, *shape)
        tables = [every_path(net, x, output=k) for k in range(2)]
        for order in (1, 2):
            passed.append(path_norms(net, shape, order=order))
            listed.append(torch.stack([t.weights.norm(order) for t in tables]))
            active.append(torch.stack([(t.weights * t.activity[0]).norm(order) for t in tables]))
    net_with_skips = skipping(run)
    x = run.randn(1, 3)
    tables = [every_path(net_with_skips, x, output=k) for k in range(2)]
    for order in (1, 2):
        passed.append(graph_path_norms(net_with_skips, order=order))
        listed.append(torch.stack([t.weights.norm(order) for t in tables]))
        active.append(torch.stack([(t.weights * t.activity[0]).norm(order) for t in tables]))
    says = run.states(
        "B-14", r"\|\bar w_k\|_p^p=\bigl(|W^{[L]}|^{\circ p}\cdots|W^{[1]}|^{\circ p}\mathbf 1\bigr)_k,\ p=1,2"
    )
    says.equal(torch.cat(passed), torch.cat(listed), 1e-12, where="six networks, every path listed")
    says.fails("the nonlinearity kept: closed paths left out", torch.cat(passed), promised=torch.cat(active))
    net = mlp([3, 4, 2], bias=False, generator=run.generator)
    table = every_path(net, run.randn(1, 3))
    squared = copy.deepcopy(net)
    with torch.no_grad():
        for p in squared.parameters():
            p.square_()
        columns = squared(torch.eye(3).double())[:, 0]  # non-negative: ReLU does nothing
    run.states("B-14", r"\|\bar w_k\|_2^2=\textstyle\sum_i g_k(e_i),\ g \text{ the network of squared weights}").equal(
        float(columns.sum()),
        float(table.weights.square().sum()),
        1e-12,
        where="the identity matrix as input, and the sum of what its columns give",
    )
    run.refutes(
        "path-norm-identity-input", r"\|\bar w_k\|_2^2=g_k(e_i) \text{ for an input } e_i \text{ of the identity}"
    ).equal(
        columns,
        float(table.weights.square().sum()),
        1e-12,
        where="a forward pass of the identity gives one number for each input coordinate",
    )


def below_the_product(run: Run, networks: int) -> None:
    sums, products = [], []
    for trial in range(networks):
        widths = [2 + trial % 3, *[1 + (trial + i) % 5 for i in range(1 + trial % 4)], 2]
        net = mlp(widths, bias=trial % 2 == 0, generator=run.generator)
        found = compare_norms(net, (widths[0],))
        sums.append(found.path)
        products.append(found.frobenius)
    biased = mlp([2, 2, 2], generator=run.generator)
    weights_only = 1.0
    with torch.no_grad():
        for layer in dense_layers(biased):
            layer.weight.mul_(0.1)
            weights_only *= float(layer.weight.norm())
    says = run.states("B-14", r"\Bigl(\sum_k\|\bar w_k\|_2^2\Bigr)^{1/2}\le\prod_\ell\|W^{(\ell)}\|_F")
    says.at_most(
        sums, products, 1e-12, where=f"{networks} dense networks; biases as weights in homogeneous coordinates"
    )
    says.fails(
        "biases counted as paths and left out of the product", compare_norms(biased, (2,)).path, promised=weights_only
    )
    sums, products, filters = [], [], []
    for size in range(4, 12):
        convolution, dense = nn.Conv1d(1, 1, 3, bias=False), nn.Linear(size // 2, 2, bias=False)
        net = filled(run, convolution, nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), dense)
        found = compare_norms(net, (1, 2 * (size // 2) + 2))
        sums.append(found.path)
        products.append(found.frobenius)
        filters.append(float((convolution.weight.norm() * dense.weight.norm()).detach()))
    says = run.states(
        "B-14",
        r"\text{convolutions: } \Bigl(\sum_k\|\bar w_k\|_2^2\Bigr)^{1/2}\le\prod_\ell"
        r"\|W^{(\ell)}\|_F,\ W^{(1)} \text{ with the filter at every place}",
    )
    says.at_most(sums, products, 1e-12, where="one filter of 3 taps at 4 to 10 places, a max pool over two of them")
    says.fails("the norm of the filter alone", sums, promised=filters)


def equality(run: Run) -> None:
    narrow = [mlp([3, *[1] * d, 2], bias=False, generator=run.generator) for d in range(5)]
    wide = [mlp([3, *[2] * d, 2], bias=False, generator=run.generator) for d in range(1, 5)]

    def ratio(net: nn.Module) -> float:
        found = compare_norms(net, (3,))
        return found.path / found.frobenius

    says = run.states("B-14", r"\text{hidden layers of one unit: } \sum_k\|\bar w_k\|_2^2=\prod_\ell\|W^{(\ell)}\|_F^2")
    says.equal([ratio(net) for net in narrow], 1.0, 1e-12)
    says.fails("hidden layers of two units", [ratio(net) for net in wide])


def rescaling(run: Run) -> None:
    net = mlp([3, 6, 6, 2], generator=run.generator)
    parameters = {k: p.detach() for k, p in net.named_parameters()}
    for layer in rescalable_layers(net):
        parameters = rescale_units(parameters, layer, 10 ** run.randn(6))
    other = with_parameters(net, parameters)
    x = run.randn(20, 3)
    before, after = compare_norms(net, (3,)), compare_norms(other, (3,))
    says = run.states(
        "B-14", r"\|\bar w_k\|_2 \text{ after units are rescaled, } a>0 \text{ in and } 1/a \text{ out, over before}"
    )
    says.equal(
        after.path / before.path,
        1.0,
        1e-12,
        where=f"the outputs change by {float((net(x) - other(x)).detach().abs().max()):.1e}",
    )
    says.fails("the product of Frobenius norms, the same check", after.frobenius / before.frobenius)


def bounds_outputs(run: Run) -> None:
    bounds, outputs = [], []
    for net, shape in chains(run).values():
        x = run.randn(50, *shape)
        bound = x.flatten(1).abs().amax(1).clamp(min=1.0)
        bounds.append(bound * compare_norms(net, shape).path_sum)
        outputs.append(net(x).detach().abs().amax(1))
    positive = mlp([3, 6, 6, 2], generator=run.generator)  # all paths are on and add up
    with torch.no_grad():
        for parameter in positive.parameters():
            parameter.abs_()
    bounds.append(compare_norms(positive, (3,)).path_sum * torch.ones(1).double())
    outputs.append(positive(torch.ones(1, 3).double()).detach().abs().amax(1))
    shifted = mlp([2, 3, 1], generator=run.generator)
    with torch.no_grad():
        dense_layers(shifted)[-1].bias.fill_(5.0)
        tiny = 1e-3 * run.randn(50, 2)
        plain = tiny.abs().amax(1) * compare_norms(shifted, (2,)).path_sum
        loud = shifted(tiny).abs().amax(1)
    says = run.states("B-14", r"|f_k(x)|\le\|\bar w_k\|_1\max(1,\|x\|_\infty)")
    says.at_most(
        torch.cat(outputs), torch.cat(bounds), 1e-12, where="random networks; and positive weights and inputs 1"
    )
    says.fails("small inputs, and the bias not counted as an input 1", loud, promised=plain)


def depths(run: Run, width: int, deepest: int) -> None:
    x = run.randn(200, width)
    x = x / x.norm(dim=1, keepdim=True)
    rows = []
    for depth in range(1, deepest + 1):
        net = mlp([width, *[width] * (depth - 1), 1], bias=False, generator=run.generator)
        with torch.no_grad():
            for layer in dense_layers(net):
                layer.weight.copy_(run.randn(*layer.weight.shape) * (2 / width) ** 0.5)
        found = compare_norms(net, (width,))
        largest = float(net(x).detach().abs().max())
        rows.append((depth, number_of_paths(net, (width,)), largest, found.path, found.spectral,
                     found.frobenius, found.peeling))  # fmt: skip
    run.table(
        "norms-with-depth",
        ("depth L", "paths", "largest |f(x)|, |x| = 1", "path norm", "product of spectral norms",
         "product of Frobenius norms", "times $2^{L-1}$"),
        rows,
        caption=f"Random ReLU networks of width {width}, weights of variance 2/width.",
    )  # fmt: skip
    names = ("largest |f(x)| for |x| = 1", "path norm", "product of spectral norms",
             "product of Frobenius norms", "times 2^(L-1)")  # fmt: skip
    run.curves(
        "norms",
        [r[0] for r in rows],
        {name: [r[i] for r in rows] for i, name in enumerate(names, 2)},
        axes=("depth L", "norm"),
        log="y",
        caption="Norms of random ReLU networks by depth. The path norm grows like the square root "
        "of 2 a layer, the product of spectral norms by a constant factor, that of Frobenius norms "
        "by the square root of twice the width; outputs for inputs of norm 1 do not grow.",
    )


@lab(
    "path-norm-and-angle",
    room="generalization",
    covers=["B-21"],
    title="A large path norm with small outputs: the angle to the path features makes up for it",
    full={"width": 100, "epochs": 60},
    least={"width": 2, "epochs": 1, "learning_rate": 3e-05},
    most={"learning_rate": 0.3},
)
def path_norm_and_angle(run: Run, width: int = 30, epochs: int = 20, learning_rate: float = 3e-3) -> None:
    """An output is the norm of the path features times the path norm times the cosine between.

    On small networks the cosine of the listed vectors is what the three one-pass quantities give,
    and the path norm comes back from any input whose output is not 0. The identity does not bound
    the path norm: dividing by a small cosine gives a large one. Look at the figure: in a network
    trained on handwritten digits the cosines are a small fraction of 1, before and after.

    Args:
        width: of the hidden layers.
        epochs: of the training.
        learning_rate: of the training.
    """
    angle_identity(run)
    trained_angles(run, width, epochs, learning_rate)


def angle_identity(run: Run) -> None:
    exact, found, inputs, norms, diagonals = [], [], [], [], []
    recovered, true, permuted = [], [], []
    for net, shape in chains(run).values():
        x = run.randn(8, *shape)
        x = x[path_cosines(net, x).feature_norms > 0]  # an input may find all its paths closed
        angles = path_cosines(net, x)
        listed = path_features(net, x)
        z, w = listed.features, listed.weights
        cosine = F.cosine_similarity(z[:, None], w[None], dim=2, eps=0.0)
        exact.append(cosine.flatten())
        found.append(angles.cosines.flatten())
        size = x.flatten(1).norm(dim=1, keepdim=True)
        inputs.append((angles.outputs / (size * angles.path_norms)).flatten())
        norms.append(angles.feature_norms)
        diagonals.append(deep_path_kernel(net, x).diagonal().sqrt())
        use = angles.outputs.abs() > 1e-8 * angles.outputs.abs().max()
        back = angles.outputs / (angles.feature_norms[:, None] * cosine)
        wrong = angles.outputs / (angles.feature_norms[:, None] * cosine.roll(1, 0))
        recovered.append(back[use])
        permuted.append(wrong[use])
        true.append(w.norm(dim=1).expand_as(back)[use])
    says = run.states("B-21", r"\cos\angle(z(x),\bar w_k)=f_k(x)/(\|z(x)\|_2\|\bar w_k\|_2)")
    says.equal(
        torch.cat(found), torch.cat(exact), 1e-12, where="left: both vectors listed; right: three forward passes"
    )
    says.fails("the norm of the input for that of its path features", torch.cat(inputs))
    says = run.states("B-21", r"\|\bar w_k\|_2=f_k(x)/(\|z(x)\|_2\cos\theta) \text{ at every input with } f_k(x)\ne0")
    says.equal(torch.cat(recovered), torch.cat(true), 1e-9)
    says.fails("the angle of another input", torch.cat(permuted))
    run.states("B-21", r"\|z(x)\|_2^2=K(x,x), \text{ by one pass of squares}").equal(
        torch.cat(norms), torch.cat(diagonals), 1e-12
    )


def trained_angles(run: Run, width: int, epochs: int, learning_rate: float) -> None:
    train, test = split(*digits(torch.float64), 0.3, run.generator)
    net = mlp([64, width, width, 10], generator=run.generator)
    start = path_cosines(net, test[0])
    fit(net, train, epochs=epochs, learning_rate=learning_rate, seed=run.seed)
    end = path_cosines(net, test[0])
    rows = []
    for name, angles in (("initial", start), ("trained", end)):
        top = angles.outputs.argmax(1)
        rows.append((
            name,
            float((top == test[1]).double().mean()),
            float(angles.path_norms.mean()),
            float(angles.feature_norms.mean()),
            float(angles.cosines.abs().mean()),
            float(angles.outputs.abs().mean()),
        ))  # fmt: skip
    run.table(
        "angles",
        ("network", "accuracy", "path norm", "feature norm", "|cosine|", "|output|"),
        rows,
        caption=f"Means over {len(test[0])} test digits and the ten outputs, width {width}.",
    )
    run.figure(
        "cosines",
        lambda axes: plot_cosines(axes, start, end),
        caption="Cosines between path features and path weights, over test digits and outputs, "
        "before and after training (left), and the outputs they make (right).",
        grid=(1, 2),
        size=(9, 3.4),
    )


def plot_cosines(axes: Any, start: PathAngles, end: PathAngles) -> None:
    shown: tuple[tuple[Any, Callable[[PathAngles], Tensor], str], ...] = (
        (axes.flat[0], lambda a: a.cosines, "cos θ"),
        (axes.flat[1], lambda a: a.outputs, "output"),
    )
    for panel, values, label in shown:
        for i, (name, angles) in enumerate((("initial", start), ("trained", end))):
            panel.hist(values(angles).flatten(), bins=60, alpha=0.6, density=True,
                       color=COLORS[i], label=name)  # fmt: skip
        panel.set(xlabel=label, ylabel="density", yscale="log")
        panel.legend()
