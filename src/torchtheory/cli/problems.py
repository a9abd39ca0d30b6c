"""A network and its samples, as commands name them; without a model, the example."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtheory.core.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from torchtheory.models.samples import Samples

#: Most samples that are read of a data set to choose from.
MOST_READ = 100_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A network with samples, and what is known about their names."""

    network: nn.Module
    samples: Samples
    title: str
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def example(seed: int) -> Asked:
    """The example of the audit, whose pixels lie in their rows again."""
    from torch import nn

    from torchtheory.audit.example import digits_example
    from torchtheory.models.samples import Samples

    network, _, test, _ = digits_example(seed)
    images = Samples(test.x.reshape(-1, 1, 8, 8), test.y)
    title = "MLP 64-64-64-10 on scikit-learn's digits"
    return Asked(nn.Sequential(nn.Flatten(), network), images, title)


def problem(model: str, weights: Path | None, data: str, column: str | None, seed: int) -> Asked:
    """A user's network, and the test data where there are any."""
    from torchtheory.data.sources import load_data
    from torchtheory.data.tables import is_table, load_table
    from torchtheory.models.loading import load_network
    from torchtheory.models.samples import collect

    features: Sequence[str] = ()
    classes: Sequence[str] = ()
    if is_table(data):
        # nobody trains here, so all rows can be asked for, by their numbers in the file
        table = load_table(data, column, test_fraction=0, seed=seed)
        train, test, features, classes = table.train, table.test, table.features, table.classes
    else:
        train, test = load_data(data, target=column)
    name, part = ("train", train) if test is None else ("test", test)
    samples = collect(part, name, limit=MOST_READ, seed=seed)
    network = load_network(model, weights, seed)
    return Asked(network, samples, model, tuple(features), tuple(classes))


def inputs_of(network: nn.Module, samples: Samples) -> Tensor | tuple[Tensor, ...]:
    """What the network is called with; inputs by name in the order in which it takes them."""
    if samples.rows is None:
        return samples.x
    rows = samples.rows.take(samples.x).taken_by(network)
    if not isinstance(rows.parts, dict):
        return rows.parts
    try:
        bound = inspect.signature(network.forward).bind(**rows.parts)
    except (TypeError, ValueError):
        bound = None
    if bound is None or bound.kwargs:
        raise InvalidInput(
            f"the inputs {', '.join(rows.parts)} cannot be given to the model one after the other; "
            "give a model whose forward takes them in order"
        )
    return tuple(bound.args)
