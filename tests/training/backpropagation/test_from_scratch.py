"""The hand-written perceptron against numpy as printed, and against torch."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.data.two_clouds import (
    bayes_accuracy,
    cloud_posterior,
    legacy_stream,
    log_densities,
    two_gaussian_clouds,
)
from torchtheory.training.backpropagation.from_scratch import (
    MLP,
    BinaryCrossEntropy,
    GradientDescent,
    LinearLayer,
    ReLU,
    lecture_run,
    train_mlp,
)


def numpy_run(samples, widths, rate, steps):
    """The lectures' run in numpy, from its description: losses and accuracies before each step."""
    stream = np.random.RandomState(0)
    x = np.vstack(
        [
            stream.multivariate_normal([2, 2], [[2, 1], [1, 2]], samples),
            stream.multivariate_normal([-1, -1], [[2, -1], [-1, 2]], samples),
        ]
    )
    y = np.repeat([0.0, 1.0], samples)[:, None]
    pairs = list(pairwise(widths))
    weights = [stream.randn(a, b) / np.sqrt((a + b) / 2) for a, b in pairs]
    biases = [np.zeros(b) for _, b in pairs]
    losses, accuracies = [], []
    n = len(x)
    for _ in range(steps):
        values = [x]
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            z = values[-1] @ w + b
            values.append(np.maximum(z, 0) if i < len(weights) - 1 else z)
        p = np.clip(1 / (1 + np.exp(-values[-1])), 1e-12, 1 - 1e-12)
        losses.append(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
        accuracies.append(np.mean((p > 0.5) == (y > 0.5)))
        d = (p - y) / n
        for i in reversed(range(len(weights))):
            below = (d @ weights[i].T) * (values[i] > 0)
            step = rate * (values[i].T @ d) / n, rate * d.sum(0) / n
            weights[i], biases[i] = weights[i] - step[0], biases[i] - step[1]
            d = below
    return losses, accuracies


def test_the_lectures_run_is_numpys():
    losses, accuracies = numpy_run(30, (2, 7, 6, 1), 0.5, 12)
    ours = lecture_run(30, (2, 7, 6, 1), steps=12)
    assert ours.losses.tolist() == pytest.approx(losses, abs=1e-13)
    assert ours.accuracies.tolist() == pytest.approx(accuracies, abs=1e-13)


def test_dividing_twice_is_a_smaller_rate():
    printed = lecture_run(25, (2, 9, 1), rate=0.5, steps=20)
    right = lecture_run(25, (2, 9, 1), rate=0.5 / 50, steps=20, divide_again=False)
    torch.testing.assert_close(printed.losses, right.losses)


@settings(max_examples=20, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    samples=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_gradients_are_autograds(widths, samples, seed):
    net = MLP([*widths, 1], seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (samples, 1), generator=generator).double()
    loss = BinaryCrossEntropy()
    value, y_hat = loss.forward(net.forward(x), y)
    net.backward(loss.backward(y_hat, y))
    twin = net.as_torch()
    theirs = F.binary_cross_entropy_with_logits(twin(x), y)
    torch.testing.assert_close(value, theirs.detach())
    gradients = torch.autograd.grad(theirs, list(twin.parameters()))
    ours = [g for layer in net.linear_layers for g in (layer.dW.t(), layer.db)]
    for a, b in zip(ours, gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


def test_decay_is_that_of_sgd_divided_by_the_rate():
    net = MLP([2, 3, 1], 4)
    twin = net.as_torch()
    x, y = two_gaussian_clouds(10)
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p in twin.parameters() if p.ndim == 2], "weight_decay": 0.01 / 0.2},
            {"params": [p for p in twin.parameters() if p.ndim == 1]},
        ],
        lr=0.2,
    )
    train_mlp(net, x, y, GradientDescent(0.2, 0.01), steps=15)
    for _ in range(15):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(twin(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(net.linear_layers[0].W.t(), twin[0].weight.detach())
    torch.testing.assert_close(net.linear_layers[-1].b, twin[-1].bias.detach())


def test_loss_by_hand_and_clipping():
    z = torch.tensor([[math.log(3)], [0.0]], dtype=torch.float64)
    y = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    expected = (math.log(4 / 3) + math.log(2)) / 2
    for clip in (None, 1e-12):
        value, y_hat = BinaryCrossEntropy(clip).forward(z, y)
        assert float(value) == pytest.approx(expected)
        assert y_hat[:, 0].tolist() == pytest.approx([0.75, 0.5])
    far = torch.tensor([[-1000.0]]).double()
    assert float(BinaryCrossEntropy().forward(far, y[:1])[0]) == 1000
    clipped = BinaryCrossEntropy(1e-12).forward(far, y[:1])[0]
    assert float(clipped) == pytest.approx(-math.log(1e-12))


def test_relu_and_linear_by_hand():
    relu = ReLU()
    assert relu.forward(torch.tensor([-2.0, 0.0, 3.0])).tolist() == [0, 0, 3]
    assert relu.backward(torch.tensor([5.0, 6.0, 7.0])).tolist() == [0, 0, 7]
    layer = LinearLayer(2, 1)
    layer.W = torch.tensor([[1.0], [2.0]])
    layer.b = torch.tensor([10.0])
    assert layer.forward(torch.tensor([[3.0, 4.0]])).tolist() == [[21.0]]
    assert layer.backward(torch.tensor([[2.0]])).tolist() == [[2.0, 4.0]]
    assert layer.dW.tolist() == [[6.0], [8.0]]
    assert layer.db.tolist() == [2.0]


def test_the_data_set_is_the_sources_and_numpys_global_stream_is_untouched():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    x, y = two_gaussian_clouds()
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    stream = np.random.RandomState(0)
    first = stream.multivariate_normal([2, 2], [[2, 1], [1, 2]], 1000)
    second = stream.multivariate_normal([-1, -1], [[2, -1], [-1, 2]], 1000)
    assert (x.numpy() == np.vstack([first, second])).all()
    assert y[:1000].sum() == 0
    assert y[1000:].sum() == 1000


def test_densities_and_posterior():
    x, y = two_gaussian_clouds(200, 5)
    for k, (mean, covariance) in enumerate(
        [([2, 2], [[2, 1], [1, 2]]), ([-1, -1], [[2, -1], [-1, 2]])]
    ):
        expected = stats.multivariate_normal(mean, covariance).logpdf(x.numpy())
        assert log_densities(x)[:, k].tolist() == pytest.approx(expected.tolist())
    big_x, big_y = two_gaussian_clouds(20_000, 6)
    fitted = QuadraticDiscriminantAnalysis().fit(big_x.numpy(), big_y[:, 0].numpy())
    agree = (fitted.predict(x.numpy()) == (cloud_posterior(x) > 0.5).double().numpy()).mean()
    assert agree > 0.98
    assert float(((cloud_posterior(x) > 0.5) == (y[:, 0] == 1)).double().mean()) > 0.9


def test_bayes_accuracy_by_a_single_integral():
    """Rotated by 45 degrees both covariances are diagonal: the rule is a bound on v² for each u."""
    s3 = math.sqrt(3)
    u0, u1 = 2 * math.sqrt(2), -math.sqrt(2)

    def right(u):
        f0, f1 = stats.norm.pdf(u, u0, s3), stats.norm.pdf(u, u1, 1)
        # class 0 where f0(u) N(v; 0, 1) > f1(u) N(v; 0, 3), that is v² < 3 log(sqrt 3 f0/f1)
        bound = 3 * math.log(s3 * f0 / f1)
        if bound <= 0:
            return f1
        v = math.sqrt(bound)
        return f0 * (2 * stats.norm.cdf(v) - 1) + f1 * 2 * stats.norm.sf(v / s3)

    exact, _ = integrate.quad(right, -9, 13, limit=400, points=[0.0, 2.0])
    assert bayes_accuracy() == pytest.approx(exact / 2, abs=1e-5)


def test_refused_input():
    with pytest.raises(InvalidInput):
        BinaryCrossEntropy(0.7)
    with pytest.raises(ShapeMismatch):
        BinaryCrossEntropy().forward(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(InvalidInput):
        MLP([3])
    with pytest.raises(InvalidInput):
        LinearLayer(0, 2)
    with pytest.raises(ShapeMismatch):
        LinearLayer(3, 2).forward(torch.zeros(4, 2).double())
    with pytest.raises(InvalidInput):
        GradientDescent(-1.0)
    with pytest.raises(InvalidType):
        legacy_stream("0")
    with pytest.raises(ShapeMismatch):
        cloud_posterior(torch.zeros(2, 3))
    x, y = two_gaussian_clouds(20)
    with pytest.raises(NonFinite, match="lower the rate"):
        train_mlp(MLP([2, 5, 5, 1]), x, y, GradientDescent(1e200), steps=10)
