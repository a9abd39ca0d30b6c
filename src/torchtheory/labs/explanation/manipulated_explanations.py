"""An input with the same output and another explanation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.explanation.by_feature import correlation, feature_totals
from torchtheory.explanation.manipulation import Manipulated, Smoothed, manipulate_explanation
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.labs.engine import Run, lab
from torchtheory.training.loop.trainer import fit


@lab(
    "manipulated-explanations",
    room="explanation",
    covers=["C-13"],
    title="The same output, the heatmap of another image: explanations by gradients can be manipulated",
    full={"epochs": 30, "samples": 24, "steps": 800},
    least={"samples": 2, "steps": 250, "depth": 3},
)
def manipulated_explanations(run: Run, epochs: int = 4, samples: int = 6, steps: int = 250, depth: int = 4) -> None:
    """Colored digits are moved until their heatmap is that of another digit, while all outputs stay.

    The search descends through softplus functions in place of ReLUs, for a gradient that can be turned
    smoothly, and what it finds holds for the network itself. A perturbation of the same length in a
    random direction changes the outputs and turns the heatmap nowhere. Explained by a smoothed network,
    the manipulated inputs show much less of the foreign heatmap.

    Args:
        epochs: of the training.
        samples: test digits that are manipulated.
        steps: of the search.
        depth: hidden layers.
    """
    net, x = trained(run, epochs, samples, depth)
    with torch.no_grad():
        outputs = net(x)
    classes = outputs.argmax(1)
    foreign = gradient_times_input(net, x, classes).relevance
    assert isinstance(foreign, Tensor)
    shown = feature_totals(foreign.roll(1, 0))
    found = manipulate_explanation(net, x, shown, steps=steps)

    says = run.states("C-13", r"\mathrm{corr}(h(x'),\text{heatmap of another image})>0.8")
    says.above(found.correlation, 0.8, where=f"{samples} digits, relative distance {float(found.distance.mean()):.2f}")
    noise = run.randn(*x.shape)
    lengths = ((found.inputs - x).flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)).reshape(-1, 1, 1, 1)
    drawn = x + lengths * noise
    says.fails("moved as far in a random direction", similarity(net, drawn, classes, shown))
    says = run.states("C-13", r"f_k(x')=f_k(x)\text{ for all }k")
    says.equal(found.output_change, 0.0, 1e-9, where="largest change of an output; brought back by Newton's method")
    with torch.no_grad():
        change = (net(drawn) - outputs).abs().amax(1)
    says.fails("moved as far in a random direction", change)
    says = run.states("C-13", r"\text{mean correlation with the foreign heatmap, softplus for ReLU}<0.8")
    smooth = smoothed_similarity(net, found.inputs, classes, shown, 1.0)
    says.below(smooth.mean(), 0.8, where="gradient times input of the network with softplus, β = 1")
    says.fails("the network itself is explained", found.correlation.mean())
    run.figure(
        "images",
        lambda axes: plot(axes, x, foreign, shown, found),
        grid=(5, min(4, samples)),
        size=(6, 7),
        caption="From above: digits, their heatmaps (gradient times input, over the colors), manipulated digits with "
        "the same outputs, their heatmaps, and the heatmaps they were to show.",
    )


def trained(run: Run, epochs: int, samples: int, depth: int) -> tuple[nn.Module, Tensor]:
    """A network for digits in three noisy colors, from -1 to 1, and test digits."""
    pixels, labels = digits(torch.float64)
    gray = 2 * pixels.reshape(-1, 1, 8, 8) - 1
    colored = gray.expand(-1, 3, -1, -1) + 0.3 * run.randn(len(gray), 3, 8, 8)
    train, (x, _) = split(colored, labels, 0.4, run.generator)
    layers: list[nn.Module] = [nn.Flatten()]
    size = 192
    for _ in range(depth):
        layers += [nn.Linear(size, 128), nn.ReLU()]
        size = 128
    net = nn.Sequential(*layers, nn.Linear(size, 10)).double()
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=run.generator)
            nn.init.zeros_(layer.bias)
    fit(net, train, epochs=epochs, batch_size=128, learning_rate=0.001, seed=run.seed)
    return net.requires_grad_(False), x[:samples]


def similarity(net: nn.Module, x: Tensor, classes: Tensor, shown: Tensor) -> Tensor:
    return correlation(feature_totals(gradient_times_input(net, x, classes).relevance), shown)


def smoothed_similarity(net: nn.Module, x: Tensor, classes: Tensor, shown: Tensor, sharpness: float) -> Tensor:
    return similarity(Smoothed(net, sharpness), x, classes, shown)


def plot(axes: Any, x: Tensor, own: Tensor, shown: Tensor, found: Manipulated) -> None:
    rows = ("digit", "its heatmap", "manipulated", "its heatmap", "to be shown")
    for k, column in enumerate(axes.T):
        maps = (x[k], own[k].sum(0), found.inputs[k], found.relevance[k].sum(0), shown[k].reshape(8, 8))
        for ax, picture, name in zip(column, maps, rows, strict=True):
            if picture.ndim == 3:
                ax.imshow(((picture + 1) / 2).clamp(0, 1).permute(1, 2, 0))
            else:
                most = float(picture.abs().max())
                ax.imshow(picture, cmap="seismic", vmin=-most, vmax=most)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.grid(visible=False)
            if k == 0:
                ax.set_ylabel(name, fontsize=8)
