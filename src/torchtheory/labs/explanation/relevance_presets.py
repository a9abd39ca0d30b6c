"""Which rules for which network: presets, and warnings about choices that work badly."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.explanation.composites import Composite, DoubtfulRules, Rules, first_layer, preset
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Gamma, Product, WSquare
from torchtheory.labs.engine import Run, lab


@lab(
    "relevance-presets",
    room="explanation",
    covers=["C-33"],
    title="Rules by layer: presets do what they say, and bad combinations are told",
    full={"samples": 100},
)
def relevance_presets(run: Run, samples: int = 8) -> None:
    """Each preset on a network of its kind.

    The preset for images has the box of the pixels at the bottom, gamma in the middle and epsilon at
    the top. The default for unknown networks of ReLUs hands on no negative relevance. Choices that
    are known to work badly draw one warning each, the presets none.

    Args:
        samples: inputs that are explained.
    """
    images = run.rand(samples, 1, 12, 12)
    net = image_network(run)
    box = preset("image_cnn", low=0, high=1)
    parts = ["box 0 to 1", "gamma 0.25", "epsilon 1e-06"]
    says = run.states(
        "C-33",
        r"\text{image: }z^{\mathcal B}\ \text{first},\ \gamma\ \text{in convolutions},\ \varepsilon\ \text{on top}",
    )
    promised = torch.tensor([1.0, 3.0, 2.0])
    says.equal(float((counts(lrp(net, images, 0, box), parts) - promised).abs().sum()), 0.0)
    other = counts(lrp(net, images, 0, preset("image_cnn")), parts)
    says.fails("no bounds of the pixels are given", float((other - promised).abs().sum()))

    says = run.states("C-33", r"\alpha_1\beta_0\ \text{everywhere, }f>0:\ R_i\ge0")
    with torch.no_grad():
        start = torch.zeros(samples, 3).double()
        start[:, 0] = net(images)[:, 0].sign()
    says.equal(lrp(net, images, start, preset("relu_default")).flat.clamp_max(0).amin(1), 0.0)
    mixed = Composite((("8", Epsilon()),), AlphaBeta(1, 0))
    says.fails("epsilon in one layer", lrp(net, images, start, mixed).flat.clamp_max(0).amin(1))

    says = run.states("C-33", r"\text{warnings about presets on networks of their kind: }0")
    words = torch.randint(0, 9, (samples, 6), generator=run.generator)
    text, reader = Text().double(), Reader().double()
    good: list[tuple[nn.Module, Tensor, Rules]] = [
        (net, images, box),
        (net, images, preset("image_cnn")),
        (net, images, preset("relu_default")),
        (text, words, preset("text_cnn")),
        (reader, words, preset("lstm")),
    ]
    bad: list[tuple[str, nn.Module, Tensor, Rules]] = [
        ("epsilon in all layers of an image network", net, images, Epsilon(1e-6)),
        ("gamma where inputs are negative", net, images - 0.5, Composite(((nn.Conv2d, Gamma(0.25)),))),
        ("shares in proportion in an LSTM", reader, words, Product("prop")),
    ]  # fmt: skip
    of_presets = [warned(*case) for case in good]
    for what, broken, inputs, rules in bad:
        says.equal(of_presets, 0.0, where="five presets")
        says.fails(what, [warned(broken, inputs, rules)])
    run.table(
        "doubts",
        ["rules", "what is said"],
        [[what, doubts(broken, inputs, rules)[0]] for what, broken, inputs, rules in bad],
        caption="Choices of rules that are known to work badly, and what a user is told.",
    )

    says = run.states("C-33", r"\text{squared weights only in the first layer: the input may be any number}")
    moved = images - 0.5
    rules = Composite(((first_layer, WSquare()),), AlphaBeta(1, 0))
    says.equal(warned(net, moved, rules), 0.0)
    says.fails("alpha 1, beta 0 there", warned(net, moved, AlphaBeta(1, 0)))
    heatmaps(run, net, images)


def image_network(run: Run) -> nn.Sequential:
    """Five convolutions and a dense layer."""
    made = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(),
        nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip
    for p in made.parameters():
        nn.init.normal_(p, std=0.3, generator=run.generator)
    return made.double()


class Text(nn.Module):
    """Words, convolutions over them, and the largest of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.out = nn.Embedding(9, 4), nn.Conv1d(4, 5, 2), nn.Linear(5, 2)

    def forward(self, words: Tensor) -> Tensor:
        h = torch.relu(self.conv(self.embed(words).mT)).amax(2)
        made: Tensor = self.out(h)
        return made


class Reader(nn.Module):
    """Words, an LSTM, and a score of its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, words: Tensor) -> Tensor:
        made: Tensor = self.out(self.lstm(self.embed(words))[0][:, -1])
        return made


def counts(found: Explanation, names: list[str]) -> Tensor:
    """How many operations had each rule."""
    assert found.ledger is not None
    return torch.tensor([float(sum(e.rule == name for e in found.ledger)) for name in names])


def doubts(net: nn.Module, x: Tensor, rules: Rules) -> list[str]:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always", DoubtfulRules)
        lrp(net, x, 0, rules)
    return [str(w.message) for w in met if issubclass(w.category, DoubtfulRules)]


def warned(net: nn.Module, x: Tensor, rules: Rules) -> float:
    return float(len(doubts(net, x, rules)))


def heatmaps(run: Run, net: nn.Module, images: Tensor) -> None:
    """One image, by preset."""
    names = ("gradient_times_input", "image_cnn", "relu_default", "field_of_view")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulRules)
        maps = [lrp(net, images[:1], 0, preset(name)).flat.reshape(12, 12) for name in names]

    def plot(axes: Any) -> None:
        for ax, name, values in zip(axes.ravel(), names, maps, strict=True):
            largest = float(values.abs().max())
            ax.imshow(values.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest)
            ax.set_title(name.replace("_", " "))
            ax.set_axis_off()

    run.figure(
        "presets",
        plot,
        grid=(1, 4),
        size=(8.0, 2.4),
        caption="Relevance of the pixels of a random image for one output of an untrained network, by preset; red "
        "speaks for the output.",
    )
