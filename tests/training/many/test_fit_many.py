"""Networks trained as one batch end where each would have ended alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.data.real import digits
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many import networks as many_networks
from torchtheory.training.many import stacked_losses
from torchtheory.training.many.networks import ManyResult, fit_many, mlp_family, noisy_labels
from torchtheory.training.many.stacked import StackedModules, layout, stack
from torchtheory.training.many.stacked_chain import StackedChain


def sample(n: int = 70, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=g, dtype=torch.float64)
    return x, torch.randint(0, classes, (n,), generator=g)


def family(**options: Any) -> list[nn.Module]:
    settings: dict[str, Any] = {"widths": [2, 7, 4], "seeds": [0, 1], "dtype": torch.float64}
    return mlp_family(5, outputs=3, **{**settings, **options})


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
def test_each_network_as_if_alone(optimizer: str, activation: type[nn.Module]) -> None:
    x, y = sample()
    held = sample(40)
    networks = family(activation=activation, depth=2)
    before = [weights(m) for m in networks]
    count = len(networks)
    rates = [0.01 * (k + 1) for k in range(count)]
    decays = [0.0, 0.1, 0.2, 0.0, 0.05, 0.3]
    seeds = [3, 1, 4, 1, 5, 9]
    noise = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    many = fit_many(
        networks,
        (x, y),
        validation=held,
        epochs=3,
        batch_size=16,
        optimizer=optimizer,
        learning_rate=rates,
        weight_decay=decays,
        label_noise=noise,
        seed=seeds,
    )
    assert all(torch.equal(a, weights(m)) for a, m in zip(before, networks, strict=True))
    for k, model in enumerate(networks):
        own = noisy_labels(y, 3, noise[k], seed=seeds[k])
        assert torch.equal(many.labels[k], own)
        history = fit(
            model,
            (x, own),
            validation=held,
            epochs=3,
            batch_size=16,
            optimizer=optimizer,
            learning_rate=rates[k],
            weight_decay=decays[k],
            seed=seeds[k],
        )
        assert torch.allclose(weights(many.network(k)), weights(model), rtol=1e-9, atol=1e-12)
        mine = many.history(k)
        assert mine.train_losses == pytest.approx(history.train_losses, rel=1e-9)
        assert mine.validation_losses == pytest.approx(history.validation_losses, rel=1e-9)
        assert mine.train_errors == pytest.approx(history.train_errors)
        assert mine.validation_errors == pytest.approx(history.validation_errors)
        assert torch.allclose(many.outputs(x)[k], model(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("seed", [2, [0, 1, 2, 3]])
def test_other_tasks_and_shared_batches(task: Any, seed: Any) -> None:
    x, _ = sample()
    y = x[:, :1] * 2 + 1 if task == "regression" else (x[:, 0] > 0).double()
    networks = mlp_family(5, [3, 6], 1, seeds=[0, 1], dtype=torch.float64, activation=nn.Tanh)
    many = fit_many(networks, (x, y), epochs=4, batch_size=20, task=task, seed=seed)
    for k, model in enumerate(networks):
        own = seed if isinstance(seed, int) else seed[k]
        history = fit(model, (x, y), epochs=4, batch_size=20, task=task, seed=own)
        assert torch.allclose(weights(many.network(k)), weights(model), rtol=1e-9, atol=1e-12)
        assert many.history(k).train_losses == pytest.approx(history.train_losses, rel=1e-9)
        assert many.history(k).train_errors == history.train_errors


def test_labels_of_their_own_and_a_loss_of_ones_own() -> None:
    x, y = sample()
    labels = torch.stack([y, (y + 1) % 3])
    networks = family(widths=[4])
    for options in ({}, {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)}):
        for seed in (0, [5, 6]):
            many = fit_many(networks, (x, y), labels=labels, epochs=2, seed=seed, **options)
            for k, model in enumerate(family(widths=[4])):
                own = seed if isinstance(seed, int) else seed[k]
                fit(model, (x, labels[k]), epochs=2, seed=own, **options)
                assert torch.allclose(weights(many.network(k)), weights(model), rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.lists(st.integers(1, 6), min_size=2, max_size=2), min_size=1, max_size=4),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_padding_is_inert(widths: list[list[int]], shared: bool, seed: int) -> None:
    """The padded stack computes each network, and its gradient leaves the padding at zero."""
    g = torch.Generator().manual_seed(seed)
    models = []
    for a, b in widths:
        net = nn.Sequential(
            nn.Linear(3, a), nn.Sigmoid(), nn.Linear(a, b), nn.Softplus(), nn.Linear(b, 2)
        ).double()
        for p in net.parameters():
            nn.init.normal_(p, generator=g)
        models.append(net)
    stacked = StackedChain(models)
    x = torch.randn(len(models), 4, 3, dtype=torch.float64, generator=g)
    if shared:
        x = x[:1].expand(len(models), 4, 3)
    outputs = stacked.on_shared(x[0]) if shared else stacked(x)
    for k, model in enumerate(models):
        assert torch.allclose(outputs[k].T, model(x[k]), rtol=1e-12, atol=1e-13)
    gradients = torch.autograd.grad(outputs.square().sum(), stacked.trained)
    masks = stacked.masks or [torch.ones_like(t) for t in stacked.trained]
    for t, gradient, mask in zip(stacked.trained, gradients, masks, strict=True):
        assert not (t * (1 - mask)).any()
        total = sum(p.numel() for m in models for p in m.parameters())
        assert torch.isfinite(gradient * mask).all()
    assert sum(int(m.sum()) for m in masks) == total


class Residual(nn.Module):
    """Not a chain: only vmap can stack it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x + torch.tanh(self.inner(x + self.shift)))
        return result


def test_networks_that_are_no_chains() -> None:
    x, y = sample()
    networks: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(seed)
        networks.append(Residual().double())
    assert isinstance(stack(networks), StackedModules)
    many = fit_many(networks, (x, y), epochs=2, seed=[1, 2, 3])
    for k, model in enumerate(networks):
        fit(model, (x, y), epochs=2, seed=k + 1)
        assert torch.allclose(weights(many.network(k)), weights(model), rtol=1e-9, atol=1e-12)


class Centered(nn.Module):
    """Writes into its buffers while it is trained, and reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("middle", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.middle.add_(0.1 * (x.detach().mean(0) - self.middle))
        made: Tensor = self.linear(x - self.middle)
        return made


@pytest.mark.parametrize("seeds", [[1, 1, 1], [1, 2, 3]])
def test_buffers_are_written_as_if_alone(seeds: list[int]) -> None:
    x, y = sample()
    networks: list[nn.Module] = [Centered().double() for _ in seeds]
    many = fit_many(networks, (x + 2, y), epochs=2, seed=seeds, validation=(x, y))
    for k, model in enumerate(networks):
        fit(model, (x + 2, y), epochs=2, seed=seeds[k])
        made = many.network(k)
        assert torch.allclose(weights(made), weights(model), rtol=1e-9, atol=1e-12)
        assert torch.allclose(made.get_buffer("middle"), model.get_buffer("middle"))


def test_different_depths_images_and_frozen_layers() -> None:
    x, y = sample()
    images = x.reshape(-1, 1, 5)
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    frozen[1].requires_grad_(False)
    deep = nn.Sequential(nn.Flatten(), *family(widths=[4], seeds=[0], depth=3)[0])
    plain = nn.Sequential(nn.Flatten(), nn.Linear(5, 3, bias=False)).double()
    networks = [frozen, deep, plain, deep]
    many = fit_many(networks, (images, y), epochs=2, optimizer="sgd", seed=7, weight_decay=0.1)
    assert sorted(k for g in many.groups for k in g.members) == [0, 1, 2, 3]
    assert len(many.groups) == 3
    for k, model in enumerate([frozen, deep, plain]):
        fit(model, (images, y), epochs=2, optimizer="sgd", seed=7, weight_decay=0.1)
        assert torch.allclose(weights(many.network(k)), weights(model), rtol=1e-9, atol=1e-12)
    assert torch.equal(weights(many.network(1)), weights(many.network(3)))


def test_groups_within_a_memory_budget_give_the_same_networks() -> None:
    x, y = sample()
    one = fit_many(family(), (x, y), epochs=2, seed=[0, 1, 2, 3, 4, 5])
    few = fit_many(family(), (x, y), epochs=2, seed=[0, 1, 2, 3, 4, 5], memory=60_000)
    assert len(one.groups) == 1
    assert len(few.groups) > 2
    assert torch.allclose(one.train_loss, few.train_loss, rtol=1e-12)
    assert torch.allclose(one.outputs(x), few.outputs(x), rtol=1e-10)


def test_very_different_widths_are_not_padded_to_the_widest() -> None:
    x, y = sample()
    many = fit_many(family(widths=[2, 5000], seeds=range(4)), (x, y), epochs=1)
    assert [len(g.members) for g in many.groups] == [4, 4]
    assert [m[0].out_features for m in many.networks()] == [2] * 4 + [5000] * 4  # type: ignore


class Written(nn.Module):
    """Dense layers that a function applies, so that a tracer must follow them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(torch.relu(self.second(torch.relu(self.first(x)))))
        return result


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [1, 4])
def test_threads_that_train_parts_of_a_stack_change_nothing(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = sample()
    torch.manual_seed(0)
    networks: list[nn.Module] = [Written(600 if count == 1 else 300).double() for _ in range(count)]
    makers = []

    def watched(*given: Any, **more: Any) -> Any:
        makers.append(threading.current_thread())
        return stack(*given, **more)

    monkeypatch.setattr(many_networks, "stack", watched)
    options: dict[str, Any] = {"epochs": 2, "seed": range(count), "learning_rate": 1e-3}
    shared = fit_many(networks, (x, y), **options)
    assert torch.get_num_threads() == 2
    assert sorted(k for g in shared.groups for k in g.members) == list(range(count))
    assert len(shared.groups) == min(count, 2)
    assert set(makers) == {threading.current_thread()}  # tracing is not for several at once
    torch.set_num_threads(1)
    alone = fit_many(networks, (x, y), **options)
    assert len(alone.groups) == 1
    assert torch.allclose(shared.train_loss, alone.train_loss, rtol=1e-9)
    assert torch.allclose(shared.outputs(x), alone.outputs(x), rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("failing", [0, 1])
def test_an_interruption_ends_all_parts(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = family(widths=[300], seeds=range(4), depth=2)
    parts: list[Any] = []
    epochs_of = many_networks._Stacked.run_epoch

    def interrupted(one: Any, epoch: int, *more: Any) -> Any:
        if one.seeds[0] == failing:
            raise KeyboardInterrupt
        parts.append(epoch)
        return epochs_of(one, epoch, *more)

    monkeypatch.setattr(many_networks._Stacked, "run_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_many(networks, sample(), epochs=1000, seed=range(4))
    assert len(parts) < 1000
    assert torch.get_num_threads() == 2


def test_single_precision_on_digits() -> None:
    x, y = digits()
    networks = mlp_family(64, [32], 10, seeds=range(3))
    many = fit_many(networks, (x, y), epochs=3, learning_rate=0.01, seed=[0, 1, 2])
    for k, model in enumerate(networks):
        history = fit(model, (x, y), epochs=3, learning_rate=0.01, seed=k)
        assert many.history(k).train_losses == pytest.approx(history.train_losses, rel=1e-4)


def test_one_that_diverges_does_not_disturb_the_others() -> None:
    x, _ = sample()
    networks = family(widths=[4])
    many = fit_many(
        networks,
        (1e3 * x, x[:, :3]),
        epochs=5,
        optimizer="sgd",
        learning_rate=[1e3, 1e-8],
        loss=None,
        task="regression",
    )
    assert many.diverged.tolist() == [True, False]
    alone = fit_many(
        networks[1:],
        (1e3 * x, x[:, :3]),
        epochs=5,
        optimizer="sgd",
        learning_rate=1e-8,
        task="regression",
    )
    assert torch.allclose(many.train_loss[1], alone.train_loss[0], rtol=1e-10)


def test_noisy_labels_change_exactly_their_share() -> None:
    y = torch.arange(1000) % 10
    for share in (0.0, 0.137, 1.0):
        noisy = noisy_labels(y, 10, share, seed=3)
        assert int((noisy != y).sum()) == round(share * 1000)
        assert set(noisy.tolist()) <= set(range(10))
    assert torch.equal(noisy_labels(y, 10, 0.5, seed=1), noisy_labels(y, 10, 0.5, seed=1))
    assert not torch.equal(noisy_labels(y, 10, 0.5, seed=1), noisy_labels(y, 10, 0.5, seed=2))


def test_global_generators_are_left_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    fit_many(family(), sample(), epochs=1, label_noise=0.1)
    assert torch.equal(state, torch.get_rng_state())


def test_layout_tells_what_can_be_stacked() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.2), nn.Linear(3, 1, bias=False))
    assert layout(net).kind == (
        "linear",
        "LeakyReLU(negative_slope=0.2)",
        "linear without bias",
    )
    tied = nn.Linear(2, 2)
    assert layout(nn.Sequential(tied, nn.ReLU(), tied)).sizes is None
    assert layout(nn.Sequential(nn.Linear(2, 2), nn.PReLU())).sizes is None


X, Y = sample()
REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (EmptyData, "no network", {"networks": []}),
    (InvalidType, "network 1 is a str", {"networks": [nn.Linear(5, 3).double(), "net"]}),
    (InvalidInput, "no parameter to train", {"networks": [nn.ReLU()]}),
    (InvalidInput, "epochs", {"epochs": 0}),
    (InvalidInput, "batch_size", {"batch_size": 0}),
    (UnknownName, "no optimizer of stacked networks", {"optimizer": "rmsprop"}),
    (ShapeMismatch, "learning_rate must be one number or 6", {"learning_rate": [0.1, 0.2]}),
    (InvalidInput, "learning_rate must be numbers >= 0", {"learning_rate": -1.0}),
    (ShapeMismatch, "6 networks but 2 seeds", {"seed": [1, 2]}),
    (ShapeMismatch, "labels must be a tensor", {"labels": Y}),
    (LabelOutOfRange, "labels run from", {"labels": torch.full((6, 70), 3)}),
    (InvalidInput, "share of noisy labels", {"label_noise": 1.5}),
    (InvalidInput, "label noise is for classification", {"train": (X, X[:, :3]), "label_noise": 1}),
    (UnsupportedModel, "Dropout", {"networks": [nn.Sequential(nn.Linear(5, 3), nn.Dropout())]}),
    (
        ShapeMismatch,
        r"network 1 returns \[1, 4\]",
        {"networks": [nn.Linear(5, 3).double(), nn.Linear(5, 4).double()]},
    ),
    (
        InvalidInput,
        "they must agree",
        {"networks": [nn.Linear(5, 3).double(), nn.Linear(5, 3)]},
    ),
    (
        UnsupportedModel,
        "raised RuntimeError on inputs",
        {"networks": [nn.Linear(5, 3).double(), nn.Linear(4, 3).double()]},
    ),
]


@pytest.mark.parametrize(("error", "sentence", "change"), REFUSED)
def test_refused(error: type[Exception], sentence: str, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"networks": family(), "train": (X, Y), "epochs": 1}
    with pytest.raises(error, match=sentence):
        fit_many(**{**arguments, **change})


def test_looks_at_validation_data_only_now_and_then() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())
    networks = mlp_family(3, widths=[4], outputs=2, seeds=[0, 1])
    often = fit_many(networks, data, validation=data, epochs=5)
    seldom = fit_many(networks, data, validation=data, validate_every=2, epochs=5)
    assert seldom.validated.tolist() == [False, True, False, True, True]
    assert bool(often.validated.all())
    for a, b in (
        (often.validation_loss, seldom.validation_loss),
        (often.validation_error, seldom.validation_error),
    ):
        assert a is not None
        assert b is not None
        assert torch.equal(a[:, seldom.validated], b[:, seldom.validated])
        assert bool(b[:, ~seldom.validated].isnan().all())
    epochs = seldom.history(1).epochs
    assert [e.validation_loss is None for e in epochs] == [True, False, True, False, False]
    assert [e.validation_error is None for e in epochs] == [True, False, True, False, False]
    seen = [(e.validation_loss, e.epoch) for e in epochs if e.validation_loss is not None]
    assert seldom.history(1).best_epoch == min(seen)[1]
    with pytest.raises(InvalidInput, match="validate_every"):
        fit_many(networks, data, validation=data, validate_every=0)


@pytest.mark.parametrize("seeds", [[0, 0], [0, 1]])
@pytest.mark.parametrize("own_labels", [True, False])
def test_batches_that_are_read_together_change_nothing(
    seeds: list[int], own_labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    networks = mlp_family(3, widths=[4], outputs=2, seeds=[0, 1])
    labels = torch.stack([y, 1 - y]) if own_labels else None

    def trained() -> ManyResult:
        return fit_many(networks, (x, y), epochs=3, batch_size=8, labels=labels, seed=seeds)

    together = trained()
    monkeypatch.setattr(many_networks, "_TOGETHER", 1)
    monkeypatch.setattr(stacked_losses, "_KEPT", 1)
    alone = trained()
    assert torch.allclose(together.train_loss, alone.train_loss, rtol=1e-6)
    assert torch.equal(together.train_error, alone.train_error)
    for k in range(2):
        for p, q in zip(
            together.network(k).parameters(), alone.network(k).parameters(), strict=True
        ):
            assert torch.equal(p, q)


def test_a_loss_that_is_no_mean_is_computed_batch_by_batch() -> None:
    x = torch.randn(83, 3, generator=torch.Generator().manual_seed(0)).double()
    y = x.sum(1, keepdim=True).sin()

    def root(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets).sqrt()

    networks = mlp_family(3, widths=[4], outputs=1, seeds=[0, 1], dtype=torch.float64)
    many = fit_many(networks, (x, y), loss=root, batch_size=7, epochs=3, seed=[3, 4])
    for k, seed in enumerate((3, 4)):
        alone = fit(
            copy.deepcopy(networks[k]), (x, y), loss=root, batch_size=7, epochs=3, seed=seed
        )
        for found, epoch in zip(many.train_loss[k], alone.epochs, strict=True):
            assert abs(float(found) - epoch.train_loss) < 1e-9


def test_outputs_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = []
    add = stacked_losses.LossTotals.add

    def watched(total: Any, outputs: Tensor, y: Tensor) -> None:
        add(total, outputs, y)
        waiting.append(sum(kept.numel() for kept, _ in total._waiting))

    monkeypatch.setattr(stacked_losses.LossTotals, "add", watched)
    monkeypatch.setattr(stacked_losses, "_KEPT", 100)
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    networks = mlp_family(3, widths=[4], outputs=2, seeds=[0])
    fit_many(networks, (x, (x[:, 0] > 0).long()), batch_size=10, epochs=1)
    assert 0 < max(waiting) < 100


def test_noise_in_two_classes() -> None:
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    result = fit_many([nn.Linear(5, 1)], (x, y), label_noise=0.2, epochs=1)
    assert int((result.labels.flatten() != y).sum()) == 4
    assert int((noisy_labels(y[:, None], 2, 0.2)[:, 0] != y).sum()) == 4


def test_inputs_without_targets_are_refused() -> None:
    with pytest.raises(InvalidInput, match="regression and classification"):
        fit_many([nn.Linear(5, 3)], torch.randn(20, 5), epochs=1)
