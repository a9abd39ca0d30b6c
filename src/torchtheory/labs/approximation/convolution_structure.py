"""Convolution is a structured matrix that commutes with shifts; pooling nearly forgets them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.approximation.architectures.shift_structure import (
    convolution_matrix,
    equivariance_gaps,
)
from torchtheory.labs.engine import COLORS, Run, clopper_pearson, lab
from torchtheory.training.regularizers.augmentation import Shift, invariance_gap

#: stride, dilation, groups, padding, how the border is filled
SETTINGS: tuple[tuple[int, int, int, int, str], ...] = (
    (1, 1, 1, 1, "circular"),
    (1, 1, 1, 1, "zeros"),
    (2, 1, 1, 1, "zeros"),
    (1, 2, 1, 0, "zeros"),
    (1, 1, 2, 2, "circular"),
    (3, 2, 2, 2, "reflect"),
)


@lab(
    "convolution-structure",
    room="approximation",
    covers=["X-76", "X-77"],
    title="Convolution is a sparse matrix of few numbers that commutes with shifts",
    errata=["shifts-need-a-circle"],
    full={"size": 24, "windows": 40_000},
    # shares of 7/9 and 3/4 are told apart
    least={"size": 8, "windows": 4000},
)
def convolution_structure(run: Run, size: int = 12, windows: int = 4000) -> None:
    r"""Layers become matrices, networks are moved, and windows are pooled.

    The matrix of a convolution gives what torch gives, has one row an output and the filter's
    numbers again and again. On a circle every layer of stride 1 commutes with every shift; zeros
    at the border, a stride and pooling break that, each in its own place. Pooling over the whole
    image forgets a shift exactly. Pooling over windows of q places does so only in part: the mean
    moves by at most k/q of the range, the maximum by at most what the input moves, and of
    independent numbers the maximum stays the same with probability (q-k)/(q+k). Look at the curve
    of the strided network, which comes back to zero at multiples of its stride.

    Args:
        size: places per side of the images.
        windows: random windows that are pooled.
    """
    matrices(run, size)
    gaps = shifted_layers(run, size)
    curves = global_pooling(run, size)
    shares = local_pooling(run, windows)
    run.table("gaps", ["network", "layer", "relative gap"], gaps, caption="One shift by (1, 1)")
    run.figure(
        "shifts",
        lambda axes: plot(axes, curves, shares),
        grid=(1, 2),
        caption="Left: how far the output moves when the input is moved along a circle. Right: "
        "share of maxima that do not change, and (q-k)/(q+k).",
    )


def layer_of(run: Run, inputs: int, outputs: int, taps: int, **settings: Any) -> nn.Conv2d:
    """A convolution with normal weights from the run's generator."""
    layer = nn.Conv2d(inputs, outputs, taps, dtype=torch.float64, device="meta", **settings)
    layer = layer.to_empty(device="cpu")
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(run.randn(*p.shape) / 3)
    return layer.requires_grad_(False)


def matrices(run: Run, size: int) -> None:
    """The matrix against torch; entries and how many of them are free."""
    apart, wrong, entries, predicted, different = [], [], [], [], []
    rows = []
    for stride, dilation, groups, padding, mode in SETTINGS:
        settings = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
        layer = layer_of(run, 2, 4, 3, padding_mode=mode, **settings)
        x = run.randn(5, 2, size, size)
        matrix = convolution_matrix(layer, (2, size, size))
        by_torch = layer(x)
        assert layer.bias is not None
        mine = (matrix @ x.flatten(1).T).T.reshape(by_torch.shape) + layer.bias[:, None, None]
        apart.append(float((mine - by_torch).abs().max()))
        # the definition of a convolution turns the filter round, torch does not
        turned = layer_of(run, 2, 4, 3, padding_mode=mode, **settings)
        turned.load_state_dict({"weight": layer.weight.flip(-2, -1), "bias": layer.bias}, strict=True)
        wrong.append(float((turned(x) - by_torch).abs().max()))
        values = matrix.values()
        different.append(len(torch.unique(values)))
        rows.append((mode, stride, dilation, groups, list(matrix.shape), len(values)))
        if mode == "circular" and stride == 1:
            entries.append(len(values))
            predicted.append(by_torch[0].numel() * layer.weight[0].numel())
    says = run.states("X-76", r"\|Wx+b-(w*x+b)\|_\infty=0 \text{ for any stride, dilation, padding, groups}")
    says.equal(apart, within=1e-13)
    says.fails("the filter turned by half a circle", wrong)
    zeros = convolution_matrix(layer_of(run, 2, 4, 3, padding=1), (2, size, size))
    says = run.states("X-76", r"\text{different numbers in } W=\text{taps}\cdot\text{channels}, \text{ weights shared}")
    says.equal(
        [n for n, s in zip(different, SETTINGS, strict=True) if s[4] != "reflect"],
        [4 * (2 // g) * 9 for _, _, g, _, mode in SETTINGS if mode != "reflect"],
        where="where a border is mirrored an input may meet a filter twice, and entries add up",
    )
    says.fails(
        "a dense layer of the same shape shares nothing", len(torch.unique(run.randn(*zeros.shape))), promised=4 * 2 * 9
    )
    says = run.states(
        "X-76", r"\text{on a circle each output meets each tap: entries of } W=\text{outputs}\cdot\text{taps}"
    )
    says.equal(entries, predicted)
    says.fails("zeros come in at the border", zeros._nnz(), promised=predicted[0])
    names = ["border", "stride", "dilation", "groups", "shape of W", "entries of W"]
    run.table("matrices", names, rows, caption=f"Filters of 3 x 3 on {size} x {size} images")


def network(run: Run, mode: str, last: nn.Module, stride: int = 1) -> nn.Sequential:
    same = {"padding": 1, "padding_mode": mode}
    first = layer_of(run, 1, 3, 3, stride=stride, **same)
    return nn.Sequential(first, nn.Tanh(), layer_of(run, 3, 3, 3, **same), nn.ReLU(), last)


def shifted_layers(run: Run, size: int) -> list[tuple[str, str, float]]:
    """Every layer of four networks, and the input moved by one place each way."""
    even = size - size % 2
    x = run.randn(8, 1, even, even)
    kinds = {
        "periodic": network(run, "circular", nn.Identity()),
        "zeros at the border": network(run, "zeros", nn.Identity()),
        "stride 2": network(run, "circular", nn.Identity(), stride=2),
        "windows of 2 x 2": network(run, "circular", nn.MaxPool2d(2)),
    }
    rows = []
    worst: dict[str, float] = {}
    for name, net in kinds.items():
        gaps = equivariance_gaps(net, x, (1, 1))
        worst[name] = max(gaps.values())
        rows += [(name, f"{k} {type(net[int(k)]).__name__}", v) for k, v in gaps.items()]
    every = [(down, right) for down in range(even) for right in range(0, even, 3)]
    periodic = [max(equivariance_gaps(kinds["periodic"], x, s).values()) for s in every]
    says = run.states("X-76", r"\sigma(w*Tx+b)=T\sigma(w*x+b) \text{ layer by layer, periodic, stride 1}")
    says.equal(periodic, within=1e-13)
    says.fails(
        "zeros come in at the border, or the stride is 2, or windows are pooled",
        [v for k, v in worst.items() if k != "periodic"],
    )
    for name in ("stride 2", "windows of 2 x 2"):
        says = run.states(["X-76", "X-77"], rf"\text{{{name}: a shift by the stride moves the output by one place}}")
        says.equal([max(equivariance_gaps(kinds[name], x, s).values()) for s in ((2, 0), (4, 2))], within=1e-13)
        says.fails("a shift by half the stride", max(equivariance_gaps(kinds[name], x, (1, 0)).values()))
    layer = kinds["zeros at the border"][0]
    moved = layer(torch.roll(x, (1, 1), (2, 3))) - torch.roll(layer(x), (1, 1), (2, 3))
    inside = moved[..., 2:-1, 2:-1].abs().max()
    says = run.states("X-76", r"\text{zero padding: } w*Tx=T(w*x) \text{ away from the border}")
    says.equal(float(inside), within=1e-13)
    says.fails("the border included", float(moved.abs().max()))
    run.refutes("shifts-need-a-circle", r"w*(Tx)=T(w*x) \text{ for a convolutional layer and a shift } T").equal(
        worst["zeros at the border"],
        within=1e-13,
        where="a 3 x 3 filter with zeros at the border, the padding of most networks",
    )
    return rows


def global_pooling(run: Run, size: int) -> dict[str, Tensor]:
    """Curves of invariance; those of pooling over the whole circle vanish."""
    fours = size - size % 4
    x = run.randn(16, 1, fours, fours)
    whole = nn.AdaptiveAvgPool2d(1)
    curves: dict[str, Tensor] = {}
    moves = [Shift(0, k, cyclic=True) for k in range(1, fours // 2 + 1)]
    nets = {
        "mean of everything": network(run, "circular", whole),
        "maximum of everything": network(run, "circular", nn.AdaptiveMaxPool2d(1)),
        "windows of 4, stride 4": network(run, "circular", nn.AvgPool2d(4)),
        "stride 4, then the mean": network(run, "circular", whole, stride=4),
        "no pooling": network(run, "circular", nn.Identity()),
    }
    for name, net in nets.items():
        curves[name] = torch.cat([torch.zeros(1), invariance_gap(net, x, moves)])
    strided = curves["stride 4, then the mean"]
    says = run.states("X-77", r"\text{pooling over the whole circle: } f(Tx)=f(x)")
    says.equal(torch.cat([curves["mean of everything"], curves["maximum of everything"]]), within=1e-12)
    says.fails("stride 4 before the pooling", strided)
    says = run.states("X-77", r"\text{stride 4 before the pooling: } f(Tx)=f(x) \text{ for shifts by multiples of 4}")
    says.equal(strided[::4], within=1e-12)
    says.fails("the other shifts", strided[1::4])
    return curves


def local_pooling(run: Run, windows: int) -> dict[int, tuple[list[float], list[float]]]:
    """How much a window's mean and maximum move, and how often the maximum does not."""
    x = run.randn(64, 1, 64)
    mean_moves, mean_bounds, max_moves, max_bounds, sampled, products = [], [], [], [], [], []
    span = float(x.max() - x.min())
    for q in (2, 4, 8):
        for k in range(1, q + 1):
            moved = torch.roll(x, k, -1)
            mean_moves.append(float((F.avg_pool1d(moved, q) - F.avg_pool1d(x, q)).abs().max()))
            mean_bounds.append(k / q * span)
            sampled.append(float((moved[..., ::q] - x[..., ::q]).abs().max()))
            max_moves.append(float((F.max_pool1d(moved, q) - F.max_pool1d(x, q)).abs().max()))
            max_bounds.append(float((moved - x).abs().max()))
            both = [a.reshape(*a.shape[:-1], -1, q).prod(-1) for a in (moved, x)]
            products.append(float((both[0] - both[1]).abs().max()))
    says = run.states("X-77", r"\text{mean over } q \text{ places, shift by } k:\ |\Delta|\le\tfrac kq(\max x-\min x)")
    says.at_most(mean_moves, mean_bounds)
    says.fails("every q-th place is kept instead of a mean", sampled)
    says = run.states("X-77", r"\text{maximum over } q \text{ places}:\ |\Delta|\le\|Tx-x\|_\infty")
    says.at_most(max_moves, max_bounds)
    says.fails("products over q places instead of maxima", products)
    shares: dict[int, tuple[list[float], list[float]]] = {}
    confidence = 1 - 1e-6  # a true share is outside once in a million
    for q in (2, 4, 8):
        shares[q] = ([], [])
        for k in range(1, q):
            # one window a row, so that the trials are independent
            row = run.randn(windows, q + k)
            same = int((row[:, :q].amax(1) == row[:, k:].amax(1)).sum())
            means = int((row[:, :q].mean(1) == row[:, k:].mean(1)).sum())
            found = clopper_pearson(same, windows, confidence)
            shares[q][0].append(found.estimate)
            shares[q][1].append((q - k) / (q + k))
            if k == 1:
                averaged = clopper_pearson(means, windows, confidence)
                says = run.states("X-77", rf"q={q},\ k=1:\ P(\text{{maximum unchanged}})=\frac{{q-k}}{{q+k}}")
                # as if the maximum were of one window, or stayed only with one of the two
                says.mean(found, (q - k) / (q + k), against=((q - k) / q, q / (q + k)))
                says.fails("means instead of maxima", averaged)
    return shares


def plot(axes: Any, curves: dict[str, Tensor], shares: dict[int, tuple[list[float], list[float]]]) -> None:
    left, right = axes[0]
    for color, (name, curve) in zip(COLORS, curves.items(), strict=False):
        style = "--" if name.startswith("maximum") else "-"
        left.plot(range(len(curve)), curve, style, marker="o", ms=3, color=color, label=name)
    left.set(xlabel="shift", ylabel="relative change of the output", title="moved along a circle")
    left.set_ylim(-0.1, 1.9 * float(torch.cat(list(curves.values())).max()))
    left.legend(loc="upper left")
    for color, (q, (found, promised)) in zip(COLORS, shares.items(), strict=False):
        steps = range(1, q)
        right.plot(steps, promised, color=color, linewidth=0.8)
        right.plot(steps, found, "o", color=color, label=f"windows of {q}")
    right.set(xlabel="shift", ylabel="share of maxima unchanged", title="independent numbers")
    right.legend()
