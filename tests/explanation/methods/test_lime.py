"""LIME against weighted least squares by hand and over all sets of features."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.explanation.methods.lime import _fit, lime


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(d: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(d, 12), nn.Tanh(), nn.Linear(12, 2)).double()


@torch.no_grad()
def best_fit(net: nn.Module, x: Tensor, target: int, width: float = 0.25) -> Tensor:
    """Coefficients `[1 + d]` of the weighted fit over all sets of features of one input."""
    d = x.numel()
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=d)), dtype=torch.float64)
    scores = net(z * x)[:, target]
    weights = torch.exp(-(((1 - z.mean(1).sqrt()) / width) ** 2))
    design = torch.cat([torch.ones(len(z), 1), z], 1).double()
    root = weights.sqrt()[:, None]
    return torch.linalg.lstsq(root * design, root[:, 0] * scores).solution


def test_a_linear_score_is_recovered_from_few_sets() -> None:
    net, x = nn.Linear(6, 3).double(), points(5, 6)
    found = lime(net, x, 1, samples=40)
    assert torch.allclose(found.relevance, net.weight[1] * x)
    assert torch.allclose(found.reference, net.bias[1].expand(5))
    assert float(found.gap.abs().max()) < 1e-12  # type: ignore[union-attr]
    assert float(found.error.max()) < 1e-12  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_few_features_with_almost_all_weight_on_the_whole_input(
    features: int, width: float
) -> None:
    # the empty set weighs e^-16 at width 0.25, and e^-400 at 0.05
    net, x = nn.Linear(features, 1).double(), points(4, features)
    found = lime(net, x, width=width, generator=0)
    torch.testing.assert_close(found.relevance, (net.weight * x).detach(), rtol=1e-11, atol=1e-13)
    assert found.gap is not None
    assert float(found.gap.abs().max()) < 1e-12


def test_one_set_again_and_again_tells_nothing() -> None:
    masks, weights = torch.ones(1, 9, 2).double(), torch.ones(1, 9).double()
    with pytest.raises(InvalidInput, match="do not tell the features apart"):
        _fit(masks, torch.randn(1, 9).double(), weights, 0.0, None)
    masks[:, ::2] = 0.0  # two features that come and go together
    with pytest.raises(InvalidInput, match="do not tell the features apart"):
        _fit(masks, torch.randn(1, 9).double(), weights, 0.0, None)


def test_the_fit_is_that_of_scikit_learn() -> None:
    source = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 2, (3, 50, 4), generator=source).double()
    scores = torch.randn(3, 50, generator=source, dtype=torch.float64)
    weights = torch.rand(3, 50, generator=source, dtype=torch.float64)
    intercepts, fitted, error = _fit(masks, scores, weights, 0.7, None)
    for k in range(3):
        peer = Ridge(0.7).fit(masks[k].numpy(), scores[k].numpy(), weights[k].numpy())
        assert torch.allclose(fitted[k], torch.as_tensor(peer.coef_))
        assert float(intercepts[k]) == pytest.approx(peer.intercept_)
        # the sandwich, with 50 / (50 - 5) for the coefficients that were fitted
        design, w = torch.cat([torch.ones(50, 1).double(), masks[k]], 1), weights[k][:, None]
        ridge = torch.diag(torch.tensor([0.0, 0.7, 0.7, 0.7, 0.7]).double())
        bread = torch.linalg.inv(design.T @ (w * design) + ridge)
        left = scores[k] - intercepts[k] - masks[k] @ fitted[k]
        meat = design.T @ ((w[:, 0] * left).square()[:, None] * design)
        variance = (bread @ meat @ bread).diagonal() * 50 / 45
        assert torch.allclose(error[k], variance[1:].sqrt())


def test_intervals_cover_the_best_fit_over_all_sets() -> None:
    net, x = network(5), points(1, 5)
    truth = best_fit(net, x[0], 1)[1:]
    found = lime(net, x.expand(400, -1), 1, samples=200, generator=2)
    assert found.error is not None
    hits = (found.relevance - truth).abs() <= 1.96 * found.error
    for k in range(5):
        good = int(hits[:, k].sum())
        assert stats.binomtest(good, 400, 0.95).pvalue > 1e-4
    # and the standard errors are the spread over draws
    assert torch.allclose(found.error.mean(0), found.relevance.std(0), rtol=0.2)


def test_errors_fall_with_the_root_of_samples() -> None:
    net, x = network(5), points(1, 5)
    errors = [float(lime(net, x, 1, samples=m).error.mean()) for m in (500, 8000)]  # type: ignore[union-attr]
    assert math.log(errors[0] / errors[1], 16) == pytest.approx(0.5, abs=0.06)


def test_selected_features_are_the_large_ones() -> None:
    net = nn.Linear(8, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.05, -3.0, 0.1, 2.0, 0.0, 0.02, 5.0, -0.1]]))
    found = lime(net, torch.ones(6, 8).double(), samples=2000, select=3)
    assert ((found.relevance != 0) == torch.tensor([0, 1, 0, 1, 0, 0, 1, 0]).bool()).all()
    assert torch.allclose(found.relevance[:, [1, 3, 6]], net.weight[:, [1, 3, 6]], atol=0.1)
    assert ((found.error > 0) == (found.relevance != 0)).all()  # type: ignore[operator]
    every = lime(net, torch.ones(1, 8).double(), samples=300, select=8)
    assert torch.allclose(every.relevance, net.weight)


def test_a_ridge_shrinks() -> None:
    net, x = nn.Linear(4, 1).double(), points(1, 4)
    sizes = [
        float(lime(net, x, samples=100, penalty=p).relevance.norm()) for p in (0.0, 10.0, 1000.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 0.1 * sizes[0]


def test_patches_of_images() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, 1)).double()
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    found = lime(net, x, samples=50, patch=2)
    terms = (net[1].weight.reshape(2, 4, 4) * x).detach()
    wanted = terms.reshape(2, 2, 2, 2, 2, 2).sum((1, 3, 5))
    assert torch.allclose(found.relevance.reshape(2, 2, 2, 2, 2, 2).sum((1, 3, 5)), wanted)


def test_refusals() -> None:
    net, x = nn.Linear(30, 1).double(), torch.zeros(1, 30).double()
    with pytest.raises(InvalidInput, match="needs samples=32 or more"):
        lime(net, x, samples=20)
    with pytest.raises(InvalidInput, match="select must be a whole number from 1 to 30"):
        lime(net, x, select=31)
    with pytest.raises(InvalidInput, match="do not tell the features apart"):
        lime(net, x, samples=32, width=1e-4)
