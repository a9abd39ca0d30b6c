"""The embedded example: a small network on scikit-learn's digits, trained in a second or two."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from torchtheory.core import progress
from torchtheory.core.random import as_generator
from torchtheory.data.real import digits, split
from torchtheory.models.model import Parameters, global_randomness_kept
from torchtheory.models.samples import Samples

EPOCHS = 30


def digits_example(
    generator: torch.Generator | int = 0,
) -> tuple[nn.Module, Samples, Samples, Parameters]:
    """A trained MLP 64-64-64-10, its train and test data, and the weights training began with.

    The weights follow from `generator` alone; global random state is not touched.
    """
    generator = as_generator(generator)
    (x, y), test = split(*digits(), test_fraction=0.25, generator=generator)
    with global_randomness_kept():  # layers draw their first weights from the global generator
        model = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    initial = {k: p.detach().clone() for k, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in progress.track(range(EPOCHS), "training the example"):
        for batch in torch.split(torch.randperm(len(x), generator=generator), 64):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x[batch]), y[batch]))
            optimizer.step()
    return model.eval(), Samples(x, y), Samples(*test), initial
