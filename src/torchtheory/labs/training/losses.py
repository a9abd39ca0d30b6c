"""Twelve losses for classification in one table, compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, clopper_pearson, lab
from torchtheory.labs.training.losses_trained import (
    compare_on_digits,
    plot_training,
    softmax_regression,
)
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.training.losses.classification import LOSSES, classification_loss

P_B = (0.7, 0.2, 0.1)


LN3, (A, B, C) = math.log(3), (math.log(p) for p in P_B)


#: What each loss is at outputs 0 of three classes, and at logits log(.7, .2, .1) where the first
#: class is the true one, worked out by hand from its formula.
REFERENCE = {
    "L1": ("S-08", 1, 1 - A - B - C),
    "L2": ("S-09", 1, (1 - A) ** 2 + B**2 + C**2),
    "expectation": ("S-10", 4 / 3, 0.6),
    "regularized expectation": ("S-11", 2 / 3, 0.14),
    "Chebyshev": ("S-12", 2 / 3, 0.3),
    "hinge": ("S-13", 3 / 2, 1 / 2 - A),
    "squared hinge": ("S-14", 3 / 4, (1 / 2 - A) ** 2),
    "cubed hinge": ("S-15", 3 / 8, (1 / 2 - A) ** 3),
    "log": ("S-16", LN3, -A),
    "squared log": ("S-17", LN3**2, A**2),
    "Tanimoto": ("S-18", -1 / 3, -5 / 6),
    "Cauchy-Schwarz": ("S-19", LN3 / 2, math.log(54 / 49) / 2),
}


@lab(
    "losses",
    room="training",
    covers=[
        "S-08", "S-09", "S-10", "S-11", "S-12", "S-13", "S-14",
        "S-15", "S-16", "S-17", "S-18", "S-19", "S-20", "L-058",
    ],
    title="Twelve losses for classification in one table, four of them twice the same",
    errata=["squared-log-loss-negative"],
    full={"steps": 1500, "hidden": 64, "samples": 2000},
    least={"steps": 30, "hidden": 10, "samples": 300},
)  # fmt: skip
def losses(run: Run, steps: int = 120, hidden: int = 20, samples: int = 300) -> None:
    """The twelve losses of the slides' table are compared with their entries, and with each other.

    Values at two reference points, gradients against difference quotients, the identities that
    make some of them the same loss, convexity, smoothness, and what they are minimized by. The
    same network is trained on digits with each of them, with clean labels and with two fifths of
    the labels drawn at random. Look at the curves of all twelve, and at which of them survive
    noisy labels.

    Args:
        steps: of training on digits.
        hidden: units of the network.
        samples: random outputs and labels.
    """
    outputs = 2 * run.randn(samples, 4)
    labels = torch.randint(0, 4, (samples,), generator=run.generator)
    reference_values(run)
    gradients(run)
    probability_losses(run, outputs, labels)
    raw_losses(run)
    margin_losses(run, outputs, labels)
    log_losses(run, outputs, labels)
    shape(run, outputs, labels)
    softmax_regression(run, samples)
    curves = compare_on_digits(run, steps, hidden)

    run.figure(
        "curves",
        lambda axes: plot_losses(axes),
        caption="The twelve losses for two classes against the logit margin (outputs ±m/2), those "
        "of the raw outputs on the left. At large margins L1 and L2 grow again, the hinges are 0.",
        grid=(1, 2),
        size=(10.5, 3.8),
    )
    run.figure(
        "training",
        lambda axes: plot_training(axes, curves),
        caption="Test accuracy on digits of the same network trained with each loss; left, clean "
        "labels, right, two fifths of the training labels drawn at random.",
        grid=(1, 2),
        size=(11.5, 4.2),
    )


def value(name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    return classification_loss(name)(outputs, labels)


def reference_values(run: Run) -> None:
    points = torch.stack([torch.zeros(3).double(), torch.tensor(P_B, dtype=torch.float64).log()])
    first = torch.zeros(2, dtype=torch.long)
    rows, promised, found, second = [], [], [], []
    for name, (entry, a, b) in REFERENCE.items():
        here = value(name, points, first)
        promised += [a, b]
        found += here.tolist()
        second += value(name, points, first + 1).tolist()
        rows.append((entry, name, f"${classification_loss(name).formula}$", here[0], here[1]))
    says = run.states(
        [entry for entry, _, _ in REFERENCE.values()],
        r"\text{the losses at } o=0 \text{ and at } o=(\ln0.7,\ln0.2,\ln0.1)",
    )
    says.equal(found, promised, 1e-12)
    # at o = 0 all classes are alike
    says.fails("the second class is the true one", second[1::2], promised=promised[1::2])
    run.table(
        "losses",
        ["entry", "loss", "formula", "at o = 0", "at p = (0.7, 0.2, 0.1)"],
        rows,
        caption="Three classes, the first is the true one",
    )


def gradients(run: Run) -> None:
    """All twelve, away from kinks, against difference quotients and autograd."""
    outputs = run.randn(6, 3)
    labels = torch.randint(0, 3, (6,), generator=run.generator)
    ours, quotients, autograd, raw = [], [], [], []
    for loss in LOSSES.values():
        ours.append(loss.gradient(outputs, labels))
        quotients.append(
            numerical_jacobian(lambda o, loss=loss: loss(o, labels).sum(), outputs)  # type: ignore[misc]
        )
        leaf = outputs.clone().requires_grad_()
        autograd += list(torch.autograd.grad(loss(leaf, labels).sum(), leaf))
        raw.append(loss.gradient(torch.softmax(outputs, 1), labels))
    says = run.states(
        ["S-20", "S-09", "S-16", "S-19"], r"\nabla_o \text{ of all twelve losses is what difference quotients give}"
    )
    says.equal(torch.stack(ours), torch.stack(quotients), 1e-7)
    says.fails("the softmax applied twice", torch.stack(raw))
    run.states("S-20", r"\nabla_o \text{ of all twelve losses is what autograd gives}").equal(
        torch.stack(ours), torch.stack(autograd), 1e-12
    )


def probability_losses(run: Run, outputs: Tensor, labels: Tensor) -> None:
    """Expectation, regularized expectation, Chebyshev, Tanimoto: functions of the probabilities."""
    p = torch.softmax(outputs, 1)
    p_true = p.gather(1, labels[:, None])[:, 0]
    o_true = outputs.gather(1, labels[:, None])[:, 0]
    says = run.states("S-10", r"\|y-p\|_1=2(1-p_y)")
    says.equal(value("expectation", outputs, labels), 2 * (1 - p_true), 1e-12)
    says.fails("o for p: no probabilities", value("L1", outputs, labels), promised=2 * (1 - o_true))
    i = int((p_true - 0.3).abs().argmin())  # an undecided output

    def error_rate(chances: Tensor) -> Interval:
        draws = torch.multinomial(chances, 20_000, replacement=True, generator=run.generator)
        return clopper_pearson(int((draws != labels[i]).sum()), len(draws), 0.9999)

    half = float(value("expectation", outputs[i], labels[i])) / 2
    says = run.states("S-10", r"\tfrac12\|y-p\|_1 \text{ is the error probability of a label drawn from } p")
    # the loss itself, half of that again, the probability of the label
    says.mean(error_rate(p[i]), half, against=(2 * half, half / 2, 1 - half))
    other = int((p[:, labels[i]] - p_true[i]).abs().argmax())
    says.fails("drawn from the probabilities of another output", error_rate(p[other]))
    says = run.states("S-11", r"\|y-p\|_2^2=2(1-p_y)+\|p\|_2^2-1")
    says.equal(
        value("regularized expectation", outputs, labels),
        value("expectation", outputs, labels) + p.square().sum(1) - 1,
        1e-12,
    )
    says.fails(
        "without the regularizer",
        value("regularized expectation", outputs, labels),
        promised=value("expectation", outputs, labels),
    )
    smooth = torch.softmax(outputs.flip(0), 1)  # targets that are not one-hot
    expected = classification_loss("expectation")(outputs, smooth) / 2
    says = run.states("S-12", r"\max_j|p_j-y_j|=1-p_y=\tfrac12\|y-p\|_1")
    says.equal(value("Chebyshev", outputs, labels), value("expectation", outputs, labels) / 2, 1e-12)
    says.fails("a target that is not one-hot", classification_loss("Chebyshev")(outputs, smooth), promised=expected)
    run.states("S-18", r"\text{Tanimoto}=\frac{-p_y}{\|p\|^2+1-p_y}\ge-1").at_least(
        value("Tanimoto", outputs, labels), -1, 1e-12
    )
    run.states("S-18", r"\text{Tanimoto}=\frac{-p_y}{\|p\|^2+1-p_y}").equal(
        value("Tanimoto", outputs, labels), -p_true / (p.square().sum(1) + 1 - p_true), 1e-12
    )


def raw_losses(run: Run) -> None:
    """What L1 and L2 are minimized by when the label is not certain."""
    frequencies = torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)
    classes = torch.eye(3, dtype=torch.float64)

    def expected(name: str, outputs: Tensor, q: Tensor) -> Tensor:
        """The expected loss at `outputs[..., 3]` of a label with frequencies `q[3]`."""
        function = classification_loss(name).function
        return torch.stack([function(outputs, y.expand_as(outputs)) for y in classes], -1) @ q

    nearby = 0.1 * run.randn(400, 3)
    at_median, at_mean, elsewhere_1, elsewhere_2 = [], [], [], []
    for q in frequencies:
        median = (q > 0.5).double()
        at_median.append(expected("L1", median, q).expand(400))
        at_mean.append(expected("L2", q, q).expand(400))
        elsewhere_1.append(expected("L1", median + nearby, q))
        elsewhere_2.append(expected("L2", q + nearby, q))
    says = run.states(
        "S-08",
        r"\text{for labels of frequencies } q \text{ the expected L1 loss is least at the medians }"
        r"o_j=1[q_j>\tfrac12]: \text{ without a majority at } 0",
    )
    says.at_least(torch.cat(elsewhere_1), torch.cat(at_median), 1e-12)
    says.fails(
        "at the means",
        torch.cat(elsewhere_1),
        promised=torch.cat([expected("L1", q, q).expand(400) for q in frequencies]),
    )
    says = run.states("S-09", r"\text{the expected L2 loss is least at the means, } o=q")
    says.at_least(torch.cat(elsewhere_2), torch.cat(at_mean), 1e-12)
    says.fails(
        "at the medians",
        torch.cat(elsewhere_2),
        promised=torch.cat([expected("L2", (q > 0.5).double(), q).expand(400) for q in frequencies]),
    )


def margin_losses(run: Run, outputs: Tensor, labels: Tensor) -> None:
    """The hinges: where they vanish and how smooth they are."""
    signs = 2 * F.one_hot(labels, 4) - 1
    safe = (signs * outputs).amin(1) >= 0.5
    # half of the outputs moved to the right side
    moved = torch.where((torch.arange(len(outputs)) % 2 == 0)[:, None], signs * 0.5, outputs)
    inside = (signs * moved).amin(1) >= 0.5
    vanishing = torch.stack([value(n, moved, labels) == 0 for n in ("hinge", "squared hinge", "cubed hinge")])
    says = run.states(
        ["S-13", "S-14", "S-15"],
        r"\text{the hinge losses are }0\iff\hat y_jo_j\ge\tfrac12\text{ for all }j: \text{ exceptions}",
    )
    says.equal(
        (vanishing != inside).sum(),
        where=f"{int(inside.sum())} of {len(outputs)} outputs with the margin, {int(safe.sum())} by chance",
    )
    says.fails("margin 1 in place of 1/2", (vanishing != ((signs * moved).amin(1) >= 1)).sum())
    # one-sided derivatives at the kink o = 1/2 of the true class, the others far away
    kink = torch.tensor([0.5, -3.0, -3.0], dtype=torch.float64)

    def jump(name: str, order: int) -> float:
        """The jump of a derivative in the first output across the kink."""
        first = torch.tensor(0)

        def along(t: Tensor) -> Tensor:
            return classification_loss(name).function(torch.cat([t[None], kink[1:]]), F.one_hot(first, 3).double())

        derivative: Callable[[Tensor], Tensor] = along
        for _ in range(order):
            derivative = torch.func.grad(derivative)
        return float(derivative(kink[0] + 1e-12) - derivative(kink[0] - 1e-12))

    says = run.states(
        ["S-14", "S-15"], r"\text{squared hinge}\in C^1,\ \text{cubed hinge}\in C^2: \text{ jumps at the kink}"
    )
    says.equal([jump("squared hinge", 1), jump("cubed hinge", 1), jump("cubed hinge", 2)], within=1e-9)
    says.fails(
        "one derivative more, and the hinge itself",
        [jump("hinge", 1), jump("squared hinge", 2), jump("cubed hinge", 3)],
    )


def log_losses(run: Run, outputs: Tensor, labels: Tensor) -> None:
    """Log, squared log, Cauchy-Schwarz: functions of the logarithm."""
    log = value("log", outputs, labels)
    rows = F.one_hot(labels, 4).double()
    run.states(["S-16", "L-058"], r"-\sum_jy_j\log p_j=\text{F.cross\_entropy}").equal(
        log, F.cross_entropy(outputs, labels, reduction="none"), 1e-12
    )
    says = run.states("S-16", r"\nabla_o(-\sum_jy_j\log p_j)=p-y")
    says.equal(classification_loss("log").gradient(outputs, labels), torch.softmax(outputs, 1) - rows, 1e-12)
    says.fails(
        "the regularized expectation loss's", classification_loss("regularized expectation").gradient(outputs, labels)
    )
    says = run.states("S-17", r"\sum_j[y_j\log p_j]^2=\bigl(-\sum_jy_j\log p_j\bigr)^2")
    says.equal(value("squared log", outputs, labels), log.square(), 1e-12)
    says.fails(
        "a target that is not one-hot", classification_loss("squared log")(outputs, torch.full_like(outputs, 0.25))
    )
    says = run.states("S-19", r"D_{CS}(o)=\tfrac12\,\text{log loss}(2o)")
    says.equal(value("Cauchy-Schwarz", outputs, labels), value("log", 2 * outputs, labels) / 2, 1e-12)
    says.fails("at o instead of 2o", value("log", outputs, labels) / 2)
    run.states("S-19", r"\nabla_oD_{CS}=\mathrm{softmax}(2o)-y").equal(
        classification_loss("Cauchy-Schwarz").gradient(outputs, labels), torch.softmax(2 * outputs, 1) - rows, 1e-12
    )
    far = torch.zeros(3, 2, dtype=torch.float64)
    far[:, 0] = torch.tensor([5.0, 0.0, -5.0])  # the true class ever less likely
    first = torch.zeros(3, dtype=torch.long)
    printed = -value("squared log", far, first)
    run.refutes(
        "squared-log-loss-negative", r"-\sum_j[y_j\log p_j]^2 \text{ is least where } p_y \text{ is largest}"
    ).at_least(
        printed[1:],
        printed[0],
        where="two classes, true logit 5, 0 and -5: the printed loss falls with the probability",
    )


def shape(run: Run, outputs: Tensor, labels: Tensor) -> None:
    """Convexity, invariance, and where each is least."""
    other = outputs.roll(1, 0)

    def worst_bend(name: str) -> Tensor:
        ends = (value(name, outputs, labels) + value(name, other, labels)) / 2
        return (ends - value(name, (outputs + other) / 2, labels)).min()

    convex = {name: loss for name, loss in LOSSES.items() if loss.convex}
    says = run.states(
        ["S-20", *(REFERENCE[name][0] for name in convex)],
        r"\tfrac12\ell(o)+\tfrac12\ell(o')-\ell\bigl(\tfrac{o+o'}2\bigr)\ge0\text{ for the convex ones}",
    )
    says.at_least(torch.stack([worst_bend(name) for name in convex]), 0, 1e-12, where=", ".join(convex))
    says.fails("the expectation loss, which is not convex in o", worst_bend("expectation"))
    bends = torch.stack([worst_bend(name) for name in LOSSES if name not in convex])
    says = run.states(
        ["S-10", "S-11", "S-12", "S-18"],
        r"\text{expectation, regularized expectation, Chebyshev and Tanimoto are not convex: "
        r"}\min\text{ of the same difference}<0",
    )
    says.below(bends, 0)
    says.fails("the log loss", worst_bend("log"))
    shift = 3 * run.randn(len(outputs), 1)
    through = [name for name, loss in LOSSES.items() if loss.on_probabilities]
    raw = [name for name, loss in LOSSES.items() if not loss.on_probabilities]

    def moved(names: list[str]) -> Tensor:
        return torch.stack([(value(n, outputs + shift, labels) - value(n, outputs, labels)).abs().max() for n in names])

    says = run.states("S-20", r"\ell(o+c\mathbf1)=\ell(o) \text{ for the losses of } \mathrm{softmax}(o)")
    says.equal(moved(through), within=1e-11)
    says.fails("the losses of o itself", moved(raw))
    rows = F.one_hot(labels, 4).double()
    limit = {
        name: loss(rows if name in ("L1", "L2") else 200 * (2 * rows - 1), labels) for name, loss in LOSSES.items()
    }
    says = run.states("S-20", r"\ell\text{ tends to its infimum as } p\to y; \text{ for L1, L2 at } o=y")
    says.equal(
        torch.stack(list(limit.values())),
        torch.stack([torch.full_like(v, LOSSES[name].least) for name, v in limit.items()]),
        1e-9,
    )
    says.fails(
        "as p runs to another class",
        torch.stack([loss(200 * (2 * rows.roll(1, 1) - 1), labels) for loss in LOSSES.values()]),
    )
    says = run.states("S-20", r"\ell(o)-\inf\ell\ge0 \text{ for all twelve}")
    says.at_least(torch.stack([value(n, outputs, labels).min() - loss.least for n, loss in LOSSES.items()]), 0, 1e-12)
    says.fails("the squared log loss with the printed sign", -value("squared log", outputs, labels).max())


def plot_losses(axes: Any) -> None:
    margin = torch.linspace(-4, 4, 401, dtype=torch.float64)
    outputs = torch.stack([margin / 2, -margin / 2], dim=1)
    first = torch.zeros(len(margin), dtype=torch.long)
    for axis, probabilities in zip(axes[0], (False, True), strict=True):
        names = [n for n, loss in LOSSES.items() if loss.on_probabilities == probabilities]
        for i, name in enumerate(names):
            # L1 and the hinge agree at negative margins: dashes show both
            dash = "--" if "hinge" in name else "-"
            axis.plot(margin, value(name, outputs, first), dash, color=COLORS[i], label=name)
        axis.set(xlabel=r"margin $o_y-o_{\mathrm{other}}$", ylabel="loss", ylim=(-1.2, 5.2))
        axis.legend(loc="upper right" if probabilities else "lower left")
    axes[0, 0].set_title("of the outputs")
    axes[0, 1].set_title("of the softmax probabilities")
