"""Networks and data with planted defects, each beside a healthy twin, for tests and for the table.

`python -m tests.audit.bug_hunt_table` counts how many are named, and how many twins are accused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bug_hunt
import torchtheory as tt
from torchtheory.core.diagnosis import State
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.node_classification import fit_nodes
from torchtheory.graphs.node_samples import OnNodes

Pair = tuple[Tensor, Tensor]

#: The findings that every network and every twin goes through.
FINDINGS = [
    *bug_hunt.FINDINGS, "repeated-samples", "features", "input-scale", "class-balance", "labels",
    "test-causes", "padding", "token-ids", "weight-levels", "frozen-layers", "class-weights",
    "edge-directions", "training-end", "noise",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network with its data, as it would be given to the audit."""

    model: nn.Module
    train: Pair
    test: Pair
    known: dict[str, Any] = field(default_factory=dict)

    def tested(self, x: Tensor, y: Tensor | None = None) -> Case:
        """The same with other test data."""
        return replace(self, test=(x, self.test[1] if y is None else y))


@dataclass(frozen=True)
class Planted:
    """A defect: the finding that must say so, the words it must use, its twin, how it is made."""

    finding: str
    words: str
    twin: Callable[[int], Case]
    make: Callable[[int], Case]


def audited(case: Case, only: list[str] | None = None) -> tt.audit.Audit:
    return tt.audit(
        case.model, case.train, case.test, only=only or FINDINGS, budget=None, **case.known
    )


def accusations(report: tt.audit.Audit, finding: str = "") -> list[str]:
    """What a finding, or all of them, call a defect or worth a look."""
    return [
        a.sentence
        for f in report.findings
        for a in f.assessments
        if a.state in (State.DEFECT, State.LOOK) and finding in ("", f.name)
    ]


def seeded(make: Callable[[int], Case]) -> Callable[[int], Case]:
    """What is drawn inside follows from the seed, and is made once."""

    @cache
    def made(seed: int) -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return make(seed)

    return made


# ----------------------------------------------------------------------------------- healthy twins


def convolutions(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


@seeded
def images(seed: int) -> Case:
    (x, y), (x_test, y_test) = bug_hunt.data(seed, 600)
    x, x_test = x.reshape(-1, 1, 8, 8), x_test.reshape(-1, 1, 8, 8)
    model = bug_hunt.fit(convolutions(1), (x, y), rate=0.05, epochs=15)
    return Case(model.eval(), (x, y), (x_test, y_test))


@seeded
def colored(seed: int) -> Case:
    """Even and odd digits in five colors: ten classes."""
    gray = images(seed)

    def painted(pair: Pair) -> Pair:
        x, y = pair
        hue = torch.randint(0, 5, (len(y),))
        red = 0.1 + 0.2 * hue.float() + 0.03 * torch.randn(len(y))
        color = torch.stack([red, 1.2 - red, torch.full_like(red, 0.3)], 1)
        return (
            x * color[:, :, None, None] + 0.03 * torch.randn(len(y), 3, 8, 8), 2 * hue + y % 2
        )  # fmt: skip

    train, test = painted(gray.train), painted(gray.test)
    return Case(bug_hunt.fit(convolutions(3), train, rate=0.05, epochs=25).eval(), train, test)


@seeded
def numbers(seed: int) -> Case:
    """A regression with noise, ten features of several laws."""
    x = torch.randn(900, 10)
    x[:, 3:6] = x[:, 3:6].exp()
    x[:, 6] = torch.rand(900) * 4
    t = x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * x[:, 3] + 0.2 * torch.randn(900)
    return fitted_numbers(x, t[:, None])


def fitted_numbers(x: Tensor, y: Tensor) -> Case:
    half = len(x) // 2
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-3)
    for _ in range(60):
        for batch in torch.randperm(half).split(50):
            optimizer.zero_grad()
            F.mse_loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return Case(model, (x[:half], y[:half]), (x[half:], y[half:]))


@seeded
def clouds(seed: int) -> Case:
    """Two classes by a product of two features; some noise."""
    x = torch.randn(1000, 8) * torch.tensor([1, 2, 1, 1, 3, 1, 1, 1])
    x[:, 3:] += torch.arange(5)  # columns that can be told from each other
    y = (x[:, 0] + x[:, 1] + 0.5 * x[:, 2] + 0.3 * torch.randn(1000) > 0).long()
    model = bug_hunt.fit(bug_hunt.mlp(8, 16, 2), (x[:500], y[:500]), rate=0.02, epochs=10)
    return Case(model, (x[:500], y[:500]), (x[500:], y[500:]))


@seeded
def overfitted(seed: int) -> Case:
    """Few samples, many features: training data without errors, new data with many."""
    x = torch.randn(700, 40)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = bug_hunt.fit(bug_hunt.mlp(40, 64, 2), (x[:100], y[:100]), epochs=60)
    return Case(model, (x[:100], y[:100]), (x[100:], y[100:]))


class Words(nn.Module):
    """The mean of vectors of words, over words alone or over padding as well."""

    def __init__(self, rows: int = 24, *, masked: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(rows, 8), nn.Linear(8, 2)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        there = (x != 0).float()[:, :, None] if self.masked else torch.ones(*x.shape, 1)
        mean = (self.words(x) * there).sum(1) / there.sum(1).clamp(min=1)
        made: Tensor = self.head(F.relu(mean))
        return made


def padded_words(samples: int = 800) -> Pair:
    """Sequences of 4 to 12 words of 20, padded by 0; more large words than small ones?"""
    x = torch.randint(1, 21, (samples, 12))
    length = torch.randint(4, 13, (samples,))
    x[torch.arange(12) >= length[:, None]] = 0
    large = (x > 10).sum(1).double() / length
    return x, (large > 0.5).long()


@seeded
def words(seed: int) -> Case:
    (x, y) = padded_words()
    model = bug_hunt.fit(Words(), (x[:400], y[:400]), rate=0.2, epochs=30)
    return Case(model, (x[:400], y[:400]), (x[400:], y[400:]))


@seeded
def sequences(seed: int) -> Case:
    """Saw teeth: rising and early, rising and late, falling and early."""
    y = torch.randint(0, 3, (800,))
    tooth, none = torch.linspace(0, 3, 8), torch.zeros(8)
    kinds = torch.stack(
        [torch.cat([tooth, none]), torch.cat([none, tooth]), torch.cat([tooth.flip(0), none])]
    )
    x = kinds[y][:, None] + 0.5 * torch.randn(800, 1, 16)
    model = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    bug_hunt.fit(model, (x[:400], y[:400]), rate=0.05, epochs=10)
    return Case(model, (x[:400], y[:400]), (x[400:], y[400:]))


@seeded
def rare(seed: int) -> Case:
    return _rare(seed, torch.ones(2))


def _rare(seed: int, weights: Tensor) -> Case:
    """A class of a tenth of the samples that nobody can know for certain."""
    x = torch.randn(4000, 5)
    y = (torch.rand(4000) < torch.sigmoid(1.5 * x[:, 0] + x[:, 1] - 3)).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    train = (x[:2000], y[:2000])
    bug_hunt.fit(
        model, train, rate=0.05, epochs=10,
        loss=lambda out, of: F.cross_entropy(out, of, weight=weights),
    )  # fmt: skip
    return Case(model, train, (x[2000:], y[2000:]))


def _graph(seed: int, *, directed: bool = False) -> tuple[Graph, Tensor, Tensor]:
    size = 60
    sbm = nx.stochastic_block_model([size] * 2, [[0.15, 0.01], [0.01, 0.15]], seed=seed)
    dense = torch.tensor(nx.to_numpy_array(sbm, nodelist=range(2 * size)))
    y = (torch.arange(2 * size) >= size).long()
    x = torch.randn(2 * size, 4).double()
    x[:, 0] += 0.5 * (2 * y - 1)
    return as_graph(dense.triu(1) if directed else dense), x, y


@seeded
def nodes(seed: int) -> Case:
    graph, x, y = _graph(seed)
    network = fit_nodes(
        GCN([4, 16, 2]).double(), x, graph, y, torch.arange(0, 120, 2), steps=150, rate=0.02
    ).network  # fmt: skip
    every = torch.arange(120)
    return Case(OnNodes(network, graph, x), (every[::2], y[::2]), (every[1::2], y[1::2]))


# -------------------------------------------------------------------------------------- the defects


def _test_inputs(twin: Callable[[int], Case], change: Callable[[Tensor], Tensor]) -> Any:
    @seeded
    def make(seed: int) -> Case:
        case = twin(seed)
        return case.tested(change(case.test[0]))

    return make


def _test_labels(twin: Callable[[int], Case], change: Callable[[Tensor], Tensor]) -> Any:
    @seeded
    def make(seed: int) -> Case:
        case = twin(seed)
        return case.tested(case.test[0], change(case.test[1]))

    return make


def _copies(change: Callable[[Tensor], Tensor]) -> Any:
    """Forty of 600 test samples are training samples, changed."""

    @seeded
    def make(seed: int) -> Case:
        case = images(seed)
        (x, y), (x_test, y_test) = case.train, case.test
        mixed = torch.cat([x_test[:560], change(x[:40])])
        return case.tested(mixed, torch.cat([y_test[:560], y[:40]]))

    return make


def _flipped_half(x: Tensor) -> Tensor:
    return torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(3), x)


def _later(x: Tensor) -> Tensor:
    """Inputs that brighten along their order."""
    shape = (-1, *[1] * (x.ndim - 1))
    return x + torch.linspace(0, 1.5, len(x)).reshape(shape)


def _wrong(share: float, classes: int) -> Callable[[Tensor], Tensor]:
    def change(y: Tensor) -> Tensor:
        other = (y + torch.randint(1, classes, y.shape)) % classes
        return torch.where(torch.rand(len(y)) < share, other, y)

    return change


def _one_channel(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, 1] = 4 * made[:, 1] - 1
    return made


def _one_column(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, 1] = 1.8 * made[:, 1] + 8
    return made


@seeded
def groups(seed: int) -> Case:
    """Samples of one source on both sides; a hundred test samples of sources of their own."""
    source, label = torch.randn(200, 20), torch.randint(0, 2, (200,))
    of = torch.arange(200).repeat_interleave(4)[torch.randperm(800)]
    x, y = source[of] + 0.15 * torch.randn(800, 20), label[of]
    x_test = torch.cat([x[500:], torch.randn(100, 20)])
    y_test = torch.cat([y[500:], torch.randint(0, 2, (100,))])
    model = bug_hunt.fit(bug_hunt.mlp(20, 64, 2), (x[:500], y[:500]), epochs=40)
    return Case(model, (x[:500], y[:500]), (x_test, y_test))


def _told(change: Callable[[Tensor], Tensor]) -> Any:
    """A feature is computed from the target of a regression."""

    @seeded
    def make(seed: int) -> Case:
        case = numbers(seed)
        x, y = (torch.cat([a, b]) for a, b in zip(case.train, case.test, strict=True))
        x = x.clone()
        x[:, 8] = change(y[:, 0])
        return fitted_numbers(x, y)

    return make


@seeded
def told_label(seed: int) -> Case:
    case = clouds(seed)
    x, y = (torch.cat([a, b]) for a, b in zip(case.train, case.test, strict=True))
    x = x.clone()
    x[:, 6] = y + 0.22 * torch.randn(len(y))
    model = bug_hunt.fit(bug_hunt.mlp(8, 16, 2), (x[:500], y[:500]), rate=0.02, epochs=10)
    return Case(model, (x[:500], y[:500]), (x[500:], y[500:]))


class Careless(nn.Module):
    """Dropout that nobody turns off."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.two(F.dropout(F.relu(self.one(x)), 0.5))
        return made


@seeded
def careless(seed: int) -> Case:
    train, test = bug_hunt.data(seed)
    return Case(bug_hunt.fit(Careless(), train).eval(), train, test)


@seeded
def plain_digits(seed: int) -> Case:
    train, test = bug_hunt.data(seed)
    return Case(bug_hunt.fit(bug_hunt.dense(), train), train, test)


def _valley(seed: int, steps: int, optimizer: Callable[..., Any]) -> Case:
    """Features of scales from 1 to 1/50, all of which matter."""
    z, w = torch.randn(4000, 10), torch.where(torch.rand(10) < 0.5, -1.0, 1.0)
    x, y = z * torch.logspace(0, -1.7, 10), ((z * w).sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
    train = (x[:2000], y[:2000])
    stepper = optimizer(model.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        F.cross_entropy(model(train[0]), train[1]).backward()
        stepper.step()
    return Case(model, train, (x[2000:], y[2000:]))


@seeded
def slow(seed: int) -> Case:
    return _valley(seed, 3000, lambda p: torch.optim.SGD(p, 0.3))


@seeded
def arrived(seed: int) -> Case:
    return _valley(seed, 2000, lambda p: torch.optim.Adam(p, 0.02))


@seeded
def attended_padding(seed: int) -> Case:
    (x, y) = padded_words()
    # trained on words without padding, and used with it
    inside = torch.where(x == 0, torch.randint(1, 21, x.shape), x)
    large = ((inside > 10).double().mean(1) > 0.5).long()
    net = Words(masked=False)
    bug_hunt.fit(net, (inside[:400], large[:400]), rate=0.2, epochs=30)
    with torch.no_grad():  # a row that no gradient reached, as large as trained ones
        net.words.weight[0] *= net.words.weight[1:].norm(dim=1).mean() / net.words.weight[0].norm()
    return Case(net, (x[:400], y[:400]), (x[400:], y[400:]))


@seeded
def shifted_words(seed: int) -> Case:
    case = words(seed)
    x = case.test[0]
    return case.tested(torch.where(x == 0, x, x + 2))


@seeded
def all_shifted_words(seed: int) -> Case:
    case = words(seed)
    shifted = [(torch.where(x == 0, x, x + 3), y) for x, y in (case.train, case.test)]
    return replace(case, train=shifted[0], test=shifted[1])


@seeded
def quantized(seed: int) -> Case:
    case = plain_digits(seed)
    model = bug_hunt.dense()
    model.load_state_dict(case.model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            step = float(p.abs().max()) / 3
            p.copy_((p / step).round() * step)
    return replace(case, model=model)


def _backbone(seed: int, *, pretrained: bool) -> Case:
    train, test = bug_hunt.data(seed, 600)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    model.append(nn.Linear(64, 10))
    if pretrained:
        bug_hunt.fit(model, train, rate=0.05)
    for layer in (model[0], model[2]):
        layer.requires_grad_(False)
    model[4] = nn.Linear(64, 10)
    x, y = train
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.05, momentum=0.9)
    for _ in range(15):
        for batch in torch.randperm(len(x)).split(30):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return Case(model, train, test)


@seeded
def frozen(seed: int) -> Case:
    return _backbone(seed, pretrained=False)


@seeded
def frozen_pretrained(seed: int) -> Case:
    return _backbone(seed, pretrained=True)


@seeded
def weighted(seed: int) -> Case:
    return _rare(seed, torch.tensor([1.0, 9.0]))


@seeded
def one_direction(seed: int) -> Case:
    case = nodes(seed)
    model = case.model
    assert isinstance(model, OnNodes)
    dense = model.graph.adjacency().triu(1)
    return replace(case, model=OnNodes(model.network, as_graph(dense), model.x))


@seeded
def directed(seed: int) -> Case:
    """A network that was trained on a directed graph, as it is used."""
    graph, x, y = _graph(seed, directed=True)
    network = fit_nodes(
        GCN([4, 16, 2]).double(), x, graph, y, torch.arange(0, 120, 2), steps=150, rate=0.02
    ).network  # fmt: skip
    every = torch.arange(120)
    return Case(OnNodes(network, graph, x), (every[::2], y[::2]), (every[1::2], y[1::2]))


CAUSES = "test-causes"

PLANTED: dict[str, Planted] = {
    "mirrored": Planted(
        CAUSES, "mirrored left to right", images, _test_inputs(images, lambda x: x.flip(3))
    ),
    "upside-down": Planted(
        CAUSES, "mirrored upside down", images, _test_inputs(images, lambda x: x.flip(2))
    ),
    "transposed": Planted(
        CAUSES, "transposed", images, _test_inputs(images, lambda x: x.transpose(2, 3))
    ),
    "rotated": Planted(
        CAUSES, "rotated by 90", images, _test_inputs(images, lambda x: x.rot90(1, (2, 3)))
    ),
    "moved": Planted(
        CAUSES, "moved by 1 pixels down and 2", images,
        _test_inputs(images, lambda x: x.roll((1, 2), (2, 3))),
    ),
    "inverted": Planted(CAUSES, "inverted", images, _test_inputs(images, lambda x: 1 - x)),
    "noisy-inputs": Planted(
        CAUSES, "carry noise", images,
        _test_inputs(images, lambda x: x + 0.35 * torch.randn_like(x)),
    ),
    "flipped-at-random": Planted(
        CAUSES, "part of the test inputs", images, _test_inputs(images, _flipped_half)
    ),
    "drift": Planted(CAUSES, "along the order", images, _test_inputs(images, _later)),
    "renamed": Planted(
        CAUSES, "classes have other names", images,
        _test_labels(images, lambda y: (3 * y + 1) % 10),
    ),
    "renamed-labels": Planted(
        "labels", "look renamed", images, _test_labels(images, lambda y: (7 * y + 2) % 10)
    ),
    "wrong-test-labels": Planted(
        CAUSES, "test labels contradict", images, _test_labels(images, _wrong(0.4, 10))
    ),
    "swapped-channels": Planted(
        CAUSES, "channels in another order", colored,
        _test_inputs(colored, lambda x: x[:, [2, 1, 0]]),
    ),
    "one-channel": Planted(
        "input-scale", "Channel 1 (from 0) of 3", colored, _test_inputs(colored, _one_channel)
    ),
    "one-channel-costs": Planted(
        CAUSES, "channel 1 (from 0) of 3", colored, _test_inputs(colored, _one_channel)
    ),
    "reversed-signals": Planted(
        CAUSES, "in reverse order", sequences, _test_inputs(sequences, lambda x: x.flip(2))
    ),
    "mirrored-copies": Planted(
        "repeated-samples", "copies, mirrored left to right", images, _copies(lambda x: x.flip(3))
    ),
    "rotated-copies": Planted(
        "repeated-samples", "copies, rotated by 90", images,
        _copies(lambda x: x.rot90(1, (2, 3))),
    ),
    "moved-copies": Planted(
        "repeated-samples", "copies, moved", images, _copies(lambda x: x.roll((0, 1), (2, 3)))
    ),
    "re-encoded-copies": Planted(
        "repeated-samples", "copies, re-encoded", images, _copies(lambda x: 0.7 * x + 0.2)
    ),
    "noised-copies": Planted(
        "repeated-samples", "nearly copies", images,
        _copies(lambda x: x + 0.03 * torch.randn_like(x)),
    ),
    "sources-on-both-sides": Planted("repeated-samples", "of one source", clouds, groups),
    "logarithm-of-the-target": Planted(
        "features", "Feature 8 alone tells the target", numbers,
        _told(lambda y: (y - y.min() + 0.1).log()),
    ),
    "noisy-target": Planted(
        "features", "Feature 8 alone tells the target", numbers,
        _told(lambda y: y + 0.2 * torch.randn_like(y)),
    ),
    "exponential-of-the-target": Planted(
        "features", "Feature 8 alone tells the target", numbers, _told(lambda y: y.exp())
    ),
    "noisy-label": Planted("features", "Feature 6 alone tells the label", clouds, told_label),
    "columns-in-another-order": Planted(
        CAUSES, "features in another order", clouds,
        _test_inputs(clouds, lambda x: x[:, [4, 1, 2, 3, 0, 5, 7, 6]]),
    ),
    "one-column": Planted(CAUSES, "feature 1 of 8", clouds, _test_inputs(clouds, _one_column)),
    "swapped-classes": Planted(
        CAUSES, "classes have other names", clouds, _test_labels(clouds, lambda y: 1 - y)
    ),
    "other-units": Planted(
        CAUSES, "targets are in other units", numbers, _test_labels(numbers, lambda y: 100 * y + 3)
    ),
    "moved-features": Planted(
        CAUSES, "shifted", numbers, _test_inputs(numbers, lambda x: x + 3)
    ),
    "careless-dropout": Planted("noise", "draws random numbers", plain_digits, careless),
    "slow-progress": Planted("training-end", "not at its end", arrived, slow),
    "attended-padding": Planted("padding", "Padding is attended", words, attended_padding),
    "shifted-tokens": Planted(
        "token-ids", "tokens of the test data are shifted", words, shifted_words
    ),
    "all-tokens-shifted": Planted(
        "token-ids", "tokens of the training data are shifted", words, all_shifted_words
    ),
    "few-levels": Planted("weight-levels", "different values only", plain_digits, quantized),
    "frozen-backbone": Planted(
        "frozen-layers", "frozen at their initialization", frozen_pretrained, frozen
    ),
    "class-weights": Planted("class-weights", "loss with class weights", rare, weighted),
    "one-direction": Planted("edge-directions", "one direction only", nodes, one_direction),
}  # fmt: skip

#: Healthy networks beyond the twins: nothing may be called a defect of them.
HEALTHY: dict[str, Callable[[int], Case]] = {
    "overfitted": overfitted,
    "directed": directed,
    "arrived": arrived,
}
