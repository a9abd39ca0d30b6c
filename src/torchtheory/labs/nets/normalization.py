"""Normalization of batches and layers: what changes and what cannot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import linear_layer
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.nets.normalization import (
    fold_batch_norm,
    reparametrize,
    standardize,
)

EXACT = 1e-12
TINY = 1e-30  # torch wants δ > 0 in training; this one is lost to rounding


@lab(
    "normalization",
    room="nets",
    covers=["N-129", "N-130", "N-131", "M-93", "M-94", "M-118"],
    title="Batch and layer normalization as identities",
    errata=["batch-norm-unit-variance", "covariance-not-centered"],
    full={"samples": 500, "features": 60},
    least={"samples": 4, "features": 3},  # of two features only their order is left
)
def normalization(run: Run, samples: int = 40, features: int = 6) -> None:
    """Torch's layers against the definitions, and what a network with them no longer depends on.

    Batch normalization after a linear layer forgets the length of every weight vector: outputs do
    not change under w → cw, and the gradient is orthogonal to w. It is the same affine map written
    as γ w/‖w‖_Σ, it folds away in evaluation mode, and without γ a one-unit network has only two
    shapes left. Layer normalization does the like sample by sample, whatever else is in the batch.
    Look at the three curves that coincide, and at what γ does to them.

    Args:
        samples: rows that are normalized.
        features: columns.
    """
    x = 2 * run.randn(samples, features) + run.randn(features)
    golden(run)
    batch_statistics(run, x)
    inference(run, x)
    reparametrization(run, x)
    folding(run)
    layer_normalization(run, x)
    role_of_scale(run)
    deep_network(run, x)


def golden(run: Run) -> None:
    """Four numbers by hand, in either convention for the variance."""
    batch = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    hand = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    biased, unbiased = standardize(batch, 0), standardize(batch, 0, unbiased=True)
    says = run.states(
        "M-93, N-129", r"(1,2,3,4)\mapsto(-3,-1,1,3)/\sqrt5=(-1.3416,-0.4472,0.4472,1.3416) \text{ with } 1/n"
    )
    says.equal(biased, hand / math.sqrt(5), EXACT)
    says.fails("1/(n-1) instead", unbiased)
    says = run.states(
        "M-118", r"(1,2,3,4)\mapsto(-3,-1,1,3)/\sqrt{20/3}=(-1.1619,-0.3873,0.3873,1.1619) \text{ with } 1/(n-1)"
    )
    says.equal(unbiased, hand / math.sqrt(20 / 3), EXACT)
    says.fails("1/n instead", biased)


def batch_statistics(run: Run, x: Tensor) -> None:
    """Mean and variance of what comes out, torch's layer, gradients, affine changes of input."""
    features, eps = x.shape[1], 1e-3
    gamma, shift = run.randn(features).abs() + 0.5, run.randn(features)
    layer = nn.BatchNorm1d(features, eps=eps, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(gamma)
        layer.bias.copy_(shift)
    with_eps = standardize(x, 0, eps=eps)
    says = run.states(
        "N-129, M-93",
        r"\texttt{nn.BatchNorm1d} \text{ in training}=\gamma\tilde z+\mu\text{, variance } 1/|\mathcal B|",
    )
    says.equal(layer(x).detach(), (gamma * with_eps + shift).detach(), EXACT)
    says.fails("variance 1/(|B|-1)", gamma * standardize(x, 0, eps=eps, unbiased=True) + shift)
    out = gamma * standardize(x, 0) + shift
    flat = gamma * with_eps + shift
    says = run.states("N-129", r"\text{mean } \mu \text{ and variance } \gamma^2 \text{ over the batch } (\delta=0)")
    says.equal(torch.stack([out.mean(0), out.var(0, correction=0)]), torch.stack([shift, gamma.square()]), EXACT)
    says.fails("δ = 0.001: the variance", flat.var(0, correction=0), promised=gamma.square())
    spread = torch.logspace(-3, 1, 9, dtype=torch.float64)
    data = standardize(run.randn(50, 9), 0) * spread
    normalized = standardize(data, 0, eps=eps).var(0, correction=0)
    says = run.states("M-93", r"\operatorname{Var}\tilde z=s^2/(s^2+\delta)")
    says.equal(normalized, spread**2 / (spread**2 + eps), EXACT, where="features of deviation 0.001 to 10, δ = 0.001")
    says.fails("δ = 0", standardize(data, 0).var(0, correction=0))
    run.refutes("batch-norm-unit-variance", r"\operatorname{Var}\tilde z=1 \text{ with } \delta>0").equal(
        normalized, 1.0, 1e-6, where="a feature of deviation 0.001 with δ = 0.001 has variance 0.001 afterwards"
    )
    scale, offset = run.rand(features) + 0.1, run.randn(features)
    says = run.states("N-129", r"\mathrm{BN}(cz+d)=\mathrm{BN}(z) \text{ for } c>0 \text{ (feature by feature)}")
    says.equal(standardize(scale * x + offset, 0), standardize(x, 0), EXACT)
    says.fails("c < 0", standardize(-scale * x + offset, 0))
    direction = run.randn(*x.shape)

    def objective(z: Tensor) -> Tensor:
        total: Tensor = (layer(z) * direction).sum()
        return total

    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(point), point)
    with torch.no_grad():
        differences = central_differences(objective, x)
        frozen = gamma * direction / (x.var(0, correction=0) + eps).sqrt()
    says = run.states("M-93", r"\text{back-propagation through batch normalization equals central differences}")
    says.equal(gradient, differences, 1e-7)
    says.fails("mean and variance taken for constants", frozen)


def inference(run: Run, x: Tensor) -> None:
    """Running averages: what torch's layer uses in evaluation mode."""
    features, momentum, eps = x.shape[1], 0.1, 1e-5
    layer = nn.BatchNorm1d(features, momentum=momentum, eps=eps, dtype=torch.float64)
    mean = torch.zeros(features, dtype=torch.float64)
    variance, biased = torch.ones_like(mean), torch.ones_like(mean)
    for _ in range(20):
        batch = x + run.randn(*x.shape)
        layer(batch)
        mean = (1 - momentum) * mean + momentum * batch.mean(0)
        variance = (1 - momentum) * variance + momentum * batch.var(0, correction=1)
        biased = (1 - momentum) * biased + momentum * batch.var(0, correction=0)
    layer.eval()
    says = run.states(
        "N-129, M-93",
        r"\text{evaluation: } (z-\hat\mu)/\sqrt{\hat\sigma^2+\delta}"
        r" \text{ with running averages of mean and of the } 1/(n-1) \text{ variance}",
    )
    says.equal(layer(x).detach(), (x - mean) / (variance + eps).sqrt(), EXACT, where="20 batches, momentum 0.1")
    says.fails(
        "averages of the 1/n variance, which training uses",
        layer(x).detach(),
        promised=(x - mean) / (biased + eps).sqrt(),
    )
    alone = torch.cat([layer(row[None]) for row in x])
    says = run.states("N-129", r"\text{evaluation: a sample's output does not depend on its batch}")
    says.equal(layer(x).detach(), alone.detach(), EXACT)
    says.fails("training mode", standardize(x, 0, eps=eps))


def reparametrization(run: Run, x: Tensor) -> None:
    """BN of a linear layer: a normalized weight, blind to the weight's own length."""
    units = 5
    weight = run.randn(units, x.shape[1])
    gamma, shift = run.randn(units).abs() + 0.5, run.randn(units)
    unit = reparametrize(weight, x, gamma, shift)
    normalized = gamma * standardize(x @ weight.T, 0) + shift
    second = x.T @ x / len(x)  # E[x xᵀ], as printed
    lengths = torch.einsum("mi,ij,mj->m", weight, second, weight).sqrt()
    printed = shift + gamma * ((x - x.mean(0)) @ weight.T) / lengths
    says = run.states(
        "N-130",
        r"\mu+\gamma\tfrac{w^\top x-\mathbb E[w^\top x]}{\sqrt{\operatorname{Var}[w^\top x]}}"
        r"=\mu+\gamma\tfrac{w^\top(x-\mathbb Ex)}{\|w\|_\Sigma},\ \Sigma=\operatorname{Cov}(x)",
    )
    says.equal(normalized, x @ unit.weight.T + unit.bias, EXACT)
    says.fails("Σ = E[xxᵀ], inputs not centered", normalized, promised=printed)
    run.refutes(
        "covariance-not-centered",
        r"\mu+\gamma\tfrac{w^\top(x-\mathbb Ex)}{\|w\|_\Sigma} \text{ with } \Sigma=\mathbb E[xx^\top]",
    ).equal(normalized, printed, 1e-6, where="inputs whose mean is not 0")
    centered = x - x.mean(0)
    parts = reparametrize(weight, centered, gamma, shift)
    directions = weight / weight.norm(dim=1, keepdim=True)
    expected = shift + gamma * (centered @ directions.T) * parts.norm_ratio
    says = run.states(
        "N-130", r"\mathbb Ex=0:\ =\mu+\gamma\bigl(\tfrac w{\|w\|_2}\bigr)^\top x\,\tfrac{\|w\|_I}{\|w\|_\Sigma}"
    )
    says.equal(gamma * standardize(centered @ weight.T, 0) + shift, expected, EXACT)
    says.fails("the ratio of norms left out", shift + gamma * (centered @ directions.T))

    net = nn.Sequential(dense(weight), nn.BatchNorm1d(units, eps=TINY, dtype=torch.float64), nn.Tanh())
    plain = nn.Sequential(dense(weight), nn.Tanh())
    factors = (0.01, 0.5, 3.0, 100.0)

    def scaled(model: nn.Sequential, factor: float) -> Tensor:
        outputs: Tensor = model[1:](x @ (factor * weight).T)
        return outputs.detach()

    says = run.states("N-130, M-93", r"f(cw)=f(w) \text{ for every } c>0")
    says.equal(
        torch.stack([scaled(net, c) for c in factors]),
        torch.stack([net(x).detach()] * len(factors)),
        1e-10,
        where="c = 0.01, 0.5, 3, 100; δ = 0",
    )
    says.fails(
        "without batch normalization",
        torch.stack([scaled(plain, c) for c in factors]),
        promised=torch.stack([plain(x).detach()] * len(factors)),
    )
    target = run.randn(len(x), units)
    gradients = []
    for model in (net, plain):
        first = linear_layer(model, 0).weight
        (gradient,) = torch.autograd.grad((model(x) - target).square().mean(), first)
        gradients.append((gradient * first.detach()).sum(1) / gradient.norm(dim=1))
    says = run.states("N-130", r"\langle\nabla_w\ell,w\rangle/\|\nabla_w\ell\|=0 \text{ for every unit}")
    says.equal(gradients[0], within=1e-10)
    says.fails("without batch normalization", gradients[1])


def folding(run: Run) -> None:
    """Batch normalization folds into the layer before it; the model given stays as it was."""
    generator = run.generator
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2, dtype=torch.float64),
        nn.BatchNorm2d(6, dtype=torch.float64),
        nn.ReLU(),
        nn.Flatten(),
        drawn_linear(6 * 16, 5, generator=generator),
        nn.BatchNorm1d(5, dtype=torch.float64),
        nn.Tanh(),
        drawn_linear(5, 3, generator=generator),
    )
    images = run.randn(32, 2, 6, 6)
    for _ in range(5):
        net(images + run.randn(*images.shape))
    with torch.no_grad():
        for module in net:
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.copy_(run.randn(module.num_features))
                module.bias.copy_(run.randn(module.num_features))
    training = net(images).detach()
    folded = fold_batch_norm(net).model
    truth = net.eval()(images).detach()
    says = run.states("N-130", r"\text{folded network}=\text{network in evaluation mode}")
    says.equal(
        folded(images).detach(),
        truth,
        EXACT,
        where="a grouped convolution and a dense layer, each with batch normalization; "
        f"{sum(isinstance(m, nn.Identity) for m in folded.modules())} layers folded away",
    )
    says.fails("the same network in training mode", training)


def layer_normalization(run: Run, x: Tensor) -> None:
    """Statistics over the features of one sample."""
    features, eps = x.shape[1], 1e-5
    layer = nn.LayerNorm(features, eps=eps, dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(run.randn(features))
    layer.bias.copy_(run.randn(features))
    says = run.states(
        "N-131, M-94", r"\texttt{nn.LayerNorm}=\mu+\gamma\odot\tilde x\text{, statistics over the features}"
    )
    says.equal(layer(x), layer.weight * standardize(x, 1, eps=eps) + layer.bias, EXACT)
    says.fails("statistics over the batch", layer(x), promised=layer.weight * standardize(x, 0, eps=eps) + layer.bias)
    out, over_batch = standardize(x, 1), standardize(x, 0)
    zeros = torch.zeros(len(x), dtype=torch.float64)
    says = run.states("N-131", r"\text{every sample has mean } 0 \text{ and variance } 1")
    says.equal(torch.stack([out.mean(1), out.var(1, correction=0)]), torch.stack([zeros, zeros + 1]), 1e-10)
    says.fails("statistics over the batch", torch.stack([over_batch.mean(1), over_batch.var(1, correction=0)]))
    alone = torch.cat([layer(row[None]) for row in x])
    pairs = torch.cat([standardize(x[i : i + 2], 0, eps=eps) for i in range(0, len(x) - 1, 2)])
    says = run.states("N-131, M-94", r"\text{a sample's output does not depend on the batch}")
    says.equal(layer(x), alone, EXACT)
    says.fails(
        "batch normalization in batches of 2 against one batch",
        pairs,
        promised=standardize(x, 0, eps=eps)[: len(pairs)],
    )
    factor, offset = run.rand(len(x), 1) + 0.1, run.randn(len(x), 1)
    by_feature = run.rand(features) + 0.1
    says = run.states("N-131", r"\mathrm{LN}(ax+c\mathbf 1)=\mathrm{LN}(x) \text{ for } a>0")
    says.equal(standardize(factor * x + offset, 1), out, 1e-10)
    says.fails("a factor for each feature", standardize(by_feature * x, 1))


def role_of_scale(run: Run) -> None:
    """Without γ a one-unit network has two shapes; with γ and the shift it has them all."""
    x = run.randn(64) * 2 + 1

    def network(w: Tensor | float, gamma: float = 1.0, shift: float = 0.0) -> Tensor:
        hidden: Tensor = gamma * standardize(w * x, 0, unbiased=True) + shift
        return torch.tanh(hidden)

    values = (0.1, 1.0, 10.0)
    says = run.states("M-118", r"\phi(\mathrm{BN}(w_1x)) \text{ without rescaling is the same for } w_1=0.1,\,1,\,10")
    says.equal(torch.stack([network(w) for w in values]), torch.stack([network(1.0)] * 3), EXACT)
    says.fails("without batch normalization", torch.stack([torch.tanh(w * x) for w in values]))
    says = run.states("M-118", r"=\phi(\operatorname{sign}(w_1)(x-\mu_x)/\sigma_x)")
    says.equal(
        torch.stack([network(s * 7.3) for s in (1, -1)]),
        torch.stack([torch.tanh(s * standardize(x, 0, unbiased=True)) for s in (1, -1)]),
        EXACT,
        where="two functions are left, one for each sign",
    )
    says.fails("γ = 2 gives a third", torch.stack([network(s * 7.3, gamma=2.0) for s in (1, -1)]))
    slopes = []
    for normalized in (True, False):
        w = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        output = network(w) if normalized else torch.tanh(w * x)
        (slope,) = torch.autograd.grad((output - 0.3).square().mean(), w)
        slopes.append(float(slope))
    says = run.states("M-118", r"\partial\ell/\partial|w_1|=0")
    says.equal(slopes[0], within=EXACT)
    says.fails("without batch normalization", slopes[1])
    pre = 1.7 * x
    restored = network(1.7, gamma=float(pre.std()), shift=float(pre.mean()))
    says = run.states("M-118", r"\gamma=\sigma,\ \theta=\mu \text{ restores the network without normalization}")
    says.equal(restored, torch.tanh(pre), EXACT)
    says.fails("γ = 1, θ = 0", network(1.7))

    def plot(axes: Any) -> None:
        order = x.argsort()
        left, middle, right = axes[0]
        for k, w in enumerate(values):
            left.plot(x[order], torch.tanh(w * x)[order], color=COLORS[k], label=f"w = {w:g}")
            middle.plot(x[order], network(w)[order], color=COLORS[k], lw=5 - 1.8 * k, label=f"w = {w:g}")
            right.plot(x[order], network(1.0, gamma=w)[order], color=COLORS[k], label=f"γ = {w:g}")
        middle.plot(x[order], network(-1.0)[order], ":", color=COLORS[6], label="w = -1")
        for panel, title in zip(
            axes[0],
            ("tanh(w x)", "tanh(BN(w x)), no γ", "tanh(γ BN(x))"),
            strict=True,
        ):
            panel.set_title(title)
            panel.set_xlabel("x")
            panel.legend(loc="center left" if panel is middle else "upper left")

    run.figure(
        "role-of-gamma",
        plot,
        caption="Left: the weight's size shapes the function. Middle: after batch normalization it "
        "does not, and only its sign is left. Right: γ gives the freedom back.",
        grid=(1, 3),
        size=(11.0, 3.2),
    )


def deep_network(run: Run, x: Tensor) -> None:
    """Every hidden unit of a deep network has the mean and deviation that γ and θ say."""
    widths = (x.shape[1], 7, 5, 4)
    weights = [run.randn(n, m) for m, n in itertools.pairwise(widths)]
    scales = [(run.randn(n).abs() + 0.5, run.randn(n)) for n in widths[1:]]  # γ and θ of every layer

    def normalized(weights: list[Tensor], batch: Tensor, scales: list[tuple[Tensor, Tensor]] = scales) -> list[Tensor]:
        """The values z of every layer, which φ = tanh is applied to."""
        found, h = [], batch
        for w, (gamma, shift) in zip(weights, scales, strict=True):
            found.append(gamma * standardize(h @ w.T, 0, unbiased=True) + shift)
            h = torch.tanh(found[-1])
        return found

    def plain(weights: list[Tensor], batch: Tensor) -> list[Tensor]:
        found, h = [], batch
        for w in weights:
            found.append(h @ w.T)
            h = torch.tanh(found[-1])
        return found

    def statistics(layers: list[Tensor]) -> Tensor:
        return torch.cat([torch.stack([z.mean(0), z.std(0)], 1) for z in layers])

    wanted = torch.cat([torch.stack([shift, gamma], 1) for gamma, shift in scales])
    others = [c * run.randn(*w.shape) for c, w in zip((100.0, 0.01, 3.0), weights, strict=True)]
    says = run.states(
        "M-118", r"\tfrac1B\textstyle\sum_iz_j(x_i)=\theta_j,\ \sqrt{\tfrac1{B-1}\sum_i(z_j(x_i)-\theta_j)^2}=\gamma_j"
    )
    both = torch.stack([statistics(normalized(w, x)) for w in (weights, others)])
    says.equal(both, wanted.expand_as(both), 1e-10, where="every unit of three layers, whatever the weights before it")
    says.fails("without batch normalization", statistics(plain(weights, x)), promised=wanted)
    layers = plain(weights, x)
    own = [(z.std(0), z.mean(0)) for z in layers]
    fresh = 2 * run.randn(*x.shape)
    says = run.states(
        "M-118",
        r"\gamma=\sigma(\mathcal B),\ \theta=\mu(\mathcal B)\text{ in all layers restore the network on }\mathcal B",
    )
    says.equal(normalized(weights, x, own)[-1], layers[-1], 1e-10)
    says.fails(
        "another batch, of other statistics",
        normalized(weights, fresh, own)[-1],
        promised=plain(weights, fresh)[-1],
    )


def central_differences(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient by differences over 2e-5, entry by entry."""
    result, step = torch.zeros_like(x), 1e-5
    for i in range(x.numel()):
        move = torch.zeros(x.numel(), dtype=x.dtype)
        move[i] = step
        move = move.view_as(x)
        result.view(-1)[i] = (function(x + move) - function(x - move)) / (2 * step)
    return result
