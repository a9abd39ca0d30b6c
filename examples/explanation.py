"""What a network looks at, whether to believe it, and a watermark that gives it away.

    python examples/explanation.py [--directory explanation-digits] [--epochs 12]

trains a convolutional network on scikit-learn's digits, explains some of its answers by several
methods, judges the methods, and writes a page. A second network is trained on digits of which all
threes carry a bright corner; the search for Clever Hans finds that corner, and nothing in the first
network.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.explanation.explain import Explanations, Legend, explain
from torchtheory.explanation.judging.clever_hans import clever_hans
from torchtheory.explanation.judging.evaluation import evaluate_explanations
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients
from torchtheory.explanation.rules import Gamma
from torchtheory.training.loop.trainer import fit


def trained(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    fit(net, (x, y), epochs=epochs)
    return net.eval()


def main(arguments: list[str] | None = None) -> Explanations:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="explanation-digits")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=6)
    options = parser.parse_args(arguments)

    (x, y), (others, labels) = split(*digits(), test_fraction=0.25)
    x, others = x.reshape(-1, 1, 8, 8), others.reshape(-1, 1, 8, 8)
    net = trained(x, y, options.epochs)
    right = float((net(others).argmax(1) == labels).float().mean())
    print(f"{right:.1%} of the test digits are recognized")

    methods = {
        "LRP, gamma": partial(lrp, rules=Gamma(0.25)),
        "integrated gradients": integrated_gradients,
        "gradient × input": gradient_times_input,
    }
    chosen = others[: options.samples]
    legend = Legend("Digits", labels=labels[: options.samples])
    found = explain(net, chosen, methods, legend=legend)
    for (one, other), agreement in found.agreement().items():
        print(f"{one} and {other} agree by {agreement.estimate:.2f}")

    judged = evaluate_explanations(net, others[:60], methods)
    for name in methods:
        fall = judged[name].most.area
        print(f"{name}: removing what it names lets the score fall by {fall.estimate:.2f} "
              f"({fall.low:.2f} to {fall.high:.2f}) on average")  # fmt: skip

    marked = x.clone()
    marked[y == 3, :, :2, :2] = 2.0  # brighter than any digit
    poisoned = trained(marked, y, options.epochs)
    marked_others = others.clone()
    marked_others[labels == 3, :, :2, :2] = 2.0
    for name, network, images in (("clean", net, others), ("marked", poisoned, marked_others)):
        suspects = clever_hans(network, images, labels).suspects
        print(f"{name} network, suspicious places: {len(suspects)}")
        for place in suspects:
            print(f"  pixels {place.mask.nonzero().tolist()} make {place.planted.estimate:.0%} of "
                  f"other digits a {place.label}")  # fmt: skip
    print("written to", found.save(options.directory))
    return found


if __name__ == "__main__":
    main()
