"""One rule for all tools over parameters: frozen ones are constants unless they are named."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.generalization.flatness.sharpness import (
    ball_sharpness,
    hessian_sharpness,
    relative_hessian,
)
from torchtheory.kernels.infinite.wide_convergence import gradient_domination, squared_risk
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laziness import measure_laziness
from torchtheory.kernels.tangent.linearization import linearize
from torchtheory.models.problem import Problem
from torchtheory.nets.homogeneity import measure_homogeneity
from torchtheory.optimization.curvature.layer_noise import gradient_noise_by_layer
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale
from torchtheory.optimization.curvature.operators import (
    empirical_fisher_operator,
    fisher_operator,
    gauss_newton_operator,
    gradient,
    hessian_operator,
)
from torchtheory.optimization.descent.flow import gradient_flow
from torchtheory.optimization.descent.newton import layer_sizes, quadratic_model_of
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.optimization.landscape.low_loss_paths import low_loss_path, make_monotone
from torchtheory.optimization.landscape.parameter_space import losses_at, point_vector
from torchtheory.optimization.landscape.slices import (
    eigen_directions,
    loss_slice,
    probe_segment,
    random_directions,
)
from torchtheory.optimization.landscape.trained_paths import bend_path

OPERATORS = (
    hessian_operator,
    gauss_newton_operator,
    fisher_operator,
    empirical_fisher_operator,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def network() -> nn.Sequential:
    """Three inputs, four units, two outputs: 16 parameters below and 10 above."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(draw(*p.shape, seed=k))
    return net


def problem(*, frozen: bool = True) -> Problem:
    net = network()
    net[0].requires_grad_(not frozen)
    return Problem(net, (draw(6, 3, seed=8), draw(6, 2, seed=9)), task="regression")


@pytest.mark.parametrize("make", OPERATORS)
def test_an_operator_is_the_block_of_the_trainable_parameters(make) -> None:
    whole = make(problem(frozen=False)).to_dense()
    torch.testing.assert_close(make(problem()).to_dense(), whole[16:, 16:])


def test_parameters_that_are_named_count_frozen_or_not() -> None:
    p = problem()
    first = {k: v for k, v in p.parameters.items() if k.startswith("0.")}
    whole = hessian_operator(problem(frozen=False)).to_dense()
    named = hessian_operator(p, parameters=first).to_dense()
    torch.testing.assert_close(named, whole[:16, :16])
    torch.testing.assert_close(hessian_operator(p, parameters=p.parameters).to_dense(), whole)
    kernel = empirical_ntk(p.model, p.train.x, only=["0", "2"])
    torch.testing.assert_close(kernel, empirical_ntk(network(), p.train.x))


def test_kernel_and_fisher_information_have_the_same_nonzero_spectrum() -> None:
    p = problem()
    kernel = empirical_ntk(p.model, p.train.x).permute(0, 2, 1, 3).reshape(12, 12)
    ours = torch.linalg.eigvalsh(fisher_operator(p).to_dense()) * len(p.train)
    torch.testing.assert_close(ours, torch.linalg.eigvalsh(kernel)[-10:])


def test_every_tool_sees_ten_parameters() -> None:
    p, other = problem(), problem().model
    with torch.no_grad():
        other[2].weight.add_(1.0)
    sizes = {
        "gradient": gradient(p),
        "objective": objective_of(p)[1],
        "flow": gradient_flow(p, [0.0, 0.1]).points[-1],
        "quadratic": quadratic_model_of(p).slope,
        "vector": point_vector(p, other),
        "random": random_directions(p, 1)[0],
        "eigen": eigen_directions(p, 1)[1][0],
        "bend": bend_path(p, p.model, other, steps=2)[1],
        "ball": ball_sharpness(p, 0.1, steps=1, starts=0).direction,
        "relative": relative_hessian(p) @ torch.ones(10).double(),
    }
    assert {k: tuple(v.shape) for k, v in sizes.items()} == dict.fromkeys(sizes, (10,))
    assert layer_sizes(p) == [10]
    assert [row.layer for row in gradient_noise_by_layer(p)] == ["2"]
    assert squared_risk(p.model, p.train.x, p.train.y)(torch.zeros(10).double()).shape == ()
    assert {k for k, v in linearize(p.model).named_parameters() if v.requires_grad} == {
        "displaced.2.weight",
        "displaced.2.bias",
    }
    assert set(measure_laziness(p.model, other, p.train.x).movement_by_parameter) == {
        "2.weight",
        "2.bias",
    }
    assert measure_homogeneity(p.model, p.train.x).degree == 1.0
    assert hessian_sharpness(p, trace_samples=10).trace.value == pytest.approx(
        float(hessian_operator(p).to_dense().trace())
    )


def test_frozen_layers_keep_their_values_at_other_points() -> None:
    p = problem()
    theta = torch.cat([v.flatten() for k, v in p.parameters.items() if k.startswith("2.")])
    assert losses_at(p, theta[None]).item() == pytest.approx(p.risk(p.train))
    moved = p.at({"0.weight": torch.zeros(4, 3).double()})
    assert losses_at(moved, theta[None]).item() == pytest.approx(moved.risk(p.train))
    plane = loss_slice(p, random_directions(p, 1), torch.tensor([-1.0, 0.0, 1.0]))
    assert plane.values[1].item() == pytest.approx(p.risk(p.train))
    single = p.in_precision(torch.float32)
    assert float(gradient(single).norm()) == pytest.approx(float(gradient(p).norm()), rel=1e-5)


def test_noise_scale_is_that_of_the_linear_model_of_the_features() -> None:
    p = problem()
    features = p.model[1](p.model[0](p.train.x)).detach()
    head = Problem(p.model[2], (features, p.train.y), task="regression")
    scales = []
    for each in (p, head):
        rows = torch.stack([gradient(each, each.train.at(torch.tensor([i]))) for i in range(6)])
        scales.append(gradient_noise_scale(rows @ rows.T, 1).value)
    assert scales[0] == pytest.approx(scales[1])


def test_a_model_that_is_frozen_as_a_whole_counts_as_a_whole() -> None:
    p = problem(frozen=False)
    for_inference = Problem(
        copy.deepcopy(p.model).requires_grad_(False), (p.train.x, p.train.y), task="regression"
    )
    torch.testing.assert_close(gradient(for_inference), gradient(p))
    torch.testing.assert_close(
        empirical_ntk(for_inference.model, p.train.x), empirical_ntk(p.model, p.train.x)
    )
    assert len(measure_laziness(for_inference.model, p.model, p.train.x).movement_by_parameter) == 4


def test_what_would_move_a_frozen_parameter_is_refused() -> None:
    p, other = problem(), network()
    with torch.no_grad():
        other[0].weight.add_(1.0)
    with pytest.raises(InvalidInput, match=r"0\.weight is frozen .* other values in the end"):
        probe_segment(p, p.model, other)
    with pytest.raises(UnsupportedModel, match="the path moves 0"):
        low_loss_path(p, p.model, p.model)
    above = problem(frozen=False)
    above.model[2].requires_grad_(False)
    with pytest.raises(UnsupportedModel, match=r"the last layer moves 2\.weight"):
        make_monotone(above, torch.zeros(2, 16).double())
    with pytest.raises(UnsupportedModel, match=r"2\.weight is frozen"):
        gradient_domination(above.model, p.train.x, p.train.y)
    with pytest.raises(ShapeMismatch, match="10 trainable parameters"):
        losses_at(p, torch.zeros(1, 26).double())
    with pytest.raises(ShapeMismatch, match="names and shapes"):
        gradient_flow(p, [0.0], parameters={"2.bias": torch.zeros(2).double()})
