"""Digits with a fifth of their labels flipped: what smoothing saves of the accuracy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.data.real import digits
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.training.losses.label_smoothing import uniform_confusion
from torchtheory.training.many.networks import fit_many, mlp_family

CLASSES = 10
#: What smoothing must gain to count: two points; it gains about five with flips, one without.
LEAST = 0.02


@lab(
    "flipped-labels",
    room="training",
    covers=["N-135"],
    title="Where labels are wrong, smoothing keeps a network from learning the wrong ones so well",
    full={"networks": 32, "tested": 1400},
    least={"networks": 8, "epochs": 20, "tested": 200, "smoothing": 0.3, "flipped": 0.15},
    most={"tested": 1_497, "smoothing": 0.9, "flipped": 0.5},
)
def flipped_labels(
    run: Run, networks: int = 16, epochs: int = 40, tested: int = 500, smoothing: float = 0.5, flipped: float = 0.2
) -> None:
    """Networks on 300 digits of which a fifth have the label of another class, drawn at random.

    Trained for long they learn the wrong labels too, and lose accuracy on digits with the right
    ones. The same networks, with the same wrong labels and the same batches, are trained with
    smoothed labels. The gain is that of the same network, so that its interval is narrow; where all
    labels are right there is little to gain. Look at the curves: with flips the accuracy falls again
    after some fifteen epochs, and less so with smoothed labels. How much they save depends on the
    training: with steps three times as long, hardly anything.

    Args:
        networks: trainings of each kind.
        epochs: of a training.
        tested: digits that the accuracy is measured on.
        smoothing: share of a label that is spread over all classes.
        flipped: share of the training labels that are wrong.
    """
    x, y = digits()
    order = torch.randperm(len(y), generator=run.generator)
    train, test = order[:300], order[300 : 300 + tested]
    first = int(torch.randint(2**31, (1,), generator=run.generator))
    seeds = [first + k for k in range(networks)]
    start = mlp_family(x.shape[1], widths=[64], outputs=CLASSES, seeds=seeds)

    def accuracy(amount: float, noise: float) -> Tensor:
        """On digits with the right labels, after every epoch: `[networks, epochs]`."""
        columns = uniform_confusion(CLASSES, amount, x.dtype).T

        def loss(z: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(z, columns[labels])

        made = fit_many(
            start,
            (x[train], y[train]),
            validation=(x[test], y[test]),
            epochs=epochs,
            learning_rate=0.01,
            label_noise=noise,
            loss=loss,
            seed=seeds,
        )
        assert made.validation_error is not None
        return 1 - made.validation_error.double()

    amounts = {"hard labels": 0.0, "smoothed labels": smoothing}
    wrong, right = ({name: accuracy(amount, noise) for name, amount in amounts.items()} for noise in (flipped, 0.0))
    gain, none = (made["smoothed labels"][:, -1] - made["hard labels"][:, -1] for made in (wrong, right))
    says = run.states(
        "N-135",
        rf"{100 * flipped:.3g}\,\%\text{{ of the labels flipped: }}"
        rf"\mathbb E[\text{{accuracy}}_{{\epsilon={smoothing:.3g}}}-\text{{accuracy}}_{{\epsilon=0}}]",
    )
    says.at_least(
        mean_interval(gain, 0.99).low,
        LEAST,
        where=f"lower end of the mean gain of {networks} networks, 99 %",
    )
    says.fails("all labels right", mean_interval(none, 0.99).low)
    lost = right["hard labels"][:, -1] - wrong["hard labels"][:, -1]
    says = run.states("N-135", r"\text{hard labels: the flipped ones cost more than their smoothing gains}")
    says.below(mean_interval(gain - lost, 0.99).high, 0, where="upper end of the mean, 99 %")
    run.table(
        "accuracy",
        ["labels", "smoothing", "accuracy", "best of all epochs", "gain", "± (99 %)"],
        [
            [kind, amount, *summary(made[name], made["hard labels"])]
            for kind, made in ((f"{flipped:.0%} flipped", wrong), ("all right", right))
            for name, amount in amounts.items()
        ],
        caption=f"Test accuracy of networks with 64 hidden units, trained on 300 digits for {epochs} epochs",
    )
    run.curves(
        "accuracy",
        list(range(1, epochs + 1)),
        {
            **{f"{flipped:.0%} flipped, {name}": curves.mean(0) for name, curves in wrong.items()},
            **{f"all right, {name}": curves.mean(0) for name, curves in right.items()},
        },
        axes=("epoch", "accuracy on digits with right labels"),
        ylim=(0.75, 1.0),
        caption=f"Mean over {networks} networks. The wrong labels are learned last; smoothing keeps part of what "
        "they cost.",
    )


def summary(curves: Tensor, hard: Tensor) -> list[float]:
    """Accuracy at the end, the best on the way, and the gain over hard labels with its half-width."""
    gain = mean_interval(curves[:, -1] - hard[:, -1], 0.99)
    return [float(curves[:, -1].mean()), float(curves.mean(0).max()), gain.estimate, gain.high - gain.estimate]
