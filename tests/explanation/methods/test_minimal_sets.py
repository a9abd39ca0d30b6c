"""Minimal relevant sets where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.explanation.methods.minimal_sets import minimal_relevant_set


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Some(nn.Module):
    """A score of features 1, 4 and 7 that is not linear in them."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * torch.tanh(x[:, 1]) + x[:, 4] * (1 + x[:, 7].sigmoid()) + x[:, 7]


def test_the_features_of_the_score_are_found_and_no_others() -> None:
    x = points(12, 10) + torch.tensor([0.0, 2.0, 0, 0, 2.0, 0, 0, 2.0, 0, 0])
    found = minimal_relevant_set(Some(), x, penalty=0.2)
    wanted = torch.zeros(10).bool()
    wanted[[1, 4, 7]] = True
    assert torch.equal(found.weights > 0, wanted.expand(12, 10))
    assert torch.equal(found.kept(0.2), wanted.expand(12, 10))
    assert (found.order[:, :3].sort(1).values == torch.tensor([1, 4, 7])).all()
    # exactly, since nothing else enters the score
    assert torch.equal(found.distortions[:, 3:], torch.zeros(12, 8).double())
    assert (found.distortions[:, 2] > 1e-3).all()
    assert (found.smallest(0.0) == 3).all()
    assert found.sizes.tolist() == list(range(11))
    assert found.gap is None
    assert "minimal relevant set" in repr(found)


def test_weights_of_a_linear_score_are_those_of_the_formula() -> None:
    r"""$D(s)=\frac12\sum(1-s_i)^2a_i^2$ with $a_i=w_i\sigma$ at $x$ = mean of the noise."""
    w = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    net = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(w[None])
    penalty = 0.4
    found = minimal_relevant_set(
        net, torch.zeros(1, 4).double(), penalty=penalty, steps=600, draws=400, rate=0.05
    )
    everything = float(w.square().sum()) / 2
    assert float(found.everything) == pytest.approx(everything, rel=0.3)  # of 256 draws
    threshold = penalty * float(found.everything) / 4
    wanted = (1 - threshold / w.square()).clamp(0, 1)
    assert torch.allclose(found.weights[0], wanted, atol=0.05)


def test_distortions_of_a_linear_score_are_squares_of_gaussians() -> None:
    net = nn.Linear(10, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(1.0)
    x = torch.zeros(100, 10).double()
    found = minimal_relevant_set(net, x, sigma=3.0, steps=2, draws=2, generator=0)
    # half the square of a Gaussian of variance 9 · 10, from 25,600 draws
    assert float(found.everything.mean()) == pytest.approx(45, rel=0.05)
    # a square has √2 times its mean as standard deviation: by 64 draws, √2 / 8
    assert float(found.distortion_errors[:, 0].mean()) == pytest.approx(2**0.5 / 8, rel=0.15)
    size = found.smallest(0.3)[:, None]
    enough = found.distortions <= 0.3
    assert enough.gather(1, size).all()
    assert not (enough & (found.sizes < size)).any()


def test_all_features_are_always_enough() -> None:
    found = minimal_relevant_set(Some(), points(2, 10), steps=2, draws=2)
    rounded = replace(found, distortions=found.distortions + 1e-14)
    assert rounded.smallest(0.0).tolist() == [10, 10]


def test_noise_from_a_background() -> None:
    """Feature 0 never changes in the background, so keeping it gains nothing."""
    background = points(200, 3)
    background[:, 0] = 1.5
    x = torch.tensor([[1.5, 2.0, 0.3]]).double()
    net = nn.Linear(3, 1).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[5.0, 2.0, 0.0]]))
    found = minimal_relevant_set(net, x, background=background)
    assert found.kept().tolist() == [[False, True, False]]
    with pytest.raises(InvalidInput, match="stays the same whatever the noise"):
        minimal_relevant_set(net, x, background=x.expand(5, -1))


def test_words_and_patches_have_their_own_weights() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)

        def forward(self, words: Tensor) -> Tensor:
            return self.embedding(words)[:, 0].sum(1)

    found = minimal_relevant_set(First().double(), torch.tensor([[1, 2, 3]]))
    assert torch.allclose(found.relevance, found.weights)
    assert found.kept().tolist() == [[True, False, False]]

    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :, :2, :2].sum((1, 2, 3))

    found = minimal_relevant_set(Corner(), torch.ones(1, 2, 4, 4), patch=2)
    assert found.kept().tolist() == [[True, False, False, False]]
    inside = found.relevance[0, :, :2, :2]
    assert torch.equal(inside, inside[0, 0, 0].expand(2, 2, 2))


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="penalty must be a positive number"):
        minimal_relevant_set(Some(), points(1, 10), penalty=0)
    with pytest.raises(InvalidInput, match="sigma must be a positive number"):
        minimal_relevant_set(Some(), points(1, 10), sigma=-1)
