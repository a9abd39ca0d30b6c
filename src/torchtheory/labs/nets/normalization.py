"""Normalization of batches and layers: what changes and what cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLORS
from torchtheory.core.record import Control
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run
from torchtheory.labs.nets.comparing import linear_layer
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.nets.labeled import at_least
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
)
def normalization(run: Run, samples: int = 40, features: int = 6) -> None:
    """Torch's layers against the definitions, and what a network with them no longer depends on.

    Batch normalization after a linear layer forgets the length of every weight vector: outputs do
    not change under w → cw, and the gradient is orthogonal to w. It is the same affine map written
    as γ w/‖w‖_Σ, it folds away in evaluation mode, and without γ a one-unit network has only two
    shapes left. Layer normalization does the like sample by sample, whatever else is in the batch.
    Look at the three curves that coincide, and at what γ does to them.
    """
    at_least(samples, 4, "samples")
    at_least(features, 2, "features")
    x = 2 * run.randn(samples, features) + run.randn(features)
    golden(run)
    batch_statistics(run, x)
    inference(run, x)
    reparametrization(run, x)
    folding(run)
    layer_normalization(run, x)
    role_of_scale(run)


def golden(run: Run) -> None:
    """Four numbers by hand, in either convention for the variance."""
    batch = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    hand = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    biased, unbiased = standardize(batch, 0), standardize(batch, 0, unbiased=True)
    run.claim(
        "M-93, N-129",
        r"(1,2,3,4)\mapsto(-3,-1,1,3)/\sqrt5=(-1.3416,-0.4472,0.4472,1.3416) \text{ with } 1/n",
        promised=hand / math.sqrt(5),
        relation="==",
        measured=biased,
        tolerance=EXACT,
        control=Control("1/(n-1) instead", unbiased),
    )
    run.claim(
        "M-118",
        r"(1,2,3,4)\mapsto(-3,-1,1,3)/\sqrt{20/3}=(-1.1619,-0.3873,0.3873,1.1619)"
        r" \text{ with } 1/(n-1)",
        promised=hand / math.sqrt(20 / 3),
        relation="==",
        measured=unbiased,
        tolerance=EXACT,
        control=Control("1/n instead", biased),
    )


def batch_statistics(run: Run, x: Tensor) -> None:
    """Mean and variance of what comes out, torch's layer, gradients, affine changes of input."""
    features, eps = x.shape[1], 1e-3
    gamma, shift = run.randn(features).abs() + 0.5, run.randn(features)
    layer = nn.BatchNorm1d(features, eps=eps, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(gamma)
        layer.bias.copy_(shift)
    with_eps = standardize(x, 0, eps=eps)
    run.claim(
        "N-129, M-93",
        r"\texttt{nn.BatchNorm1d} \text{ in training}=\gamma\tilde z+\mu"
        r"\text{, variance } 1/|\mathcal B|",
        promised=(gamma * with_eps + shift).detach(),
        relation="==",
        measured=layer(x).detach(),
        tolerance=EXACT,
        control=Control(
            "variance 1/(|B|-1)", (gamma * standardize(x, 0, eps=eps, unbiased=True) + shift)
        ),
    )
    out = gamma * standardize(x, 0) + shift
    flat = gamma * with_eps + shift
    run.claim(
        "N-129",
        r"\text{mean } \mu \text{ and variance } \gamma^2 \text{ over the batch } (\delta=0)",
        promised=torch.stack([shift, gamma.square()]),
        relation="==",
        measured=torch.stack([out.mean(0), out.var(0, correction=0)]),
        tolerance=EXACT,
        control=Control("δ = 0.001", torch.stack([flat.mean(0), flat.var(0, correction=0)])),
    )
    spread = torch.logspace(-3, 1, 9, dtype=torch.float64)
    data = standardize(run.randn(50, 9), 0) * spread
    normalized = standardize(data, 0, eps=eps).var(0, correction=0)
    run.claim(
        "M-93",
        r"\operatorname{Var}\tilde z=s^2/(s^2+\delta)",
        promised=spread**2 / (spread**2 + eps),
        relation="==",
        measured=normalized,
        tolerance=EXACT,
        reason="features of deviation 0.001 to 10, δ = 0.001",
        control=Control("δ = 0", standardize(data, 0).var(0, correction=0)),
    )
    run.erratum(
        "batch-norm-unit-variance",
        r"\operatorname{Var}\tilde z=1 \text{ with } \delta>0",
        promised=1.0,
        relation="==",
        measured=normalized,
        tolerance=1e-6,
        reason="a feature of deviation 0.001 with δ = 0.001 has variance 0.001 afterwards",
    )
    scale, offset = run.rand(features) + 0.1, run.randn(features)
    run.claim(
        "N-129",
        r"\mathrm{BN}(cz+d)=\mathrm{BN}(z) \text{ for } c>0 \text{ (feature by feature)}",
        promised=standardize(x, 0),
        relation="==",
        measured=standardize(scale * x + offset, 0),
        tolerance=EXACT,
        control=Control("c < 0", standardize(-scale * x + offset, 0)),
    )
    direction = run.randn(*x.shape)

    def objective(z: Tensor) -> Tensor:
        total: Tensor = (layer(z) * direction).sum()
        return total

    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(point), point)
    with torch.no_grad():
        differences = central_differences(objective, x)
        frozen = gamma * direction / (x.var(0, correction=0) + eps).sqrt()
    run.claim(
        "M-93",
        r"\text{back-propagation through batch normalization equals central differences}",
        promised=differences,
        relation="==",
        measured=gradient,
        tolerance=1e-7,
        control=Control("mean and variance taken for constants", frozen),
    )


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
    run.claim(
        "N-129, M-93",
        r"\text{evaluation: } (z-\hat\mu)/\sqrt{\hat\sigma^2+\delta}"
        r" \text{ with running averages of mean and of the } 1/(n-1) \text{ variance}",
        promised=(x - mean) / (variance + eps).sqrt(),
        relation="==",
        measured=layer(x).detach(),
        tolerance=EXACT,
        reason="20 batches, momentum 0.1",
        control=Control(
            "averages of the 1/n variance, which training uses",
            layer(x).detach(),
            promised=(x - mean) / (biased + eps).sqrt(),
        ),
    )
    alone = torch.cat([layer(row[None]) for row in x])
    run.claim(
        "N-129",
        r"\text{evaluation: a sample's output does not depend on its batch}",
        promised=alone.detach(),
        relation="==",
        measured=layer(x).detach(),
        tolerance=EXACT,
        control=Control("training mode", standardize(x, 0, eps=eps)),
    )


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
    run.claim(
        "N-130",
        r"\mu+\gamma\tfrac{w^\top x-\mathbb E[w^\top x]}{\sqrt{\operatorname{Var}[w^\top x]}}"
        r"=\mu+\gamma\tfrac{w^\top(x-\mathbb Ex)}{\|w\|_\Sigma},\ \Sigma=\operatorname{Cov}(x)",
        promised=x @ unit.weight.T + unit.bias,
        relation="==",
        measured=normalized,
        tolerance=EXACT,
        control=Control("Σ = E[xxᵀ], inputs not centered", normalized, promised=printed),
    )
    run.erratum(
        "covariance-not-centered",
        r"\mu+\gamma\tfrac{w^\top(x-\mathbb Ex)}{\|w\|_\Sigma}"
        r" \text{ with } \Sigma=\mathbb E[xx^\top]",
        promised=printed,
        relation="==",
        measured=normalized,
        tolerance=1e-6,
        reason="inputs whose mean is not 0",
    )
    centered = x - x.mean(0)
    parts = reparametrize(weight, centered, gamma, shift)
    directions = weight / weight.norm(dim=1, keepdim=True)
    expected = shift + gamma * (centered @ directions.T) * parts.norm_ratio
    run.claim(
        "N-130",
        r"\mathbb Ex=0:\ =\mu+\gamma\bigl(\tfrac w{\|w\|_2}\bigr)^\top x\,"
        r"\tfrac{\|w\|_I}{\|w\|_\Sigma}",
        promised=expected,
        relation="==",
        measured=gamma * standardize(centered @ weight.T, 0) + shift,
        tolerance=EXACT,
        control=Control("the ratio of norms left out", shift + gamma * (centered @ directions.T)),
    )

    net = nn.Sequential(
        dense(weight), nn.BatchNorm1d(units, eps=TINY, dtype=torch.float64), nn.Tanh()
    )
    plain = nn.Sequential(dense(weight), nn.Tanh())
    factors = (0.01, 0.5, 3.0, 100.0)

    def scaled(model: nn.Sequential, factor: float) -> Tensor:
        outputs: Tensor = model[1:](x @ (factor * weight).T)
        return outputs.detach()

    run.claim(
        "N-130, M-93",
        r"f(cw)=f(w) \text{ for every } c>0",
        promised=torch.stack([net(x).detach()] * len(factors)),
        relation="==",
        measured=torch.stack([scaled(net, c) for c in factors]),
        tolerance=1e-10,
        reason="c = 0.01, 0.5, 3, 100; δ = 0",
        control=Control(
            "without batch normalization",
            torch.stack([scaled(plain, c) for c in factors]),
            promised=torch.stack([plain(x).detach()] * len(factors)),
        ),
    )
    target = run.randn(len(x), units)
    gradients = []
    for model in (net, plain):
        first = linear_layer(model, 0).weight
        (gradient,) = torch.autograd.grad((model(x) - target).square().mean(), first)
        gradients.append((gradient * first.detach()).sum(1) / gradient.norm(dim=1))
    run.claim(
        "N-130",
        r"\langle\nabla_w\ell,w\rangle/\|\nabla_w\ell\|=0 \text{ for every unit}",
        promised=0.0,
        relation="==",
        measured=gradients[0],
        tolerance=1e-10,
        control=Control("without batch normalization", gradients[1]),
    )


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
    folded = fold_batch_norm(net)
    truth = net.eval()(images).detach()
    run.claim(
        "N-130",
        r"\text{folded network}=\text{network in evaluation mode}",
        promised=truth,
        relation="==",
        measured=folded(images).detach(),
        tolerance=EXACT,
        reason="a grouped convolution and a dense layer, each with batch normalization; "
        f"{sum(isinstance(m, nn.Identity) for m in folded.modules())} layers folded away",
        control=Control("the same network in training mode", training),
    )


def layer_normalization(run: Run, x: Tensor) -> None:
    """Statistics over the features of one sample."""
    features, eps = x.shape[1], 1e-5
    layer = nn.LayerNorm(features, eps=eps, dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(run.randn(features))
    layer.bias.copy_(run.randn(features))
    run.claim(
        "N-131, M-94",
        r"\texttt{nn.LayerNorm}=\mu+\gamma\odot\tilde x\text{, statistics over the features}",
        promised=layer.weight * standardize(x, 1, eps=eps) + layer.bias,
        relation="==",
        measured=layer(x),
        tolerance=EXACT,
        control=Control(
            "statistics over the batch",
            layer(x),
            promised=layer.weight * standardize(x, 0, eps=eps) + layer.bias,
        ),
    )
    out, over_batch = standardize(x, 1), standardize(x, 0)
    zeros = torch.zeros(len(x), dtype=torch.float64)
    run.claim(
        "N-131",
        r"\text{every sample has mean } 0 \text{ and variance } 1",
        promised=torch.stack([zeros, zeros + 1]),
        relation="==",
        measured=torch.stack([out.mean(1), out.var(1, correction=0)]),
        tolerance=1e-10,
        control=Control(
            "statistics over the batch",
            torch.stack([over_batch.mean(1), over_batch.var(1, correction=0)]),
        ),
    )
    alone = torch.cat([layer(row[None]) for row in x])
    pairs = torch.cat([standardize(x[i : i + 2], 0, eps=eps) for i in range(0, len(x) - 1, 2)])
    run.claim(
        "N-131, M-94",
        r"\text{a sample's output does not depend on the batch}",
        promised=alone,
        relation="==",
        measured=layer(x),
        tolerance=EXACT,
        control=Control(
            "batch normalization in batches of 2 against one batch",
            pairs,
            promised=standardize(x, 0, eps=eps)[: len(pairs)],
        ),
    )
    factor, offset = run.rand(len(x), 1) + 0.1, run.randn(len(x), 1)
    by_feature = run.rand(features) + 0.1
    run.claim(
        "N-131",
        r"\mathrm{LN}(ax+c\mathbf 1)=\mathrm{LN}(x) \text{ for } a>0",
        promised=out,
        relation="==",
        measured=standardize(factor * x + offset, 1),
        tolerance=1e-10,
        control=Control("a factor for each feature", standardize(by_feature * x, 1)),
    )


def role_of_scale(run: Run) -> None:
    """Without γ a one-unit network has two shapes; with γ and the shift it has them all."""
    x = run.randn(64) * 2 + 1

    def network(w: Tensor | float, gamma: float = 1.0, shift: float = 0.0) -> Tensor:
        hidden: Tensor = gamma * standardize(w * x, 0, unbiased=True) + shift
        return torch.tanh(hidden)

    values = (0.1, 1.0, 10.0)
    run.claim(
        "M-118",
        r"\phi(\mathrm{BN}(w_1x)) \text{ without rescaling is the same for } w_1=0.1,\,1,\,10",
        promised=torch.stack([network(1.0)] * 3),
        relation="==",
        measured=torch.stack([network(w) for w in values]),
        tolerance=EXACT,
        control=Control(
            "without batch normalization", torch.stack([torch.tanh(w * x) for w in values])
        ),
    )
    run.claim(
        "M-118",
        r"=\phi(\operatorname{sign}(w_1)(x-\mu_x)/\sigma_x)",
        promised=torch.stack([torch.tanh(s * standardize(x, 0, unbiased=True)) for s in (1, -1)]),
        relation="==",
        measured=torch.stack([network(s * 7.3) for s in (1, -1)]),
        tolerance=EXACT,
        reason="two functions are left, one for each sign",
        control=Control(
            "γ = 2 gives a third", torch.stack([network(s * 7.3, gamma=2.0) for s in (1, -1)])
        ),
    )
    slopes = []
    for normalized in (True, False):
        w = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        output = network(w) if normalized else torch.tanh(w * x)
        (slope,) = torch.autograd.grad((output - 0.3).square().mean(), w)
        slopes.append(float(slope))
    run.claim(
        "M-118",
        r"\partial\ell/\partial|w_1|=0",
        promised=0.0,
        relation="==",
        measured=slopes[0],
        tolerance=EXACT,
        control=Control("without batch normalization", slopes[1]),
    )
    pre = 1.7 * x
    restored = network(1.7, gamma=float(pre.std()), shift=float(pre.mean()))
    run.claim(
        "M-118",
        r"\gamma=\sigma,\ \theta=\mu \text{ restores the network without normalization}",
        promised=torch.tanh(pre),
        relation="==",
        measured=restored,
        tolerance=EXACT,
        control=Control("γ = 1, θ = 0", network(1.7)),
    )

    def plot(axes: Any) -> None:
        order = x.argsort()
        left, middle, right = axes[0]
        for k, w in enumerate(values):
            left.plot(x[order], torch.tanh(w * x)[order], color=COLORS[k], label=f"w = {w:g}")
            middle.plot(
                x[order], network(w)[order], color=COLORS[k], lw=5 - 1.8 * k, label=f"w = {w:g}"
            )
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


def central_differences(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient by differences over 2e-5, entry by entry."""
    result, step = torch.zeros_like(x), 1e-5
    for i in range(x.numel()):
        move = torch.zeros(x.numel(), dtype=x.dtype)
        move[i] = step
        move = move.view_as(x)
        result.view(-1)[i] = (function(x + move) - function(x - move)) / (2 * step)
    return result
