"""A network is followed again when anything about it has changed, and kept alive by nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds import kept
from torchtheory.robustness.bounds.output_bounds import output_bounds

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.1), nn.Linear(6, 2)
        ).eval()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were followed."""
    calls: list[nn.Module] = []
    real = kept.trace

    def watched(model: nn.Module, *given, **options):
        calls.append(model)
        return real(model, *given, **options)

    monkeypatch.setattr(kept, "trace", watched)
    return calls


def encloses(net: nn.Module, x: Tensor) -> None:
    for method in ("interval", "crown"):
        found = output_bounds(net, x, 0.0, method=method)
        with torch.no_grad():
            out = net(x)
        assert bool(((found.lower <= out) & (out <= found.upper)).all())
        assert float(found.width.max()) < 1e-3


def swap(net: nn.Sequential) -> None:
    net[2] = nn.Tanh()


CHANGES = {
    "a weight through .data": lambda net: net[0].weight.data.mul_(2),
    "a weight in place": lambda net: nn.init.constant_(net[3].weight, 0.3),
    "a bias by another parameter": lambda net: setattr(net[3], "bias", nn.Parameter(torch.ones(2))),
    "a buffer": lambda net: net[1].running_mean.add_(1.0),
    "a setting": lambda net: setattr(net[2], "negative_slope", 0.9),
    "a layer": swap,
    "one more layer": lambda net: net.append(nn.Sigmoid()),
    "a hook": lambda net: net[0].register_forward_hook(lambda m, i, o: o + 5.0),
    "a forward of its own": lambda net: setattr(net[2], "forward", torch.tanh),
    "the precision": lambda net: net.double(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_is_noticed(what: str, followed: list[nn.Module]) -> None:
    net = network()
    encloses(net, X)
    encloses(net, X)
    assert len(followed) == 1
    CHANGES[what](net)
    encloses(net, X.to(net[0].weight.dtype))
    assert len(followed) >= 2


def test_shapes_and_outputs_have_graphs_of_their_own(followed: list[nn.Module]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    for size in (5, 6, 5, 6):
        encloses(net, torch.ones(2, 1, size, size))
    assert len(followed) == 2


def test_classes_of_others_are_followed_each_time(followed: list[nn.Module]) -> None:
    class Mine(nn.Module):
        factor = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.factor

    net = Mine()
    encloses(net, X)
    Mine.factor = 3.0
    encloses(net, X)
    assert len(followed) == 4


def test_a_model_dies_with_what_was_kept_of_it() -> None:
    net = network()
    encloses(net, X)
    graph = weakref.ref(next(iter(kept._KNOWN[net].graphs.values())).vertices[0])
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert graph() is None


def test_models_stay_as_they_are_and_autocast_is_noticed() -> None:
    net = network().train()
    before = copy.deepcopy(net.state_dict())
    output_bounds(net, X, 0.1)
    output_bounds(net, X, 0.1)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsupportedModel):
        output_bounds(net, X, 0.1)
    assert all(p.requires_grad for p in net.parameters())


def test_what_was_kept_for_inference_serves_gradients_later() -> None:
    net = network()
    with torch.inference_mode():
        x = torch.randn(3, 4)
        rows = torch.eye(2)
        within = output_bounds(net, x, 0.1, method="alpha-crown", specification=rows)
    after = output_bounds(net, x, 0.1, method="alpha-crown", specification=rows)
    plain = output_bounds(copy.deepcopy(net), x.clone(), 0.1, method="alpha-crown")
    for found in (within, after):
        torch.testing.assert_close(found.lower, plain.lower)
        torch.testing.assert_close(found.upper, plain.upper)
    assert not after.lower.is_inference()


def test_threads_do_not_disturb_each_other() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with ThreadPoolExecutor(4) as threads:
        inputs = [torch.randn(1, 1, size, size) for size in (6, 7, 8, 9)]
        found = list(threads.map(lambda x: output_bounds(net, x, 0.1), inputs))
    for x, bounds in zip(inputs, found, strict=True):
        assert bool((bounds.lower <= net(x)).all() and (net(x) <= bounds.upper).all())
