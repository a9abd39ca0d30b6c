"""The relation network: its sizes, and what it cannot see."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.mini_clevr import mini_clevr
from torchtheory.explanation.visual_questions.relation_network import RelationConfig, RelationNetwork
from torchtheory.labs.engine import Run, lab
from torchtheory.tracing.recorder import record_call


@lab(
    "relation-network",
    room="explanation",
    covers=["C-40"],
    title="A relation network sums over all pairs of objects, so their order does not matter",
    full={"images": 16},
)
def relation_network(run: Run, images: int = 2) -> None:
    """The network of the chapter, at its sizes, with random weights.

    Four convolutions with stride 2 and no padding make of 128 x 128 pixels a grid of 7 x 7, so 49
    objects and 2401 pairs of 24 + 24 + 128 numbers each. The sum over pairs does not depend on
    their order. A network whose objects do not know their place therefore cannot tell where an
    object lies: moved by 16 pixels, the product of the strides, it gives the same answer.

    Args:
        images: that are answered about.
    """
    plain = network(run, RelationConfig(coordinates=False))
    placed = network(run, RelationConfig())
    data = mini_clevr(images, run.generator, image_size=128, questions_per_image=1)
    x, tokens = data.inputs()
    x = x.double()

    says = run.states("C-40", r"128\to63\to31\to15\to7\text{ pixels}")
    says.equal(sides(plain.convolutions, x), [63, 31, 15, 7])
    says.fails("one pixel of padding", sides(padded(plain.convolutions), x))

    pairs, numbers = entering(plain, x, tokens)
    says = run.states("C-40", r"7\times7\text{ objects, }49^2=2401\text{ pairs}")
    says.equal(pairs, 2401)
    wider = copy.deepcopy(plain)
    wider.convolutions = padded(plain.convolutions)
    says.fails("one pixel of padding", entering(wider, x, tokens)[0])
    says = run.states("C-40", r"24+24+128=176\text{ numbers of a pair}")
    says.equal(numbers, 176)
    says.fails("objects know their place", entering(placed, x, tokens)[1])

    parts = {
        "convolutions": 3 * 9 * 24 + 24 + 3 * (24 * 9 * 24 + 24) + 4 * 2 * 24,
        "embedding": 81 * 32,
        "lstm": 4 * 128 * (32 + 128 + 2),
        "relation": 176 * 256 + 256 + 3 * (256 * 256 + 256),
        "readout": 3 * (256 * 256 + 256),
        "output": 256 * 28 + 28,
    }
    says = run.states("C-40", rf"{sum(parts.values())}\text{{ parameters, as the layers of the chapter say}}")
    says.equal(sum(p.numel() for p in plain.parameters()), sum(parts.values()))
    says.fails("objects know their place", sum(p.numel() for p in placed.parameters()))
    counts = [totals(parameters(net, parts)) for net in (plain, placed)]
    run.table(
        "parts",
        ["part", "parameters", "with places"],
        list(zip([*parts, "all"], *counts, strict=True)),
        caption="Parameters of the network of the chapter; 80 words and a vector 0 for no word.",
    )

    order = torch.randperm(49, generator=run.generator)
    with torch.no_grad():
        asked, objects = placed.question(tokens), placed.objects(x)
        answers = placed.related(objects, asked)
        scale = answers.abs().max()
        says = run.states(
            "C-40", r"f\Big(\sum_{i,j}g(o_i,o_j,q)\Big)\text{ does not depend on the order of the objects}"
        )
        says.equal((placed.related(objects[:, order], asked) - answers) / scale, within=1e-12)
        moved = torch.cat([objects[:, order, :24], objects[:, :, 24:]], 2)
        says.fails("features change places, and places stay", (placed.related(moved, asked) - answers) / scale)

        there, here = one_object(40), one_object(56)
        change = (plain(there, tokens[:1]) - plain(here, tokens[:1])) / plain(here, tokens[:1]).abs().max()
        says = run.states(
            "C-40",
            r"\text{without places, an object that moves by }2^4\text{ pixels changes no answer}",
        )
        says.equal(change, within=1e-12)
        change = (placed(there, tokens[:1]) - placed(here, tokens[:1])) / placed(here, tokens[:1]).abs().max()
        says.fails("objects know their place", change)

        longer = torch.cat([tokens, torch.zeros(len(tokens), 5, dtype=torch.long)], 1)
        says = run.states("C-40", r"q\text{ is the state after the last word, whatever fills up the row}")
        says.equal((placed(x, longer) - answers) / scale, within=1e-12)
        says.fails(
            "a word stands there",
            (placed(x, torch.cat([tokens, torch.ones(len(tokens), 5, dtype=torch.long)], 1)) - answers) / scale,
        )
    run.figure(
        "image",
        lambda axes: draw(axes, x[0], plain.convolutions(x[:1])[0]),
        caption="An image of 128 × 128 pixels with a question, and the four liveliest of the 24 maps of 7 × 7 objects "
        "that convolutions with random weights make of it: " + " ".join(data.words[0]) + "?",
        grid=(1, 5),
        size=(9, 2.2),
    )


def network(run: Run, config: RelationConfig) -> RelationNetwork:
    """With random weights in double precision, and statistics of images in its normalizations."""
    made = RelationNetwork(config).double()
    for p in made.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=(2 / p[0].numel()) ** 0.5, generator=run.generator)
    made.train()
    with torch.no_grad():
        made.convolutions(mini_clevr(8, run.generator, image_size=128, questions_per_image=1).images.double())
    return made.eval()


def sides(layers: nn.Sequential, x: Tensor) -> list[int]:
    """Pixels on a side after each convolution."""
    found = []
    for layer in layers:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            found.append(x.shape[-1])
    return found


def padded(layers: nn.Sequential) -> nn.Sequential:
    def with_padding(layer: nn.Module) -> nn.Module:
        if not isinstance(layer, nn.Conv2d):
            return layer
        return nn.Conv2d(layer.in_channels, layer.out_channels, 3, stride=2, padding=1).double()

    return nn.Sequential(*map(with_padding, layers))


def entering(net: RelationNetwork, x: Tensor, tokens: Tensor) -> list[int]:
    """Pairs, and numbers of a pair, as they enter the relation."""
    network, _ = record_call(net, (x[:1], tokens[:1]), {})
    inside = [op for op in network if any(path == "relation" for path, _ in op.calls)]
    (given,), _ = network.boundary(inside)
    return [size for size in given.shape[1:] if isinstance(size, int)]


def parameters(net: RelationNetwork, parts: dict[str, int]) -> list[int]:
    return [sum(p.numel() for p in getattr(net, part).parameters()) for part in parts]


def totals(counts: list[int]) -> list[int]:
    return [*counts, sum(counts)]


def one_object(left: int) -> Tensor:
    """A striped square of 14 pixels on a gray plane."""
    image = torch.full((1, 3, 128, 128), 0.7, dtype=torch.float64)
    stripes = torch.linspace(0, 1, 14, dtype=torch.float64).expand(14, 14)
    image[0, 0, 50:64, left : left + 14] = stripes
    image[0, 2, 50:64, left : left + 14] = 1 - stripes
    return image


def draw(axes: Any, x: Tensor, maps: Tensor) -> None:
    axes[0][0].imshow(x.permute(1, 2, 0).float().numpy())
    liveliest = maps.detach().std((1, 2)).argsort(descending=True)
    for ax, k in zip(axes[0][1:], liveliest.tolist(), strict=False):
        ax.imshow(maps[k].detach().numpy(), cmap="viridis")
    for ax in axes[0]:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
