"""The gap between training and population risk, taken apart over the paths of a network."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.paths.gap_decomposition import GapDecomposition, decompose_gap
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.labs.engine import Run, fit_slope, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.training.loop.trainer import fit


@lab(
    "squared-loss-gap-decomposition",
    room="generalization",
    covers=["B-15"],
    errata=["gap-eigenpairs-of-an-undefined-matrix", "small-path-norm-small-gap"],
    title="The squared-loss gap is an identity in path space, and its bound is far away",
    full={"epochs": 400, "population": 400},
    least={"sample": 4, "population": 8, "epochs": 10},
)
def squared_loss_gap_decomposition(run: Run, sample: int = 20, population: int = 80, epochs: int = 120) -> None:
    """Population risk minus training risk, taken apart over the paths of a ReLU network.

    On a finite population with masses both risks are sums. The gap equals a term of the labels, a
    linear term and a quadratic one, each a length times a length times a cosine, whatever the
    sample: drawn from the population or not, random weights or trained. Written with every path
    and with the kernel the parts agree. Replacing the cosines by 1 gives the bound; it holds also
    where the largest eigenvalue is negative, and two hidden units that cancel each other make it
    as bad as one likes while the gap stays. Look at the figure: gap and bound during training.

    Args:
        sample: training samples.
        population: points of the law, over which the risk is exact.
        epochs: of the training that is watched.
    """
    law = finite_law(run, population)
    history = watch_training(run, law, sample, epochs)
    identity(run, law, sample, epochs)
    negative_curvature(run)
    canceling = canceling_units(run, law, sample)
    run.figure(
        "gap",
        lambda axes: plot_gap(axes, history, canceling),
        caption=f"Left, gap and its three parts while a network is trained on {sample} points of "
        "a finite population. Right, two units with opposite output weights ±c added to it: the "
        "function and the gap stay, the path norm and with it the bound grow, and the cosines "
        "shrink as they must.",
        grid=(1, 2),
    )


Law = tuple[Tensor, Tensor, Tensor]


def finite_law(run: Run, points: int) -> Law:
    """Inputs, noisy targets of two outputs, and masses."""
    x = run.randn(points, 3)
    signal = torch.stack([(2 * x[:, 0]).sin(), x[:, 1] * x[:, 2]], 1)
    share = -torch.log(1 - run.rand(points))
    return x, signal + 0.3 * run.randn(points, 2), share / share.sum()


def drawn(run: Run, law: Law, sample: int) -> tuple[Tensor, Tensor]:
    x, y, masses = law
    chosen = torch.multinomial(masses, sample, replacement=True, generator=run.generator)
    return x[chosen], y[chosen]


def risks(net: nn.Module, train: tuple[Tensor, Tensor], law: Law) -> tuple[float, float]:
    """Training and population risk, straight from the outputs."""
    with torch.no_grad():
        own = (net(train[0]) - train[1]).square().sum(1).mean()
        all_of_it = law[2] @ (net(law[0]) - law[1]).square().sum(1)
    return float(own), float(all_of_it)


def layer(net: nn.Sequential, place: int) -> nn.Linear:
    found = net[place]
    assert isinstance(found, nn.Linear)
    return found


class Explicit:
    """Everything in the theorem, with every path written down."""

    def __init__(
        self,
        net: nn.Module,
        train: tuple[Tensor, Tensor],
        law: Law,
        features_of: nn.Module | None = None,
    ) -> None:
        (x, y), (px, py, masses) = train, law
        z = path_features(features_of or net, x).features
        pz = path_features(features_of or net, px).features
        self.weights = path_features(net, x).weights
        self.second_moment = z.mT @ z / len(z)
        self.difference = pz.mT @ (masses[:, None] * pz) - self.second_moment
        self.v = (y.mT @ z) / len(z) - (masses[:, None] * py).mT @ pz
        self.label_term = float(masses @ py.square().sum(1) - y.square().sum(1).mean())

    def right_side(self, v: Tensor | None = None, matrix: Tensor | None = None) -> float:
        """The sum over the outputs, by lengths, cosines and eigenpairs."""
        v = self.v if v is None else v
        values, vectors = torch.linalg.eigh(self.difference if matrix is None else matrix)
        total = 0.0
        for k, w in enumerate(self.weights):
            size, length = w.norm(), v[k].norm()
            cosine = (v[k] @ w) / (size * length)
            cosines = (vectors.mT @ w) / size
            total += float(2 * length * size * cosine + size**2 * (values @ cosines.square()))
        return total


def identity(run: Run, law: Law, sample: int, epochs: int) -> None:
    """Equality on drawn and foreign samples, random and trained weights."""
    own = drawn(run, law, sample)
    foreign = (3 + run.randn(sample, 3), run.randn(sample, 2))
    nets = {
        "random weights": mlp([3, 5, 4, 2], generator=run.generator),
        "trained": mlp([3, 5, 4, 2], generator=run.generator),
    }
    untrained = copy.deepcopy(nets["trained"])
    fit(nets["trained"], own, epochs=epochs, batch_size=sample, learning_rate=0.03)
    gaps, sums, bounds, stale, pairs, rows = [], [], [], [], [], []
    for train_name, train in (("drawn from the population", own), ("unrelated to it", foreign)):
        for name, net in nets.items():
            train_risk, population_risk = risks(net, train, law)
            listed = Explicit(net, train, law)
            found = decompose_gap(net, train, law[:2], masses=law[2])
            gaps.append(population_risk - train_risk - listed.label_term)
            sums.append(listed.right_side())
            bounds.append(found.bound - found.label_term)
            stale.append(Explicit(net, train, law, features_of=untrained).right_side())
            pairs.append((listed, found))
            rows.append((name, train_name, found.gap, found.label_term, float(found.linear.sum()),
                         float(found.quadratic.sum()), found.bound, found.ratio))  # fmt: skip
    says = run.states(
        "B-15",
        r"R-R_S-c_y=\sum_k\bigl(2\|v_k\|\|\bar w_k\|\cos(v_k,\bar w_k)"
        r"+\|\bar w_k\|^2\sum_j\lambda_j\cos^2(u_j,\bar w_k)\bigr)",
    )
    says.equal(
        gaps,
        sums,
        1e-10,
        where="right side from enumerated paths, left side from the outputs; trained or not, "
        "sample drawn from the population or not",
    )
    says.fails("features of the network before training", gaps, promised=stale)
    same_parts(run, pairs)
    tight, other_matrix, measured = one_path()
    says = run.states("B-15", r"R-R_S-c_y\le\sum_k\bigl(2\|v_k\|\|\bar w_k\|+\lambda_{\max}(G)\|\bar w_k\|^2\bigr)")
    says.at_most(
        [*gaps, measured],
        [*bounds, tight],
        1e-12,
        where="the same samples and networks, and a network of one path, where it is an equality",
    )
    says.fails(
        "the largest eigenvalue of the sample's second moment in place of that of G",
        measured,
        promised=other_matrix,
    )
    run.table(
        "parts",
        ("weights", "sample", "gap", "label term", "linear", "quadratic", "bound", "bound / gap"),
        rows,
        caption="The gap is the sum of the three columns after it. The ratio leaves the label term out.",
    )
    listed = pairs[1][0]
    run.refutes(
        "gap-eigenpairs-of-an-undefined-matrix", r"R-R_S-c_y=\ldots \text{ with eigenpairs of another matrix than } G"
    ).equal(
        gaps[1],
        listed.right_side(matrix=listed.second_moment),
        1e-10,
        where="eigenpairs of the second moment of the sample, a trained network",
    )
    nothing = copy.deepcopy(nets["trained"])
    with torch.no_grad():
        for parameter in nothing[-1].parameters():
            parameter.zero_()
    empty = decompose_gap(nothing, foreign, law[:2], masses=law[2])
    run.refutes("small-path-norm-small-gap", r"\|\bar w_k\|=0 \text{ for all } k \Rightarrow |R-R_S|=0").equal(
        abs(empty.gap), where="the network that is 0 everywhere, on a sample with labels of another size"
    )


def same_parts(run: Run, pairs: list[tuple[Explicit, GapDecomposition]]) -> None:
    """The parts from the kernel against those from the list of paths."""
    listed_parts, kernel_parts, swapped = [], [], []
    for listed, found in pairs:
        norms = listed.weights.norm(dim=1)
        v = listed.v.norm(dim=1)
        cosine = (listed.v * listed.weights).sum(1) / (norms * v)
        top = torch.linalg.eigvalsh(listed.difference)[-1:]
        quadratic = torch.einsum("kp,pq,kq->k", listed.weights, listed.difference, listed.weights)
        listed_parts += [v, norms, cosine, top, quadratic, quadratic]
        spectral = (found.eigenvalues[:, None] * found.alignments).sum(0) * found.path_norms**2
        largest = torch.tensor([found.largest_eigenvalue], dtype=torch.float64)
        shown = [found.label_norms, found.path_norms, found.cosines, largest, found.quadratic]
        kernel_parts += [*shown, spectral]
        swapped += [*[s.flip(0) for s in shown], spectral.flip(0)]
    says = run.states(
        "B-15",
        r"\|v_k\|,\ \|\bar w_k\|,\ \cos,\ \lambda_{\max}(G),\ \bar w_k^\top G\bar w_k \text{ without a list of paths}",
    )
    says.equal(torch.cat(kernel_parts), torch.cat(listed_parts), 1e-9)
    says.fails("the two outputs taken for each other", torch.cat(swapped))


def one_path() -> tuple[float, float, float]:
    """f(x) = x, a population three times as wide as the sample: bound, wrong bound, gap."""
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    found = decompose_gap(nn.Sequential(dense(torch.ones(1, 1).double())), (x, x), (3 * x, -x))
    second_moment = float(x.square().mean())
    wrong = float((2 * found.label_norms * found.path_norms).sum()) + second_moment
    return found.bound - found.label_term, wrong, found.gap - found.label_term


def negative_curvature(run: Run) -> None:
    """A sample whose features are larger than the population's in every direction."""
    net = mlp([3, 2], bias=False, generator=run.generator)
    x = run.randn(30, 3)
    y = torch.zeros(30, 2, dtype=torch.float64)
    found = decompose_gap(net, (2 * x, y), (x, y))
    ordinary = decompose_gap(net, (x, y), (2 * x, y))
    few = decompose_gap(net, (2 * x[:1], y[:1]), (x[:1], y[:1]))
    says = run.states("B-15", r"\lambda_{\max}(G)<0 \text{ where the sample is larger in every direction}")
    says.below(found.largest_eigenvalue, 0.0)
    says.fails("where it is smaller", ordinary.largest_eigenvalue)
    says = run.states("B-15", r"\sum_j\cos^2(u_j,\bar w_k)=1 \text{ over a full set of eigenvectors}")
    says.equal(found.alignments.sum(0), 1.0, 1e-12)
    says.fails("those of nonzero eigenvalue, from one point", few.alignments.sum(0))
    smallest = float(found.eigenvalues[-1] * found.path_norms.square().sum())
    says = run.states(
        "B-15", r"\text{so that } R-R_S\le\lambda_{\max}(G)\sum_k\|\bar w_k\|^2<0 \text{ there, labels } 0"
    )
    says.at_most(found.gap, found.bound)
    says.fails("the smallest eigenvalue", found.gap, promised=smallest)


def with_canceling_units(net: nn.Sequential, size: float) -> nn.Sequential:
    """The same function with two more equal hidden units whose output weights are ±size."""
    first, last = layer(net, 0), layer(net, 2)
    weight, bias = first.weight.detach(), first.bias.detach()
    twin, twin_bias = weight[:1].repeat(2, 1), bias[:1].repeat(2)
    out = last.weight.detach()
    signs = size * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(out), 1)
    return nn.Sequential(
        dense(torch.cat([weight, twin]), torch.cat([bias, twin_bias])),
        nn.ReLU(),
        dense(torch.cat([out, signs], 1), last.bias.detach()),
    )


def canceling_units(run: Run, law: Law, sample: int) -> tuple[list[float], list[GapDecomposition]]:
    """A small gap with a large path norm: the cosines must be small."""
    train = drawn(run, law, sample)
    net = mlp([3, 12, 2], generator=run.generator)
    fit(net, train, epochs=60, batch_size=sample, learning_rate=0.03)
    sizes = [10.0**e for e in (0, 1, 2, 3, 4)]
    found = [decompose_gap(with_canceling_units(net, c), train, law[:2], masses=law[2]) for c in sizes]
    plain = decompose_gap(net, train, law[:2], masses=law[2])
    same_sign = with_canceling_units(net, 1.0)
    with torch.no_grad():
        layer(same_sign, 2).weight.abs_()
    says = run.states("B-15", r"\text{two units that cancel change no gap: largest relative change}")
    says.equal([abs(f.gap / plain.gap - 1) for f in found], within=1e-9)
    says.fails(
        "two units that do not cancel", abs(decompose_gap(same_sign, train, law[:2], masses=law[2]).gap / plain.gap - 1)
    )
    slope = fit_slope(sizes[1:], [abs(float(f.cosines[0])) for f in found[1:]])
    growth = fit_slope(sizes[1:], [f.bound - f.label_term for f in found[1:]])
    says = run.states("B-15", r"\ldots \text{ but } \|\bar w\|\propto c, \text{ so the cosine falls as } c^{-1}")
    says.slope(slope, -1.0, 0.02, against=(-0.5, -2.0))
    says.fails("the bound, which grows", growth)
    run.states("B-15", r"\text{and the bound grows as } c^2").slope(growth, 2.0, 0.05, against=(1.0, 4.0))
    return sizes, found


def watch_training(run: Run, law: Law, sample: int, epochs: int) -> list[tuple[int, GapDecomposition]]:
    """The parts of the gap while a network is trained."""
    train = drawn(run, law, sample)
    net = mlp([3, 20, 2], generator=run.generator)
    history = [(0, decompose_gap(net, train, law[:2], masses=law[2]))]
    every = max(1, epochs // 12)

    def watch(model: nn.Module, seen: Any) -> None:
        if len(seen.train_losses) % every == 0:
            parts = decompose_gap(model, train, law[:2], masses=law[2])
            history.append((len(seen.train_losses), parts))

    fit(net, train, epochs=epochs, batch_size=sample, learning_rate=0.02, callbacks=[watch])
    return history


def plot_gap(
    axes: Any,
    history: list[tuple[int, GapDecomposition]],
    canceling: tuple[list[float], list[GapDecomposition]],
) -> None:
    left, right = axes[0]
    epochs = [e for e, _ in history]
    parts = [p for _, p in history]
    left.plot(epochs, [p.gap for p in parts], color="black", label="gap")
    left.plot(epochs, [float(p.quadratic.sum()) for p in parts], "--", label="quadratic term")
    left.plot(epochs, [float(p.linear.sum()) for p in parts], "--", label="linear term")
    left.plot(epochs, [p.label_term for p in parts], "--", label="label term")
    left.axhline(0, color="0.6", linewidth=0.8)
    left.set(xlabel="epochs", ylabel="squared loss", title="the gap and its parts")
    left.legend()
    sizes, found = canceling
    right.loglog(sizes, [f.bound for f in found], "o-", label="bound")
    right.loglog(sizes, [float(f.path_norms.norm()) for f in found], "o-", label="path norm")
    right.loglog(sizes, [f.gap for f in found], "o-", color="black", label="gap")
    cosines = [abs(float(f.cosines[0])) for f in found]
    right.loglog(sizes, cosines, "o-", label="|cosine|, first output")
    right.set(xlabel="output weights ±c of two equal units", title="same function, same gap")
    right.minorticks_off()
    right.legend(loc="upper left")
