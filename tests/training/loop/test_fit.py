"""The trainer does what a loop written by hand would do, and says what it cannot do."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.models.problem import Problem
from torchtheory.training.loop.early_stopping import EarlyStopping
from torchtheory.training.loop.history import Epoch, History
from torchtheory.training.loop.seeds import derived_seed, epoch_order
from torchtheory.training.loop.state import Diverged
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.risks import (
    empirical_risk,
    hold_out,
    least_empirical_risk,
    risk,
    split_indices,
)
from torchtheory.training.many.networks import fit_many
from torchtheory.training.optimizers.named import make_optimizer
from torchtheory.training.regularizers.augmentation import OneOf, augmented, invariance_gap, shifts


def sample(n: int = 90, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=g), torch.randint(0, classes, (n,), generator=g)


def network(seed: int = 0, *extra: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), *extra, nn.ReLU(), nn.Linear(8, 3))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def same(a: nn.Module, b: nn.Module) -> bool:
    return torch.equal(weights(a), weights(b))


# --------------------------------------------------------------------------------- what it computes


def test_a_loss_of_the_whole_batch() -> None:
    """Class weights divide by the sum of weights: no mean of samples, and a loss to train with."""
    x, y = sample(60)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 9.0]))
    with pytest.raises(InvalidInput, match="plain mean"):
        Problem(network(), (x, y), loss=loss)
    by_fit, by_hand = network(), network()
    fit(by_fit, (x, y), epochs=3, batch_size=60, optimizer="sgd", learning_rate=0.1, loss=loss)
    many = fit_many(
        [network()], (x, y), epochs=3, batch_size=60, optimizer="sgd", learning_rate=0.1, loss=loss
    )
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(by_hand(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(weights(by_fit), weights(by_hand))
    torch.testing.assert_close(many.outputs(x)[0], by_hand(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("classes", "loss"),
    [(3, None), (3, nn.CrossEntropyLoss()), (1, None), (1, nn.BCEWithLogitsLoss())],
)
def test_pixels_are_trained_in_the_models_own_order(classes: int, loss: Any) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, 5, 4, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    if classes == 1:
        y = (y > 0).float()[:, None]
    net, by_hand = (nn.Conv2d(2, classes, 1) for _ in "ab")
    by_hand.load_state_dict(net.state_dict())
    fit(net, (x, y), epochs=3, batch_size=40, optimizer="sgd", learning_rate=0.5, loss=loss,
        validation=(x[:9], y[:9]))  # fmt: skip
    usual = F.cross_entropy if classes == 3 else F.binary_cross_entropy_with_logits
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        usual(by_hand(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(weights(net), weights(by_hand))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_bit_for_bit_the_loop_written_by_hand(name: str) -> None:
    x, y = sample()
    ours, theirs = network(), network()
    history = fit(
        ours,
        (x, y),
        epochs=3,
        batch_size=20,
        optimizer=name,
        learning_rate=0.05,
        weight_decay=0.01,
        max_gradient_norm=0.5,
        schedule=lambda o: StepLR(o, 1, 0.5),
        seed=4,
    )
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    optimizer = kind(theirs.parameters(), lr=0.05, weight_decay=0.01)
    losses = []
    for epoch in (1, 2, 3):
        total, wrong = 0.0, 0
        for index in epoch_order(90, 4, epoch).split(20):
            optimizer.zero_grad()
            outputs = theirs(x[index])
            loss = F.cross_entropy(outputs, y[index])
            loss.backward()
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            optimizer.step()
            total += loss.item() * len(index)
            wrong += int((outputs.argmax(1) != y[index]).sum())
        losses.append(total / 90)
        assert history.epochs[epoch - 1].train_error == wrong / 90
        assert history.epochs[epoch - 1].learning_rate == 0.05 * 0.5 ** (epoch - 1)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    assert same(ours, theirs)
    assert history.train_losses == pytest.approx(losses, rel=1e-12)
    assert all(p.grad is None for p in ours.parameters())


def test_logistic_regression_as_scikit_learn_solves_it() -> None:
    from sklearn.linear_model import LogisticRegression

    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(60, generator=g, dtype=torch.float64) > 0).double()
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    fit(net, (x, y), epochs=400, batch_size=60, optimizer="momentum", learning_rate=0.5,
        weight_decay=0.1)  # fmt: skip
    reference = LogisticRegression(C=1 / (60 * 0.1), fit_intercept=False, tol=1e-12, max_iter=1000)
    reference.fit(x.numpy(), y.numpy())
    assert np.allclose(net.weight.detach().numpy(), reference.coef_, atol=1e-6)


def test_labels_of_any_kind() -> None:
    x, _ = sample()
    sign = torch.where(x[:, 0] > 0, 1, -1)
    a, b = nn.Linear(4, 1), nn.Linear(4, 1)
    b.load_state_dict(a.state_dict())
    fit(a, (x, sign), epochs=2)
    fit(b, (x.numpy(), (sign > 0).numpy().astype(float)), epochs=2)
    assert same(a, b)
    net = nn.Linear(4, 1)
    history = fit(net, (x, x[:, 0] * 3), epochs=2)  # targets [n] for outputs [n, 1]
    assert history.train_errors == [None, None]


def test_a_schedule_each_step_and_on_a_plateau() -> None:
    rates: list[float] = []
    history = fit(
        network(),
        sample(),
        epochs=2,
        batch_size=30,
        optimizer="sgd",
        learning_rate=1.0,
        schedule=lambda o: LambdaLR(o, lambda t: 1 / (1 + t)),
        schedule_each="step",
    )
    rates = [e.learning_rate for e in history.epochs]
    assert rates == pytest.approx([1 / 4, 1 / 7])
    flat = fit(
        network(),
        sample(),
        epochs=4,
        optimizer="sgd",
        learning_rate=0.0,
        schedule=lambda o: ReduceLROnPlateau(o, patience=0),
    )
    assert len(flat) == 4


def test_smoothing_matches_torch_and_a_confusion_matrix() -> None:
    from torchtheory.training.losses.label_smoothing import uniform_confusion

    x, y = sample()
    nets = [network() for _ in range(3)]
    fit(nets[0], (x, y), epochs=2, label_smoothing=0.2)
    fit(nets[1], (x, y), epochs=2, label_smoothing=uniform_confusion(3, 0.2))
    fit(nets[2], (x, y), epochs=2, loss=nn.CrossEntropyLoss(label_smoothing=0.2))
    assert same(nets[0], nets[2])
    assert torch.allclose(weights(nets[0]), weights(nets[1]), atol=1e-6)
    a, b = nn.Linear(4, 1), nn.Linear(4, 1)
    b.load_state_dict(a.state_dict())
    fit(a, (x, (y > 0).float()), epochs=2, label_smoothing=0.2)
    fit(b, (x, (y > 0).float()), epochs=2, label_smoothing=uniform_confusion(2, 0.2))
    assert same(a, b)
    soft = (y > 0).float() * 0.8 + 0.1
    c = nn.Linear(4, 1)
    fit(c, (x, soft), epochs=1, task="regression", loss=nn.BCEWithLogitsLoss())


# ----------------------------------------------------------------------------- modes and randomness


class Spy(nn.Module):
    """Tells somebody else in which mode it was called; lists of its own are put back."""

    def __init__(self, tell: Callable[[bool], object]) -> None:
        super().__init__()
        self.tell = tell

    def forward(self, x: Tensor) -> Tensor:
        self.tell(self.training)
        return x


def test_modes_during_and_after() -> None:
    modes: list[bool] = []
    net = network(0, Spy(modes.append), nn.BatchNorm1d(8), nn.Dropout(0.5))
    net.eval()
    net[2].train()
    before = [m.training for m in net.modules()]
    statistics = net[2].running_mean.clone()
    modes.clear()
    fit(net, sample(60), validation=sample(30), epochs=2, batch_size=30)
    assert modes[-7:] == [False, True, True, False, True, True, False][-7:]
    assert [m.training for m in net.modules()] == before
    assert not torch.equal(statistics, net[2].running_mean)


def test_modes_are_restored_after_an_error() -> None:
    net = network()
    net.eval()

    def fails(x: Tensor, generator: torch.Generator) -> Tensor:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fit(net, sample(), augment=fails)
    assert not net.training


def test_the_seed_decides_and_the_callers_generators_do_not_notice() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    nets = [network(0, nn.Dropout(0.5)) for _ in range(3)]
    for net, seed in zip(nets, (0, 0, 1), strict=True):
        fit(net, sample(), epochs=2, seed=seed, validation=0.2)
    assert same(nets[0], nets[1])
    assert not same(nets[0], nets[2])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_no_grad_outside_and_frozen_parameters() -> None:
    net = network()
    net[0].requires_grad_(False)
    frozen, free = net[0].weight.clone(), net[2].weight.clone()
    with torch.no_grad():
        fit(net, sample(), epochs=1)
    assert torch.equal(frozen, net[0].weight)
    assert not torch.equal(free, net[2].weight)


# ----------------------------------------------------------------------------------- stopping early


def test_patience_keeps_the_best_epoch() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 30, generator=g), torch.randn(20, generator=g)
    held = torch.randn(50, 30, generator=g), torch.randn(50, generator=g)

    def go(**options: Any) -> tuple[nn.Linear, History]:
        net = nn.Linear(30, 1)
        nn.init.normal_(net.weight, std=0.2, generator=torch.Generator().manual_seed(2))
        nn.init.zeros_(net.bias)
        history = fit(
            net, (x, y), validation=held, epochs=300, batch_size=20, optimizer="sgd",
            learning_rate=0.02, **options,
        )  # fmt: skip
        return net, history

    net, history = go(patience=4)
    assert len(history) == history.best_epoch + 4 < 300
    assert history.kept_epoch == history.best_epoch
    assert "no better validation loss in 4 epochs" in history.stopped
    best = history.validation_losses[history.best_epoch - 1]
    assert empirical_risk(net, held).value == pytest.approx(best, rel=1e-5)
    last, again = go(patience=4, restore_best=False)
    assert again.train_losses == history.train_losses
    assert again.kept_epoch == len(again)
    assert empirical_risk(last, held).value == pytest.approx(again.validation_losses[-1], rel=1e-5)
    demanding = go(patience=4, min_improvement=10.0)[1]
    assert len(demanding) == 5
    assert demanding.kept_epoch == 1


def test_patience_on_sequences() -> None:
    stopping = EarlyStopping(2)
    assert [stopping.update(e) for e in (5, 4, 3, 3, 3)] == [False, False, False, False, True]
    assert (stopping.best_check, stopping.checks) == (3, 5)
    never = EarlyStopping(3)
    assert not any(never.update(1 / (k + 1)) for k in range(50))
    nan = EarlyStopping(2)
    assert [nan.update(v) for v in (1.0, math.nan, math.nan)] == [False, False, True]


@given(
    st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=30),
    st.integers(1, 5),
)
def test_patience_stops_at_the_first_run_without_a_record(errors: list[float], p: int) -> None:
    stopping = EarlyStopping(p)
    for t, error in enumerate(errors, 1):
        stop = stopping.update(error)
        best = min(errors[:t])
        assert stopping.best == best
        assert stopping.best_check == errors.index(best) + 1
        assert stop == (t - stopping.best_check >= p)
        if stop:
            break


def test_callbacks_see_each_epoch_and_may_stop() -> None:
    seen: list[tuple[int, bool]] = []

    def callback(model: nn.Module, history: History) -> bool:
        seen.append((len(history), model.training))
        return len(history) == 3

    history = fit(network(), sample(), epochs=10, callbacks=[callback])
    assert seen == [(1, False), (2, False), (3, False)]
    assert history.stopped == "a callback asked to stop"


# --------------------------------------------------------------------------------------- divergence


def test_the_first_step_without_a_finite_loss_is_named() -> None:
    x, _ = sample()
    y = x[:, :1]
    net, by_hand = nn.Linear(4, 1), nn.Linear(4, 1)
    by_hand.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=50.0)
    where = None
    for epoch in range(1, 30):
        for step, index in enumerate(epoch_order(90, 0, epoch).split(10), 1):
            optimizer.zero_grad()
            loss = F.mse_loss(by_hand(x[index]), y[index])
            if where is None and not math.isfinite(loss.item()):
                where = epoch, step
            loss.backward()
            optimizer.step()
        if where:
            break
    assert where is not None
    with pytest.raises(Diverged, match=rf"at step {where[1]} of epoch {where[0]}") as caught:
        fit(net, (x, y), epochs=30, batch_size=10, optimizer="sgd", learning_rate=50.0)
    assert (caught.value.epoch, caught.value.step) == where
    assert torch.isfinite(weights(net)).all()
    assert isinstance(caught.value, RuntimeError)


def test_weights_that_break_in_the_last_step_are_noticed() -> None:
    net = nn.Linear(2, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)

    def root(outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.square().mean().sqrt()  # finite at 0, its slope is not

    with pytest.raises(Diverged, match="the weights are no longer finite at step 1 of epoch 1"):
        fit(net, (torch.ones(5, 2), torch.ones(5, 1)), loss=root, task="regression", batch_size=5)
    assert not weights(net).any()


# --------------------------------------------------------------------------------------------- data


class Items(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, n: int = 90) -> None:
        self.x, self.y = sample(n)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        x, y = sample()
        yield from zip(x, y, strict=True)


def test_every_kind_of_data_gives_the_same_training() -> None:
    def go(data: Any, **options: Any) -> nn.Sequential:
        net = network()
        fit(net, data, epochs=2, **options)
        return net

    reference = go(sample(), batch_size=32)
    assert same(reference, go(Items(), batch_size=32))
    assert same(reference, go(Items(), batch_size=32, memory=1))
    assert same(reference, go(TensorDataset(*sample()), batch_size=32))
    assert same(reference, go(DataLoader(Items(), batch_size=32, shuffle=True)))
    assert same(reference, go(DataLoader(TensorDataset(*sample()), batch_size=32)))
    held = go(sample(), batch_size=32, validation=0.3)
    assert same(held, go(Items(), batch_size=32, validation=0.3, memory=1))


def test_a_stream_is_read_as_it_comes() -> None:
    net, by_hand = network(), network()
    history = fit(net, Stream(), epochs=2, batch_size=40, optimizer="sgd", validation=Stream())
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    x, y = sample()
    for _ in range(2):
        for a, b in zip(x.split(40), y.split(40), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(by_hand(a), b).backward()
            optimizer.step()
    assert same(net, by_hand)
    assert history.validation_losses[-1] == pytest.approx(empirical_risk(net, (x, y)).value, 1e-5)


def test_validation_is_the_plain_loss_in_evaluation_mode() -> None:
    net = network(0, nn.Dropout(0.5))
    held = sample(40)
    history = fit(net, sample(), validation=held, epochs=2, label_smoothing=0.3)
    with torch.no_grad():
        outputs = net.eval()(held[0])
    last = history.epochs[-1]
    assert last.validation_loss == pytest.approx(float(F.cross_entropy(outputs, held[1])), rel=1e-6)
    assert last.validation_error == float((outputs.argmax(1) != held[1]).double().mean())


@settings(max_examples=50)
@given(st.integers(2, 200), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_a_split_is_a_partition(n: int, fraction: float, seed: int) -> None:
    kept, held = split_indices(n, fraction, seed=seed)
    assert len(held) == min(max(round(fraction * n), 1), n - 1)
    assert sorted(torch.cat([kept, held]).tolist()) == list(range(n))


@settings(max_examples=50)
@given(st.integers(1, 300), st.integers(0, 2**60), st.integers(1, 1000))
def test_an_epoch_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    order = epoch_order(n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, epoch_order(n, seed, epoch))


def test_risks_by_hand() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    data = torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [7.0]])
    found = empirical_risk(net, data)
    assert found.value == pytest.approx(4.5)  # (0 + 9)/2
    assert found.standard_error == pytest.approx(4.5)  # |0 - 9|/2
    assert least_empirical_risk([net, nn.Linear(1, 1)], data)[0] == 0

    def law(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1, generator=generator)
        return x, x

    fresh = risk(net, law, 20_000, generator=torch.Generator().manual_seed(0))
    assert abs(fresh.value - 1.0) < 4 * fresh.standard_error


# ------------------------------------------------------------------------------------- augmentation


def test_augmentation_by_hand() -> None:
    x, y = torch.arange(4.0).reshape(1, 4), torch.tensor([1])
    every = augmented((x, y), shifts(1, 2, 2))
    assert len(every) == 9
    assert every.x[0].tolist() == [0, 1, 2, 3]
    assert every.x[1].tolist() == [3, 0, 0, 0]  # up and left
    assert every.y.tolist() == [1] * 9
    images = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert augmented((images, y), shifts(1)).x.shape == (9, 2, 2, 2)
    with pytest.raises(ShapeMismatch, match="must keep the shape"):
        augmented((x, y), [lambda t: t[:, :2]])
    with pytest.raises(EmptyData, match="at least one transformation"):
        augmented((x, y), [], include_identity=False)
    net = nn.Linear(4, 1)
    assert float(invariance_gap(net, torch.randn(9, 4), [lambda t: t])[0]) == 0.0


def test_one_of_draws_every_transformation_equally() -> None:
    draw = OneOf([lambda t: t + 1, lambda t: t + 2])
    out = draw(torch.zeros(3000, 1), torch.Generator().manual_seed(0))
    counts = torch.bincount(out.flatten().long())
    assert counts.sum() == 3000
    assert ((counts - 1000).abs() < 5 * math.sqrt(3000 * 2 / 9)).all()


# ------------------------------------------------------------------------------------------ history


def test_history_round_trip_and_table() -> None:
    history = fit(network(), sample(), epochs=2, validation=0.2)
    again = History.from_json(history.to_json())
    assert again == history
    columns, rows = history.table()
    assert columns[:2] == ["epoch", "train loss"]
    assert len(rows) == 2
    assert "all epochs done; the model has the weights of epoch 2" in str(history)
    assert Epoch(1, 2.0, seconds=1.0) == Epoch(1, 2.0, seconds=9.0)
    odd = History([Epoch(1, math.inf)])
    assert odd.to_json()["epochs"][0]["train_loss"] == "inf"
    assert History.from_json(odd.to_json()) == odd


# ------------------------------------------------------------------------------------------ refused

X, Y = sample()
NAN = X.clone()
NAN[7, 2] = math.nan


class Empty(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (InvalidType, "must be a torch.nn.Module", {"model": "net"}),
    (InvalidInput, "has no parameters", {"model": nn.ReLU()}),
    (InvalidInput, "is frozen", {"model": network().requires_grad_(False)}),
    (UnsupportedModel, "on inputs of shape", {"model": nn.Linear(7, 3)}),
    (InvalidType, r"must be \(x, y\)", {"train": 3}),
    (EmptyData, "empty", {"train": (X[:0], Y[:0])}),
    (EmptyData, "empty", {"train": Items(0)}),
    (EmptyData, "empty", {"train": Empty()}),
    (ShapeMismatch, "90 inputs but 80 targets", {"train": (X, Y[:80])}),
    (NonFinite, "first at sample 7", {"train": (NAN, Y)}),
    (LabelOutOfRange, "labels must lie in 0..2", {"train": (X, Y + 1)}),
    (LabelOutOfRange, "validation labels run", {"validation": (X, Y + 1)}),
    (ShapeMismatch, "validation inputs", {"validation": (X[:, :2], Y)}),
    (NonFinite, "validation inputs contain NaN", {"validation": (NAN, Y)}),
    (InvalidInput, "strictly between 0 and 1", {"validation": 1.0}),
    (InvalidInput, "strictly between 0 and 1", {"validation": 0.0}),
    (InvalidInput, "strictly between 0 and 1", {"validation": -0.2}),
    (EmptyData, "cannot be split", {"train": (X[:1], Y[:1]), "validation": 0.5}),
    (InvalidInput, "no fraction to hold out", {"train": Stream(), "validation": 0.5}),
    (InvalidInput, "epochs must be", {"epochs": 0}),
    (InvalidInput, "batch_size must be", {"batch_size": 0}),
    (InvalidInput, "batch_size must be", {"batch_size": 2.5}),
    (InvalidInput, "learning_rate must be", {"learning_rate": -0.1}),
    (InvalidInput, "learning_rate must be", {"learning_rate": math.nan}),
    (InvalidInput, "weight_decay must be", {"weight_decay": -1.0}),
    (UnknownName, "did you mean 'adam'", {"optimizer": "adm"}),
    (InvalidType, "must return a torch.optim.Optimizer", {"optimizer": lambda p: p}),
    (InvalidInput, "sets its own", {"optimizer": torch.optim.SGD, "learning_rate": 0.1}),
    (InvalidInput, "LBFGS", {"optimizer": torch.optim.LBFGS}),
    (InvalidType, "LRScheduler", {"schedule": lambda o: None}),
    (InvalidInput, "schedule_each", {"schedule_each": "minute"}),
    (InvalidInput, "patience needs validation", {"patience": 3}),
    (InvalidInput, "patience must be at least 1", {"patience": 0, "validation": 0.2}),
    (InvalidInput, "max_gradient_norm", {"max_gradient_norm": 0.0}),
    (InvalidInput, "checkpoint_every", {"checkpoint_every": -1.0}),
    (InvalidInput, "label_smoothing must be a number in", {"label_smoothing": 1.5}),
    (InvalidInput, "not with a loss of your own", {"label_smoothing": 0.1, "loss": F.nll_loss}),
    (InvalidInput, "not with regression", {"label_smoothing": 0.1, "train": (X, X[:, :3])}),
    (InvalidInput, "task must be one of", {"task": "sorting"}),
    (InvalidInput, "a mean over the batch", {"loss": nn.CrossEntropyLoss(reduction="sum")}),
    (InvalidInput, "a seed is a whole number", {"seed": -1}),
    (InvalidType, "a seed is a whole number", {"seed": 0.5}),
    (
        InvalidInput,
        "a batch of one sample is left",
        {"model": network(0, nn.BatchNorm1d(8)), "batch_size": 89},
    ),
    (
        InvalidInput,
        "WeightedRandomSampler",
        {"train": DataLoader(Items(), sampler=WeightedRandomSampler([1.0] * 90, 90))},
    ),
]


@pytest.mark.parametrize(("error", "sentence", "change"), REFUSED)
def test_refused(error: type[Exception], sentence: str, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"model": network(), "train": (X, Y), "epochs": 1, **change}
    model = arguments["model"]
    before = copy.deepcopy(model.state_dict()) if isinstance(model, nn.Module) else {}
    with pytest.raises(error, match=sentence) as caught:
        fit(**arguments)
    assert "\n" not in str(caught.value)
    if isinstance(model, nn.Module):
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_labels_are_checked_batch_by_batch_when_streamed() -> None:
    class Late(Items):
        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return self.x[i % 90], torch.tensor(9 if i == 700 else 0)

        def __len__(self) -> int:
            return 800

    with pytest.raises(LabelOutOfRange):
        fit(network(), Late(), epochs=1, memory=1)


def test_make_optimizer_and_seeds() -> None:
    made = make_optimizer(nn.Linear(1, 1).parameters(), "adamw", 0.1, 0.0)
    assert made.defaults["weight_decay"] == 0.0  # not torch's own default of 0.01
    assert derived_seed(0, "a") != derived_seed(0, "b") != derived_seed(1, "b")
    train, held = hold_out((X, Y), 0.25, seed=1)
    assert (len(train), len(held)) == (68, 22)
