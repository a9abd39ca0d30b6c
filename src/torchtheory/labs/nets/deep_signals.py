"""Vanishing and exploding gradients, and training with depth: plain networks and shortcuts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.universality.identity_layers import deepen_on_box
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.data.real import digits
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.residual.jacobians import GradientProfile, gradient_profile
from torchtheory.nets.residual.layers import Residual, residual_network
from torchtheory.training import fit_many

#: Samples of a step in the part on shortcuts.
BATCH = 64


@lab(
    "gradients-with-depth",
    room="nets",
    covers=["A-130"],
    title="Gradients through L layers are products of L factors: they vanish, explode, or the shortcut holds them",
    full={"depth": 40, "width": 256, "networks": 12},
    least={"depth": 2, "width": 25, "networks": 5},
)
def gradients_with_depth(run: Run, depth: int = 20, width: int = 128, networks: int = 8) -> None:
    """A chain of scalar weights first, where the gradient in each is the product of the others.

    Then ReLU networks: with weights of variance 1/n the gradient loses √2 in every layer, with 4/n
    it gains √2, and only 2/n keeps it. With a shortcut the factor is $(1 + nσ²/2)^{1/2}$ instead:
    nothing vanishes, and the gradient explodes unless the weights shrink with the depth. Look at
    how flat the last one is.

    Args:
        depth: layers.
        width: of each.
        networks: random networks of each kind.
    """
    products(run)
    x = run.randn(4, width)
    rates: dict[str, list[float]] = {}
    shown: dict[str, GradientProfile] = {}
    cases = {
        "plain, σ² = 1/n": (1.0, False, -0.5 * math.log(2)),
        "plain, σ² = 2/n": (2.0, False, 0.0),
        "plain, σ² = 4/n": (4.0, False, 0.5 * math.log(2)),
        "shortcuts, σ² = 1/n": (1.0, True, 0.5 * math.log(1.5)),
        "shortcuts, σ² = 1/(nL)": (1 / depth, True, 0.5 * math.log(1 + 0.5 / depth)),
    }
    for name, (gain, skips, _) in cases.items():
        found = [
            gradient_profile(
                drawn(run, depth, width, gain, skips=skips),
                x,
                blocks=[str(i) for i in range(depth)],
                generator=run.generator,
            )
            for _ in range(networks)
        ]
        rates[name], shown[name] = [f.rate for f in found], found[0]
    for name, (gain, skips, rate) in cases.items():
        law = r"\frac12\ln(1+\frac12n\sigma^2)" if skips else r"\frac12\ln(\frac12n\sigma^2)"
        says = run.states("A-130", rf"\text{{growth of }}\ln\|\nabla_\ell\|\text{{ per layer}}={law}")
        # what the same weights would do in a chain of the other kind, and no growth at all
        other = 0.5 * math.log(gain / 2) if skips else 0.5 * math.log(1 + gain / 2)
        says.mean(
            rates[name],
            rate,
            logarithm_bias(gain, width, skips=skips),
            against=(other, 0.0) if rate else (other,),
            where=f"ReLU, {name}; L = {depth}, n = {width}",
        )
        if name == "plain, σ² = 1/n":
            says.fails("with shortcuts", rates["shortcuts, σ² = 1/n"])
        if name == "shortcuts, σ² = 1/n":
            says.fails("without shortcuts", rates["plain, σ² = 1/n"])
    run.curves(
        "gradients",
        range(1, depth + 1),
        {name: profile.gradients / profile.gradients[-1] for name, profile in shown.items()},
        axes=("layer ℓ", "gradient, over that at the end"),
        log="y",
        beside=True,
        caption=f"Length of the gradient at every layer of one network each: ReLU, {depth} layers of {width} units.",
    )


def logarithm_bias(gain: float, width: int, *, skips: bool) -> float:
    r"""Twice how far the mean of the logarithm of a layer's factor is below that of its mean.

    The squared length of a gradient is multiplied by a random factor whose variance, relative to
    its squared mean, is v: then E ln √factor is smaller by v/4. For a ReLU layer v = 5/n. A block
    with a shortcut adds to 1 a term of mean g/2 and relative variance 7/n (one more layer), and
    twice an inner product of variance g/(2n). Once more as much is left for the next order.
    """
    share = gain / 2
    variance = (4 * share + 7 * share**2) / (1 + share) ** 2 if skips else 5.0
    return variance / (2 * width)


def products(run: Run) -> None:
    """∂π/∂x_k is the product of the others, so at most λ^(L-1)."""
    lengths = (5, 20, 60)
    small = [0.9 * (1 - 0.01 * run.rand(n)) * run.signs(n) for n in lengths]
    large = [1.1 * (1 + 0.01 * run.rand(n)) * run.signs(n) for n in lengths]
    measured = [weight_gradients(values) for values in [*small, *large]]
    wanted = [values.prod().abs() / values.abs() for values in [*small, *large]]
    says = run.states("A-130", r"\pi(x)=\prod_\ell x_\ell:\ |\partial\pi/\partial x_k|=\prod_{\ell\ne k}|x_\ell|")
    says.equal(torch.cat([m / w for m, w in zip(measured, wanted, strict=True)]), 1.0, 1e-10)
    sums = [torch.ones_like(values) for values in [*small, *large]]
    says.fails("a sum in place of the product", torch.cat([s / w for s, w in zip(sums, wanted, strict=True)]))
    says = run.states("A-130", r"|x_\ell|\le\lambda<1:\ |\partial\pi/\partial x_k|\le\lambda^{L-1}")
    bounds = torch.cat([torch.full_like(v, 0.9 ** (len(v) - 1)) for v in small])
    says.at_most(torch.cat(measured[:3]), bounds, where="λ = 0.9; L = 5, 20, 60")
    escaped = [v.clone() for v in small]
    for values in escaped:
        values[::2] = 1.2 * values[::2].sign()
    says.fails("every other factor is 1.2", torch.cat([weight_gradients(v) for v in escaped]), promised=bounds)
    says = run.states("A-130", r"|x_\ell|\ge\lambda>1:\ |\partial\pi/\partial x_k|\ge\lambda^{L-1}")
    bounds = torch.cat([torch.full_like(v, 1.1 ** (len(v) - 1)) for v in large])
    says.at_least(torch.cat(measured[3:]), bounds, where="λ = 1.1; L = 5, 20, 60")
    fallen = [v.clone() for v in large]
    for values in fallen:
        values[::2] = 0.7 * values[::2].sign()
    says.fails("every other factor is 0.7", torch.cat([weight_gradients(v) for v in fallen]), promised=bounds)


@lab(
    "depth-and-shortcuts",
    room="nets",
    covers=["M-88"],
    title="Deeper plain networks train worse; with shortcuts deeper ones train better",
    full={"depths": [1, 2, 4, 8, 16, 32], "seeds": 20},
    least={"seeds": 8, "epochs": 10, "samples": 150, "depths": 1},
    items={"depths": 2},
)
def depth_and_shortcuts(
    run: Run,
    depths: list[int] = [1, 32],  # noqa: B006
    seeds: int = 8,
    epochs: int = 16,
    samples: int = 256,
) -> None:
    """Dense tanh networks on the 8 × 8 digits, in place of convolutions on ImageNet.

    The same weights, once with a shortcut around every hidden layer and once without, trained by
    the same steps from several seeds. The plain network gets worse with depth although its
    architecture contains the shallow one: a shallow network made deeper by identity layers, which
    no training found, does better than the deep one that was trained. So it is the optimization
    that fails, and it is the optimization that the shortcut repairs.

    Args:
        depths: numbers of hidden layers.
        seeds: trainings of each kind.
        epochs: of a training.
        samples: digits that are trained on.
    """
    steps = epochs * math.ceil(samples / BATCH)
    run.assumes(steps >= 40, f"in {steps} steps no network has learned enough for depth to matter; 40 are needed")
    x, y = digits()
    chosen = torch.randperm(len(x), generator=run.generator)[:samples]
    x, y = x[chosen], y[chosen]
    starts = torch.randint(0, 2**31, (seeds,), generator=run.generator).tolist()
    losses: dict[bool, list[Tensor]] = {False: [], True: []}
    shallow: list[nn.Module] = []
    for skips in (False, True):
        for depth in depths:
            result = fit_many(
                [tanh_network(depth, seed, skips=skips) for seed in starts],
                (x, y),
                epochs=epochs,
                batch_size=BATCH,
                optimizer="adam",
                learning_rate=0.003,
                seed=starts,
            )
            losses[skips].append(result.train_loss[:, -1].double())
            if not skips and depth == depths[0]:
                shallow = list(result.networks())
    change = {skips: mean_interval(found[-1] - found[0]) for skips, found in losses.items()}
    text = rf"\text{{training loss with {depths[-1]} hidden layers minus that with {depths[0]}}}"
    says = run.states("M-88, A-130", rf"{text},\text{{ no shortcuts: lower end at 99 %}}>0")
    says.above(change[False].low, 0.0, where=f"8 × 8 digits, {seeds} seeds, {epochs} epochs; {spoken(change[False])}")
    says.fails("shortcuts", change[True].low)
    says = run.states("M-88", rf"{text},\text{{ with shortcuts: upper end at 99 %}}<0")
    says.below(change[True].high, 0.0, where=f"the same weights and steps; {spoken(change[True])}")
    says.fails("no shortcuts", change[False].high)
    deepened = []
    for net in shallow:
        assert isinstance(net, nn.Sequential)
        plain = nn.Sequential(*(m.double() if isinstance(m, nn.Linear) else m for m in net))
        deep = deepen_on_box(
            plain, depths[-1] - depths[0], [(0.0, 1.0)] * 64, activation="tanh", step=1e-4, central=False
        ).network
        deepened.append(float(nn.functional.cross_entropy(deep(x.double()), y)))
    better = mean_interval(torch.tensor(deepened) - losses[False][-1])
    says = run.states(
        "M-88, A-131", r"\text{loss of a shallow network made as deep minus that of the deep one trained: upper end}<0"
    )
    says.below(better.high, 0.0, where=f"identity layers of 10 tanh units fit into 16; {spoken(better)}")
    # a network that is not trained, made deeper in the same way
    idle = []
    for seed in starts:
        fresh = tanh_network(depths[0], seed, skips=False).double()
        assert isinstance(fresh, nn.Sequential)
        deep = deepen_on_box(
            fresh, depths[-1] - depths[0], [(0.0, 1.0)] * 64, activation="tanh", step=1e-4, central=False
        ).network
        idle.append(float(nn.functional.cross_entropy(deep(x.double()), y)))
    says.fails("the shallow network is not trained", mean_interval(torch.tensor(idle) - losses[False][-1]).high)
    run.curves(
        "depth",
        depths,
        {
            "plain": [mean_interval(v, 0.95) for v in losses[False]],
            "with shortcuts": [mean_interval(v, 0.95) for v in losses[True]],
        },
        axes=("hidden layers", "training loss"),
        log="xy",
        caption=f"8 × 8 digits of scikit-learn (not ImageNet), {samples} of them; tanh, width 16, Adam, {epochs} "
        f"epochs; means and 95 % intervals over {seeds} seeds.",
    )


# ------------------------------------------------------------------------------------- pieces


def drawn(run: Run, depth: int, width: int, gain: float, *, skips: bool) -> nn.Sequential:
    """ReLU blocks with normal weights of variance gain/n and without biases.

    With `skips` a block is x + V relu(Wx), V of variance 1/n: a ReLU alone would add positive
    numbers only, and gradients along (1, ..., 1) would grow faster than the rest.
    """
    blocks: list[nn.Module] = []
    for _ in range(depth):
        layer = dense(run.randn(width, width) * math.sqrt(gain / width))
        if skips:
            leave = dense(run.randn(width, width) / math.sqrt(width))
            blocks.append(Residual(nn.Sequential(layer, nn.ReLU(), leave)))
        else:
            blocks.append(nn.Sequential(layer, nn.ReLU()))
    return nn.Sequential(*blocks)


def weight_gradients(values: Tensor) -> Tensor:
    """|∂π/∂x_k| of the product of these numbers, as the gradients of a chain of scalar layers."""
    net = nn.Sequential(*(dense(v.reshape(1, 1)) for v in values))
    return gradient_profile(net, torch.ones(1, 1).double(), loss=torch.sum).parameter_gradients


def tanh_network(depth: int, seed: int, *, skips: bool) -> nn.Module:
    """64 inputs, `depth` + 1 layers of 16 tanh units, 10 outputs; weights of variance 1/n, no bias at first.

    With `skips` a shortcut goes around every hidden layer but the first; the weights are the same.
    """
    source = torch.Generator().manual_seed(seed)
    net = mlp([64, *[16] * (depth + 1), 10], "tanh", generator=source, dtype=torch.float32)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=source) / layer.in_features**0.5)
                layer.bias.zero_()
    if not skips:
        return net
    middle = residual_network(16, depth, "tanh", dtype=torch.float32)
    for i, block in enumerate(middle):
        block.get_submodule("inner").load_state_dict(net[2 + 2 * i].state_dict())
    return nn.Sequential(net[0], net[1], *middle, net[-1])


def spoken(interval: Interval) -> str:
    return f"{interval.estimate:.3g} in [{interval.low:.3g}, {interval.high:.3g}]"
