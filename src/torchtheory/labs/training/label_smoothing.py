"""Label smoothing: what a label becomes when it is not quite trusted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.label_smoothing import (
    smooth_labels,
    smoothed_cross_entropy,
    smoothed_gap,
    smoothed_label_entropy,
    uniform_confusion,
)


@lab(
    "label-smoothing",
    room="training",
    covers=["N-135"],
    title="A smoothed label has a best logit, and it is finite",
    full={"samples": 1400, "epochs": 100, "trials": 20_000},
    least={"samples": 500, "epochs": 10, "trials": 4_000, "smoothing": 0.05},
    most={"smoothing": 0.9},
)
def label_smoothing(run: Run, smoothing: float = 0.1, samples: int = 500, epochs: int = 40, trials: int = 4000) -> None:
    """A label y becomes the column Πe_y of a confusion matrix, and the loss its cross-entropy.

    The least loss is the entropy of the column, reached at finite logits; for uniform smoothing
    the gap between the right logit and the others is log(1 + k(1-ε)/ε). Newton's method on the
    logits finds both, for the uniform matrix and for random ones. Smoothing with Π is the mean
    loss over labels that are confused according to Π. Then a network is trained on digits with
    and without smoothing: look at the gap, which settles in one case and grows in the other.

    Args:
        smoothing: share of a label that is spread over all classes.
        samples: digits that are trained on.
        epochs: of a training.
        trials: labels that are drawn.
    """
    classes = 10
    matrices = [uniform_confusion(k, e) for k in (2, 3, classes) for e in (0.01, smoothing, 0.5)]
    random = [run.rand(k, k) + 0.05 for k in (2, 4)]
    matrices += [m / m.sum(0) for m in random] + [confusion_of_digits()]
    labels = torch.randint(0, 2, (30,), generator=run.generator)
    says = run.states("N-135", r"\Pi e_y \in \Delta^{k-1}: \ \sum_j (\Pi e_y)_j")
    says.equal(torch.cat([smooth_labels(labels, m).sum(1) for m in matrices]), 1.0, 1e-12)
    says.fails("the rows sum to one instead", (random[1] / random[1].sum(1, keepdim=True)).sum(0))
    logits = run.randn(30, classes)
    y = torch.randint(0, classes, (30,), generator=run.generator)
    strengths = (0.0, smoothing, 0.5, 1.0)
    says = run.states(
        "N-135", r"\Pi = (1-\epsilon) I + \tfrac\epsilon k \mathbf 1\mathbf 1^\top \text{ is PyTorch's label smoothing}"
    )
    says.equal(
        [float(smoothed_cross_entropy(logits, y, uniform_confusion(classes, e))) for e in strengths],
        [float(F.cross_entropy(logits, y, label_smoothing=e)) for e in strengths],
        1e-12,
    )
    says.fails(
        "the mass ε is spread over the other classes only",
        [float(smoothed_cross_entropy(logits, y, others_only(classes, e))) for e in strengths],
    )
    reached = [best_logits(m) for m in matrices]
    says = run.states("N-135", r"\min_z \mathrm{CE}(z, \Pi e_y) = H(\Pi e_y)")
    says.equal(
        torch.cat([F.cross_entropy(z, m.T, reduction="none") for z, m in zip(reached, matrices, strict=True)]),
        torch.cat([smoothed_label_entropy(m) for m in matrices]),
        1e-10,
    )
    says.fails(
        "logits after one Newton step",
        torch.cat([F.cross_entropy(best_logits(m, 1), m.T, reduction="none") for m in matrices]),
    )
    uniform = [(k, e) for k in (2, 3, classes) for e in (0.01, smoothing, 0.5)]
    gaps = [gap(z) for z in reached[: len(uniform)]]
    says = run.states("N-135", r"z_y - z_j = \log\big(1 + k(1-\epsilon)/\epsilon\big)")
    says.equal(gaps, [smoothed_gap(k, e) for k, e in uniform], 1e-8)
    says.fails("the formula without the 1", gaps, promised=without_one(uniform))
    run.states("N-135", r"k = 10,\ \epsilon = 0.1: \text{ gap } \ln 91 = 4.511, \text{ minimum } 0.5003").equal(
        [smoothed_gap(10, 0.1), float(smoothed_label_entropy(uniform_confusion(10, 0.1))[0])], [4.511, 0.5003], 1e-4
    )

    confusion, z = matrices[-1], logits[0]
    label = z.argmax().reshape(1)
    column = confusion[:, int(label)]
    drawn = torch.multinomial(column, trials, replacement=True, generator=run.generator)
    noisy = -z.log_softmax(0)[drawn]
    says = run.states("N-135", r"\mathbb E_{\tilde y \sim \Pi e_y} \mathrm{CE}(z, \tilde y) = \mathrm{CE}(z, \Pi e_y)")
    smooth, hard = smoothed_cross_entropy(z[None], label, confusion), F.cross_entropy(z[None], label)
    # against the hard label, and a confusion half as large
    says.mean(noisy - smooth, 0, against=(float(hard - smooth), float(hard - smooth) / 2), confidence=0.999)
    says.fails("the hard label instead of the smoothed one", noisy - F.cross_entropy(z[None], label))

    curves = {name: logit_gaps(e, samples, epochs) for name, e in (("smoothed", smoothing), ("hard labels", 0.0))}
    best = smoothed_gap(classes, smoothing)
    half = epochs // 2
    says = run.states(
        "N-135",
        r"\text{a network trained to the end keeps a finite gap: } "
        r"\text{mean gap}/\log(1+k(1-\epsilon)/\epsilon) \le 1.25",
    )
    says.at_most(max(curves["smoothed"]) / best, 1.25)
    says.fails("trained on hard labels", max(curves["hard labels"]) / best)
    says = run.states("N-135", r"\text{growth of the mean gap over the second half of training}\le0")
    says.at_most(curves["smoothed"][-1] - curves["smoothed"][half], 0)
    says.fails("trained on hard labels", curves["hard labels"][-1] - curves["hard labels"][half])
    run.figure(
        "gap",
        lambda axes: plot_gap(axes, curves, best, confusion),
        caption="Left: the gap between the right logit and the mean of the others. Smoothing gives "
        "it a finite target. Right: how nearest class means confuse digits; column y is what the "
        "label y becomes.",
        grid=(1, 2),
        size=(9, 3.2),
    )


def confusion_of_digits() -> Tensor:
    """How a classifier by nearest class means, made from 100 digits, confuses 1000 others."""
    x, y = digits(torch.float64)
    means = torch.stack([x[:100][y[:100] == c].mean(0) for c in range(10)])
    taken_for = torch.cdist(x[100:1100], means).argmin(1)
    counts = torch.zeros(10, 10, dtype=torch.float64)
    counts.index_put_((taken_for, y[100:1100]), torch.ones((), dtype=counts.dtype), accumulate=True)
    counts += 0.5  # no confusion is impossible
    return counts / counts.sum(0)


def others_only(classes: int, smoothing: float) -> Tensor:
    """Another common convention: the smoothed mass avoids the label itself."""
    eye = torch.eye(classes, dtype=torch.float64)
    return (1 - smoothing) * eye + smoothing / (classes - 1) * (1 - eye)


def without_one(pairs: list[tuple[int, float]]) -> Tensor:
    return torch.tensor([k * (1 - e) / e for k, e in pairs], dtype=torch.float64).log()


def best_logits(confusion: Tensor, steps: int = 60) -> Tensor:
    """Logits `[labels, classes]` that minimize each label's cross-entropy, by Newton steps."""
    z = torch.zeros_like(confusion.T)
    for _ in range(steps):
        p = z.softmax(1)
        # the Hessian diag(p) - p pᵀ is singular along the constants: add them to its range
        hessian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1) + 1.0 / p.shape[1]
        step = torch.linalg.solve(hessian, p - confusion.T)
        size = step.abs().amax(1, keepdim=True)
        z = z - step / size.clamp(min=1)
    return z


def gap(z: Tensor) -> float:
    """Right logit minus the mean of the others, for the label 0."""
    return float(z[0, 0] - z[0, 1:].mean())


def logit_gaps(smoothing: float, samples: int, epochs: int) -> list[float]:
    """Mean gap on the training digits after every epoch."""
    x, y = digits(torch.float64)
    x, y = x[:samples], y[:samples]
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.1, generator=generator)
    found: list[float] = []

    def watch(model: nn.Module, history: object) -> None:
        with torch.no_grad():
            z = model(x)
        own = z.gather(1, y[:, None]).squeeze(1)
        found.append(float((own - (z.sum(1) - own) / 9).mean()))

    fit(net, (x, y), epochs=epochs, batch_size=64, learning_rate=0.01, label_smoothing=smoothing,
        callbacks=[watch])  # fmt: skip
    return found


def plot_gap(axes: Any, curves: dict[str, list[float]], best: float, confusion: Tensor) -> None:
    left, right = axes[0]
    for name, values in curves.items():
        left.plot(range(1, len(values) + 1), values, label=name)
    left.axhline(best, color=COLORS[6], linestyle="--", linewidth=1)
    right_end = len(curves["smoothed"])
    left.text(right_end, best - 0.2, "log(1 + k(1-ε)/ε)", fontsize=8, va="top", ha="right")
    left.set(xlabel="epoch", ylabel="logit gap", ylim=(0, None))
    left.legend()
    shown = right.imshow(confusion, cmap="Blues", norm="log")
    right.set(xlabel="label y", ylabel="class j", xticks=range(10), yticks=range(10))
    right.grid(False)
    right.figure.colorbar(shown, ax=right, label="probability")
