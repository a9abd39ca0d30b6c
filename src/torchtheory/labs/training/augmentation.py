"""Data augmentation: an invariance learned from transformed copies of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.risks import empirical_risk
from torchtheory.training.regularizers.augmentation import (
    OneOf,
    Shift,
    Transform,
    augmented,
    invariance_gap,
    shifts,
)


@lab(
    "augmentation",
    room="training",
    covers=["N-134"],
    title="Augmentation by a group makes least squares invariant, and a network nearly so",
    full={"samples": 1200, "epochs": 60, "repeats": 10, "length": 24},
    least={"length": 2, "samples": 100, "epochs": 8, "repeats": 4},
)
def augmentation(run: Run, length: int = 9, samples: int = 400, epochs: int = 15, repeats: int = 4) -> None:
    """Every sample is joined by its transformed copies, with the same label.

    A least-squares problem on signals of `length` values is augmented by all cyclic shifts: these
    form a group, and the solution is the same for every shift, namely constant. Leaving one
    shift out, or leaving the identity out, breaks that. Drawing a copy on the fly has the
    same expected loss as training on all copies. Then networks are trained on `samples` digits,
    with and without shifts by one pixel drawn on the fly, and tested on shifted digits.

    Args:
        epochs: of a training.
        repeats: trainings with and without augmentation.
    """
    run.assumes(
        samples * epochs >= 1500,
        f"{epochs} epochs of {samples} digits are {samples * epochs}: before 1500 no network has learned its digits",
    )
    group = [Shift(0, k, 1, length, cyclic=True) for k in range(1, length)]
    x, y = run.randn(5, length), run.randn(5)
    full = augmented((x, y), group)
    says = run.states("N-134", r"\#\bigcup_{k=1}^K\{(\tau_k(x_i), y_i)\} = Kn")
    says.equal(len(full), length * len(x))
    says.fails("the identity is not among the transformations", len(augmented((x, y), group, include_identity=False)))
    missing = sum(not bool((augmented((x, y), group, include_identity=False).x == row).all(1).any()) for row in x)
    says = run.states("N-134", r"\text{the originals are among the augmented data: originals lost}")
    says.equal(sum(not bool((full.x == row).all(1).any()) for row in x))
    says.fails("the identity is not among the transformations", missing)

    def solution(transforms: list[Shift]) -> nn.Linear:
        """Least squares on the union; of least norm where there are several."""
        data = augmented((x, y), transforms)
        made = nn.Linear(length, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            made.weight.copy_((torch.linalg.pinv(data.x) @ data.y).unsqueeze(0))
        return made

    invariant, broken = solution(group), solution(group[:-1])
    fresh = run.randn(200, length)
    every: list[Transform] = [*group]
    says = run.states(
        "N-134",
        r"\text{all } \tau_k \text{ of a group: least squares gives } f\circ\tau_k = f:"
        r"\ \text{relative change of the outputs}",
    )
    says.equal(invariance_gap(invariant, fresh, every), within=1e-8)
    says.fails("one shift is left out", invariance_gap(broken, fresh, every))
    # the invariant linear functions are multiples of the sum: fit that one number
    sums = x.sum(1)
    best = float((sums * y).sum() / (sums * sums).sum()) * torch.ones(length, dtype=x.dtype)
    says = run.states("N-134", r"\text{... the least-squares solution among the invariant functions}")
    says.equal(invariant.weight.detach().squeeze(0), best, 1e-8)
    says.fails("one shift is left out", broken.weight.detach().squeeze(0))
    # fits the originals, so that the copies decide
    theta = torch.linalg.lstsq(x, y).solution
    everything = float((full.x @ theta - full.y).square().mean())
    draws, originals = 3000, (x @ theta - y).square().mean()
    draw = OneOf(every)
    losses = torch.stack([(draw(x, run.generator) @ theta - y).square().mean() for _ in range(draws)])
    says = run.states(
        "N-134", r"\text{on the fly: } \mathbb E_\tau\, \hat R(\theta; \tau(x)) = \hat R(\theta; \text{all copies})"
    )
    # without the copies, and without the originals
    others = (float(originals), everything * length / (length - 1))
    says.mean(losses, everything, against=others, confidence=0.9999)
    says.fails("the loss on the originals alone", losses, promised=float(originals))

    moves = shifts(1, 8, 8)
    rows = [one_training(seed, samples, epochs, moves) for seed in run.track(range(repeats))]
    table = torch.tensor(rows, dtype=torch.float64)
    plain, shifted, mirrored = table[:, 0].T, table[:, 1].T, table[:, 2].T
    fewer = mean_interval(plain[1] - shifted[1], 0.99)
    no_fewer = mean_interval(plain[1] - mirrored[1], 0.99)
    says = run.states("N-134", r"\text{digits shifted by a pixel: error without minus error with augmentation} > 0")
    says.above(fewer.low, 0, where=f"the lower end of a 99% interval over {repeats} trainings")
    says.fails("augmented by mirror images instead of shifts", no_fewer.low)
    says = run.states("N-134", r"\text{invariance gap with augmentation / without}")
    says.below(shifted[0] / plain[0], 1)
    says.fails("augmented by mirror images instead of shifts", mirrored[0] / plain[0])
    run.table(
        "digits",
        ["augmentation", "error, digits as they are", "error, shifted digits", "invariance gap"],
        [
            (name, values[2].mean(), values[1].mean(), values[0].mean())
            for name, values in (("plain", plain), ("shifts", shifted), ("mirror", mirrored))
        ],
        caption=f"Networks trained on {samples} digits, mean of {repeats} trainings",
    )
    pixels = split(*digits(torch.float64), 0.4, 0)[1][0]
    run.figure(
        "shifts",
        lambda axes: plot_shifts(axes, pixels[3], moves, table[..., 0]),
        caption="A digit and its copies shifted by one pixel; how far the outputs move under a "
        "shift, relative to how much they vary, for networks trained with and without copies.",
        grid=(1, 2),
        size=(9, 3.2),
    )


def one_training(seed: int, samples: int, epochs: int, moves: list[Transform]) -> list[tuple[float, float, float]]:
    """Invariance gap, error on shifted and on still digits, for three augmentations."""
    (x, y), (test_x, test_y) = split(*digits(torch.float64), 0.4, seed)
    x, y = x[:samples], y[:samples]
    test_x, test_y = test_x[:300], test_y[:300]
    moved = augmented((test_x, test_y), moves, include_identity=False)
    rows = []
    for augment in (None, OneOf(moves), OneOf([mirror])):
        generator = torch.Generator().manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)).double()
        for p in net.parameters():
            nn.init.normal_(p, std=0.1, generator=generator)
        fit(net, (x, y), epochs=epochs, batch_size=50, learning_rate=0.01, augment=augment,
            seed=seed)  # fmt: skip
        gap = float(invariance_gap(net, test_x, moves).mean())
        rows.append((gap, mistakes(net, moved.x, moved.y), mistakes(net, test_x, test_y)))
    return rows


def mirror(x: Tensor) -> Tensor:
    """Left and right exchanged."""
    return x.reshape(-1, 8, 8).flip(2).reshape(x.shape)


def mistakes(net: nn.Module, x: Tensor, y: Tensor) -> float:
    def wrong(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.argmax(1) != labels).to(outputs.dtype).mean()

    return empirical_risk(net, (x, y), loss=wrong).value


def plot_shifts(axes: Any, digit: Tensor, moves: list[Transform], gaps: Tensor) -> None:
    left, right = axes[0]
    board = torch.full((3 * 9 + 1, 3 * 9 + 1), 0.4, dtype=digit.dtype)
    images = [m(digit[None]).reshape(8, 8) for m in moves]
    images.insert(4, digit.reshape(8, 8))
    for i, image in enumerate(images):
        a, b = 1 + 9 * (i // 3), 1 + 9 * (i % 3)
        board[a : a + 8, b : b + 8] = image
    left.imshow(board, cmap="gray_r")
    left.set(xticks=[], yticks=[], title="one digit, nine copies")
    left.grid(False)
    for k, name in enumerate(("plain", "shifts", "mirror images")):
        place = [i + 0.27 * (k - 1) for i in range(len(gaps))]
        right.bar(place, gaps[:, k], 0.25, label=name)
    ticks = list(range(len(gaps)))
    right.set(xlabel="training", ylabel="invariance gap", xticks=ticks, ylim=(0, None))
    right.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.16))
