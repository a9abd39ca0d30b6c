"""Dense networks, hypothesis sets, bias removal, linear networks, ridge functions, perceptron."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neural_network import MLPRegressor
from torch import nn

from torchtheory.core.errors import (
    InvalidInput,
    LabelOutOfRange,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.nets.activations.table import ACTIVATIONS, activation
from torchtheory.nets.biases import absorb_biases, augment
from torchtheory.nets.feedforward import (
    Architecture,
    decide,
    dense,
    drawn_linear,
    generalized_linear_models,
    mlp,
    parameter_count,
)
from torchtheory.nets.linear_networks import collapse_linear, probe_linearity
from torchtheory.neurons.representations import layerwise_separability, polar_coordinates
from torchtheory.neurons.ridge import Ridge, find_ridge
from torchtheory.neurons.sigmoid_network import SigmoidPerceptron
from torchtheory.tracing.layer_results import layer_outputs

WIDTHS = st.lists(st.integers(1, 6), min_size=2, max_size=5)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_mlp_does_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    mlp([3, 4, 1], "tanh")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_mlp_is_reproducible_and_has_torchs_law() -> None:
    a, b = mlp([100, 50], generator=3), mlp([100, 50], generator=3)
    assert torch.equal(a[0].weight, b[0].weight)
    assert a[0].weight.abs().max() <= 0.1
    assert a[0].weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)


@settings(max_examples=30, deadline=None)
@given(widths=WIDTHS, name=st.sampled_from(sorted(ACTIVATIONS)))
def test_architecture_equals_the_module(widths: list[int], name: str) -> None:
    net = mlp(widths, name, generator=1)
    shape = Architecture.of(net)
    assert shape.widths == tuple(widths)
    assert shape.parameters == parameter_count(widths)
    assert shape.parameters == sum(p.numel() for p in net.parameters())
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    x = randn(7, widths[0])
    torch.testing.assert_close(shape.realize(theta, x), net(x))
    torch.testing.assert_close(shape.join(shape.layers(theta)), theta)
    torch.testing.assert_close(shape.network(theta)(x), net(x))
    both = shape.realize(torch.stack([theta, 0 * theta]), x)
    torch.testing.assert_close(both[0], net(x))


def test_figure_1_1() -> None:
    shape = Architecture((3, 4, 6, 1), activation("relu"))
    assert (shape.parameters, shape.depth, shape.width) == (53, 3, 6)
    assert shape.deep
    assert not shape.shallow
    assert Architecture((3, 5, 1), activation("relu")).shallow


def test_hand_worked_network() -> None:
    net = Architecture((1, 2, 1), activation("relu"))
    theta = torch.tensor([1.0, -1, 0, 0, 1, 1, 0], dtype=torch.float64)  # |x|
    assert net.realize(theta, torch.tensor([[-3.0], [2.0]]).double()).flatten().tolist() == [3, 2]


def test_decide() -> None:
    assert decide(torch.tensor([[0.0], [-1.0]])).tolist() == [1, -1]
    assert decide(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [1]
    with pytest.raises(ShapeMismatch):
        decide(torch.zeros(3))


def test_forward_pass_equals_scikit_learn() -> None:
    x = randn(40, 3)
    theirs = MLPRegressor(hidden_layer_sizes=(5, 4), activation="tanh", max_iter=3, random_state=0)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        theirs.fit(x.numpy(), x.sum(1).numpy())
    layers = [
        (torch.tensor(w.T), torch.tensor(b))
        for w, b in zip(theirs.coefs_, theirs.intercepts_, strict=True)
    ]
    ours = Architecture((3, 5, 4, 1), torch.tanh)
    torch.testing.assert_close(
        ours.realize(ours.join(layers), x)[:, 0], torch.tensor(theirs.predict(x.numpy()))
    )


def test_layer_outputs_leaves_no_hook_even_after_an_error() -> None:
    class Faulty(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken")

    net = nn.Sequential(nn.Linear(2, 2), Faulty()).train()
    with pytest.raises(RuntimeError, match="broken"):
        layer_outputs(net, torch.zeros(1, 2))
    assert not any(m._forward_hooks for m in net.modules())
    assert net.training


def test_layer_outputs_are_those_before_a_layer_that_works_in_place() -> None:
    first = torch.nn.Linear(2, 5)
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    found = layer_outputs(torch.nn.Sequential(first, torch.nn.ReLU(inplace=True)), x)
    assert torch.equal(found["0"], first(x))
    assert torch.equal(found["1"], first(x).relu())


def test_layer_outputs_of_a_layer_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    net = Twice()
    found = layer_outputs(net, torch.ones(1, 2))
    assert list(found) == ["layer", "layer (2)"]
    assert torch.equal(found["layer (2)"], net(torch.ones(1, 2)))


def test_generalized_linear_models() -> None:
    net = mlp([3, 4, 2], "tanh", output="logistic")
    models = generalized_linear_models(net)
    x = randn(5, 3)
    torch.testing.assert_close(models[1](models[0](x)), net(x).detach())
    with pytest.raises(UnsupportedModel):
        generalized_linear_models(nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_absorbed_biases(name: str, bias: bool) -> None:
    net = mlp([3, 5, 4, 2], name, bias=bias, last_bias=True, generator=2)
    before = copy.deepcopy(net.state_dict())
    bare = absorb_biases(net)
    assert all(m.bias is None for m in bare.modules() if isinstance(m, nn.Linear))
    x = randn(20, 3)
    torch.testing.assert_close(bare(x), net(x), rtol=0, atol=1e-12)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_printed_bias_removal_fails_for_the_logistic_function() -> None:
    net = mlp([1, 2, 1], "logistic", generator=0)
    x = torch.ones(1, 1).double()
    layers = [(net[i].weight.detach(), net[i].bias.detach()) for i in (0, 2)]
    first, second = augment(layers)
    printed = torch.sigmoid(torch.cat([x, x], 1) @ first.T) @ second.T
    # the carried constant is sigma(1) instead of 1
    wanted = net(x) + (torch.sigmoid(x) - 1) * net[2].bias
    torch.testing.assert_close(printed, wanted)
    with pytest.raises(ShapeMismatch):
        augment(layers, carried=[1.0, 1.0])


def test_bias_removal_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidInput, match="carry"):
        absorb_biases(mlp([1, 2, 1], torch.zeros_like))
    with pytest.raises(UnsupportedModel):
        absorb_biases(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    with pytest.raises(UnsupportedModel):
        absorb_biases(nn.Sequential(nn.ReLU()))


@settings(max_examples=25, deadline=None)
@given(widths=WIDTHS, seed=st.integers(0, 100))
def test_linear_networks_collapse(widths: list[int], seed: int) -> None:
    net = mlp(widths, "linear", generator=seed)
    flat = collapse_linear(net)
    x = randn(5, widths[0])
    torch.testing.assert_close(flat(x), net(x).detach())
    assert flat.rank <= flat.bottleneck == min(widths)
    test = probe_linearity(net, widths[0])
    assert test.affine
    torch.testing.assert_close(test.matrix, flat.weight)
    torch.testing.assert_close(test.offset, flat.bias)


def test_collapse_refuses_a_nonlinearity() -> None:
    with pytest.raises(UnsupportedModel, match="ReLU"):
        collapse_linear(mlp([2, 2, 1]))
    with pytest.raises(UnsupportedModel):
        collapse_linear(nn.Sequential(nn.Identity()))


def test_superposition() -> None:
    assert probe_linearity(dense(randn(2, 3)), 3).linear
    assert not probe_linearity(dense(randn(2, 3), randn(2)), 3).linear
    test = probe_linearity(torch.relu, 3)
    assert not test.affine
    x, y, alpha = test.witness
    mixed = torch.relu(alpha * x + (1 - alpha) * y)
    assert not torch.allclose(mixed, alpha * torch.relu(x) + (1 - alpha) * torch.relu(y))
    assert probe_linearity(lambda x: 0 * x, 2).linear
    with pytest.raises(ShapeMismatch):
        probe_linearity(lambda x: x.sum(), 3)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), name=st.sampled_from(["tanh", "softplus", "gaussian", "elu"]))
def test_ridge_functions(seed: int, name: str) -> None:
    theta = randn(4, seed=seed)
    unit = Ridge(theta, activation(name))
    found = find_ridge(unit, 4, generator=seed)
    assert found.ridge
    cosine = (found.direction @ theta).abs() / theta.norm()
    assert cosine.item() == pytest.approx(1, abs=1e-9)
    x = randn(6, 4, seed=seed + 1)
    across = randn(4, seed=seed + 2)
    across = across - (across @ theta) / (theta @ theta) * theta
    torch.testing.assert_close(unit(x + across), unit(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(unit.gradient(x).norm(dim=1), unit.rate(x))


def test_what_is_no_ridge_function() -> None:
    assert not find_ridge(lambda x: x.square().sum(-1), 3).ridge
    with pytest.raises(InvalidInput, match="constant"):
        find_ridge(lambda x: (0 * x).sum(-1), 3)
    with pytest.raises(ShapeMismatch):
        find_ridge(lambda x: x, 3)
    with pytest.raises(ShapeMismatch):
        Ridge(torch.zeros(2, 2), activation("relu"))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 5), m=st.integers(1, 6), seed=st.integers(0, 100))
def test_sigmoid_perceptron_gradients(n: int, m: int, seed: int) -> None:
    net = SigmoidPerceptron(n, m, generator=seed)
    x, y = randn(9, n, seed=seed), randn(9, seed=seed + 1)
    auto = torch.autograd.grad(net.loss(x, y), [net.beta, net.w])
    for ours, theirs in zip(net.gradients(x, y), auto, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(net(x) + net(-x), net.beta.sum().expand(9))


def test_sigmoid_perceptron_learns_like_torch() -> None:
    x, y = randn(20, 3), randn(20, seed=1)
    ours, theirs = SigmoidPerceptron(3, 4), SigmoidPerceptron(3, 4)
    losses = ours.fit(x, y, rate=0.5, epochs=30, batch=20)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        theirs.loss(x, y).backward()
        optimizer.step()
    torch.testing.assert_close(ours.w, theirs.w)
    assert losses[-1] < losses[0]
    with pytest.raises(InvalidInput):
        ours.fit(x, y, rate=0.0, epochs=1)
    with pytest.raises(ShapeMismatch):
        ours.fit(x, y.unsqueeze(1), rate=0.1, epochs=1)
    with pytest.raises(ShapeMismatch):
        ours.gradients(randn(2, 9), randn(2))


def test_polar_coordinates_and_layerwise_separability() -> None:
    angle = torch.linspace(0, 6, 30, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.cat([circle, 2 * circle])
    y = torch.cat([-torch.ones(30), torch.ones(30)])

    class Polar(nn.Module):
        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return polar_coordinates(points)

    rows = layerwise_separability(nn.Sequential(Polar()), x, y)
    assert [row.separable for row in rows] == [False, True]
    assert rows[1].kind == "Polar"
    with pytest.raises(LabelOutOfRange):
        layerwise_separability(nn.Sequential(Polar()), x, y + 3)
    with pytest.raises(InvalidInput):
        polar_coordinates(torch.zeros(2, 3))


def test_bad_widths_and_models() -> None:
    for widths in ([3], [3, 0], [2, 1.5]):
        with pytest.raises(InvalidInput):
            mlp(widths)
    with pytest.raises(InvalidInput):
        drawn_linear(0, 1)
    shape = Architecture((2, 3, 1), torch.tanh)
    with pytest.raises(ShapeMismatch, match="13 parameters"):
        shape.realize(torch.zeros(5), torch.zeros(1, 2))
    with pytest.raises(ShapeMismatch):
        shape.realize(torch.zeros(13), torch.zeros(1, 3))
    with pytest.raises(UnsupportedModel, match="differ"):
        Architecture.of(
            nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
        )
    with pytest.raises(UnsupportedModel, match="bias"):
        Architecture.of(mlp([2, 2, 1], bias=False))
    with pytest.raises(UnsupportedModel):
        Architecture.of(mlp([2, 1], output="relu"))
