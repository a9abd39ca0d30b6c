"""Masks are torch's own, a network without its units is the masked one, and nothing is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.models.untouched import ModelState
from torchtheory.nets.symmetries import HiddenLayer, hidden_layers
from torchtheory.training.pruning.magnitude import magnitude_masks, magnitude_thresholds, prune
from torchtheory.training.pruning.masks import (
    masked,
    prunable_weights,
    random_masks,
    sparsity,
)
from torchtheory.training.pruning.units import (
    prune_units,
    remove_units,
    unit_masks,
    unit_scores,
)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))


def images(seed: int = 0) -> nn.Sequential:
    """Batch normalization with statistics of its own, pooling, flattening."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Sigmoid(), nn.MaxPool2d(2),
        nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 8), nn.Softplus(),
        nn.Linear(8, 4),
    ).double()  # fmt: skip
    net(torch.randn(30, 2, 8, 8, dtype=torch.float64) + 0.5)
    with torch.no_grad():
        for p in net[1].parameters():
            p.uniform_(0.5, 2.0)
    return net.eval()


class Residual(nn.Module):
    """The inside of the block is a straight path, the outside is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 12), nn.Linear(12, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x + self.second(torch.sigmoid(self.first(x))))
        return out


def linears(model: nn.Module) -> dict[str, nn.Module]:
    return {k: m for k, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


# ------------------------------------------------------------------------------------- magnitude


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 1.0), st.integers(0, 5))
def test_masks_are_those_of_torch(share: float, seed: int) -> None:
    ours, theirs = network(seed), network(seed)
    torch_prune.global_unstructured(
        [(m, "weight") for m in linears(theirs).values()],
        pruning_method=torch_prune.L1Unstructured,
        amount=share,
    )
    for name, mask in magnitude_masks(ours, share).items():
        peer = theirs.get_submodule(name.removesuffix(".weight")).weight_mask
        assert torch.equal(mask, peer.bool())
    theirs = network(seed)
    for module in linears(theirs).values():
        torch_prune.l1_unstructured(module, "weight", share)
    for name, mask in magnitude_masks(ours, share, per_layer=True).items():
        peer = theirs.get_submodule(name.removesuffix(".weight")).weight_mask
        assert torch.equal(mask, peer.bool())


def test_the_smallest_go_and_the_given_network_stays() -> None:
    net = images()
    before = ModelState(net)
    pruned = prune(net, 0.6)
    assert before.changes(net) == []
    kept = torch.cat([w.abs()[pruned.masks[k]] for k, w in prunable_weights(net).items()])
    gone = torch.cat([w.abs()[~pruned.masks[k]] for k, w in prunable_weights(net).items()])
    assert float(gone.max()) <= float(kept.min())
    total = len(kept) + len(gone)
    assert len(gone) == round(0.6 * total)
    assert pruned.sparsity == pytest.approx(len(gone) / total)
    for name, p in pruned.network.named_parameters():
        own = dict(net.named_parameters())[name]
        mask = pruned.masks.get(name, torch.ones_like(own, dtype=torch.bool))
        assert torch.equal(p, own * mask)
    assert "1.weight" not in pruned.masks
    assert "0.bias" not in pruned.masks


def test_random_masks_have_the_same_sizes_and_other_places() -> None:
    chosen = magnitude_masks(network(), 0.7)
    drawn = random_masks(chosen, 3)
    for name, mask in chosen.items():
        assert int(mask.sum()) == int(drawn[name].sum())
    assert any(not torch.equal(chosen[k], drawn[k]) for k in chosen)
    again = random_masks(chosen, 3)
    assert all(torch.equal(drawn[k], again[k]) for k in drawn)


def test_rounds_never_bring_a_weight_back() -> None:
    first = magnitude_masks(network(0), 0.5)
    # another network: its magnitudes alone would keep what went before
    second = magnitude_masks(network(1), 0.8, within=first)
    assert sparsity(second) == pytest.approx(0.8, abs=0.01)
    assert all(bool((first[k] | ~second[k]).all()) for k in first)
    with pytest.raises(InvalidInput, match="went before"):
        magnitude_masks(network(1), 0.3, within=first)


def test_what_is_no_weight_is_left_alone() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4),
        nn.LayerNorm((3, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
    )
    assert list(prunable_weights(net)) == ["0.weight"]
    with pytest.raises(UnsupportedModel, match="no weight"):
        prune(nn.BatchNorm1d(3), 0.5)


def test_per_layer_rounds_never_bring_a_weight_back_either() -> None:
    first = magnitude_masks(network(0), 0.6, per_layer=True)
    second = magnitude_masks(network(1), 0.8, per_layer=True, within=first)
    assert all(not bool((second[k] & ~first[k]).any()) for k in first)
    with pytest.raises(InvalidInput, match="weight went before"):
        magnitude_masks(network(1), 0.3, per_layer=True, within=first)
    # with no more to go, exactly those go that went before, however large they are now
    for per_layer in (True, False):
        earlier = magnitude_masks(network(0), 0.6, per_layer=per_layer)
        again = magnitude_masks(network(1), 0.6, per_layer=per_layer, within=earlier)
        assert all(torch.equal(again[k], earlier[k]) for k in earlier)
    bias = {**first, "0.bias": torch.arange(9) > 3}
    for per_layer in (True, False):
        later = magnitude_masks(network(1), 0.8, per_layer=per_layer, within=bias)
        assert torch.equal(later["0.bias"], bias["0.bias"])


def test_what_torch_has_pruned_or_normalized() -> None:
    net = network()
    torch_prune.l1_unstructured(net[0], "weight", 0.5)
    pruned = prune(net, 0.5)
    x = torch.ones(1, 6)
    pruned.network(x)
    weights = [pruned.network[k].weight for k in (0, 2, 4)]  # type: ignore[index]
    zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    assert zeros == pytest.approx(0.5, abs=0.01)
    assert pruned.sparsity == pytest.approx(zeros)
    with pytest.warns(FutureWarning):
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2))
    assert list(prunable_weights(old)) == ["2.weight"]
    spectral = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    assert list(prunable_weights(spectral)) == ["1.weight"]
    with pytest.raises(UnsupportedModel, match="lazy"):
        prune(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), 0.5)
    with pytest.raises(EmptyData):
        magnitude_thresholds({}, [0.5])


def test_recurrent_and_shared_weights() -> None:
    net = nn.Sequential(nn.Embedding(7, 4), nn.LSTM(4, 5))
    pruned = prune(net, 0.5)
    assert set(pruned.masks) == {"0.weight", "1.weight_ih_l0", "1.weight_hh_l0"}
    twin = nn.Sequential(nn.Embedding(7, 4), nn.LSTM(4, 5))
    twin.load_state_dict(pruned.network.state_dict())
    words = torch.arange(6).view(3, 2)
    assert torch.equal(pruned.network(words)[0], twin(words)[0])
    tied = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    tied[1].weight = tied[0].weight
    smaller = prune(tied, 0.5)
    assert list(smaller.masks) == ["0.weight"]
    assert smaller.network[1].weight is smaller.network[0].weight  # type: ignore[index]


def test_masks_that_do_not_fit_are_refused() -> None:
    net = network()
    with pytest.raises(UnknownName, match="parameter"):
        masked(net, {"0.wight": torch.ones(9, 6, dtype=torch.bool)})
    with pytest.raises(ShapeMismatch, match="shape"):
        masked(net, {"0.weight": torch.ones(6, 9, dtype=torch.bool)})
    with pytest.raises(InvalidType, match="True and False"):
        masked(net, {"0.weight": torch.ones(9, 6)})
    with pytest.raises(InvalidType):
        masked(net, [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        prune(net, 1.5)
    with pytest.raises(UnknownName, match="rule"):
        prune(net, 0.5, "magnitud")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize("with_data", [False, True])
def test_the_smaller_network_is_the_masked_one(share: float, with_data: bool) -> None:
    x = torch.randn(11, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    net = images()
    before = ModelState(net)
    pruned = prune_units(net, share, x if with_data else None)
    assert before.changes(net) == []
    assert torch.allclose(pruned.network(x), pruned.masked(x), rtol=1e-12, atol=1e-12)
    for layer, kept in pruned.kept.items():
        assert len(kept) == max(1, layer.units - round(share * layer.units))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (pruned.network, net)]
    assert sizes[0] == sizes[1] if share == 0 else sizes[0] < sizes[1]
    pruned.network(x).sum().backward()  # it can be trained on
    assert all(p.grad is not None for p in pruned.network.parameters())


def test_units_inside_a_residual_block() -> None:
    torch.manual_seed(0)
    net = Residual().double()
    x = torch.randn(9, 5, dtype=torch.float64)
    pruned = prune_units(net, 0.5)
    assert isinstance(pruned.network, Residual)
    assert pruned.network.first.out_features == 6
    assert torch.allclose(pruned.network(x), pruned.masked(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(pruned.network(x), net(x))


def test_every_weight_of_a_removed_unit_is_masked() -> None:
    net = images()
    masks = unit_masks(net, {hidden_layers(net)[0]: torch.tensor([0, 2, 3, 5])})
    assert set(masks) == {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight"}
    stays = torch.tensor([True, False, True, True, False, True])
    for name, mask in masks.items():
        rows = mask.transpose(0, 1) if name == "4.weight" else mask
        assert torch.equal(rows.reshape(6, -1).all(1), stays)
        assert torch.equal(rows.reshape(6, -1).any(1), stays)


def test_incoming_weights_of_zero_are_not_enough() -> None:
    """A sigmoid of 0 is 1/2: it is the outgoing weights that make a unit go."""
    net = images()
    layer = hidden_layers(net)[0]
    kept = {layer: torch.tensor([0, 2])}
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    masks = unit_masks(net, kept)
    only_incoming = {k: m for k, m in masks.items() if k != f"{layer.outgoing}.weight"}
    smaller = remove_units(net, kept)
    assert torch.allclose(smaller(x), masked(net, masks)(x), atol=1e-12)
    assert not torch.allclose(smaller(x), masked(net, only_incoming)(x), atol=1e-3)


def test_scores_find_units_that_do_nothing() -> None:
    """A unit that never fires has large weights; only data shows that it does nothing."""
    net = network().double()
    with torch.no_grad():
        net[2].bias[3] = -1e3
        net[4].weight[:, 5] = 0
    x = torch.randn(50, 6, dtype=torch.float64)
    last = hidden_layers(net)[-1]
    by_weights, by_data = unit_scores(net)[last], unit_scores(net, x)[last]
    assert float(by_weights[5]) == 0
    assert float(by_weights[3]) > float(by_weights.median())
    assert (by_data == 0).nonzero().flatten().tolist() == [3, 5]
    pruned = remove_units(net, {last: torch.tensor([0, 1, 2, 4, 6])})
    assert torch.allclose(pruned(x), net(x), rtol=1e-12, atol=1e-12)


def test_scores_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Identity(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        net[2].weight.copy_(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
    # root mean squares of (1, 7) are 5, times 1 and 2; outgoing weights have norms 5 and 1
    (scores,) = unit_scores(net, torch.tensor([[1.0], [7.0]])).values()
    assert scores.tolist() == pytest.approx([25.0, 10.0])


@pytest.mark.parametrize("training", [True, False])
def test_scores_behind_a_batch_normalization(training: bool) -> None:
    """Its own numbers are the incoming ones, and its running statistics are used."""
    net = images().train(training)
    first = hidden_layers(net)[0]
    norm, outgoing = net[1], net[4]
    sizes = (norm.weight.square() + norm.bias.square()).sqrt()
    leaving = outgoing.weight.transpose(0, 1).flatten(1).norm(dim=1)
    assert torch.allclose(unit_scores(net)[first], sizes * leaving)
    x = torch.randn(5, 2, 8, 8, dtype=torch.float64)
    a = copy.deepcopy(net).eval()[:4](x)
    given_x = a.square().mean((0, 2, 3)).sqrt()
    assert torch.allclose(unit_scores(net, x)[first], given_x * leaving)
    assert net.training == training


class Rescaled(nn.Module):
    def __init__(self, by_size: bool) -> None:
        super().__init__()
        self.first, self.second, self.by_size = nn.Linear(5, 8), nn.Linear(8, 8), by_size
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.sigmoid(self.first(x)))
        if self.by_size:
            out: Tensor = self.head(y) / self.first.out_features
            return out
        return nn.functional.linear(torch.tanh(y), self.first.weight.t())


def test_layers_that_are_used_in_other_ways_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="in other ways"):  # the width of a layer is read
        prune_units(Rescaled(True), 0.5, torch.randn(9, 5))
    for x in (None, torch.randn(9, 5)):  # its weight is
        with pytest.raises(UnsupportedModel, match="no hidden layer"):
            prune_units(Rescaled(False), 0.5, x)


def test_scores_do_not_depend_on_the_scale_of_a_unit() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[0].weight[1] *= 7
        other[0].bias[1] *= 7
        other[2].weight[:, 1] /= 7
    x = torch.randn(20, 3, dtype=torch.float64)
    for given_x in (None, x):
        (a,), (b,) = unit_scores(net, given_x).values(), unit_scores(other, given_x).values()
        assert torch.allclose(a, b, rtol=1e-12)


def test_units_that_do_not_exist_are_refused() -> None:
    net = network()
    layer = hidden_layers(net)[0]
    for stay in (torch.tensor([0, 9]), torch.tensor([2, 1]), torch.tensor([]), torch.tensor([0.5])):
        with pytest.raises(InvalidInput):
            remove_units(net, {layer: stay})
    for stay in (torch.arange(9) > 3, torch.tensor([0, 3], dtype=torch.uint8)):
        with pytest.raises(InvalidInput, match="int64"):
            remove_units(net, {layer: stay})
    with pytest.raises(InvalidType):
        prune_units(None, 0.5)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="lazy"):
        prune_units(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), 0.5)
    with pytest.raises(UnsupportedModel, match="RuntimeError on inputs"):
        prune_units(net, 0.5, torch.ones(3, 5))
    broken = network()
    broken[0].weight.data[2, 1] = torch.nan
    with pytest.raises(NonFinite):
        prune_units(broken, 0.5)
    with pytest.raises(InvalidInput, match="none of"):
        remove_units(net, {HiddenLayer("0", "4", 9): torch.tensor([0])})
    with pytest.raises(InvalidInput):
        prune_units(net, 1.0)
    with pytest.raises(UnsupportedModel, match="hidden layer"):
        prune_units(nn.Linear(2, 2), 0.5)


@pytest.mark.parametrize("work", [sparsity, random_masks])
@pytest.mark.parametrize("masks", [5, [1], {"a": 3}, {"a": torch.zeros(3)}])
def test_what_is_no_mask_is_refused(work: Any, masks: Any) -> None:
    with pytest.raises(InvalidType, match="mask"):
        work(masks)
