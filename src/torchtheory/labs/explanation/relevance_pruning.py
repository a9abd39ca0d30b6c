"""Relevance put to use: which units can go, and which rules explain best."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.explanation.composites import Composite, Rules, preset
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.pixel_flipping import pixel_flipping
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.pruning import prune_by_relevance, pruning_curves, unit_relevances
from torchtheory.explanation.rules import Epsilon, Gamma
from torchtheory.explanation.score import Inputs
from torchtheory.explanation.tuning import tune
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many
from torchtheory.training.pruning.units import largest_units, remove_units


@lab(
    "relevance-pruning",
    room="explanation",
    covers=["C-34"],
    title="Units that no decision needs: pruning by relevance, beside magnitude and chance",
    full={"epochs": 40, "networks": 10, "draws": 20},
    least={"shares": 0.0, "networks": 5},
    most={"shares": 0.9},
    items={"shares": 2},
)
def relevance_pruning(
    run: Run,
    epochs: int = 6,
    networks: int = 5,
    draws: int = 4,
    shares: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8),
) -> None:
    """Convolutional networks for digits lose filters and units, and are not trained again.

    Relevance over a few reference digits tells which ones; the smaller network computes what the whole
    one does with their weights at 0. Accuracy stays above that of networks that lost as many at random.

    Args:
        epochs: of each training.
        networks: trained from different weights.
        draws: random choices of units.
        shares: of every layer's filters and units that go.
    """
    curves = {name: torch.zeros(networks, len(shares)) for name in ("relevance", "magnitude", "random")}
    shuffled = torch.zeros(networks)
    middle = len(shares) // 2
    train, test = split(*images(), 0.4, run.generator)
    reference = train[0][:100]
    together = fit_many(
        [untrained(run) for _ in range(networks)], train, epochs=epochs, learning_rate=0.003, seed=run.seed
    )
    for k, net in enumerate(together.networks()):
        found = pruning_curves(net, reference, test, shares, draws=draws, generator=run.generator)
        for name, row in curves.items():
            row[k] = found.accuracy[name]
        # the relevance of units of a network with the same layers and other weights
        kept = largest_units(unit_relevances(untrained(run), reference), shares[middle])
        shuffled[k] = accuracy(remove_units(net, kept), *test)
        if k == 0:
            smaller = prune_by_relevance(net, reference, shares[middle])
            whole = prune_by_relevance(net, reference, 0.0)
            x = test[0][:50]
            says = run.states("C-34", r"\text{the smaller network}=\text{the one with weights of removed units at }0")
            with torch.no_grad():
                wanted = smaller.masked(x)
                says.equal(smaller.network(x), wanted, 1e-9)
                says.fails("no unit is removed", whole.network(x))
    ahead = curves["relevance"][:, middle] - curves["random"][:, middle]
    says = run.states(
        "C-34", rf"\text{{accuracy without {shares[middle]:.0%}: by relevance}}>\text{{by chance}}".replace("%", r"\%")
    )
    says.above(mean_interval(ahead, 0.95).low, 0.0, where=f"lower end of the mean's 95% interval, {networks} networks")
    says.fails(
        "relevance is that of a network with other weights",
        mean_interval(shuffled - curves["random"][:, middle], 0.95).low,
    )
    run.table(
        "accuracy",
        ("share removed", *curves),
        [(s, *(float(row[:, i].mean()) for row in curves.values())) for i, s in enumerate(shares)],
        caption=f"Test accuracy without retraining, the mean of {networks} networks.",
    )
    run.curves(
        "accuracy",
        list(shares),
        {name: [mean_interval(row[:, i], 0.95) for i in range(len(shares))] for name, row in curves.items()},
        axes=("share of filters and units removed", "test accuracy"),
        ylim=(0, 1.02),
        caption="Accuracy of smaller networks that are not trained again, by what chose the units that went.",
    )


@lab(
    "tuned-rules",
    room="explanation",
    covers=["C-33"],
    title="Rules chosen by pixel flipping are at least as good as every preset, also on other samples",
    full={"epochs": 40, "samples": 300},
    least={"epochs": 3, "samples": 40},
)
def tuned_rules(run: Run, epochs: int = 6, samples: int = 60) -> None:
    """Presets and a grid of gamma compete on some digits, and the winner is judged on others.

    On the samples that choose, nothing beats the winner by definition; on the others it must not fall
    behind a preset by more than chance explains.

    Args:
        epochs: of the training.
        samples: that choose, and as many that judge.
    """
    train, (x, _) = split(*images(), 0.4, run.generator)
    net = trained(run, train, epochs, 0)
    presets: dict[str, Rules] = {
        "image_cnn": preset("image_cnn", low=0.0, high=1.0), "text_cnn": "text_cnn", "relu_default": "relu_default",
    }  # fmt: skip
    grid: dict[str, Rules] = {
        f"gamma {g:g}": Composite(((nn.Conv2d, Gamma(g)),), Epsilon(1e-6)) for g in (0.05, 0.25, 1.0)
    }
    every = presets | grid
    choosing, judging = x[:samples], x[samples : 2 * samples]
    tuned = tune(net, choosing, every)
    opposite = tune(net, choosing, every, criterion=least_first)
    run.assumes(opposite.best != tuned.best, f"{tuned.best} is best from either end: no other choice can be worse")
    says = run.states("C-33", r"\text{area of the tuned rules}\ge\text{area of each preset}")
    areas = [float(tuned.scores[name].mean()) for name in every]
    best = float(tuned.scores[tuned.best].mean())
    says.at_most(areas, best, 1e-12, where=f"the samples that chose {tuned.best}")
    chosen_otherwise = float(tuned.scores[opposite.best].mean())
    says.fails("chosen by the area from the least relevant on", areas, promised=chosen_otherwise)
    flipped = {
        name: pixel_flipping(net, judging, lrp(net, judging, rules=rules)).areas for name, rules in every.items()
    }
    says = run.states("C-33", r"\text{on other samples: tuned}-\text{preset}\ge0")
    says.at_least(leads(flipped, tuned.best, presets), 0.0, where="upper ends of 99% intervals")
    says.fails("chosen by the area from the least relevant on", leads(flipped, opposite.best, presets))
    run.table(
        "areas",
        ("rules", "area on choosing samples", "area on others"),
        [(name, float(tuned.scores[name].mean()), float(flipped[name].mean())) for name in every],
        caption=f"Pixel flipping, the most relevant first; chosen: {tuned.best}.",
    )


def leads(areas: dict[str, Tensor], best: str, others: dict[str, Rules]) -> list[float]:
    """How far the best may be ahead of others, at most."""
    return [mean_interval(areas[best] - areas[name], 0.99).high for name in others if name != best]


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


def least_first(model: nn.Module, x: Inputs, explanation: Explanation) -> Tensor:
    return pixel_flipping(model, x, explanation, order="least").areas


def images() -> tuple[Tensor, Tensor]:
    x, y = digits(torch.float64)
    return x.reshape(-1, 1, 8, 8), y


def untrained(run: Run) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
    ).double()  # fmt: skip
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=run.generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return net


def trained(run: Run, data: tuple[Tensor, Tensor], epochs: int, number: int) -> nn.Sequential:
    net = untrained(run)
    fit(net, data, epochs=epochs, learning_rate=0.003, seed=run.seed + number)
    return net.requires_grad_(False)
