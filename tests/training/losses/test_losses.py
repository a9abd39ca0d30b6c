"""The twelve losses, cross-entropies, surrogates and density losses against independent code."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special
from sklearn import metrics

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.training.losses.classification import (
    LOSSES,
    classification_loss,
    loss_values,
    one_hot_rows,
)
from torchtheory.training.losses.cross_entropy import (
    binary_cross_entropy,
    binary_cross_entropy_slope,
    slope_in_probability,
    softmax_regression_gradient,
    softmax_regression_loss,
)
from torchtheory.training.losses.density_losses import (
    histogram,
    l2_density_loss,
    squared_norm,
    surprisal,
)
from torchtheory.training.losses.surrogates import (
    logistic_calibration,
    logistic_surrogate,
    logistic_surrogate_slope,
    quadratic_loss,
    zero_one_loss,
)

finite = st.floats(-8, 8, allow_nan=False, width=64)


@st.composite
def labeled_outputs(draw):
    samples, classes = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    outputs = draw(hnp.arrays(np.float64, (samples, classes), elements=finite))
    labels = draw(hnp.arrays(np.int64, (samples,), elements=st.integers(0, classes - 1)))
    return torch.from_numpy(outputs), torch.from_numpy(labels)


def by_numpy(name, o, y):
    """Every row of the table, from the slide and with numpy alone."""
    p, signs = special.softmax(o), 2 * y - 1
    gap = np.maximum(0, 0.5 - signs * o)
    return {
        "L1": np.abs(y - o).sum(),
        "L2": np.linalg.norm(y - o) ** 2,
        "expectation": np.abs(y - p).sum(),
        "regularized expectation": np.linalg.norm(y - p) ** 2,
        "Chebyshev": np.abs(p - y).max(),
        "hinge": gap.sum(),
        "squared hinge": (gap**2).sum(),
        "cubed hinge": (gap**3).sum(),
        "log": -(y * special.log_softmax(o)).sum(),
        "squared log": ((y * special.log_softmax(o)) ** 2).sum(),
        "Tanimoto": -(p @ y) / (p @ p + y @ y - p @ y),
        "Cauchy-Schwarz": -np.log(p @ y / np.linalg.norm(p) / np.linalg.norm(y)),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(case=labeled_outputs())
def test_value_and_gradient_of_every_loss(name, case):
    outputs, labels = case
    loss = classification_loss(name)
    rows = F.one_hot(labels, outputs.shape[1]).double()
    expected = [by_numpy(name, o.numpy(), y.numpy()) for o, y in zip(outputs, rows, strict=True)]
    assert loss(outputs, labels).tolist() == pytest.approx(expected, abs=1e-9, rel=1e-9)
    leaf = outputs.clone().requires_grad_()
    (autograd,) = torch.autograd.grad(loss(leaf, labels).sum(), leaf)
    near_tie = name == "Chebyshev" and outputs.shape[1] == 2  # both entries are the largest
    if not near_tie:
        torch.testing.assert_close(loss.gradient(outputs, labels), autograd, atol=1e-9, rtol=1e-9)
    assert float(loss(outputs, labels).min()) >= loss.least - 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_with_soft_targets(name):
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    targets = torch.softmax(torch.randn(5, 4, generator=generator, dtype=torch.float64), 1)
    leaf = outputs.clone().requires_grad_()
    loss = classification_loss(name)
    (autograd,) = torch.autograd.grad(loss(leaf, targets).sum(), leaf)
    torch.testing.assert_close(loss.gradient(outputs, targets), autograd)


@settings(max_examples=50, deadline=None)
@given(case=labeled_outputs(), shift=finite)
def test_identities(case, shift):
    outputs, labels = case
    values = loss_values(outputs, labels)
    p = torch.softmax(outputs, 1)
    close = torch.testing.assert_close
    close(values["Chebyshev"], values["expectation"] / 2)
    close(values["regularized expectation"], values["expectation"] + p.square().sum(1) - 1)
    close(values["squared log"], values["log"].square())
    close(values["Cauchy-Schwarz"], loss_values(2 * outputs, labels)["log"] / 2)
    moved = loss_values(outputs + shift, labels)
    for name, loss in LOSSES.items():
        if loss.on_probabilities:
            close(moved[name], values[name], atol=1e-9, rtol=1e-9)


@settings(max_examples=50, deadline=None)
@given(case=labeled_outputs(), t=st.floats(0, 1))
def test_convex_ones_are_convex(case, t):
    outputs, labels = case
    other = outputs.flip(1)
    for loss in LOSSES.values():
        if loss.convex:
            chord = t * loss(outputs, labels) + (1 - t) * loss(other, labels)
            assert bool((loss(t * outputs + (1 - t) * other, labels) <= chord + 1e-9).all())


def test_expectation_loss_is_not_convex():
    ends = torch.tensor([[0.0, 0.0], [-10.0, 0.0]]).double()
    first = torch.zeros(2, dtype=torch.long)
    loss = classification_loss("expectation")
    assert loss(ends.mean(0), first[0]) > loss(ends, first).mean() + 0.2


def test_losses_work_under_vmap_and_in_float32():
    outputs, rows = torch.randn(3, 5, 4), F.one_hot(torch.arange(5) % 4, 4).float()
    for loss in LOSSES.values():
        each = torch.vmap(lambda o, loss=loss: loss.function(o, rows))(outputs)
        assert each.dtype == torch.float32
        torch.testing.assert_close(each[1], loss(outputs[1], rows))


def test_extreme_outputs_stay_finite():
    outputs = torch.tensor([[900.0, -900.0, 0.0], [-900.0, 900.0, 0.0]]).double()
    labels = torch.tensor([0, 0])
    for loss in LOSSES.values():
        assert bool(torch.isfinite(loss(outputs, labels)).all()), loss.name
        assert bool(torch.isfinite(loss.gradient(outputs, labels)).all()), loss.name


@pytest.mark.parametrize(
    ("outputs", "targets", "error"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), LabelOutOfRange),
        (torch.zeros(2, 3), torch.tensor([0, -1]), LabelOutOfRange),
        (torch.zeros(2, 3), torch.tensor([0]), ShapeMismatch),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), ShapeMismatch),
        (torch.zeros(2, 1), torch.tensor([0, 0]), ShapeMismatch),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), EmptyData),
        (torch.full((1, 2), math.nan), torch.tensor([0]), NonFinite),
        (torch.zeros(1, 2), torch.tensor([[0.5, 0.2]]), InvalidInput),
        (torch.zeros(1, 2, dtype=torch.long), torch.tensor([0]), InvalidType),
        (torch.zeros(1, 2), [0], InvalidType),
        (torch.zeros(2, 3), torch.tensor([True, False]), ShapeMismatch),
    ],
)
def test_refused_targets(outputs, targets, error):
    with pytest.raises(error):
        one_hot_rows(outputs, targets)


def test_unknown_loss_is_named():
    with pytest.raises(UnknownName, match="hinge"):
        classification_loss("hing")


def test_log_loss_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 5
    expected = metrics.log_loss(labels, torch.softmax(outputs, 1))
    assert float(classification_loss("log").mean(outputs, labels)) == pytest.approx(expected)


# ------------------------------------------------------------------------------- cross-entropy


@settings(max_examples=30, deadline=None)
@given(z=hnp.arrays(np.float64, (7,), elements=st.floats(-15, 15)))
def test_binary_cross_entropy_links(z):
    z = torch.from_numpy(z)
    y = (torch.arange(7) % 2).double()
    p = torch.sigmoid(z)
    chain = slope_in_probability(p, y) * p * (1 - p)
    torch.testing.assert_close(chain, binary_cross_entropy_slope(z, y), atol=1e-7, rtol=1e-7)
    two = torch.stack([z, torch.zeros_like(z)], 1)
    torch.testing.assert_close(
        F.cross_entropy(two, (1 - y).long(), reduction="none"), binary_cross_entropy(z, y)
    )


def test_softmax_regression_by_hand():
    # two classes, one feature x = 1: scores 0 and log 3, so p = (1/4, 3/4)
    theta = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    x, y = torch.ones(1, 1).double(), torch.tensor([0])
    assert float(softmax_regression_loss(theta, x, y)) == pytest.approx(math.log(4))
    assert softmax_regression_gradient(theta, x, y).tolist() == [
        pytest.approx([-0.75]),
        pytest.approx([0.75]),
    ]


def test_refused_binary_input():
    with pytest.raises(InvalidInput, match="binary targets"):
        binary_cross_entropy(torch.zeros(1), -torch.ones(1))
    with pytest.raises(ShapeMismatch):
        binary_cross_entropy(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(InvalidInput, match="strictly between"):
        slope_in_probability(torch.ones(1), torch.ones(1))
    with pytest.raises(ShapeMismatch):
        softmax_regression_loss(torch.zeros(2, 3), torch.zeros(4, 2), torch.zeros(4).long())


# ------------------------------------------------------------------------------- surrogates


@settings(max_examples=50, deadline=None)
@given(f=st.floats(-500, 500), sign=st.sampled_from([-1.0, 1.0]))
def test_logistic_surrogate(f, sign):
    outputs, y = torch.tensor([f], dtype=torch.float64), torch.tensor([sign])
    expected = float(np.logaddexp(0, -sign * f))
    assert float(logistic_surrogate(outputs, y)) == pytest.approx(expected, rel=1e-12, abs=1e-300)
    assert float(logistic_surrogate(outputs, y)) / math.log(2) >= float(zero_one_loss(outputs, y))
    assert float(logistic_surrogate_slope(outputs, y)) == pytest.approx(
        -sign * special.expit(-sign * f), rel=1e-9
    )


def test_zero_one_and_quadratic_loss():
    y = torch.tensor([1.0, -1.0, 1.0, -1.0])
    decisions = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert zero_one_loss(decisions, y).tolist() == [0, 1, 1, 0]
    assert (quadratic_loss(decisions, y) / 4).tolist() == [0, 1, 1, 0]
    assert zero_one_loss(torch.zeros(4), y).sum() == 0
    with pytest.raises(LabelOutOfRange):
        zero_one_loss(decisions, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ShapeMismatch):
        quadratic_loss(torch.zeros(4, 1), y)


def test_calibration_function_is_the_gap_of_entropies():
    theta = torch.linspace(0, 1, 21, dtype=torch.float64)
    eta = ((1 + theta) / 2).numpy()
    gap = math.log(2) - (special.entr(eta) + special.entr(1 - eta))
    assert logistic_calibration(theta).tolist() == pytest.approx(gap.tolist(), abs=1e-12)
    with pytest.raises(InvalidInput):
        logistic_calibration(torch.tensor([1.5]))


# ------------------------------------------------------------------------------- densities


@settings(max_examples=30, deadline=None)
@given(
    p=hnp.arrays(np.float64, (5,), elements=st.floats(0.05, 1)),
    q=hnp.arrays(np.float64, (5,), elements=st.floats(0.05, 1)),
)
def test_density_risks_on_a_finite_space(p, q):
    weights = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    p, q = (torch.from_numpy(v) for v in (p, q))
    p, q = p / (weights * p).sum(), q / (weights * q).sum()
    law, places = weights * p, torch.arange(5)
    norm = squared_norm(lambda z: q[z], places, weights)
    square = (law * l2_density_loss(q, norm)).sum()
    expected = (weights * (q - p).square()).sum() - (weights * p.square()).sum()
    torch.testing.assert_close(square, expected)
    divergence = float(special.rel_entr(law.numpy(), (weights * q).numpy()).sum())
    entropy = -float((law * p.log()).sum())
    assert float((law * surprisal(q)).sum()) == pytest.approx(divergence + entropy)


def test_histogram_is_numpys():
    z = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges = torch.tensor([0.0, 0.1, 0.5, 0.6, 1.0], dtype=torch.float64)
    expected, _ = np.histogram(z.numpy(), edges.numpy(), density=True)
    assert histogram(z, edges).tolist() == pytest.approx(expected.tolist())


def test_refused_densities():
    with pytest.raises(InvalidInput):
        surprisal(torch.tensor([-1.0]))
    with pytest.raises(InvalidInput, match="outside"):
        histogram(torch.tensor([2.0]), torch.tensor([0.0, 1.0]))
    with pytest.raises(InvalidInput, match="increase"):
        histogram(torch.tensor([0.5]), torch.tensor([1.0, 0.0]))
    with pytest.raises(EmptyData):
        histogram(torch.empty(0), torch.tensor([0.0, 1.0]))
    with pytest.raises(ShapeMismatch):
        squared_norm(torch.exp, torch.zeros(3), torch.ones(2))
