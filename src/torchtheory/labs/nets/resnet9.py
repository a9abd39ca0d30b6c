"""ResNet9 of the lectures' listing: built, counted, trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.intervals import clopper_pearson
from torchtheory.data.image_sets import load_image_set, locate_image_set
from torchtheory.data.real import digits, split
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.residual.image_resnets import resnet9
from torchtheory.training import fit

Images = tuple[Tensor, Tensor]


@lab(
    "resnet9",
    room="nets",
    covers=["M-87"],
    title="ResNet9 of the listing: 6,575,370 parameters, for images of any size, trained",
    full={"width": 64, "train": 1200, "test": 1000, "epochs": 2},
    # of 60 test images 45 correct ones are more than half for certain
    least={"width": 8, "train": 250, "test": 60, "epochs": 2},
)
def resnet9_lab(run: Run, width: int = 8, train: int = 400, test: int = 400, epochs: int = 3) -> None:
    """The network of the listing for 32 × 32 color images, and with pooling that fits any size.

    It is trained on Fashion-MNIST where that is on the machine (from files or from Debian's package
    dataset-fashion-mnist), else on MNIST from files, else on the 8 × 8 digits of scikit-learn; a
    note says which. In quick it is narrower. The control learns shuffled labels. The picture shows
    what the first layer sees.

    Args:
        width: channels of the first layer; 64 in the listing.
        train: images to learn from.
        test: images to test on.
        epochs: of training.
    """
    run.assumes(
        train * epochs >= 750, f"{epochs} epochs of {train} images are {train * epochs}: 750 are needed to learn"
    )
    with torch.device("meta"):
        listing = resnet9(3, 10, pooling="listing")
        without = [p for name, p in listing.named_parameters() if not name.endswith("0.bias")]
    says = run.states("M-87", r"\text{parameters for }3\text{ channels and }10\text{ classes}")
    says.equal(sum(p.numel() for p in listing.parameters()), 6_575_370)
    says.fails("convolutions without biases", sum(p.numel() for p in without))
    net = resnet9(3, 10, width=width, pooling="listing", generator=run.generator).eval()
    anyone = resnet9(3, 10, width=width, generator=run.generator).eval()
    anyone.load_state_dict(net.state_dict())
    images = {side: run.randn(2, 3, side, side).float() for side in (32, 64)}
    shapes = {side: list(nn.MaxPool2d(4)(net[:6](x)).shape[1:]) for side, x in images.items()}
    says = run.states("M-87", r"32\times32\times3\mapsto1\times1\times8w\text{ before the last layer}")
    says.equal(shapes[32], [8 * width, 1, 1], where=f"w = {width}; 64 in the listing")
    says.fails("images of 64 × 64: pooling over 4 × 4 is not over everything", shapes[64])
    with torch.no_grad():
        says = run.states("M-87", r"\text{the maximum over the image is the listing's pooling at }32\times32")
        says.equal(gap(anyone(images[32]), net(images[32])))
        averaged = nn.Sequential(net[:6], nn.AdaptiveAvgPool2d(1), nn.Flatten(), net[-1])
        says.fails("the mean over the image", gap(averaged(images[32]), net(images[32])))

    name, data, held_out = images_for(run, train, test)
    run.note(f"Trained on {name}: {len(data[0])} images to learn from, {len(held_out[0])} to test on.")
    good, history, found = learn(run, data, held_out, width, epochs)
    order = torch.randperm(len(data[1]), generator=run.generator)
    shuffled, _, _ = learn(run, (data[0], data[1][order]), held_out, width, epochs)
    says = run.states("M-87", r"\text{share of test images classified correctly: lower end at 99 %}>\tfrac12")
    says.above(low(good), 0.5, where=f"{name}, w = {width}, {epochs} epochs; {float(good.double().mean()):.3g} in all")
    says.fails("labels shuffled before training", low(shuffled))
    run.figure(
        "resnet9",
        lambda axes: plot_training(axes, history, found, held_out[0][:1]),
        caption=f"{name}. Left: training and test loss. Then a test image and what eight units of the first layer "
        "make of it.",
        grid=(1, 3),
        size=(10.5, 3.0),
    )


def images_for(run: Run, train: int, test: int) -> tuple[str, Images, Images]:
    """The name of the data that are at hand, images to train on and to test on."""
    for name in ("fashion-mnist", "mnist"):
        if locate_image_set(name) is None:
            continue
        parts = []
        for (pixels, labels), count in zip(load_image_set(name), (train, test), strict=True):
            chosen = torch.randperm(len(labels), generator=run.generator)[:count]
            parts.append((pixels[chosen].unsqueeze(1).float() / 255, labels[chosen]))
        return {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST"}[name], parts[0], parts[1]
    x, y = digits()
    (a, b), (c, d) = split(x.reshape(-1, 1, 8, 8), y, test_fraction=0.3, generator=run.generator)
    return "the 8 × 8 digits of scikit-learn", (a[:train], b[:train]), (c[:test], d[:test])


def learn(run: Run, data: Images, held_out: Images, width: int, epochs: int) -> tuple[Tensor, Any, nn.Sequential]:
    """Which test images are classified correctly, the history, and the network."""
    net = resnet9(1, 10, width=width, generator=run.generator)
    history = fit(net, data, validation=held_out, epochs=epochs, batch_size=16, learning_rate=0.003, seed=run.seed)
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(part).argmax(1) for part in torch.split(held_out[0], 250)])
    return answers == held_out[1], history, net


def low(good: Tensor) -> float:
    return clopper_pearson(int(good.sum()), len(good), 0.99).low


def plot_training(axes: Any, history: Any, net: nn.Sequential, image: Tensor) -> None:
    curve, picture, maps = axes[0]
    epochs = range(1, len(history.train_losses) + 1)
    curve.plot(epochs, history.train_losses, "o-", color=COLORS[0], label="training")
    curve.plot(epochs, history.validation_losses, "s-", color=COLORS[1], label="test")
    curve.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
    curve.set_xticks(list(epochs))
    curve.legend()
    picture.imshow(image[0, 0].numpy(), cmap="gray")
    with torch.no_grad():
        seen = net[0](image)[0, :8]
    rows = [torch.cat(list(seen[i : i + 4]), 1) for i in (0, 4)]
    maps.imshow(torch.cat(rows, 0).numpy(), cmap="magma")
    for panel, title in ((picture, "a test image"), (maps, "the first layer's answers")):
        panel.set_title(title)
        panel.set_axis_off()
