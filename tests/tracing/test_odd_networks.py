"""Networks that write, choose, draw, leave torch, or hold functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import architecture, archived, outputs_of
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ModelRaised, UnsupportedModel
from torchtheory.tracing.interpret import Call, Rules, interpret, rule
from torchtheory.tracing.network import BatchSize
from torchtheory.tracing.recorder import record


class Of(nn.Module):
    """A network that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).double()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(self.layer(x[0]), *x[1:])


def _part_of_a_view(y: Tensor) -> Tensor:
    z = y.view(len(y), 2, 2)
    z[:, 0] *= 2
    z[:, 1].add_(1)
    return z.flatten(1) + y  # y has changed with its view


def _later_view(y: Tensor) -> Tensor:
    left = y[:, :2]
    y.mul_(3)
    return left + y[:, 2:]


def _view_of_a_view(y: Tensor) -> Tensor:
    part = y.view(len(y), 2, 2).transpose(1, 2)[:, 0]
    part.copy_(part.flip(1))
    return y


def _two_pieces(y: Tensor) -> Tensor:
    first, second = y[:, :2], y[:, 2:]
    first += second
    return torch.cat([second, first], 1) * y


def _filled(y: Tensor) -> Tensor:
    out = torch.zeros(len(y), 4, dtype=y.dtype)
    out[:, :2] = y[:, 2:]
    out[:, 3].fill_(2)
    return out.relu_()


def _given_out(y: Tensor) -> Tensor:
    out = torch.empty_like(y)
    torch.mul(y, 2, out=out)
    return out + y


def _masked(y: Tensor) -> Tensor:
    return y.masked_fill_(torch.tensor([True, False, True, False]), 0.5).clamp_(min=-1)


@pytest.mark.parametrize(
    "function",
    [
        _part_of_a_view, _later_view, _view_of_a_view, _two_pieces, _filled, _given_out, _masked,
        lambda y: F.relu(y, inplace=True) + y,
        lambda y: F.dropout(y, training=False) + F.relu(y),
        lambda y: y.contiguous().mul_(2) + y,
        lambda y: y.index_add_(1, torch.tensor([0, 0]), y[:, 2:].clone()),
        lambda y: torch.cat(torch.split(y, [1, 3], 1)[::-1], 1).T.T,
    ],
)  # fmt: skip
def test_nothing_is_written_in_place(function: Callable[[Tensor], Tensor]) -> None:
    model = Of(function)
    x = torch.randn(3, 4, dtype=torch.float64)
    network, other = record(model, x), torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network.replay(other), model(other))
        torch.testing.assert_close(network.replay(other), model(other))


def test_sizes_that_follow_the_batch_are_known() -> None:
    network = record(Of(lambda y: y.view(2 * y.shape[0], -1)), torch.zeros(1, 4).double())
    (view,) = [op for op in network if op.name == "view"]
    assert view.arguments["size"] == [BatchSize(2), -1]
    assert network.outputs[0].shape == (BatchSize(2), 2)


def test_a_batch_that_cannot_change_is_said_so() -> None:
    network = record(Of(lambda y: y.view(3, 2, 2)), torch.zeros(3, 4).double())
    assert network.rows == 3
    with pytest.raises(UnsupportedModel, match="runs on 3 rows and was given 5"):
        network.replay(torch.zeros(5, 4).double())


def test_decisions_are_known() -> None:
    def forward(y: Tensor) -> Tensor:
        return y * 2 if y.sum() > 0 else y

    network = record(Of(forward), torch.ones(2, 4).double())
    assert [op.name for op in network.decisions] == ["__bool__"]
    kinds = ("affine", "product", "reduction", "entrywise")
    rules = Rules("no sum", {}, dict.fromkeys(kinds, lambda call: 0))
    with pytest.raises(UnsupportedModel, match=r"asks what is in its input .bool.*another way"):
        interpret(network, rules, [0], 2)


def test_random_numbers_are_known() -> None:
    network = record(Of(lambda y: y + torch.randn_like(y)), torch.ones(2, 4).double())
    assert [op.name for op in network.random] == ["randn_like"]
    assert not record(Of(lambda y: F.dropout(y, 0.5, training=False)), torch.ones(2, 4)).random


def test_what_leaves_torch_is_a_decision() -> None:
    def forward(y: Tensor) -> Tensor:
        return torch.from_numpy(y.detach().numpy() ** 2)

    network = record(Of(forward), torch.randn(4, 4, dtype=torch.float64))
    assert [op.name for op in network.decisions] == ["numpy"]


class Cube(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


@pytest.mark.parametrize("rows", [2, 5])
def test_a_function_of_the_users_own_is_what_it_is_made_of(rows: int) -> None:
    model = Of(lambda y: Cube.apply(y) + y)
    x = torch.randn(rows, 4, dtype=torch.float64)
    network = record(model, x)
    assert [op.name for op in network] == ["linear", "mul", "mul", "add"]
    torch.testing.assert_close(network.replay(2 * x), model(2 * x))


def test_a_function_with_a_rule_is_one_operation_for_it() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * x

    model = Of(lambda y: Square.apply(y).relu())
    x = torch.randn(3, 4, dtype=torch.float64)
    taught, other = (Rules("nothing", {n: lambda call: call.name for n in known}) for known in
                     (("linear", "relu"), ("linear", "relu", "mul")))  # fmt: skip
    seen = []

    @rule(taught, Square)
    def square(call: Call) -> str:
        seen.append(call.args)
        return "square"

    network = record(model, x)
    assert [op.name for op in network] == ["linear", "Square", "relu"]
    assert interpret(network, taught, ["x"], 3) == "relu"
    assert seen == [("linear",)]
    assert interpret(network, other, ["x"], 3) == "relu"  # written out in a product
    torch.testing.assert_close(network.replay(x), model(x))
    assert "apply" not in vars(Square)


@pytest.mark.parametrize("fixed", [False, True])
def test_tensors_from_nowhere_are_refused(fixed: bool) -> None:
    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # as code in C++ that nobody sees
                made = x * 2
            return made.view(4, 4) if fixed else made + 1

    with pytest.raises(UnsupportedModel, match="no function of torch"):
        record(Hidden(), torch.randn(4, 4))


def test_bad_inputs_are_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="none was given"):
        record(nn.Linear(2, 1), torch.zeros(0, 2))
    with pytest.raises(InvalidInput, match="a single number"):
        record(nn.Linear(2, 1), torch.tensor(1.0))
    with pytest.raises(ModelRaised, match="RuntimeError"):
        record(nn.Linear(2, 1), torch.zeros(3, 5))


def test_several_inputs() -> None:
    model = Of(lambda y, z: (y * z).sum(1))
    a, b = torch.randn(2, 3, 4, dtype=torch.float64)
    network = record(model, (a, b))
    assert len(network.inputs) == 2
    torch.testing.assert_close(network.replay(b, a), model(b, a))


@pytest.mark.parametrize("name", ["resnet", "own-attention", "gru", "squeeze-excite", "u-net"])
def test_an_archive_is_the_same_network(name: str) -> None:
    a = architecture(name)
    network, module = record(archived(name), a.x), record(a.model, a.x)
    torch.testing.assert_close(outputs_of(network.replay(a.x)), outputs_of(a.model(a.x)))
    kinds = [{op.kind for op in n} - {"selects", "moves", "constant"} for n in (network, module)]
    assert kinds[0] == kinds[1]
    convolutions = [[op.layer for op in n if op.kind == "affine"] for n in (network, module)]
    assert convolutions[0] == convolutions[1]
    assert all(op.layer_kind != "ExportedNetwork" for op in network)


def test_what_is_carried_may_be_a_number() -> None:
    rules = Rules(
        "no depth", {"linear": lambda call: call["input"] + 1, "relu": lambda c: c["input"]}
    )
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert interpret(record(net, torch.zeros(1, 2)), rules, [0], 1) == 2


def test_a_rule_may_decline_a_form_that_is_then_written_out() -> None:
    seen: list[str] = []

    def softmax(call: Call) -> Any:
        seen.append(call.name)
        return NotImplemented if call["dim"] == 1 else "softmax"

    def other(call: Call) -> str:
        seen.append(call.name)
        return call.name

    kinds = ("entrywise", "affine", "product", "reduction", "extreme")
    rules = Rules("nothing", {"softmax": softmax}, dict.fromkeys(kinds, other))
    net = nn.Softmax(1)
    assert interpret(record(net, torch.zeros(1, 3)), rules, ["x"], 1) == "div"
    assert seen == ["softmax", "amax", "sub", "exp", "sum", "div"]
    assert interpret(record(nn.Softmax(-1), torch.zeros(1, 3)), rules, ["x"], 1) == "softmax"


def test_what_comes_back_to_itself_is_not_written_out_for_ever() -> None:
    pool = nn.MaxPool2d(2)
    network = record(pool, torch.zeros(1, 1, 4, 4), known=lambda name: False)
    assert [op.name for op in network] == ["max_pool2d"]


def test_an_operation_without_a_rule_is_refused_with_its_place() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    rules = Rules("no bound", {"linear": lambda call: None})
    with pytest.raises(
        UnsupportedModel, match=r"^no bound: there is no rule for tanh \(in layer '1.0', Tanh\)$"
    ):
        interpret(record(net, torch.zeros(1, 2)), rules, [None], 1)
