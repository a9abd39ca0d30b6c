"""Occlusion, and taking features away: against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.removal import Removal
from torchtheory.explanation.score import open_score


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def image_network(channels: int = 2) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 35, 3)
        )
    return net.double()


@torch.no_grad()
def by_loop(
    net: nn.Module, x: Tensor, target: int, windows: list[tuple[slice, slice]], fill: float = 0.0
) -> Tensor:
    """Falls in equal parts on the pixels of windows, means over windows."""
    total, count = torch.zeros_like(x), torch.zeros_like(x)
    for rows, columns in windows:
        moved = x.clone()
        moved[:, :, rows, columns] = fill
        fall = net(x)[:, target] - net(moved)[:, target]
        size = moved[0, :, rows, columns].numel()
        total[:, :, rows, columns] += fall[:, None, None, None] / size
        count[:, :, rows, columns] += 1
    return total / count


def test_a_linear_score_falls_by_its_terms() -> None:
    net, x = nn.Linear(5, 3).double(), points(4, 5)
    assert torch.allclose(occlusion(net, x, 2).relevance, net.weight[2] * x)
    assert torch.allclose(occlusion(net, x, 2, baseline=0.5).relevance, net.weight[2] * (x - 0.5))
    background = points(7, 5, seed=1)
    found = occlusion(net, x, 2, background=background)
    assert torch.allclose(found.relevance, net.weight[2] * (x - background.mean(0)))
    assert found.forwards == 1 + 5 * 7
    assert occlusion(net, x, 2).forwards == 1 + 5
    assert found.gap is None


def test_pixels_patches_and_strides() -> None:
    net, x = image_network(), points(3, 2, 5, 7)
    one = [(slice(r, r + 1), slice(c, c + 1)) for r in range(5) for c in range(7)]
    assert torch.allclose(occlusion(net, x, 1).relevance, by_loop(net, x, 1, one))
    whole = [(slice(r, r + 2), slice(c, c + 3)) for r in (0, 2, 4) for c in (0, 3, 6)]
    found = occlusion(net, x, 1, patch=(2, 3), baseline=0.3)
    assert torch.allclose(found.relevance, by_loop(net, x, 1, whole, 0.3))
    # windows with a stride end at the border
    moved = [(slice(r, r + 2), slice(c, c + 3)) for r in (0, 1, 2, 3) for c in (0, 2, 4)]
    found = occlusion(net, x, 1, patch=(2, 3), stride=(1, 2))
    assert torch.allclose(found.relevance, by_loop(net, x, 1, moved))
    assert found.forwards == 1 + len(moved)
    last = [(slice(r, r + 2), slice(c, c + 3)) for r in (0, 2, 3) for c in (0, 3, 4)]
    found = occlusion(net, x, 1, patch=(2, 3), stride=(2, 3))
    assert torch.allclose(found.relevance, by_loop(net, x, 1, last))


def test_probabilities_and_groups() -> None:
    net, x = nn.Linear(4, 3).double(), points(6, 4)
    found = occlusion(net, x, probabilities=True, features=torch.tensor([7, 3, 7, 3]))
    chosen = net(x).argmax(1)
    for group in ([0, 2], [1, 3]):
        moved = x.clone()
        moved[:, group] = 0
        fall = (net(x).softmax(1) - net(moved).softmax(1)).gather(1, chosen[:, None])[:, 0]
        assert torch.allclose(found.relevance[:, group], fall[:, None].expand(-1, 2) / 2)


def test_words_are_replaced_by_words() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.last = nn.Embedding(6, 3), nn.Linear(3, 2)

        def forward(self, words: Tensor) -> Tensor:
            return self.last(self.embedding(words).sum(1).tanh())

    net, x = Bag().double(), torch.tensor([[1, 2, 3], [4, 5, 1]])
    found = occlusion(net, x, 0, baseline=torch.zeros(3, dtype=torch.long))
    for k in range(3):
        moved = x.clone()
        moved[:, k] = 0
        fall = (net(x) - net(moved))[:, 0]
        assert torch.allclose(found.relevance[:, k], fall)


def test_removal_takes_masks_of_each_sample_and_some_samples() -> None:
    net, x = image_network(), points(3, 2, 5, 7)
    background = points(4, 2, 5, 7, seed=3)
    with open_score(net, x, 1) as score:
        removal = Removal(score, patch=3, background=background)
        assert removal.count == 2 * 3
        kept = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0)) < 0.5
        found = removal(kept)
        for n in range(3):
            for m in range(5):
                pixels = kept[n, m].reshape(2, 3).repeat_interleave(3, 0)[:5]
                pixels = pixels.repeat_interleave(3, 1)[:, :7]
                mixed = torch.where(pixels, x[n], background)
                assert torch.allclose(found[n, m], net(mixed)[:, 1].mean())
        some = torch.tensor([2, 0])
        assert torch.allclose(removal(kept[some], some), found[some])
        assert torch.allclose(removal(kept[1], some), removal(kept[1])[some])
        assert torch.allclose(removal.nothing_left(), net(background)[:, 1].mean().expand(3))


def test_refusals() -> None:
    net, x = nn.Linear(4, 2), torch.randn(2, 4)
    with pytest.raises(InvalidInput, match="patches are for images"):
        occlusion(net, x, patch=2)
    with pytest.raises(InvalidInput, match="give patch as well"):
        occlusion(net, x, stride=1)
    with pytest.raises(ShapeMismatch, match=r"have the shape \[4\], not \[3\]"):
        occlusion(net, x, features=torch.arange(3))
    with pytest.raises(InvalidType, match="numbered by whole numbers"):
        occlusion(net, x, features=torch.randn(4))
    images = torch.randn(1, 2, 5, 7)
    with pytest.raises(
        InvalidInput, match="longer than the patch of 2 x 2 and would leave pixels out"
    ):
        occlusion(image_network(), images, patch=2, stride=3)
    with pytest.raises(
        InvalidInput, match="the height of a patch must be a whole number from 1 to 5"
    ):
        occlusion(image_network(), images, patch=6)
    with pytest.raises(InvalidInput, match="features= or patch=, not both"):
        occlusion(image_network(), images, patch=2, features=torch.zeros(2, 5, 7).long())
