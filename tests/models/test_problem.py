"""Problems: the task, the targets, the loss; evaluation that changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.models.problem import Problem
from torchtheory.models.task import infer_task


def data(n: int = 30, d: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def mlp(outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


class Returns(nn.Module):
    """A model that returns whatever a function makes of its input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("outputs", "y", "task"),
    [
        (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), "binary"),
        (torch.zeros(4), torch.tensor([0.0, 1.0, 1.0, 0.0]), "binary"),
        (torch.zeros(4, 1), torch.tensor([-1, 1, 1, -1]), "binary"),
        (torch.zeros(4), torch.tensor([True, False, True, True]), "binary"),
        (torch.zeros(4), torch.tensor([0.0, 0.5, 1.0, 1.0]), "regression"),
        (torch.zeros(4), torch.tensor([0, 1, 2, -1]), "regression"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), "multiclass"),
        (torch.zeros(4, 3), torch.tensor([[0], [1], [2], [0]], dtype=torch.uint8), "multiclass"),
        (torch.zeros(4, 3), torch.tensor([0.0, 1.0, 2.0, 0.0]), "multiclass"),
        (torch.zeros(4, 3), torch.rand(4, 3), "regression"),
        (torch.zeros(4, 2, 3), torch.zeros(4, 2, 3), "regression"),
    ],
)
def test_task_inference(outputs: Tensor, y: Tensor, task: str) -> None:
    assert infer_task(outputs, y) == task


def test_targets_are_stored_as_the_loss_wants_them() -> None:
    x, y = data()
    many = Problem(mlp(), (x, y.float()[:, None]))
    assert (many.task, many.train.y.dtype, many.classes) == ("multiclass", torch.int64, 3)
    signs = Problem(mlp(1), (x, 2 * (y > 0).long() - 1))
    assert (signs.task, signs.classes) == ("binary", 2)
    assert torch.equal(signs.train.y[:, 0], (y > 0).float())
    assert Problem(mlp(1), (x, y > 0)).task == "binary"
    line = Problem(mlp(1), (x, x[:, 0].double()))
    assert (line.task, line.classes) == ("regression", None)
    assert (line.train.y.shape, line.train.y.dtype) == (torch.Size([30, 1]), torch.float32)
    assert Problem(mlp(1), (x, (y > 0).float()), task="regression").task == "regression"


def test_inputs_follow_the_models_precision() -> None:
    x, y = data()
    assert Problem(mlp().double(), (x, y)).train.x.dtype == torch.float64
    ids = torch.randint(0, 5, (30, 2))
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3))
    assert Problem(embedding, (ids, y)).train.x.dtype == torch.int64


@pytest.mark.parametrize("chunk", [1, 7, 30, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    x, y = data()
    whole, parts = Problem(mlp(), (x, y)), Problem(mlp(), (x, y), chunk=chunk)
    assert torch.allclose(parts.outputs(parts.train), whole.outputs(whole.train), atol=1e-6)
    assert parts.risk(parts.train) == pytest.approx(whole.risk(whole.train), rel=1e-5)
    assert torch.allclose(parts.margins(parts.train), whole.margins(whole.train), atol=1e-5)
    assert float(whole.objective(whole.train)(whole.parameters)) == pytest.approx(
        whole.risk(whole.train), rel=1e-5
    )


def test_risk_errors_and_margins_by_hand() -> None:
    x = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 5.0], [1.0, 1.0, 0.0]])
    y = torch.tensor([0, 1, 0])
    p = Problem(nn.Identity(), (x, y))
    assert p.margins(p.train).tolist() == [1.0, -2.0, 0.0]
    assert p.errors(p.train).tolist() == [False, True, True]
    assert p.risk(p.train) == pytest.approx(float(F.cross_entropy(x, y)))
    one = Problem(nn.Identity(), (torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 0])))
    assert one.margins(one.train).tolist() == [-2.0, 1.0]
    line = Problem(nn.Identity(), (x, x + 1))
    assert line.risk(line.train) == pytest.approx(1.0)
    with pytest.raises(InvalidInput, match="margins are defined for classification"):
        line.margins(line.train)


def state(model: nn.Module) -> Any:
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    return tensors, [m.training for m in model.modules()], [p.grad for p in model.parameters()]


def test_the_model_is_bit_identical_afterwards() -> None:
    x, y = data()
    net = mlp().train()
    net[1].weight.requires_grad_(False)
    before, generator = copy.deepcopy(state(net)), torch.get_rng_state()
    p = Problem(net, (x, y), (x[:5], y[:5]))
    p.risk(p.train), p.margins(p.train), p.deterministic
    p.in_precision(torch.float64).risk(p.in_precision(torch.float64).train)
    torch.func.grad(p.objective(p.train))(p.parameters)
    after = state(net)
    assert before[1:] == after[1:]
    assert all(torch.equal(before[0][k], v) for k, v in after[0].items())
    assert [q.requires_grad for q in net.parameters()] == [True, True, False, True, True, True]
    assert torch.equal(generator, torch.get_rng_state())


def test_batch_norm_in_train_mode_is_evaluated_with_its_running_statistics() -> None:
    x, y = data()
    net = mlp().train()
    p = Problem(net, (x, y))
    with torch.no_grad():
        expected = copy.deepcopy(net).eval()(x)
    assert torch.allclose(p.outputs(p.train), expected)


def test_determinism_is_noticed() -> None:
    x, y = data()
    assert Problem(mlp(), (x, y)).deterministic
    noisy = Returns(lambda x: x[:, :3] + 1.0 * torch.randperm(len(x))[:, None])
    assert not Problem(noisy, (x, y)).deterministic  # a permutation is nobody's own noise
    drawn = Returns(lambda x: x[:, :3] + torch.from_numpy(np.random.default_rng().random(3)))
    assert not Problem(drawn, (x, y)).deterministic  # nothing fixes a generator of its own
    dropout = Problem(nn.Sequential(nn.Linear(4, 3), nn.Dropout()), (x, y))
    assert dropout.deterministic
    assert not dropout.draws_random_numbers


def test_in_precision() -> None:
    x, y = data()
    p = Problem(mlp(), (x, y))
    double = p.in_precision(torch.float64)
    assert double.outputs(double.train).dtype == torch.float64
    assert double.risk(double.train) == pytest.approx(p.risk(p.train), rel=1e-5)
    assert p.train.x.dtype == torch.float32
    linear = nn.Linear(4, 3)
    fixed = Returns(lambda x: linear(x.float()))
    fixed.inner = linear
    with pytest.raises(UnsupportedModel, match="the model raised"):
        Problem(fixed, (x, y)).in_precision(torch.float64)
    bias = torch.ones(4, 3)

    def picky(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs @ bias.T).square().mean()

    with pytest.raises(UnsupportedModel, match="loss cannot be computed in"):
        Problem(mlp(), (x, y), loss=picky).in_precision(torch.float64)


def test_shared_parameters() -> None:
    x, y = data()
    layer = nn.Linear(4, 4)
    p = Problem(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3)), (x, y))
    assert p.function.count == 20 + 15
    slope = torch.func.grad(p.objective(p.train))(p.parameters)
    assert set(slope) == {"0.weight", "0.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (lambda x: {"a": x, "b": x}, UnsupportedModel, r"it returns 'a', 'b' \(output= says"),
        (lambda x: ("text", x), UnsupportedModel, "returns str; wrap it"),
        (lambda x: x.sum(), ShapeMismatch, r"an output of shape \[\]"),
        (lambda x: x.sum(0), ShapeMismatch, "first dimension must be the samples"),
        (lambda x: x / 0, NonFinite, "outputs contain NaN or infinity on finite inputs"),
        (lambda x: x.argmax(1), UnsupportedModel, "logits of the classes rather than the class"),
        (lambda x: x @ torch.ones(7, 3), UnsupportedModel, r"raised RuntimeError on inputs of sh"),
        (lambda x: [][0], UnsupportedModel, "raised IndexError"),
    ],
)
def test_unusable_models_are_refused(function: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Problem(Returns(function), data())


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda x, y: Problem(mlp(), (x, y + 1)), LabelOutOfRange, r"run from 1 to 3, but the mo"),
        (lambda x, y: Problem(mlp(), (x, y - 1)), LabelOutOfRange, r"must lie in 0\.\.2"),
        (lambda x, y: Problem(mlp(), (x, y), (x, y + 1)), LabelOutOfRange, "test labels run"),
        (
            lambda x, y: Problem(mlp(), (x, y + 0.5), task="multiclass"),
            LabelOutOfRange,
            "whole numbers",
        ),
        (lambda x, y: Problem(mlp(1), (x, y), task="multiclass"), ShapeMismatch, r"\[n, classes\]"),
        (lambda x, y: Problem(mlp(), (x, x), task="multiclass"), ShapeMismatch, "one class index"),
        (lambda x, y: Problem(mlp(), (x, y), task="binary"), ShapeMismatch, "one logit per sample"),
        (lambda x, y: Problem(mlp(1), (x, y), task="binary"), LabelOutOfRange, "0 and 1, or -1"),
        (
            lambda x, y: Problem(mlp(1), (x, (x > 0)), task="binary"),
            ShapeMismatch,
            "labels must be one number per sample",
        ),
        (lambda x, y: Problem(mlp(), (x, x)), ShapeMismatch, r"shape \[4\] a sample but the model"),
        (
            lambda x, y: Problem(nn.Unflatten(1, (2, 2)), (x, x.reshape(-1, 4, 1))),
            ShapeMismatch,
            "train targets have shape",
        ),
        (lambda x, y: Problem(mlp(), (x, y), (x[:, :2], y)), ShapeMismatch, "test inputs"),
        (lambda x, y: Problem(mlp(), (x, y), task="clustering"), InvalidInput, "task must be"),
        (lambda x, y: Problem(mlp(), (x, y), limit=0), InvalidInput, "at least 1"),
        (lambda x, y: Problem(mlp(), (x, y), chunk=0), InvalidInput, "at least 1"),
        (lambda x, y: Problem(mlp(), (x, y), seed=-1, limit=5), InvalidInput, "seed"),
        (lambda x, y: Problem(F.relu, (x, y)), InvalidType, "torch.nn.Module"),
        (lambda x, y: Problem(nn.LazyLinear(3), (x, y)), UnsupportedModel, "lazy"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make(*data())


def test_a_transposed_target_is_not_reshaped() -> None:
    x = torch.randn(5, 6)
    net = nn.Unflatten(1, (2, 3))
    with pytest.raises(ShapeMismatch):
        Problem(net, (x, torch.randn(5, 3, 2)))
    assert Problem(net, (x, torch.randn(5, 2, 1, 3))).train.y.shape == (5, 2, 3)


WEIGHT = torch.tensor([1.0, 5.0, 25.0])


@pytest.mark.parametrize(
    ("loss", "error", "sentence"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), InvalidInput, "use reduction='mean'"),
        (nn.CrossEntropyLoss(reduction="none"), InvalidType, "must return one number"),
        (nn.CrossEntropyLoss(weight=WEIGHT), InvalidInput, "plain mean of the samples' own"),
        (lambda o, y: 3.0, InvalidType, "must return one number"),
        (lambda o, y: (o - y).mean(), InvalidInput, "the loss raised RuntimeError"),
        (lambda o, y: (o / 0).mean(), NonFinite, "the loss is NaN or infinite"),
        (lambda o, y: o.var(0).sum(), InvalidInput, "doubling the batch|plain mean"),
    ],
)
def test_unusable_losses_are_refused(loss: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Problem(mlp(), data(), loss=loss)


def test_a_loss_of_ones_own() -> None:
    x, y = data()

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        own = F.cross_entropy(outputs, targets, weight=WEIGHT.to(outputs), reduction="none")
        return own.mean(0, keepdim=True)  # shape [1]: still one number

    p = Problem(mlp(), (x, y), loss=each, chunk=7)
    assert p.risk(p.train) == pytest.approx(float(each(p.outputs(p.train), y)), rel=1e-5)
    torch.func.grad(p.objective(p.train))(p.parameters)


def test_an_exception_in_forward_leaves_the_model_as_it_was() -> None:
    x, y = data()
    net = nn.Sequential(mlp().train(), Returns(lambda x: x @ torch.ones(9, 9)))
    before = copy.deepcopy(state(net))
    with pytest.raises(UnsupportedModel):
        Problem(net, (x, y))
    after = state(net)
    assert before[1] == after[1]
    assert all(torch.equal(before[0][k], v) for k, v in after[0].items())


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (torch.uint8, r"inputs are uint8 .* float32: scale and convert .*\(torch\.float32\) / 255"),
        (torch.int64, r"inputs are int64 .* float32: convert .*x\.to\(torch\.float32\)$"),
        (torch.bool, r"inputs are bool .* float32: convert"),
    ],
)  # fmt: skip
def test_images_of_whole_numbers(dtype: torch.dtype, advice: str) -> None:
    images = torch.randint(0, 2, (6, 1, 3, 3)).to(dtype)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(InvalidType, match=advice):
        Problem(net, (images, torch.arange(6) % 2))
    with pytest.raises(UnsupportedModel, match=r"raised RuntimeError on inputs of shape \[6, 2\]"):
        Problem(net, (images.reshape(6, 9)[:, :2], torch.arange(6) % 2))


class Time(nn.Module):
    """A recurrent layer that takes the samples for steps in time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[0][:, 0]
        return out


def test_samples_that_depend_on_each_other() -> None:
    x, y = data()
    own = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    for net, given in ((own, x), (Time(), torch.randn(30, 1, 2))):
        with pytest.raises(UnsupportedModel, match="depends on the other samples of its batch"):
            Problem(net, (given, y))
        assert Problem(net, (given, y), plain_mean=False).task == "multiclass"  # for training
    noisy = Returns(lambda x: x[:, :3] + torch.rand(1) * x.mean())
    assert Problem(noisy, (x, y)).deterministic is False


@pytest.mark.parametrize("kind", ["nested", "sparse"])
def test_outputs_that_are_not_dense(kind: str) -> None:
    x, y = data()
    make = (
        (lambda x: torch.nested.nested_tensor(list(x)))
        if kind == "nested"
        else (lambda x: x.to_sparse())
    )
    with pytest.raises(UnsupportedModel, match=f"returns a {kind} tensor"):
        Problem(Returns(make), (x, y))


def test_the_problem_has_a_copy_of_the_model() -> None:
    net, (x, y) = mlp(), data()
    p = Problem(net, (x, y))
    before = p.risk(p.train)
    net[0].weight.data.zero_()
    assert p.model is p.function.model is not net
    assert Problem(net, (x, y)).risk(p.train) != before
    assert p.at({}).risk(p.train) == before


class StraightThrough(nn.Linear):
    """Rounds, and lets the gradient pass as if it did not."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + (out.sin() - out).detach()


@pytest.mark.parametrize(
    ("make", "x", "same"),
    [
        (mlp, None, True),
        (mlp, torch.zeros(30, 4), True),
        (lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)), None, True),
        (lambda: nn.Linear(4, 3).bfloat16(), None, True),
        (lambda: StraightThrough(4, 3), None, False),
        (lambda: nn.EmbeddingBag(5, 3), torch.arange(60).reshape(30, 2) % 5, True),
        (
            lambda: nn.EmbeddingBag(5, 3, scale_grad_by_freq=True),
            torch.arange(60).reshape(30, 2) % 5,
            False,
        ),
        (lambda: nn.EmbeddingBag(5, 3, max_norm=0.1), torch.arange(60).reshape(30, 2) % 5, False),
    ],
)
def test_gradients_that_are_no_derivatives(make: Any, x: Tensor | None, same: bool) -> None:
    inputs, y = data()
    problem = Problem(make(), (inputs if x is None else x, y), task="multiclass")
    assert problem.gradient_is_derivative is same


def test_a_kink_is_no_replaced_gradient() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(net[0].bias)
    x, y = torch.zeros(30, 4), data()[1]  # every unit is at its kink
    assert Problem(net, (x, y)).gradient_is_derivative
