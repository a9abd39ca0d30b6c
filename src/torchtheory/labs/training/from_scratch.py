"""The multilayer perceptron of the lectures, in plain tensor code, and the run that trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.synthetic import Sample
from torchtheory.data.two_clouds import (
    COVARIANCES,
    MEANS,
    bayes_accuracy,
    cloud_posterior,
    legacy_stream,
    two_gaussian_clouds,
)
from torchtheory.labs.engine import COLORS, Interval, Run, clopper_pearson, lab
from torchtheory.models.model import global_randomness_kept
from torchtheory.primer.differences import gradient_check, numerical_jacobian
from torchtheory.training.backpropagation.from_scratch import (
    MLP,
    BinaryCrossEntropy,
    GradientDescent,
    LinearLayer,
    ReLU,
    TrainingRun,
    lecture_run,
    train_mlp,
)
from torchtheory.training.losses.cross_entropy import (
    binary_cross_entropy,
    binary_cross_entropy_slope,
    slope_in_probability,
)

FRESH = 40_000


@lab(
    "mlp-from-scratch",
    room="training",
    covers=["L-062", "L-063", "L-064", "L-065", "L-067", "L-068"],
    title="A perceptron with two hidden layers by hand, and what dividing twice does to it",
    errata=["linear-layer-divides-again", "hidden-layers-miscounted"],
    full={"width": 200, "steps": 500},
    least={"samples": 250, "width": 10, "steps": 12, "rate": 0.2},
    most={"rate": 1.0},
)
def mlp_from_scratch(run: Run, samples: int = 1000, width: int = 40, steps: int = 50, rate: float = 0.5) -> None:
    """Layer classes with a forward and a backward, as the lectures write them, are put to the test.

    Each class is compared with finite differences and with torch; the data set with numpy's own
    stream of seed 0; the training loop with `nn.Sequential` and `torch.optim.SGD`, step by step.
    The printed linear layer divides by the number of samples although the loss has done so: its
    run is that of a correct layer at a rate 2000 times smaller, and 500 of its steps are a quarter
    of an intended one. Look at the two curves, and at the two decision boundaries beside the best
    possible one.

    Args:
        samples: of each class.
        width: of both hidden layers.
        steps: of gradient descent.
        rate: its step.
    """
    cross_entropies(run)
    layer_classes(run)
    linear_layer(run)
    container(run)
    sample = data_set(run, samples)
    printed, right = training(run, sample, samples, width, steps, rate)
    judge(run, right)

    shown = sorted({int(i) for i in torch.linspace(0, steps - 1, 8)})
    run.table(
        "training",
        ["iteration", "loss, printed", "loss, divided once", "accuracy, printed", "divided once"],
        [(i, printed.losses[i], right.losses[i], printed.accuracies[i], right.accuracies[i]) for i in shown],
        caption=f"Rate {rate:g}, {2 * samples} samples, widths 2, {width}, {width}, 1; before each "
        f"step. The best possible accuracy is {bayes_accuracy():.4f}",
    )
    run.figure(
        "data",
        lambda axis: plot_data(axis, sample),
        caption="The two clouds and the boundary of the best possible classifier.",
        size=(6.0, 4.0),
    )
    run.figure(
        "curves",
        lambda axes: plot_curves(axes, printed, right),
        caption="Loss and accuracy before each step: the printed layer, which divides twice, and "
        "the same with one division.",
        grid=(1, 2),
    )
    run.figure(
        "predictions",
        lambda axes: plot_predictions(axes, sample, printed, right),
        caption="Predictions after the last step, and where the network says 1/2; dashed, the best possible boundary.",
        grid=(1, 2),
    )


def central(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> float:
    """Largest difference to central quotients, relative to the largest entry."""
    return gradient_check(function, x, gradient).error


def cross_entropies(run: Run) -> None:
    """Softmax and sigmoid agree for two classes, and the derivative of both is a difference."""
    z, label = 3 * run.randn(200, 2), torch.randint(0, 2, (200,), generator=run.generator)
    y = (label == 0).double()
    says = run.states(
        "L-062",
        r"C=2:\ -\sum_iy_i\log\mathrm{softmax}(z)_i=-[y\log\hat y+(1-y)\log(1-\hat y)],\ \hat y=\sigma(z_1-z_2)",
    )
    says.equal(binary_cross_entropy(z[:, 0] - z[:, 1], y), F.cross_entropy(z, label, reduction="none"), 1e-12)
    says.fails("z₁ alone in place of z₁ - z₂", binary_cross_entropy(z[:, 0], y))
    logit = (z[:, 0] - z[:, 1]).requires_grad_()
    (autograd,) = torch.autograd.grad(binary_cross_entropy(logit, y).sum(), logit)
    p = torch.sigmoid(logit.detach())
    first = slope_in_probability(p, y)
    says = run.states("L-062", r"\frac{dL}{dz}=-\Bigl[\frac y{\hat y}-\frac{1-y}{1-\hat y}\Bigr]\hat y(1-\hat y)")
    says.equal(first * p * (1 - p), autograd, 1e-12)
    says.fails("without the link dŷ/dz", first)
    run.states("L-062", r"\frac{dL}{dz}=\hat y-y").equal(binary_cross_entropy_slope(logit.detach(), y), autograd, 1e-12)


def layer_classes(run: Run) -> None:
    """The loss and the activation against difference quotients."""
    z, y = 2 * run.randn(12, 1), torch.randint(0, 2, (12, 1), generator=run.generator).double()

    def error(loss: BinaryCrossEntropy, at: Tensor) -> float:
        _, y_hat = loss.forward(at, y)
        return central(lambda v: loss.forward(v, y)[0], at, loss.backward(y_hat, y))

    clipped = BinaryCrossEntropy(1e-12)
    says = run.states(
        "L-063",
        r"\text{backward }(\hat y-y)/N\text{ is the derivative of forward: error against }\text{difference quotients}",
    )
    says.equal([error(BinaryCrossEntropy(), z), error(clipped, z)], within=1e-8)
    says.fails("where the clipped loss is flat: logits of ±40 on the wrong side", error(clipped, 40 * (1 - 2 * y)))
    extreme = torch.tensor([[-800.0], [800.0]], dtype=torch.float64)
    wrong = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    says = run.states("L-063", r"\text{the loss at logits } \mp800 \text{ on the wrong side is } 800")
    says.equal(BinaryCrossEntropy().forward(extreme, wrong)[0], 800, 1e-12)
    says.fails("with ŷ clipped at 1e-12", clipped.forward(extreme, wrong)[0])
    relu = ReLU()
    at = run.randn(50)
    at = at + 0.01 * at.sign()  # no closer to the kink than a difference quotient reaches

    def kink_error(x: Tensor) -> float:
        relu.forward(x)
        d = relu.backward(torch.ones_like(x))
        return central(lambda v: torch.clamp(v, min=0).sum(), x, d)

    says = run.states("L-063", r"\mathrm{ReLU}'(z)=1[z>0]: \text{ error against difference quotients}")
    says.equal(kink_error(at), within=1e-8)
    says.fails("at the kink z = 0", kink_error(torch.zeros(3, dtype=torch.float64)))


def linear_layer(run: Run) -> None:
    """The three products of the backward pass, and the variance of the first weights."""
    big = LinearLayer(100, 400, run.generator)
    spread = big.W.square().reshape(-1)
    says = run.states("L-064", r"\mathbb E W_{ij}^2=\frac2{d_{\text{in}}+d_{\text{out}}}")
    # LeCun's, He's, one over both fans
    says.mean(spread, 2 / 500, against=(1 / 100, 2 / 100, 1 / 500), confidence=0.999)
    says.fails("variance 2/d_in (He)", run.randn(100 * 400).square() * 2 / 100)
    n = 30
    layer, again = LinearLayer(4, 3, run.generator), LinearLayer(4, 3, divide_again=True)
    again.W = layer.W
    x, y = run.randn(n, 4), run.randn(n, 3)

    def mean_loss(w: Tensor) -> Tensor:
        return (x @ w + layer.b - y).square().sum() / (2 * n)

    dz = (layer.forward(x) - y) / n
    dx = layer.backward(dz)
    again.forward(x)
    again.backward(dz)
    x_ = x.clone().requires_grad_()
    w_, b_ = layer.W.clone().requires_grad_(), layer.b.clone().requires_grad_()
    loss = (x_ @ w_ + b_ - y).square().sum() / (2 * n)
    dw_, db_, dx_ = torch.autograd.grad(loss, (w_, b_, x_))
    says = run.states("L-064", r"dW=X^\top dZ,\quad db=\textstyle\sum dZ,\quad dX=dZ\,W^\top")
    says.equal(
        torch.cat([layer.dW.reshape(-1), layer.db, dx.reshape(-1)]),
        torch.cat([dw_.reshape(-1), db_, dx_.reshape(-1)]),
        1e-12,
    )
    says.fails(
        "dW and db divided by N again, as printed",
        torch.cat([again.dW.reshape(-1), again.db]),
        promised=torch.cat([dw_.reshape(-1), db_]),
    )
    numerical = numerical_jacobian(mean_loss, layer.W)
    run.refutes(
        "linear-layer-divides-again",
        r"dW=\frac1NX^\top dZ \text{ is the gradient of the mean loss, with } dZ=(\hat y-y)/N",
    ).equal(numerical, again.dW, 1e-8, where=f"difference quotients of the mean loss of {n} samples")
    says = run.states("L-064", r"\text{true gradient}/\text{printed }dW=N")
    says.equal(numerical / again.dW, n, 1e-6)
    says.fails("dW divided once", numerical / layer.dW)


def container(run: Run) -> None:
    """The same function as torch's, and the same gradients in every layer."""
    widths = [5, 10, 7, 1]
    net = MLP(widths, run.generator)
    x, y = run.randn(40, 5), torch.randint(0, 2, (40, 1), generator=run.generator).double()
    twin = net.as_torch()
    outputs = net.forward(x)
    gated = nn.Sequential(*list(twin)[:-2], nn.Tanh(), twin[-1])
    says = run.states("L-065", r"\text{the container computes what nn.Sequential of Linear and ReLU computes}")
    says.equal(outputs, twin(x), 1e-12)
    says.fails("another activation in torch's", outputs, promised=gated(x))
    loss = BinaryCrossEntropy()
    _, y_hat = loss.forward(outputs, y)
    net.backward(loss.backward(y_hat, y))
    entropy = F.binary_cross_entropy_with_logits(twin(x), y)
    theirs = [g.t().reshape(-1) for g in torch.autograd.grad(entropy, list(twin.parameters()))]
    ours = [g.reshape(-1) for layer in net.linear_layers for g in (layer.dW, layer.db)]
    unmasked: list[Tensor] = []
    dz = loss.backward(y_hat, y)
    for layer in reversed(net.linear_layers):
        dx = layer.backward(dz)
        unmasked = [layer.dW.reshape(-1), layer.db, *unmasked]
        dz = dx
    says = run.states("L-065", r"\text{back through the layers in reverse order: } dW,db \text{ of all layers}")
    says.equal(torch.cat(ours), torch.cat(theirs), 1e-12)
    says.fails("past the ReLU layers without their masks", torch.cat(unmasked))
    run.refutes("hidden-layers-miscounted", r"[d_{\text{in}},10,5,d_{\text{out}}] \text{ has 3 hidden layers}").equal(
        MLP([2, 10, 5, 1]).hidden_layers, 3, where="two hidden layers, of 10 and 5 units, between three linear ones"
    )


def data_set(run: Run, samples: int) -> Sample:
    """Entry by entry numpy's numbers, and how well the best classifier does on them."""
    sample = two_gaussian_clouds(samples)

    def by_numpy(seed: int) -> Tensor:
        with global_randomness_kept():
            np.random.seed(seed)  # noqa: NPY002  the source's own line
            clouds = [
                np.random.multivariate_normal(mean, covariance, samples)  # noqa: NPY002
                for mean, covariance in zip(MEANS, COVARIANCES, strict=True)
            ]
        return torch.from_numpy(np.vstack(clouds))

    says = run.states("L-067", r"X \text{ is, entry by entry, what numpy draws after seed }0")
    says.equal(sample.x, by_numpy(0))
    says.fails("seed 1", sample.x, promised=by_numpy(1))
    many = two_gaussian_clouds(10_000, generator=(run.seed + 2) % 2**32)
    correct = int(((cloud_posterior(many.x) > 0.5) == (many.y[:, 0] == 1)).sum())
    # the straight line halfway between the means
    halfway = int(((many.x.sum(1) < 1) == (many.y[:, 0] == 1)).sum())
    vertical = int(((many.x[:, 0] < 0.5) == (many.y[:, 0] == 1)).sum())
    interval = clopper_pearson(correct, len(many.x), 0.99)
    other = clopper_pearson(vertical, len(many.x), 0.99)
    says = run.states(
        "L-067", r"\text{the rule } P(y=1\mid x)>\tfrac12 \text{ is right with probability }\tfrac12\int\max(f_0,f_1)"
    )
    error = 1 - bayes_accuracy()
    says.mean(
        interval,
        bayes_accuracy(),
        against=(1 - 2 * error, 1 - error / 2),  # the integral without its half, or halved again
        where=f"the line halfway between the means gets {halfway} of {len(many.x)}, the best rule {correct}",
    )
    says.fails("by the first feature alone", other)
    return sample


def training(
    run: Run, sample: Sample, samples: int, width: int, steps: int, rate: float
) -> tuple[TrainingRun, TrainingRun]:
    """The printed run, the corrected one, and torch's, step by step."""
    widths = (2, width, width, 1)
    n = 2 * samples

    def go(divide_again: bool, at_rate: float, steps: int = steps) -> TrainingRun:
        return lecture_run(samples, widths, rate=at_rate, steps=steps, divide_again=divide_again)

    printed, right = go(True, rate), go(False, rate)
    slow = go(False, rate / n)
    says = run.states(
        "L-068",
        r"\text{the printed run at rate } \eta \text{ is the run of the gradient at } \eta/N:"
        r"\text{ the losses, step by step}",
    )
    says.equal(printed.losses, slow.losses, 1e-10)
    says.fails("the gradient at rate η", right.losses, promised=printed.losses)
    stream = legacy_stream(0)
    two_gaussian_clouds(samples, stream)  # the stream goes on after the data
    start = MLP(widths, stream)
    says = run.states("L-068", r"\text{step by step the losses of nn.Sequential, binary cross-entropy and SGD}")
    says.equal(right.losses, torch_losses(start, sample, rate, steps), 1e-9)
    says.fails("SGD with momentum 0.9", right.losses, promised=torch_losses(start, sample, rate, steps, momentum=0.9))
    stream = legacy_stream(0)
    x, y = two_gaussian_clouds(samples, stream)
    wild = train_mlp(MLP(widths, stream), x, y, GradientDescent(40 * rate), steps=10)
    says = run.states("L-068", r"\text{the printed run's loss falls at every step}")
    says.below(printed.losses[1:], printed.losses[:-1])
    says.fails(f"the gradient at rate {40 * rate:g}", wild.losses[1:], promised=wild.losses[:-1])
    says = run.states("L-068", r"\text{divided once, the same rate gets to a lower loss at every step}")
    says.below(right.losses[1:], printed.losses[1:])
    says.fails(
        "divided once, at half the rate the printed code really uses",
        go(False, rate / (2 * n), 5).losses[1:],
        promised=printed.losses[1:5],
    )
    passed = int((right.losses < printed.losses[-1]).double().argmax())
    run.note(f"Divided once, the loss is below where the printed code ends after {steps} steps from step {passed} on.")
    return printed, right


def torch_losses(start: MLP, sample: Sample, rate: float, steps: int, momentum: float = 0.0) -> Tensor:
    net = start.as_torch()
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    found = []
    for _ in range(steps):
        loss = F.binary_cross_entropy_with_logits(net(sample.x), sample.y)
        found.append(loss.detach())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        optimizer.step()
    return torch.stack(found)


def judge(run: Run, right: TrainingRun) -> None:
    """Fresh draws, where nothing can be better than the best rule."""
    x, y = two_gaussian_clouds(FRESH // 2, run.seed + 1)
    best = bayes_accuracy()

    def accuracy(decisions: Tensor) -> Interval:
        right_ones = int((decisions == (y[:, 0] == 1)).sum())
        return clopper_pearson(right_ones, FRESH, 0.999)

    ours = accuracy(right.model.forward(x)[:, 0] > 0)
    swapped = accuracy(right.model.forward(x)[:, 0] <= 0)
    seen = accuracy(y[:, 0] == 1)
    says = run.states(["L-067", "L-068"], r"\text{accuracy on fresh points}\le\tfrac12\int\max(f_0,f_1)")
    says.at_most(ours, best)
    says.fails("labels learned by heart and asked again", seen)
    says = run.states("L-068", r"\text{divided once, the accuracy on fresh points ends within }0.01\text{ of the best}")
    says.at_least(ours, best - 0.01)
    says.fails("its two answers exchanged", swapped)


# ------------------------------------------------------------------------------- figures


def plane(sample: Sample, step: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """The source's mesh: the data's box and 1 around it."""
    low, high = sample.x.amin(0) - 1, sample.x.amax(0) + 1
    across = torch.arange(float(low[0]), float(high[0]), step, dtype=torch.float64)
    up = torch.arange(float(low[1]), float(high[1]), step, dtype=torch.float64)
    grid = torch.cartesian_prod(up, across).flip(1)
    return across, up, grid


def best_boundary(axis: Any, sample: Sample) -> None:
    across, up, grid = plane(sample)
    level = cloud_posterior(grid).reshape(len(up), len(across))
    axis.contour(across, up, level, levels=[0.5], colors="black", linestyles="--", linewidths=1.2)


def plot_data(axis: Any, sample: Sample) -> None:
    for label in (0, 1):
        chosen = sample.x[sample.y[:, 0] == label]
        axis.scatter(
            chosen[:, 0], chosen[:, 1], s=7, alpha=0.5, linewidths=0, color=COLORS[label],
            label=f"class {label}",
        )  # fmt: skip
    best_boundary(axis, sample)
    axis.plot([], [], "--", color="black", linewidth=1.2, label="best boundary")
    axis.set(xlabel="feature 1", ylabel="feature 2")
    axis.legend(loc="lower right")


def plot_curves(axes: Any, printed: TrainingRun, right: TrainingRun) -> None:
    left, right_axis = axes[0]
    for axis, what in ((left, "losses"), (right_axis, "accuracies")):
        axis.plot(getattr(printed, what), color=COLORS[1], label="divided twice (printed)")
        axis.plot(getattr(right, what), color=COLORS[0], label="divided once")
        axis.set(xlabel="iteration")
    left.set(ylabel="loss", title="training loss", ylim=(0, None))
    right_axis.axhline(bayes_accuracy(), color="0.4", linewidth=1, linestyle="--", label="best")
    right_axis.set(ylabel="accuracy", title="training accuracy")
    left.legend()
    right_axis.legend(loc="center right")


def plot_predictions(axes: Any, sample: Sample, printed: TrainingRun, right: TrainingRun) -> None:
    across, up, grid = plane(sample)
    titles = ("divided twice (printed)", "divided once")
    for axis, trained, title in zip(axes[0], (printed, right), titles, strict=True):
        said = trained.model.forward(sample.x)[:, 0] > 0
        for label in (0, 1):
            chosen = sample.x[said == bool(label)]
            axis.scatter(
                chosen[:, 0], chosen[:, 1], s=6, alpha=0.5, linewidths=0, color=COLORS[label],
                label=f"predicted {label}",
            )  # fmt: skip
        level = torch.sigmoid(trained.model.forward(grid)).reshape(len(up), len(across))
        axis.contour(across, up, level, levels=[0.5], colors=COLORS[2], linewidths=1.8)
        best_boundary(axis, sample)
        axis.set(
            xlabel="feature 1", ylabel="feature 2",
            title=f"{title}: accuracy {float(trained.accuracies[-1]):.3f}",
        )  # fmt: skip
        axis.plot([], [], color=COLORS[2], linewidth=1.8, label="network's boundary")
        axis.plot([], [], "--", color="black", linewidth=1.2, label="best boundary")
        axis.set_ylim(float(up[0]) - 3, None)
        axis.legend(loc="lower center", ncols=2)
