"""The recursion against autograd, difference quotients, sums over paths and worked examples."""

import math
import warnings
from functools import partial

import networkx as nx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    InvalidType,
    ModelRaised,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.graph import GraphNetwork, neuron_graph
from torchtheory.tracing.operation_counts import count_operations
from torchtheory.tracing.recorder import record
from torchtheory.training.backpropagation.chain import backpropagate, pull_back
from torchtheory.training.backpropagation.graph import backpropagate_graph, error_by_paths
from torchtheory.training.losses.classification import LOSSES, classification_loss


def half_square(outputs, y):
    return (outputs - y).square().sum() / 2


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(model, x, y, loss, by_autograd=None):
    found = backpropagate(model, x, y, loss)
    number = (by_autograd or loss)(model.eval()(x), y)
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(number, list(parameters.values()))
    torch.testing.assert_close(found.loss, number.detach())
    assert found.gradients.keys() == parameters.keys()
    for (name, ours), theirs in zip(found.gradients.items(), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10, msg=name)
    return found


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus,
        nn.Hardtanh, nn.Mish, nn.Softsign, torch.sin,
    ],
)  # fmt: skip
def test_every_activation(activation):
    net = mlp([3, 6, 5, 2], activation, generator=0)
    check(net, randn(7, 3), randn(7, 2, seed=1), half_square)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_table(name):
    loss = classification_loss(name)
    labels = torch.arange(6) % 3
    check(mlp([4, 5, 3], "tanh", generator=1), randn(6, 4), labels, loss, loss.mean)


@settings(max_examples=20, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    samples=st.integers(1, 5),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
)
def test_any_dense_network(widths, samples, seed, bias):
    net = mlp(widths, "tanh", bias=bias, generator=seed)
    x, y = randn(samples, widths[0], seed=seed), randn(samples, widths[-1], seed=seed + 1)
    found = check(net, x, y, half_square)
    leaf = x.clone().requires_grad_()
    (at_input,) = torch.autograd.grad(half_square(net(leaf), y), leaf)
    torch.testing.assert_close(found.delta_input, at_input)


def test_convolutions_softmax_and_shared_layers():
    shared = dense(randn(4, 4) / 2, randn(4))
    nets = [
        nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(16, 3), nn.LogSoftmax(1),
        ).double(),
        nn.Sequential(
            nn.Unflatten(1, (2, 5, 2)), nn.Conv2d(2, 4, 2, groups=2, bias=False), nn.Tanh(),
            nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3), nn.Softmax(-1),
        ).double(),
        nn.Sequential(dense(randn(4, 20)), shared, nn.Tanh(), shared, dense(randn(3, 4))),
    ]  # fmt: skip
    inputs = [randn(5, 2, 9), randn(5, 20), randn(5, 20)]
    for net, x in zip(nets, inputs, strict=True):
        check(net, x, randn(5, 3, seed=3), half_square)


def test_dense_layer_on_sequences():
    check(mlp([3, 4, 2], "tanh"), randn(5, 6, 3), randn(5, 6, 2), half_square)


def test_a_module_with_functions_and_views_is_a_chain():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5).double(), nn.Linear(5, 1).double()

        def forward(self, x):
            return self.last(torch.relu(self.first(x.view(x.size(0), -1))))

    check(Net(), randn(3, 2, 2), randn(3, 1), half_square)


def test_two_two_one_by_hand():
    weights = [[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6]]
    x1, x2, y = 1.0, -1.0, 0.0
    net = nn.Sequential(
        dense(torch.tensor(weights[0]).double()), nn.Sigmoid(),
        dense(torch.tensor(weights[1]).double()), nn.Sigmoid(),
    )  # fmt: skip

    def sigmoid(t):
        return 1 / (1 + math.exp(-t))

    h1, h2 = sigmoid(0.1 * x1 + 0.2 * x2), sigmoid(0.3 * x1 + 0.4 * x2)
    out = sigmoid(0.5 * h1 + 0.6 * h2)
    error = (out - y) * out * (1 - out)
    found = backpropagate(
        net, torch.tensor([[x1, x2]]).double(), torch.tensor([[y]]).double(), half_square
    )
    assert found.gradients["2.weight"][0].tolist() == pytest.approx(
        [error * h1, error * h2], rel=1e-6
    )
    d1, d2 = error * 0.5 * h1 * (1 - h1), error * 0.6 * h2 * (1 - h2)
    assert found.gradients["0.weight"].reshape(-1).tolist() == pytest.approx(
        [d1 * x1, d1 * x2, d2 * x1, d2 * x2], rel=1e-6
    )
    unit = found.units()[0]
    assert (unit.layer, unit.unit) == (1, 1)
    assert unit.error == pytest.approx(unit.delta * unit.slope)
    name, old, gradient, new = found.update(0.1)[1]
    assert name == "0.weight[1,2]"
    assert new == pytest.approx(old - 0.1 * gradient)


def test_units_without_and_with_mixing_activation():
    net = nn.Sequential(dense(randn(3, 2)), dense(randn(3, 3)), nn.Softmax(1))
    found = backpropagate(net, randn(2, 2), randn(2, 3), half_square)
    slopes = [unit.slope for unit in found.units(1)]
    assert slopes == [1.0, 1.0, 1.0, None, None, None]


def test_the_model_is_left_as_it_was():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout(0.9)).double()
    net.train()
    before = [p.clone() for p in net.parameters()]
    x = randn(4, 2)
    kept = x.clone()
    backpropagate(net, x, randn(4, 2), half_square)
    assert net.training
    assert torch.equal(x, kept)
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_backward_costs_twice_the_forward():
    net = mlp([8] * 6, "relu", generator=0)
    x, delta = randn(16, 8), randn(16, 8)
    forward = count_operations(net, x)
    assert forward == 5 * 2 * 16 * 8 * 8
    assert count_operations(partial(pull_back, record(net, x)), x, delta) == 3 * forward


def test_refused_networks_and_inputs():
    x, y = randn(2, 3), randn(2, 3)
    with pytest.raises(ShapeMismatch):
        backpropagate(mlp([3, 3]), x[0], y[0], half_square)
    with pytest.raises(InvalidType, match="complex"):
        backpropagate(mlp([3, 3]), x.to(torch.complex128), y, half_square)
    with pytest.raises(ModelRaised):
        backpropagate(mlp([3, 3]), x.long(), y, half_square)
    with pytest.raises(InvalidType):
        backpropagate(half_square, x, y, half_square)
    with pytest.raises(NonFinite):
        backpropagate(mlp([3, 3]), x, y * math.inf, half_square)
    with pytest.raises(ShapeMismatch, match="its shape"):
        pull_back(mlp([3, 3]), x, y[:1])


def test_a_subclass_with_its_own_forward():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    found = check(nn.Sequential(Doubled(2, 2).double()), randn(3, 2), randn(3, 2), half_square)
    assert [step.operation for step in found.steps] == ["linear", "mul"]


def test_steps_show_what_a_layer_is_given_and_what_comes_back():
    net = nn.Sequential(dense(randn(3, 2)), nn.Tanh(), nn.Flatten(), dense(randn(1, 3)))
    x = randn(4, 2)
    found = backpropagate(net, x, randn(4, 1), half_square)
    assert [(step.name, step.operation) for step in found.steps] == [
        ("0", "linear"), ("1", "tanh"), ("2", "flatten"), ("3", "linear"),
    ]  # fmt: skip
    for before, after in zip(found.steps, found.steps[1:], strict=False):
        assert after.input is before.output
        torch.testing.assert_close(after.delta_input, before.delta)
    assert found.steps[0].gradients.keys() == {"0.weight"}
    torch.testing.assert_close(found.steps[1].slope, 1 - torch.tanh(found.steps[0].output) ** 2)
    assert found.steps[2].slope is None


# ------------------------------------------------------------------------------- graphs


def diamond():
    """x -> a, b -> y, with a shortcut x -> y."""
    graph = nx.DiGraph([("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y"), ("a", "b")])
    for v in "aby":
        graph.nodes[v]["activation"] = "tanh"
    return GraphNetwork(graph, generator=3)


def test_graph_against_autograd_and_paths():
    net, x, y = diamond(), randn(4, 1), randn(4, 1, seed=1)
    found = backpropagate_graph(net, x, y, half_square)
    parameters = dict(net.named_parameters())
    theirs = torch.autograd.grad(half_square(net(x), y), list(parameters.values()))
    for name, gradient in zip(parameters, theirs, strict=True):
        torch.testing.assert_close(found.gradients[name], gradient)
    counts = {}
    for v in "aby":
        summed = error_by_paths(net, x, y, half_square, v)
        counts[v] = summed.paths
        torch.testing.assert_close(summed.error, found.errors[v][:, 0])
    assert counts == {"a": 2, "b": 1, "y": 1}
    leaf = x.clone().requires_grad_()
    (at_input,) = torch.autograd.grad(half_square(net(leaf), y), leaf)
    torch.testing.assert_close(found.deltas["x"], at_input)


def test_neurons_of_a_dense_network_have_the_layers_errors():
    net = mlp([3, 4, 2], "relu", generator=5)
    labels, x = torch.tensor([0, 1, 1]), randn(3, 3)
    loss = classification_loss("log")
    layers = backpropagate(net, x, labels, loss)
    neurons = backpropagate_graph(neuron_graph(net), x, labels, loss)
    for j in range(4):
        torch.testing.assert_close(neurons.errors[1, j][:, 0], layers.steps[0].delta[:, j])
    assert float(neurons.loss) == pytest.approx(float(F.cross_entropy(net(x), labels).detach()))


def test_paths_of_a_deep_network_multiply():
    net = neuron_graph(mlp([1, 3, 3, 3, 1], "tanh", generator=0))
    assert error_by_paths(net, randn(1, 1), randn(1, 1), half_square, (1, 0)).paths == 9


def test_refused_graphs():
    wide = nx.DiGraph([("x", "y")])
    wide.nodes["x"]["width"] = 2
    x, y = randn(1, 2), randn(1, 1)
    net = GraphNetwork(wide)
    with pytest.raises(UnsupportedModel, match="width 1"):
        error_by_paths(net, x, y, half_square, "y")
    with pytest.raises(UnsupportedModel, match="input"):
        error_by_paths(diamond(), randn(1, 1), y, half_square, "x")
    odd = nx.DiGraph([("x", "y")])
    odd.nodes["y"]["module"] = nn.Tanh()
    with pytest.raises(UnsupportedModel, match="dense layer"):
        backpropagate_graph(GraphNetwork(odd), randn(1, 1), y, half_square)


def test_a_computed_weight_is_shown_with_its_layer_and_its_parameters_have_gradients() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_hook = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 3)), nn.ReLU()).double()
    by_rule = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))).double()
    for net in (by_hook, by_rule):
        found = check(net, randn(4, 2), randn(4, 3), half_square)
        assert found.steps[0].gradients.keys() == {"0.weight", "0.bias"}


def test_a_weight_that_occurs_twice_is_updated_once() -> None:
    layer = dense(torch.tensor([[2.0]]).double())
    found = backpropagate(nn.Sequential(layer, layer), *torch.ones(2, 1, 1).double(), half_square)
    assert found.update(0.1) == [("0.weight[1,1]", 2.0, 12.0, pytest.approx(0.8))]
