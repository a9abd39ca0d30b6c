"""Four puzzles of networks that fit their training data: each observed, or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.generalization.memorization.experiment import fit_and_test, seeded_network
from torchtheory.generalization.memorization.puzzle_battery import ErrorCurve, puzzle_curve
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.labs.generalization.random_labels import Pair, draw

#: Set before the first run: how much regularization may change the test error and still be mild.
MILD = 0.05
#: ... and what a low test error is with noisy labels: half of that of guessing.
LOW = 0.45
#: ... and a squared loss of about zero: predicting 0 for every class costs 1.
ZERO = 0.02
#: Factors of the initial weights.
SCALES = (1.0, 3.0, 9.0)


@lab(
    "generalization-puzzle",
    room="generalization",
    covers=["A-49"],
    title="Beyond interpolation: regularization, initial weights, noise, width",
    full={
        "images": "mnist",
        "samples": 1000,
        "tests": 5000,
        "width": 128,
        "seeds": 12,
        "epochs": 100,
        "widths": (4, 8, 16, 32, 64, 128, 256, 512),
        "noises": (0.0, 0.1, 0.2, 0.4, 1.0),
        "batch_sizes": (25, 50, 200),
    },
    least={"samples": 50, "tests": 150, "seeds": 12, "epochs": 40, "noises": 0.0, "widths": 1, "width": 48},
    most={"noises": 1},
    items={"widths": 3, "noises": 2},
)
def generalization_puzzle(
    run: Run,
    images: Literal["digits", "mnist", "fashion-mnist"] = "digits",
    samples: int = 120,
    tests: int = 500,
    width: int = 48,
    seeds: int = 16,
    epochs: int = 60,
    widths: tuple[int, ...] = (6, 12, 14, 320),
    noises: tuple[float, ...] = (0.0, 0.2, 1.0),
    batch_sizes: tuple[int, ...] = (),
) -> None:
    """What is said of networks that fit all their training data, met by measurements.

    (ii) Weight decay and dropout change the test error little. (iii) Other initial weights give
    another test error, though all training errors are 0: drawn larger, they give a larger one.
    (iv) Fitted to zero squared loss with a part of the labels wrong, the network still classifies
    well. (v) Networks wider than needed to fit have a lower test error than those that just do.
    All with intervals over seeds; what was not observed fails its claim and says so in the table.
    Look at the panels: dashed is the training error, solid the test error.

    Args:
        images: `digits`, or `mnist` from files.
        samples: that are trained on.
        tests: samples that the error is measured on.
        width: hidden units where the width is not what varies.
        seeds: trainings of each kind.
        epochs: of a training.
        widths: hidden units on the curve over widths.
        noises: shares of random labels; 0.2 and 1 among them.
        batch_sizes: on a further curve of which nothing is claimed; none unless given.
    """
    run.assumes(0.2 in noises and max(noises) == 1, "the statements are about a fifth of the labels wrong, and all")
    train, test = draw(run, images, samples, tests)
    inputs = train[0].shape[1]

    def make_network(units: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 10))

    settings: dict[str, Any] = {
        "width": width,
        "seeds": range(seeds),
        "epochs": epochs,
        "batch_size": min(60, samples // 2),
        "learning_rate": 0.02 if images == "digits" else 0.002,
    }

    def curve(item: str, levels: tuple[float, ...], **other: Any) -> ErrorCurve:
        return puzzle_curve(item, levels, make_network, train, test, **{**settings, **other})

    penalty = curve("weight decay", (0.0, 1e-3, 1.0))
    dropout = with_dropout(run, inputs, width, train, test, penalty, settings)
    scale = curve("initial scale", SCALES)
    # the squared loss needs more units, and more and smaller steps, to become zero
    some = range(max(2, seeds // 2))
    slower = {"width": 4 * width, "epochs": 3 * epochs, "seeds": some,
              "learning_rate": settings["learning_rate"] / 2}  # fmt: skip
    noise = curve("label noise", noises, **slower)
    few = curve("label noise", (0.2,), width=min(widths), seeds=some)
    # how much width helps differs more between samples than between initial weights, so every one of
    # these seeds, half as many again, has samples of its own, and two networks on them that differ in
    # nothing else
    drawn = [draw(run, images, samples, tests) for _ in range(seeds + seeds // 2)]
    pairs = [
        puzzle_curve("width", sorted(widths), make_network, *data, **{**settings, "seeds": (2 * k, 2 * k + 1)})
        for k, data in enumerate(drawn)
    ]
    size = ErrorCurve(
        "width",
        tuple(float(w) for w in sorted(widths)),
        *(
            torch.stack([getattr(p, name).mean(1) for p in pairs], 1)
            for name in ("train_loss", "train_error", "test_error")
        ),
    )
    halves = torch.stack([p.test_error[-1] for p in pairs], 1)
    curves = [size, noise, penalty, scale]
    if batch_sizes:  # nothing is claimed of it
        curves.append(curve("batch size", tuple(float(b) for b in batch_sizes), seeds=some))
    regularization(run, penalty, dropout)
    initialization(run, scale, halves)
    noisy(run, noise, few)
    wider(run, size, halves)
    run.table(
        "errors",
        ["varied", "level", "training error", "test error", "least", "largest"],
        [
            (c.item, level, c.train_error[i].mean(), c.test_error[i].mean(),
             c.test_error[i].min(), c.test_error[i].max())
            for c in curves
            for i, level in enumerate(c.levels)
        ],
        caption=f"{samples} images, {seeds} seeds (widths: {len(drawn)} with images of their own; noise and batch "
        f"size: {len(some)}), {epochs} epochs (noise: {3 * epochs}); with noise the training error "
        "counts the noisy labels, the test error the true ones.",
    )  # fmt: skip
    said = ["(ii) regularization", "(iii) fitted", "(iii) initial weights", "(iv) fitted",
            "(iv) noise", "(v) width"]  # fmt: skip
    rows = [(name, str(c.verdict) == "holds") for name, c in zip(said, run.claims, strict=True)]
    run.table("puzzles", ["statement", "observed"], rows, caption="What was observed here.")
    run.figure(
        "puzzle",
        lambda axes: plot(axes, curves),
        caption="Test error (solid) and training error (dashed), means and 95% Student intervals "
        "over the seeds. With noise the training labels are the noisy ones.",
        grid=(1, len(curves)),
        size=(3.4 * len(curves), 3.3),
    )


def with_dropout(
    run: Run,
    inputs: int,
    width: int,
    train: Pair,
    test: Pair,
    plain: ErrorCurve,
    settings: dict[str, Any],
) -> Interval:
    """What dropout changes, paired by seed."""

    def make_network() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))

    kept = ("epochs", "batch_size", "learning_rate")
    nets = [seeded_network(make_network, s) for s in settings["seeds"][:8]]  # one by one
    found = fit_and_test(nets, train, test, **{k: settings[k] for k in kept})
    run.note(
        f"Dropout of 0.2: mean test error {float(found.test_error.mean()):.3f}, without "
        f"{float(plain.test_error[0].mean()):.3f}."
    )
    return mean_interval(found.test_error - plain.test_error[0, : len(nets)])


def regularization(run: Run, penalty: ErrorCurve, dropout: Interval) -> None:
    changes = [penalty.change(1, 0), dropout]
    strong = penalty.change(2, 0)
    says = run.states("A-49", rf"\text{{(ii) regularization changes the test error by at most }}{MILD}")
    says.at_most(
        [max(abs(i.low), abs(i.high)) for i in changes],
        MILD,
        loose="what counts as little was fixed beforehand; no theorem says how much it is",
        where="outer ends of 99% intervals over the seeds: weight decay 0.001 and dropout",
    )
    says.fails(
        "a penalty with which the training data are not fitted any more, weight decay 1",
        max(abs(strong.low), abs(strong.high)),
    )


def initialization(run: Run, scale: ErrorCurve, halves: Tensor) -> None:
    run.states("A-49", r"\text{(iii) from all initial weights the training error becomes }0").at_most(
        scale.train_error, 0.0
    )
    slopes = slope(SCALES, scale.test_error)
    same = slope(SCALES[::2], halves)
    says = run.states(
        "A-49",
        r"\text{(iii) }\ldots\text{ and the test error depends on them: it grows with their scale,}"
        r"\text{ a factor of ten by}",
    )
    says.above(
        slopes.low,
        0.0,
        where=f"least-squares slope over the scales {', '.join(f'{s:g}' for s in SCALES)}; lower "
        f"end of the 99.9% interval over the seeds, {slopes.low:.3f} to {slopes.high:.3f}",
    )
    says.fails("nothing is scaled: other weights from the same distribution at two scales", same.low)


def slope(levels: Sequence[float], errors: Tensor) -> Interval:
    """How much errors `[levels, seeds]` grow with a tenfold level, by least squares."""
    # a control in which nothing differs must not exceed 0 by chance
    return mean_interval(slopes(levels, errors), 0.999)


def slopes(levels: Sequence[float], errors: Tensor) -> Tensor:
    """The slopes of each seed, `[seeds]`."""
    steps = torch.tensor(levels, dtype=torch.float64).log10()
    steps = steps - steps.mean()
    return steps @ errors / steps.square().sum()


def noisy(run: Run, noise: ErrorCurve, few: ErrorCurve) -> None:
    at = noise.levels.index(0.2)
    says = run.states("A-49", rf"\text{{(iv) a fifth of the labels wrong: the squared loss becomes at most }}{ZERO}")
    says.at_most(noise.train_loss[at], ZERO, loose="what counts as zero was fixed beforehand, for any number of steps")
    says.fails("too few hidden units to fit them", few.train_loss[0])
    found, hopeless = mean_interval(noise.test_error[at]), mean_interval(noise.test_error[-1])
    says = run.states("A-49", rf"\text{{(iv) }}\ldots\text{{ and the test error is at most }}{LOW}")
    says.at_most(found.high, LOW, where="upper end of the 99% interval over the seeds; half the error of guessing")
    says.fails("all labels wrong", hopeless.high)


def wider(run: Run, size: ErrorCurve, halves: Tensor) -> None:
    says = run.states("A-49", r"\text{(v) beyond the width that fits, the test error falls, a factor of ten by}")
    found = []
    for fits, errors in zip((size.train_error == 0).T, size.test_error.T, strict=True):
        if int(fits.sum()) >= 2:  # from the width that just fits these images to the largest
            widths = [w for w, fit in zip(size.levels, fits, strict=True) if fit]
            found.append(slopes(widths, -errors[fits]))
    if len(found) < 3:
        run.not_applicable("A-49", says.text, "fewer than two widths fit the training data of most samples")
        return
    gain = mean_interval(torch.stack(found), 0.999)
    same = slope(size.levels[1 :: len(size.levels) - 2], -halves)
    says.above(
        gain.low,
        0.0,
        where=f"mean least-squares slope over those of the widths {', '.join(f'{w:g}' for w in size.levels)} that "
        f"fit; lower end of the 99.9% interval over {len(found)} samples of the data, {gain.low:.3f} to "
        f"{gain.high:.3f}",
    )
    says.fails("the largest width twice, other initial weights", same.low)


def plot(axes: Any, curves: Sequence[ErrorCurve]) -> None:
    names = {
        "width": "width",
        "label noise": "share of wrong labels (squared loss)",
        "weight decay": "weight decay",
        "initial scale": "scale of the initial weights",
        "batch size": "batch size",
    }
    for axis, curve in zip(axes[0], curves, strict=True):
        spaced = curve.item == "weight decay"
        places = list(range(len(curve.levels))) if spaced else list(curve.levels)
        for values, style, color, label in (
            (curve.test_error, "o-", COLORS[0], "test"),
            (curve.train_error, "s--", COLORS[1], "training"),
        ):
            ranges = [mean_interval(v, 0.95) for v in values]
            radius = [i.high - i.estimate for i in ranges]
            axis.errorbar(places, [i.estimate for i in ranges], yerr=radius, fmt=style, color=color,
                          capsize=3, markersize=4, label=label)  # fmt: skip
        if curve.item in ("width", "batch size", "initial scale"):
            axis.set_xscale("log")
            axis.minorticks_off()
        axis.set_xticks(places, [f"{v:g}" for v in curve.levels])
        axis.set(xlabel=names[curve.item])
        axis.set_ylim(bottom=-0.02)
    axes[0, 0].set(ylabel="error")
    axes[0, 0].legend()
