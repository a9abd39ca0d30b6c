"""Every fact of the table of activations against the function itself."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from torchtheory.core.errors import UnknownName, UnsupportedModel
from torchtheory.nets.activations.table import ACTIVATIONS
from torchtheory.tracing.activations import (
    ACTIVATION_FACTS,
    ACTIVATION_LAYERS,
    ActivationFacts,
    activation_facts,
    layer_facts,
)
from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.recorder import record

#: Other arguments than the defaults, or those that there are none of.
_ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "leaky_relu": [{"negative_slope": s} for s in (-0.3, 0.0, 1.0, 2.0)],
    "prelu": [{"weight": torch.tensor([w]).double()} for w in (-0.5, 0.25, 1.0, 3.0)],
    "rrelu": [{}, {"lower": 0.5, "upper": 2.5}],
    "elu": [{"alpha": a} for a in (-1.0, 0.5, 2.0)],
    "celu": [{"alpha": a} for a in (0.5, 2.0)],
    "gelu": [{"approximate": "tanh"}],
    "softplus": [{"beta": 3.0}, {"beta": 2.0, "threshold": 1.0}],
    "hardtanh": [{"min_val": -0.5, "max_val": 2.0}],
    "softshrink": [{"lambd": 0.0}, {"lambd": 1.5}],
    "hardshrink": [{"lambd": 0.0}, {"lambd": 1.5}],
    "threshold": [{"threshold": t, "value": v} for t, v in ((0, 0), (1, 1), (1, -2), (-1, 2))],
    "clamp": [{"min": -1.0, "max": 2.0}, {"min": 0.0}, {"max": 1.0}],
    "clamp_min": [{"min": 0.0}, {"min": 1.0}],
    "clamp_max": [{"max": 0.0}],
}
_NEEDED = ("prelu", "threshold", "clamp", "clamp_min", "clamp_max")
_CASES = [
    (name, arguments)
    for name in ACTIVATION_FACTS
    for arguments in ([] if name in _NEEDED else [{}]) + _ARGUMENTS.get(name, [])
]

#: Rounding of torch's float32 constants apart, suprema agree with what is found to this.
_NEAR = 1e-6

#: Far away, where an asymptote is reached as nearly.
_FAR = 4e6


def _function(name: str, arguments: dict[str, Any]) -> Any:
    function: Any = getattr(F, name, None) or getattr(torch, name)
    return lambda x: function(x, **arguments)


def _derivative(function: Any, x: Tensor, order: int) -> Tensor:
    x = x.clone().requires_grad_()
    value = function(x)
    for _ in range(order):
        if not value.requires_grad:
            return torch.zeros_like(x)
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True, materialize_grads=True)
    return value.detach()


def _breaks(facts: ActivationFacts) -> list[float]:
    return sorted([*facts.kinks, *(place for place, _, _ in facts.jumps)])


def _points(facts: ActivationFacts) -> Tensor:
    """A dense grid, points far away, and points close to every break on both sides."""
    dense = torch.linspace(-15, 15, 60_001, dtype=torch.float64) + 1e-7
    ends = torch.tensor(_breaks(facts) or [0.0], dtype=torch.float64)
    far = torch.tensor([-_FAR, -100.0, 100.0, _FAR], dtype=torch.float64)
    return torch.cat([dense, far, *(ends + s for s in (-1e-9, 1e-9))]).sort().values


def _refined(function: Any, points: Tensor, values: Tensor, sign: int) -> float:
    """The largest of sign * values, sought between the neighbors of the best point."""
    best = int((sign * values).argmax())
    low, high = (float(points[max(0, min(len(points) - 1, best + d))]) for d in (-1, 1))
    found = minimize_scalar(
        lambda x: -sign * float(function(torch.tensor(x, dtype=torch.float64))),
        bounds=(low, high), method="bounded", options={"xatol": 1e-12},
    )  # fmt: skip
    return sign * max(float((sign * values).max()), -float(found.fun))


@pytest.mark.parametrize(("name", "arguments"), _CASES, ids=str)
def test_facts_are_those_of_the_function(name: str, arguments: dict[str, Any]) -> None:
    facts = activation_facts(name, **arguments)
    function = _function(name, arguments)
    x = _points(facts)
    values, slopes = function(x).detach(), _derivative(function, x, 1)
    # no value, slope or bend is beyond what is said
    for found, (low, high) in (
        (values, (facts.lowest, facts.highest)),
        (slopes, facts.slopes),
    ):
        assert float(found.min()) >= low - 1e-7
        assert float(found.max()) <= high + 1e-7

    # and what is said is reached, between points of the grid if need be
    def slope(at: Tensor) -> Tensor:
        return _derivative(function, at, 1)

    assert _refined(slope, x, slopes, -1) == pytest.approx(facts.slopes[0], abs=_NEAR)
    assert _refined(slope, x, slopes, 1) == pytest.approx(facts.slopes[1], abs=_NEAR)
    for sign, said in ((-1, facts.lowest), (1, facts.highest)):
        reached = _refined(function, x, values, sign)
        if math.isinf(said):
            assert sign * reached > 8  # asinh and the logarithm are slow
        else:
            assert reached == pytest.approx(said, abs=1e-6)


@pytest.mark.parametrize(("name", "arguments"), _CASES, ids=str)
def test_kinks_jumps_and_bends(name: str, arguments: dict[str, Any]) -> None:
    facts = activation_facts(name, **arguments)
    function = _function(name, arguments)
    step = 1e-7

    def value(at: float) -> float:
        return float(function(torch.tensor(at, dtype=torch.float64)))

    def slope(at: float) -> float:
        return float(_derivative(function, torch.tensor(at, dtype=torch.float64), 1))

    for place, left, right in facts.jumps:
        assert value(place - step) == pytest.approx(left, abs=1e-5)
        assert value(place + step) == pytest.approx(right, abs=1e-5)
        assert left != right
    for place in facts.kinks:
        assert value(place - step) == pytest.approx(value(place + step), abs=1e-5)
        assert abs(slope(place - step) - slope(place + step)) > 0.1
    # between them the slope moves no faster than its curvature, and somewhere as fast
    x = _points(facts)
    slopes = _derivative(function, x, 1)
    within = torch.ones(len(x) - 1, dtype=torch.bool)
    for place in _breaks(facts):
        within &= ~((x[:-1] < place) & (x[1:] > place))
    speed = (slopes.diff() / x.diff())[within & (x.diff() > 1e-6)].abs()
    assert float(speed.max()) == pytest.approx(facts.curvature, rel=1e-3, abs=1e-7)
    if facts.lowest_at is not None:
        assert value(facts.lowest_at) == pytest.approx(facts.lowest, abs=1e-12)


@pytest.mark.parametrize(("name", "arguments"), _CASES, ids=str)
def test_pieces_and_homogeneity(name: str, arguments: dict[str, Any]) -> None:
    facts = activation_facts(name, **arguments)
    function = _function(name, arguments)
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64) + 1e-3
    scaled = torch.allclose(function(3 * x), 3 * function(x), rtol=1e-12)
    assert scaled == facts.homogeneous
    ends = [-20.0, *_breaks(facts), 20.0]
    polynomial = True
    for low, high in pairwise(ends):
        t = np.linspace(low + 1e-6, high - 1e-6, 60)
        y = function(torch.from_numpy(t)).numpy()
        fit = np.polynomial.Polynomial.fit(t, y, facts.degree or 2)
        polynomial &= bool(np.abs(fit(t) - y).max() < 1e-8)
    assert polynomial == (facts.degree is not None)
    assert facts.increasing == bool((function(x).diff() >= -1e-12).all())
    assert facts.lipschitz == (math.inf if facts.jumps else max(map(abs, facts.slopes)))


@pytest.mark.parametrize("kind", ACTIVATION_LAYERS, ids=lambda kind: kind.__name__)
def test_layers_are_the_operations_that_they_are_said_to_be(kind: type[nn.Module]) -> None:
    given = {nn.Threshold: (0.5, -1.0), nn.Hardtanh: (-2.0, 0.5), nn.RReLU: (0.5, 0.75)}
    layer = kind(*given.get(kind, ())).eval()
    (operation,) = record(layer, torch.ones(1, 2)).operations
    assert operation.name == ACTIVATION_LAYERS[kind][0]
    arguments = {k: v for k, v in operation.arguments.items() if k not in ("input", "weight")}
    if kind is nn.PReLU:
        arguments["weight"] = layer.weight
    assert layer_facts(layer) == activation_facts(operation.name, **arguments)


def test_all_activations_of_torch_are_there() -> None:
    """Layers of torch's activation module that act on entries, and have no facts."""
    entrywise = []
    for name in nn.modules.activation.__all__:
        kind = getattr(nn, name)
        if name in ("MultiheadAttention", "Softmax2d"):
            continue
        made = {"Threshold": (0.0, 0.0)}.get(name, (1,) if "oftm" in name else ())
        names = [op.name for op in record(kind(*made).eval(), torch.ones(2, 4)).operations]
        if all(KIND_OF.get(n) == "entrywise" for n in names):
            entrywise.append(kind)
    assert set(entrywise) == set(ACTIVATION_LAYERS)


def test_the_table_of_the_sources_says_the_same() -> None:
    names = {"logistic": "sigmoid", "leaky relu": "leaky_relu", "arctan": "atan"}
    settings = {"leaky relu": {"negative_slope": 0.1}}
    for name in ("logistic", "relu", "leaky relu", "elu", "softsign", "tanh", "arctan", "softplus"):
        row = ACTIVATIONS[name].known
        facts = activation_facts(names.get(name, name), **settings.get(name, {}))
        assert (row.lowest, row.highest) == (facts.lowest, facts.highest)
        assert row.lipschitz == facts.lipschitz
        assert row.positively_homogeneous == facts.homogeneous
        assert row.increasing == facts.increasing
        assert (row.smoothness >= 1) == (not facts.kinks)
        if row.pieces is not None:
            assert (row.pieces, row.piece_degree) == (len(facts.kinks) + 1, facts.degree)


def test_a_celu_that_grows_without_bound() -> None:
    assert activation_facts("celu", alpha=-1.0).lipschitz == math.inf


def test_unknown_ones_are_refused() -> None:
    with pytest.raises(UnknownName, match="swish"):
        activation_facts("swish")
    with pytest.raises(UnsupportedModel, match="Softmax"):
        layer_facts(nn.Softmax(1))


def test_softplus_of_a_negative_beta_is_below_0() -> None:
    facts = activation_facts("softplus", beta=-1.0)
    assert (facts.lowest, facts.highest) == (-float("inf"), 0.0)
