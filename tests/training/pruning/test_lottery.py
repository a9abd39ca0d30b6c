"""Pruned networks trained as one batch end where torch's own pruning would take each alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.intervals import mean_interval
from torchtheory.models.untouched import ModelState
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.training.loop.seeds import derived_seed
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many, mlp_family
from torchtheory.training.pruning.lottery import KINDS, Recipe, lottery_tickets
from torchtheory.training.pruning.magnitude import magnitude_masks
from torchtheory.training.pruning.masks import (
    Masks,
    masked,
    prunable_weights,
    random_masks,
    sparsity,
)
from torchtheory.training.pruning.untrained import (
    ScoredNetwork,
    find_untrained_subnetwork,
    find_untrained_subnetworks,
)


def data(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x + torch.tanh(self.inner(x)))
        return out


def by_torch(model: nn.Module, masks: Masks) -> nn.Module:
    net = copy.deepcopy(model)
    for name, mask in masks.items():
        layer, _, part = name.rpartition(".")
        torch_prune.custom_from_mask(net.get_submodule(layer), part, mask)
    return net


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw"])
@pytest.mark.parametrize("rates", [0.02, [0.01, 0.02, 0.03, 0.04]])
def test_each_pruned_network_as_if_alone(optimizer: str, rates: float | list[float]) -> None:
    """Of several widths, so that padding and pruning meet; a bias is pruned as well."""
    networks = mlp_family(5, [6, 9], 2, seeds=[0, 1], dtype=torch.float64)
    masks: list[Masks | None] = [dict(magnitude_masks(n, 0.5)) for n in networks]
    bias = torch.ones(6, dtype=torch.bool)
    bias[2] = False
    masks[1] = {**(masks[1] or {}), "0.bias": bias}
    masks[3] = None
    before = [ModelState(n) for n in networks]
    many = fit_many(
        networks, data(), masks=masks, epochs=3, batch_size=16, optimizer=optimizer,
        learning_rate=rates, weight_decay=0.01, seed=[4, 5, 6, 7],
    )  # fmt: skip
    assert all(b.changes(n) == [] for b, n in zip(before, networks, strict=True))
    for k, (net, mask) in enumerate(zip(networks, masks, strict=True)):
        alone = by_torch(net, mask or {})
        fit(
            alone, data(), epochs=3, batch_size=16, optimizer=optimizer, weight_decay=0.01,
            learning_rate=rates if isinstance(rates, float) else rates[k], seed=4 + k,
        )  # fmt: skip
        made = many.network(k)
        x = data(30, 1)[0]
        assert torch.allclose(made(x), alone(x), rtol=1e-8, atol=1e-10)
        for name, stays in (mask or {}).items():
            assert bool((made.get_parameter(name)[~stays] == 0).all())


def test_one_network_with_two_masks_and_networks_that_are_no_chains() -> None:
    torch.manual_seed(0)
    net = Residual().double()
    masks = [magnitude_masks(net, s) for s in (0.3, 0.8)]
    many = fit_many([net, net], data(), masks=masks, epochs=2)
    for k, mask in enumerate(masks):
        alone = by_torch(net, mask)
        fit(alone, data(), epochs=2)
        x = data(9, 2)[0]
        assert torch.allclose(many.network(k)(x), alone(x), rtol=1e-8, atol=1e-10)
        assert sparsity(mask) > 0
    chain = mlp_family(5, [6], 2, dtype=torch.float64)[0]
    two = [magnitude_masks(chain, s) for s in (0.3, 0.8)]
    both = fit_many([chain, chain], data(), masks=two, epochs=2)
    zeros = [int((both.network(k)[0].weight == 0).sum()) for k in (0, 1)]  # type: ignore[index]
    assert zeros == [int((~m["0.weight"]).sum()) for m in two]


def test_masks_of_a_batch_that_do_not_fit_are_refused() -> None:
    networks = mlp_family(5, [6], 2, seeds=[0, 1], dtype=torch.float64)
    with pytest.raises(ShapeMismatch, match="masks"):
        fit_many(networks, data(), masks=[None])
    with pytest.raises(UnknownName):
        fit_many(networks, data(), masks=[None, {"nothing": torch.ones(1, dtype=torch.bool)}])


@pytest.mark.parametrize("iterative", [True, False])
@pytest.mark.parametrize("rewind", [0, 1])
def test_tickets(iterative: bool, rewind: int) -> None:
    net = mlp_family(5, [12], 2, dtype=torch.float64)[0]
    before = ModelState(net)
    recipe = Recipe(epochs=3, batch_size=16, learning_rate=0.02)
    found = lottery_tickets(
        net, data(), data(60, 1), sparsities=[0.25, 0.5, 0.75], seeds=[0, 1], rewind=rewind,
        iterative=iterative, recipe=recipe,
    )  # fmt: skip
    assert before.changes(net) == []
    assert set(found.measures) == set(KINDS)
    assert all(m.shape == (3, 2) for m in found.measures.values())
    assert found.sparsities.tolist() == pytest.approx([0.25, 0.5, 0.75], abs=0.01)
    if iterative:
        for a, b in zip(found.masks, found.masks[1:], strict=False):
            assert all(bool((a[0][k] | ~b[0][k]).all()) for k in a[0])
    # the ticket's measure is that of its start, masked and trained by torch's own pruning
    start, masks = found.starts[1], found.masks[2][1]
    alone = by_torch(start, masks)
    fit(alone, data(), epochs=3 - rewind, batch_size=16, learning_rate=0.02, seed=1)
    x, y = data(60, 1)
    assert float((alone(x).argmax(1) != y).double().mean()) == float(found.measures["ticket"][2, 1])
    for kind in KINDS:
        row = found.measures[kind][1]
        assert found.mean(kind, 1).estimate == pytest.approx(float(row.mean()))
        gained = float((row - found.measures["ticket"][1]).mean())
        assert found.advantage(kind, 1).estimate == pytest.approx(gained)
    ticket = found.ticket(2, 1)
    assert all(bool((ticket.get_parameter(k)[~m] == 0).all()) for k, m in masks.items())
    assert torch.equal(ticket.get_parameter("0.bias"), start.get_parameter("0.bias"))
    if rewind:
        fresh = lottery_tickets(
            net, data(), data(60, 1), sparsities=[0.5], seeds=[0, 1], recipe=recipe
        )
        moved = found.starts[0].get_parameter("0.weight") - fresh.starts[0].get_parameter(
            "0.weight"
        )
        assert 0 < float(moved.detach().abs().max()) < 1


@pytest.mark.parametrize("iterative", [True, False])
@pytest.mark.parametrize("rewind", [0, 1])
def test_every_kind_is_what_its_name_says(iterative: bool, rewind: int) -> None:
    """Losses of a regression, trained one by one: no two networks have the same by chance."""
    x = data()[0]
    train, test = (x, x[:, :1] * x[:, 1:2]), (data(30, 1)[0], data(30, 1)[0][:, :1])
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    recipe = Recipe(epochs=2 + rewind, batch_size=16, learning_rate=0.02, weight_decay=0.1)
    found = lottery_tickets(
        net, train, test, sparsities=[0.2, 0.4], seeds=[3, 8], iterative=iterative, recipe=recipe,
        rewind=rewind,
    )  # fmt: skip

    def fitted(alone: nn.Module, epochs: int, seed: int) -> nn.Module:
        if epochs:
            fit(
                alone, train, epochs=epochs, batch_size=16, learning_rate=0.02, weight_decay=0.1,
                seed=seed,
            )  # fmt: skip
        return alone

    def trained(start: nn.Module, masks: Masks, seed: int) -> tuple[nn.Module, float]:
        alone = fitted(by_torch(start, masks), 2, seed)
        for name in masks:
            layer, _, part = name.rpartition(".")
            torch_prune.remove(alone.get_submodule(layer), part)
        return alone, float(nn.functional.mse_loss(alone(test[0]), test[1]).detach())

    draws = torch.Generator().manual_seed(derived_seed(3, "random masks"))
    for k, seed in enumerate((3, 8)):
        start = fitted(drawn_anew(net, seed), rewind, seed)
        dense, loss = trained(start, {}, seed)
        assert loss == pytest.approx(float(found.dense[k]), rel=1e-6)
        first = magnitude_masks(dense, 0.2)
        assert all(torch.equal(first[name], found.masks[0][k][name]) for name in first)
        ticket, loss = trained(start, first, seed)
        assert loss == pytest.approx(float(found.measures["ticket"][0, k]), rel=1e-6)
        pruned, within = (ticket, first) if iterative else (dense, None)
        second = magnitude_masks(pruned, 0.4, within=within)
        assert all(torch.equal(second[name], found.masks[1][k][name]) for name in second)
        stranger = drawn_anew(net, derived_seed(seed, "other initial weights"))
        stranger = fitted(stranger, rewind, seed)
        loss = trained(stranger, second, seed)[1]
        assert loss == pytest.approx(float(found.measures["other initial weights"][1, k]), rel=1e-6)
        loss = trained(start, random_masks(found.masks[0][k], draws), seed)[1]
        assert loss == pytest.approx(float(found.measures["random mask"][0, k]), rel=1e-6)
    gained = found.measures["random mask"][1] - found.measures["ticket"][1]
    assert float(gained.abs().min()) > 1e-6
    expected = mean_interval(gained, 0.8)
    assert found.advantage("random mask", 1, 0.8).low == pytest.approx(expected.low)
    assert found.mean("ticket", 1, 0.8).high == pytest.approx(
        mean_interval(found.measures["ticket"][1], 0.8).high
    )
    with pytest.raises(UnknownName, match="random mask"):
        found.advantage("random", 0)


def test_tickets_of_a_regression_are_measured_by_their_loss() -> None:
    x = data()[0]
    found = lottery_tickets(
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double(),
        (x, x[:, :1]),
        (x, x[:, :1]),
        sparsities=[0.5],
        seeds=[0, 1],
        recipe=Recipe(epochs=2),
    )
    assert bool((found.dense > 0).all())
    assert bool((found.measures["ticket"] > 0).all())


def test_sweeps_that_make_no_sense_are_refused() -> None:
    net = mlp_family(5, [6], 2, dtype=torch.float64)[0]
    sweep = {"sparsities": [0.5], "seeds": [0, 1]}
    for wrong in (
        {"sparsities": [0.5, 0.5]},
        {"sparsities": []},
        {"sparsities": [1.0]},
        {"rewind": 10},
        {"seeds": [1, 1]},
        {"recipe": Recipe(epochs=0)},
    ):
        with pytest.raises(InvalidInput):
            lottery_tickets(net, data(), data(), **{**sweep, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="list of shares"):
        lottery_tickets(net, data(), data(), sparsities=0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="seeds must be a list of whole numbers, not 3"):
        lottery_tickets(net, data(), data(), sparsities=[0.5], seeds=3)  # type: ignore[arg-type]
    with pytest.raises(EmptyData, match="two seeds"):
        lottery_tickets(net, data(), data(), sparsities=[0.5], seeds=[0])
    with pytest.raises(UnsupportedModel, match="Dropout"):
        lottery_tickets(nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double(),
                        data(), data(), sparsities=[0.5])  # fmt: skip


# ------------------------------------------------------------------------------- strong tickets


def test_scores_get_the_gradient_of_a_weight_times_the_weight() -> None:
    """Straight through: the gradient at a score is that of the masked weight, times the weight."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    scored = ScoredNetwork(net, keep=0.5)
    x, y = data(20)
    nn.functional.cross_entropy(scored(x), y).backward()
    plain = masked(net, scored.masks())
    assert torch.equal(scored(x), plain(x))
    nn.functional.cross_entropy(plain(x), y).backward()
    for (name, weight), score in zip(prunable_weights(net).items(), scored.scores, strict=True):
        own = plain.get_parameter(name).grad
        assert own is not None
        assert score.grad is not None
        assert torch.allclose(score.grad, own * weight, rtol=1e-10, atol=1e-14)
        assert float((score.grad * ~scored.masks()[name]).abs().max()) > 0  # also where it is off


def test_a_subnetwork_that_was_never_trained() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 60), nn.ReLU(), nn.Linear(60, 2)).double()
    before = ModelState(net)
    x = data(120)[0]
    y = (x[:, 0] > x[:, 1]).long()
    found = find_untrained_subnetwork(net, (x, y), keep=0.5, epochs=25, validation=(x[:50], y[:50]))
    assert before.changes(net) == []
    for name, p in found.network.named_parameters():
        own = net.get_parameter(name)
        assert torch.equal(p, own * found.masks[name] if name in found.masks else own)
    assert sparsity(found.masks) == pytest.approx(0.5, abs=0.01)
    wrong = float((found.network(x).argmax(1) != y).double().mean())
    before_it = float((net(x).argmax(1) != y).double().mean())
    assert wrong < 0.5 * before_it
    assert found.history.train_errors[-1] < 0.2
    judged = float((found.network(x[:50]).argmax(1) != y[:50]).double().mean())
    assert found.history.validation_errors[-1] == pytest.approx(judged)


def test_how_much_is_kept() -> None:
    net = mlp_family(5, [20], 2, dtype=torch.float64)[0]
    masks = ScoredNetwork(net, keep=0.3).masks()
    assert [int(m.sum()) for m in masks.values()] == [30, 12]
    drawn = [s.detach() for s in ScoredNetwork(net, keep=0.3).scores]
    for scores, inputs in zip(drawn, (5, 20), strict=True):
        reach = inputs**-0.5
        assert 0 <= float(scores.min()) < 0.25 * reach < 0.75 * reach < float(scores.max()) <= reach
    # something is left of every layer
    assert [int(m.sum()) for m in ScoredNetwork(net, keep=0.001).masks().values()] == [1, 1]


def test_subnetworks_with_shared_weights() -> None:
    torch.manual_seed(0)
    tied = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    tied[1].weight = tied[0].weight
    words = torch.arange(40) % 7
    found = find_untrained_subnetwork(tied, (words, words), keep=0.5, epochs=2)
    assert list(found.masks) == ["0.weight"]
    scored = ScoredNetwork(tied, keep=0.5)
    assert torch.equal(scored(words), masked(tied, scored.masks())(words))


def test_subnetworks_of_several_as_if_alone() -> None:
    networks = mlp_family(5, [20], 2, seeds=[0, 1], dtype=torch.float64)
    both = find_untrained_subnetworks(networks, data(), epochs=2, seeds=[3, 4])
    alone = find_untrained_subnetwork(networks[1], data(), epochs=2, seed=4)
    assert all(torch.equal(both[1].masks[k], alone.masks[k]) for k in alone.masks)
    with pytest.raises(EmptyData):
        find_untrained_subnetworks([], data())
    with pytest.raises(ShapeMismatch, match="seeds"):
        find_untrained_subnetworks(networks, data(), seeds=[1])
    with pytest.raises(InvalidInput):
        find_untrained_subnetwork(networks[0], data(), keep=0.0)
