"""Networks with a defect, each with a healthy twin: the audit names the defect.

    python examples/bug_hunt.py [--directory bug-hunt] [--seed 0] [--defect dead-units]

trains small networks, most of them on handwritten digits, audits them, prints what is wrong with
each and writes a report of every audit below the directory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.data.real import digits, split

#: The findings that can say that something is wrong, and those that can where more is known.
FINDINGS = [
    "calibration",
    "constant-outputs",
    "embeddings",
    "feature-collapse",
    "gradients-by-depth",
    "linearity",
    "normalization-statistics",
    "output-range",
    "risk",
    "training-mode",
    "units",
    "untrained",
]
FINDINGS_OF = {"learning_rate": "curvature", "prior": "prior-independence"}

Pair = tuple[Tensor, Tensor]


@dataclass
class Case:
    """A network as it would be handed to the audit, with what else is known of its training."""

    model: nn.Module
    train: Pair
    test: Pair
    known: dict[str, Any]


@dataclass
class Defect:
    """What is wrong, the finding that must say so, and the words it must use."""

    finding: str
    words: str
    make: Callable[[int, bool], Case]  # seed, broken


def data(seed: int, samples: int = 300) -> tuple[Pair, Pair]:
    (x, y), (x_test, y_test) = split(*digits(), test_fraction=0.5, generator=seed)
    return (x[:samples], y[:samples]), (x_test[:samples], y_test[:samples])


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Dense layers with variance 2 / fan-in and biases of 0."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def fit(
    model: nn.Module,
    train: Pair,
    *,
    rate: float = 0.1,
    epochs: int = 10,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> nn.Module:
    x, y = train
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(30):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


def dead_units(seed: int, broken: bool) -> Case:
    """Biases so negative that no unit of the second layer ever fires."""
    train, test = data(seed)
    model = mlp(64, 32, 32, 10)
    if broken:
        nn.init.constant_(model[2].bias, -30.0)
    return Case(fit(model, train), train, test, {})


def exploding_start(seed: int, broken: bool) -> Case:
    """Twelve layers with weights of standard deviation 0.7, whatever their width."""
    train, test = data(seed)
    model = mlp(64, *[32] * 11, 10)
    if broken:
        for layer in model[::2]:
            nn.init.normal_(layer.weight, std=0.7)
        return Case(model, train, test, {})
    return Case(fit(model, train, rate=0.02), train, test, {})


def forgotten_activation(seed: int, broken: bool) -> Case:
    """Three dense layers and nothing between them."""
    train, test = data(seed)
    model = mlp(64, 32, 32, 10, activation=nn.Identity if broken else nn.ReLU)
    return Case(fit(model, train), train, test, {})


def unstable_step(seed: int, broken: bool) -> Case:
    """Training to go on with a step far above 2 / largest eigenvalue of the Hessian."""
    train, test = data(seed)
    model = fit(mlp(64, 32, 32, 10), train)
    return Case(model, train, test, {"learning_rate": 5.0 if broken else 0.01})


def prior_from_the_data(seed: int, broken: bool) -> Case:
    """A PAC-Bayes prior that was trained on the very data of the bound."""
    train, test = data(seed)
    model = mlp(64, 32, 32, 10)
    start = {k: p.detach().clone() for k, p in model.named_parameters()}
    fit(model, train)
    if broken:
        start = {k: p.detach().clone() for k, p in model.named_parameters()}
        fit(model, train, epochs=2)
    return Case(model, train, test, {"prior": start})


def saturated_sigmoids(seed: int, broken: bool) -> Case:
    """Pixels in 0..255 into sigmoids, instead of centered ones of variance 1."""
    (x, y), (x_test, y_test) = data(seed)
    if broken:
        x, x_test = 255 * x, 255 * x_test
    else:
        mean, size = x.mean(), x.std()
        x, x_test = (x - mean) / size, (x_test - mean) / size
    model = mlp(64, 32, 32, 10, activation=nn.Sigmoid)
    for layer in model[::2]:
        nn.init.xavier_normal_(layer.weight)
    return Case(fit(model, (x, y)), (x, y), (x_test, y_test), {})


def dense(*end: nn.Module, outputs: int = 10) -> nn.Sequential:
    """Layers as torch draws them."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs), *end)


def untrained(seed: int, broken: bool) -> Case:
    """The weights as they were drawn: training, or loading them, was forgotten."""
    train, test = data(seed)
    model = dense()
    return Case(model if broken else fit(model, train), train, test, {})


def softmax_inside(seed: int, broken: bool) -> Case:
    """A softmax at the end of a model whose loss applies one; log-softmax would do no harm."""
    train, test = data(seed)
    return Case(fit(dense(nn.Softmax(1) if broken else nn.LogSoftmax(1)), train), train, test, {})


def sigmoid_inside(seed: int, broken: bool) -> Case:
    """Small digits against large ones, with a sigmoid before a loss that applies one."""
    train, test = ((x, (y[:, None] > 4).float()) for x, y in data(seed))
    model = dense(*[nn.Sigmoid()] * broken, outputs=1)
    fit(model, train, rate=0.02, loss=F.binary_cross_entropy_with_logits)
    return Case(model, train, test, {})


def normalized() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
        nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def statistics_reset(seed: int, broken: bool) -> Case:
    """Weights were copied to a new model, the buffers were forgotten."""
    train, test = data(seed)
    model = fit(normalized(), train).eval()
    if broken:
        for layer in model:
            if isinstance(layer, nn.BatchNorm1d):
                layer.reset_running_stats()
    return Case(model, train, test, {})


def statistics_of_other_data(seed: int, broken: bool) -> Case:
    """White digits on black went through the model in training mode, after its training."""
    train, test = data(seed)
    model = fit(normalized(), train)
    if broken:
        with torch.no_grad():
            for _ in range(50):
                model(train[0].max() - train[0])
    return Case(model.eval(), train, test, {})


def training_mode(seed: int, broken: bool) -> Case:
    """Nobody called model.eval()."""
    train, test = data(seed)
    model = fit(nn.Sequential(nn.Dropout(0.1), *dense()), train)
    return Case(model.train(broken), train, test, {})


class MeanOfWords(nn.Module):
    """Sequences of words: a linear function of the mean of their vectors."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, 8, padding_idx=0)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def unused_embeddings(seed: int, broken: bool) -> Case:
    """A table of 500 words for a language of 20; word 0 is padding."""
    words = torch.randint(1, 21, (600, 12), generator=torch.Generator().manual_seed(seed))
    labels = ((words > 10).sum(1) > 6).long()
    train, test = (words[:300], labels[:300]), (words[300:], labels[300:])
    return Case(fit(MeanOfWords(500 if broken else 21), train), train, test, {})


def ignored_inputs(seed: int, broken: bool) -> Case:
    """The last layer's weights are 0 and only its biases are trained."""
    train, test = data(seed)
    model = dense()
    if broken:
        nn.init.zeros_(model[2].weight).requires_grad_(False)
    return Case(fit(model, train), train, test, {})


def collapsed_features(seed: int, broken: bool) -> Case:
    """Biases of a million before the last layer: in comparison, samples do not differ."""
    train, test = data(seed)
    model = mlp(64, 32, 32, 10)
    if broken:
        nn.init.constant_(model[2].bias, 1e6)
        return Case(model, train, test, {})
    return Case(fit(model, train), train, test, {})


def overconfident(seed: int, broken: bool) -> Case:
    """Labels that nobody can know for certain, and logits that are eight times too large."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(3000, 5, generator=draw)
    y = (torch.rand(3000, generator=draw) < torch.sigmoid(x.sum(1))).long()
    train, test = (x[:2000], y[:2000]), (x[2000:], y[2000:])
    model = fit(mlp(5, 8, 2), train, rate=0.01, epochs=3)
    if broken:
        model[2].weight.data.mul_(8)
        model[2].bias.data.mul_(8)
    return Case(model, train, test, {})


DEFECTS = {
    "dead-units": Defect("units", "are dead", dead_units),
    "exploding-start": Defect("gradients-by-depth", "gradients explode", exploding_start),
    "forgotten-activation": Defect("linearity", "An activation is missing", forgotten_activation),
    "unstable-step": Defect("curvature", "times the stability limit", unstable_step),
    "prior-from-the-data": Defect(
        "prior-independence", "The prior has seen the training data", prior_from_the_data
    ),
    "saturated-sigmoids": Defect("units", "are saturated", saturated_sigmoids),
    "untrained": Defect("untrained", "looks untrained", untrained),
    "softmax-inside": Defect("output-range", "ends with a softmax", softmax_inside),
    "sigmoid-inside": Defect("output-range", "ends with a sigmoid", sigmoid_inside),
    "statistics-reset": Defect(
        "normalization-statistics", "a layer that has seen no data", statistics_reset
    ),
    "statistics-of-other-data": Defect(
        "normalization-statistics", "statistics of other data", statistics_of_other_data
    ),
    "training-mode": Defect("training-mode", "in training mode", training_mode),
    "unused-embeddings": Defect("embeddings", "are used by no training sample", unused_embeddings),
    "ignored-inputs": Defect("constant-outputs", "ignore the inputs", ignored_inputs),
    "collapsed-features": Defect("feature-collapse", "have collapsed", collapsed_features),
    "overconfident": Defect("calibration", "more certain than it is", overconfident),
}


def audit_case(name: str, seed: int, broken: bool) -> tt.audit.Audit:
    """Train one of the two networks and audit it."""
    torch.manual_seed(seed)
    case = DEFECTS[name].make(seed, broken)
    return tt.audit(
        case.model,
        case.train,
        case.test,
        only=FINDINGS + [FINDINGS_OF[name] for name in case.known],
        budget=None,
        title=f"{name}, {'broken' if broken else 'healthy'}",
        **case.known,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="bug-hunt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defect", choices=DEFECTS, action="append")
    options = parser.parse_args(arguments)
    for name in options.defect or DEFECTS:
        for broken in (True, False):
            report = audit_case(name, options.seed, broken)
            print(f"\n{report.title}:")
            for sentence in [*report.warnings, *report.looks] or ["nothing is wrong."]:
                print(" ", sentence)
            report.save(f"{options.directory}/{name}-{'broken' if broken else 'healthy'}")


if __name__ == "__main__":
    main()
