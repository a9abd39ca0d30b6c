"""Dropout: the layer, the ensemble and the penalty, by enumeration of all masks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.labs.nets.comparing import linear_layer
from torchtheory.nets.feedforward import mlp
from torchtheory.training.regularizers.dropout import (
    UnitDropout,
    WeightDropout,
    all_masks,
    dropout_penalty,
    dropout_regression,
    ensemble_mean,
    geometric_mean,
    mask_probabilities,
    sampled_mean,
)

EXACT = 1e-12

#: Confidence of each statistical comparison.
SURE = 0.9999


@lab(
    "dropout",
    room="training",
    covers=["N-127", "N-128", "M-135", "M-136", "M-137"],
    title="Dropout as an ensemble, and as a penalty in closed form",
    errata=[
        "dropout-of-weights",
        "mask-probability-without-index",
        "scaling-by-drop-probability",
        "dropout-mask-mean",
    ],
    full={"units": 14, "draws": 20_000, "samples": 50},
    least={"units": 3, "draws": 100},
)
def dropout(run: Run, units: int = 9, draws: int = 4000, samples: int = 12) -> None:
    """Every mask is enumerated, so that what dropout averages is known exactly.

    Both conventions of the layer give the same mean and the same network at test time, and
    torch's is one of them. The weight-scaling rule is the exact mean of the ensemble for linear
    outputs and its exact normalized geometric mean for a softmax of linear outputs; it is neither
    as soon as a nonlinearity follows the mask. Before the last layer, with the squared loss,
    dropout adds p/(1-p) Σ‖$W_j$‖² â_j², to the last digit. Look at the penalty by unit, and at the
    Monte-Carlo mean approaching the exact one.

    Args:
        units: of a layer, few enough to list all masks.
        draws: of masks.
        samples: of the regression.
    """
    layers(run, draws)
    masks(run, units)
    scaling(run, units)
    monte_carlo(run, units)
    penalty(run, units, samples)
    regression(run, units, samples)


def layers(run: Run, draws: int) -> None:
    """The layer in both conventions, torch's, and the one that drops weights."""
    keep = torch.tensor([0.8, 0.5, 0.5, 1.0], dtype=torch.float64)
    x = torch.tensor([[1.0, -2.0, 3.0, 0.5]], dtype=torch.float64)
    many = x.expand(draws, -1)
    plain = UnitDropout(keep, inverted=False, generator=run.generator)
    inverted = UnitDropout(keep, generator=run.generator)
    for name, layer, promised in (("plain", plain, keep * x[0]), ("inverted", inverted, x[0])):
        outputs = layer.train()(many)
        says = run.states("N-127, M-135", rf"\text{{{name} dropout: the mean in training is the output in evaluation}}")
        says.mean(
            outputs[:, 2],
            float(promised[2]),
            against=(float(promised[2]) / 2, 2 * float(promised[2])),  # scaled once too often, or not at all
            confidence=SURE,
            where=f"unit 3 of 4, keep probability 0.5, {draws} masks",
        )
        says.fails("the other convention's training", (inverted if layer is plain else plain).train()(many)[:, 2])
    weight = run.randn(3, 4)
    test_plain = plain.eval()(x) @ weight.T
    test_inverted = inverted.eval()(x) @ (weight * keep).T
    says = run.states(
        "N-127",
        r"\text{both conventions are one network: } W_{\rm plain}(\pi\odot a)=(W_{\rm plain}\operatorname{diag}\pi)a",
    )
    says.equal(test_plain, test_inverted, EXACT)
    says.fails("without scaling in evaluation", x @ weight.T)
    again = inverted.eval()
    says = run.states("N-127, M-135", r"\text{evaluation is deterministic: difference of two calls}")
    says.equal((again(many) - again(many)).abs().amax(1), where=f"largest over the units, {draws} pairs of calls")
    says.fails("training mode", (inverted.train()(many) - inverted(many)).abs().amax(1))
    p = 0.3
    torch_layer, ours = nn.Dropout(p), UnitDropout(1 - p, generator=run.generator)
    ones = torch.ones(draws, dtype=torch.float64)
    says = run.states(
        "N-127, M-135", r"\texttt{nn.Dropout(p)}\text{: inverted, with } \pi=1-p\text{; its non-zero values}"
    )
    says.equal(torch.cat([v[v != 0] for v in (torch_layer(ones), ours(ones))]), 1 / (1 - p), EXACT)
    says.fails("p taken for the keep probability", _nonzero(UnitDropout(p)(ones)))
    says = run.states("N-127, M-135", r"\texttt{nn.Dropout(p)} \text{ keeps a unit with probability } 1-p")
    says.mean((torch_layer(ones) != 0).double(), 1 - p, against=(p, 0.5), confidence=SURE)
    says.fails("p taken for the keep probability", (UnitDropout(p)(ones) != 0).double())
    gradient_through_mask(run)

    twin = nn.Linear(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        twin.weight.copy_(weight[:1].expand(2, -1))
    by_unit = twin(UnitDropout(0.5, generator=run.generator)(many)).detach()
    by_weight = WeightDropout(twin, 0.5, generator=run.generator)(many).detach()
    says = run.states("N-127", r"\text{two outputs with the same weights stay equal when units are dropped}")
    says.equal(by_unit[:, 1], by_unit[:, 0], EXACT)
    says.fails("single weights dropped", by_weight[:, 1], promised=by_weight[:, 0])
    mean = float(weight[0] @ x[0])
    of_units = mean_interval((by_unit[:, 0] - mean) * (by_unit[:, 1] - mean), SURE)
    variance = float((weight[0] * x[0]).square().sum())
    says = run.states("N-127", r"\text{and are uncorrelated when single weights are}")
    says.mean((by_weight[:, 0] - mean) * (by_weight[:, 1] - mean), 0.0, against=variance, confidence=SURE)
    says.fails("units dropped", of_units)
    run.refutes(
        "dropout-of-weights", r"\operatorname{cov}(z_1,z_2)=0 \text{ under dropout, as if of single weights}"
    ).mean(of_units, 0.0, where=f"outputs with the same weights: the covariance is their variance {variance:.3f}")


def gradient_through_mask(run: Run) -> None:
    """Back-propagation through a fixed mask against central differences."""
    net = mlp([4, 6, 1], "tanh", generator=run.generator)
    x = run.randn(5, 4)

    def loss(seed: int, inputs: Tensor) -> Tensor:
        layer = UnitDropout(0.5, generator=seed)
        hidden = net[1](net[0](inputs))
        output: Tensor = net[2](layer(hidden))
        return output.square().sum()

    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(3, point), point)
    (another,) = torch.autograd.grad(loss(4, point), point)
    differences = torch.zeros_like(x)
    h = 1e-5
    with torch.no_grad():
        for i in range(x.numel()):
            e = torch.zeros(x.numel(), dtype=torch.float64)
            e[i] = h
            e = e.view_as(x)
            differences.view(-1)[i] = (loss(3, x + e) - loss(3, x - e)) / (2 * h)
    says = run.states("M-135", r"\text{back-propagation through the mask equals central differences}")
    says.equal(gradient, differences, 1e-7)
    says.fails("the gradient under another mask", another)


def masks(run: Run, units: int) -> None:
    """Probabilities of masks, and moments of the random diagonal matrix."""
    every = all_masks(units)
    keep = 0.1 + 0.8 * run.rand(units)
    says = run.states("N-128", r"\sum_bp(b)=1")
    says.equal(
        mask_probabilities(every, keep).sum(), 1.0, EXACT, where=f"all {len(every)} masks, unequal keep probabilities"
    )
    says.fails("one mask missing", mask_probabilities(every[1:], keep).sum())
    common = torch.where(every > 0, keep, 1 - keep[0]).prod(1).sum()
    run.refutes("mask-probability-without-index", r"\sum_b\prod_i\pi_i^{b_i}(1-\pi)^{1-b_i}=1").equal(
        common, 1.0, 1e-9, where="π read as the first unit's; the sum is the product of 1 + π_i - π"
    )
    drop = torch.tensor([0.1, 0.3, 0.5, 0.9], dtype=torch.float64)
    first, second, unscaled, unscaled_second = [], [], [], []
    for p in drop.tolist():
        probability = mask_probabilities(every, 1 - p)
        values = every[:, 0] / (1 - p)
        first.append(float(probability @ values))
        second.append(float(probability @ values.square()) - first[-1] ** 2)
        unscaled.append(float(probability @ every[:, 0]))
        unscaled_second.append(float(probability @ every[:, 0]) - unscaled[-1] ** 2)
    says = run.states("M-136", r"B_{ii}\sim\tfrac1{1-p}\mathrm{Ber}(1-p):\ \mathbb EB=I")
    says.equal(first, 1.0, EXACT)
    says.fails("Ber(1-p) without the factor", unscaled)
    says = run.states("M-136", r"\operatorname{var}B_{ii}=\tfrac p{1-p}")
    says.equal(second, drop / (1 - drop), EXACT)
    says.fails("Ber(1-p) without the factor", unscaled_second)
    run.refutes("dropout-mask-mean", r"B_{ii}\sim\mathrm{Ber}(1-p)\implies\mathbb E[B_{ii}]=1").equal(
        unscaled, 1.0, 1e-9, where="p = 0.1, 0.3, 0.5, 0.9"
    )


def scaling(run: Run, units: int) -> None:
    """The weight-scaling rule: exact twice, and then no longer."""
    x, keep = run.randn(6, units), 0.2 + 0.7 * run.rand(units)
    head = nn.Linear(units, 4, dtype=torch.float64).requires_grad_(False)
    deep = mlp([units, 16, 4], "relu", generator=run.generator).requires_grad_(False)
    for net in (head, deep):
        for parameter in net.parameters():
            parameter.copy_(1.5 * run.randn(*parameter.shape) / math.sqrt(parameter.shape[-1]))
    scaled = head(keep * x)
    says = run.states("N-128, M-135", r"\text{linear outputs: } \sum_bp(b)f(b\odot x)=f(\pi\odot x)")
    says.equal(ensemble_mean(head, x, keep), scaled, EXACT, where=f"all {2**units} sub-networks")
    says.fails("a hidden ReLU layer after the mask", ensemble_mean(deep, x, keep), promised=deep(keep * x))
    says = run.refutes(
        "scaling-by-drop-probability", r"\text{linear outputs: } \sum_bp(b)f(b\odot x)=f((1-\pi)\odot x)"
    )
    says.equal(
        ensemble_mean(head, x, keep), head((1 - keep) * x), 1e-9, where="scaled by the probability of being dropped"
    )
    geometric = geometric_mean(head, x, keep)
    arithmetic = ensemble_mean(lambda z: head(z).softmax(-1), x, keep)
    says = run.states("N-128", r"\text{softmax of linear outputs: the scaled network is the normalized geometric mean}")
    says.equal(geometric, scaled.softmax(-1), EXACT)
    says.fails("the arithmetic mean", arithmetic)
    says = run.states("N-128", r"\text{the same with one } \pi=\tfrac12 \text{ for all units}")
    says.equal(geometric_mean(head, x, 0.5), head(x / 2).softmax(-1), EXACT)
    says.fails("a hidden ReLU layer after the mask", geometric_mean(deep, x, 0.5), promised=deep(x / 2).softmax(-1))
    rows = []
    for name, net in (("softmax of linear", head), ("one hidden ReLU layer", deep)):
        ours = net(keep * x).softmax(-1)
        mean = ensemble_mean(lambda z, net=net: net(z).softmax(-1), x, keep)  # type: ignore[misc]
        product = geometric_mean(net, x, keep)
        rows.append(
            (
                name,
                float((ours - mean).abs().sum(1).max() / 2),
                float((ours - product).abs().sum(1).max() / 2),
            )
        )
    run.table(
        "weight-scaling",
        ["network after the mask", "scaled vs arithmetic mean", "scaled vs geometric mean"],
        rows,
        caption="Total variation between class probabilities, worst of 6 inputs.",
    )


def monte_carlo(run: Run, units: int) -> None:
    """Sampled sub-networks approach the exact mean like one over the root of their number."""
    # many inputs and large weights: at one input the scaled network may be the mean by chance
    x = run.randn(20, units)
    net = mlp([units, 8, 3], "tanh", generator=run.generator).requires_grad_(False)
    for parameter in net.parameters():
        parameter.mul_(4.0)

    def probabilities(z: Tensor) -> Tensor:
        output: Tensor = net(z).softmax(-1)
        return output

    exact = ensemble_mean(probabilities, x, 0.5)
    biased = probabilities(0.5 * x)
    sizes = [2**k for k in range(4, 11)]
    repeats = 24
    errors, off = [], []
    for size in sizes:
        means = torch.stack(
            [sampled_mean(probabilities, x, 0.5, size, generator=run.generator) for _ in range(repeats)]
        )
        errors.append(float((means - exact).square().sum(-1).mean().sqrt()))
        off.append(float((means - biased).square().sum(-1).mean().sqrt()))
    says = run.states("N-128", r"\text{the mean over } N \text{ sampled masks errs like } N^{-1/2}\text{, exponent}")
    says.slope(
        sizes,
        errors,
        -0.5,
        against=(-1.0, 0.0),
        confidence=0.999,
        where=f"root mean square error at {len(x)} inputs, {repeats} repeats, N from {sizes[0]} to {sizes[-1]}",
    )
    says.fails("distance to the scaled network, which is not the mean", sizes, off)
    run.curves(
        "monte-carlo",
        sizes,
        {"to the exact mean of all masks": errors, "to the scaled network": off},
        {"slope -1/2": [errors[0] * math.sqrt(sizes[0] / n) for n in sizes]},
        axes=("number of sampled masks", "error"),
        log="xy",
        caption="Averages over sampled sub-networks approach the exact ensemble, not the network with scaled weights.",
    )


def penalty(run: Run, units: int, samples: int) -> None:
    """Theorem 74 by enumeration, and what it needs."""
    net = mlp([5, 7, units, 2], "relu", generator=run.generator).requires_grad_(False)
    for parameter in net.parameters():
        parameter.mul_(2.0)
    x, y = run.randn(samples, 5), run.randn(samples, 2)
    head = linear_layer(net, -1)
    hidden: Tensor = net[:-1](x)

    drops = (0.1, 0.3, 0.5, 0.8)
    reports = [dropout_penalty(net, x, y, p) for p in drops]
    enumerated = torch.stack([_squared_risk(head, hidden, y, p) for p in drops])
    # the same formula where the mask sits one layer lower, before a ReLU
    lower = net[0](x).relu()
    wide = linear_layer(net, 2).weight.square().sum(0)
    rest = nn.Sequential(*list(net)[2:])
    lower_truth, lower_formula = [], []
    for p in drops:
        lower_truth.append(_squared_risk(rest, lower, y, p))
        lower_formula.append(reports[0].risk + p / (1 - p) * float((wide * lower.square().mean(0)).sum()))
    says = run.states("M-136, M-137", r"\mathcal L_{\rm Drop}=\mathcal L+\tfrac p{1-p}\sum_j\|W_k(:,j)\|^2\hat a_j^2")
    says.equal(
        enumerated,
        [r.risk_with_dropout for r in reports],
        EXACT,
        where=f"all {2**units} masks of the top layer, p = 0.1, 0.3, 0.5, 0.8",
    )
    says.fails("the mask one layer lower, before a ReLU", torch.stack(lower_truth), promised=lower_formula)
    labels = torch.randint(0, 2, (samples,), generator=run.generator)

    def cross_entropy(a: Tensor) -> Tensor:
        scores = head(a).log_softmax(-1)
        losses: Tensor = -scores.gather(-1, labels.expand(scores.shape[:-1])[..., None])
        return losses.squeeze(-1)

    plain = cross_entropy(hidden).mean()
    with_mask = ensemble_mean(lambda a: cross_entropy(a / 0.5), hidden, 0.5).mean()
    half = reports[2]
    says = run.states("M-137", r"\mathcal L_{\rm Drop}-\mathcal L=R \text{ at } p=\tfrac12")
    says.equal(float(enumerated[2]) - half.risk, half.total, EXACT)
    says.fails("cross-entropy instead of the squared loss", float(with_mask - plain))
    wide_hidden, wide_weight = run.randn(samples, 200), run.randn(1, 200) / math.sqrt(200)
    target = run.randn(samples, 1)
    clean = float((target - wide_hidden @ wide_weight.T).square().sum(1).mean())
    closed = clean + float((wide_weight.square().sum(0) * wide_hidden.square().mean(0)).sum())
    layer = UnitDropout(0.5, generator=run.generator)
    drawn = torch.stack([(target - layer(wide_hidden) @ wide_weight.T).square().sum(1).mean() for _ in range(400)])
    same = UnitDropout(0.5, inverted=False, generator=run.generator)
    unscaled = torch.stack([(target - same(wide_hidden) @ wide_weight.T).square().sum(1).mean() for _ in range(400)])
    says = run.states("M-137", r"\text{the same for 200 units, by sampling}")
    penalized = closed - clean
    says.mean(
        drawn,
        closed,
        against=(clean, clean + penalized / 4, clean + 2 * penalized),  # no penalty, p(1-p), 1/(1-p)
        confidence=SURE,
        where="400 draws of masks, p = 1/2",
    )
    says.fails("masks without the factor 1/(1-p)", unscaled)
    run.figure(
        "penalty",
        lambda axes: _plot_penalty(axes, half.per_unit, head.weight.square().sum(0)),
        caption="What dropout charges each unit of the top layer: the squared norm of its outgoing "
        "weights times its mean square activation. A unit that is never active costs nothing, "
        "whatever its weights.",
    )


def _squared_risk(f: nn.Module, units: Tensor, y: Tensor, p: float) -> Tensor:
    """The squared loss averaged over every mask of the units that `f` follows."""
    return ensemble_mean(lambda a: (y - f(a / (1 - p))).square().sum(-1), units, 1 - p).mean()


def _plot_penalty(axes: Any, per_unit: Tensor, norms: Tensor) -> None:
    place = torch.arange(len(per_unit))
    axes.bar(place - 0.2, per_unit, width=0.4, color=COLORS[0], label="dropout penalty, p = 1/2")
    axes.bar(place + 0.2, norms, width=0.4, color=COLORS[4], label="‖W(:, j)‖², as weight decay")
    axes.set_xlabel("unit")
    axes.set_xticks(place.tolist())
    axes.legend()


def regression(run: Run, units: int, samples: int) -> None:
    """Least squares with dropped inputs is a ridge in the features' own scale."""
    x = run.randn(4 * samples, units) * torch.logspace(-1, 1, units, dtype=torch.float64)
    y = x @ run.randn(units) + run.randn(len(x))
    p = 0.3
    weight = dropout_regression(x, y, p).requires_grad_()
    objective = ensemble_mean(lambda a: (y - (a / (1 - p)) @ weight).square(), x, 1 - p).mean()
    (gradient,) = torch.autograd.grad(objective, weight)
    other = torch.linalg.lstsq(x, y).solution.requires_grad_()
    unpenalized = ensemble_mean(lambda a: (y - (a / (1 - p)) @ other).square(), x, 1 - p).mean()
    (slope,) = torch.autograd.grad(unpenalized, other)
    says = run.states(
        "M-137",
        r"w=(X^\top X+\tfrac p{1-p}\operatorname{diag}X^\top X)^{-1}X^\top y "
        r"\text{ minimizes the risk with dropped inputs: gradient}",
    )
    says.equal(gradient, within=1e-9, where=f"gradient of the mean over all {2**units} masks")
    says.fails("least squares without dropout", slope)
    scales = torch.logspace(-2, 2, units, dtype=torch.float64)
    rescaled = dropout_regression(x * scales, y, p) * scales
    ridge = _ridge(x, y, 1.0)
    ridge_rescaled = _ridge(x * scales, y, 1.0) * scales
    says = run.states("M-137", r"\text{its predictions do not change when features are rescaled}")
    says.equal(x @ rescaled, x @ weight.detach(), 1e-8)
    says.fails("ridge regression", x @ ridge_rescaled, promised=x @ ridge)


def _ridge(x: Tensor, y: Tensor, decay: float) -> Tensor:
    identity = torch.eye(x.shape[1], dtype=x.dtype)
    solution: Tensor = torch.linalg.solve(x.T @ x + decay * len(x) * identity, x.T @ y)
    return solution


def _nonzero(values: Tensor) -> Tensor:
    return values[values != 0]
