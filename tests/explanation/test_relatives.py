"""What every method of explanation has in common, on every kind of input."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.methods.gradients import (
    gradient_times_input,
    integrated_gradients,
    sensitivity,
    smooth_gradient,
)
from torchtheory.explanation.methods.lime import lime
from torchtheory.explanation.methods.minimal_sets import minimal_relevant_set
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.explanation.methods.taylor import taylor
from torchtheory.explanation.score import open_score

METHODS: dict[str, Any] = {
    "sensitivity": sensitivity,
    "squared sensitivity": partial(sensitivity, power=2),
    "gradient times input": gradient_times_input,
    "SmoothGrad": partial(smooth_gradient, samples=3),
    "integrated gradients": partial(integrated_gradients, steps=4),
    "Taylor": taylor,
    "occlusion": occlusion,
    "LIME": partial(lime, samples=60),
    "Shapley": shapley,
    "sampled Shapley": partial(shapley, permutations=4),
    "minimal set": partial(minimal_relevant_set, steps=3, draws=4),
}
RANDOM = {"SmoothGrad", "LIME", "sampled Shapley", "minimal set"}
COMPLETE = {"integrated gradients", "Shapley", "sampled Shapley"}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.recurrent = nn.LSTM(3, 4, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.recurrent(self.embedding(words))[0][:, -1])


class Both(nn.Module):
    """A table beside words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.table = Words(), nn.Linear(4, 3)

    def forward(self, table: Tensor, words: Tensor) -> Tensor:
        return torch.tanh(self.table(table)) + self.words(words)


def cases() -> dict[str, tuple[nn.Module, Any]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        table = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        image = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
        words = torch.randint(0, 9, (4, 5))
        return {
            "table": (table, torch.randn(4, 6)),
            "image": (image, torch.randn(4, 2, 3, 4)),
            "words": (Words(), words),
            "both": (Both(), (torch.randn(4, 4), words)),
        }


CASES = cases()


def parts(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else x


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_every_kind_of_input(name: str, kind: str) -> None:
    model, x = CASES[kind]
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found: Explanation = METHODS[name](model, x, 1)
    for r, given in zip(parts(found.relevance), parts(x), strict=True):
        assert r.shape == given.shape
        assert torch.isfinite(r).all()
        assert not r.requires_grad
        assert r.dtype == torch.float32
    if found.error is not None:
        for e, given in zip(parts(found.error), parts(x), strict=True):
            assert e.shape == given.shape
            assert (e >= 0).all()
    assert (found.classes == 1).all()
    assert torch.allclose(found.score, model(*parts(x))[:, 1].detach(), atol=1e-6)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    if name in COMPLETE:
        assert found.gap is not None
        assert float(found.gap.abs().max()) < (0.02 if kind == "image" else 1e-4)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - RANDOM))
def test_samples_do_not_see_each_other(name: str) -> None:
    """One by one and all together give the same; where noise is drawn, each has its own."""
    model, x = CASES["image"]
    together = METHODS[name](model, x).relevance
    single = torch.cat([METHODS[name](model, x[k : k + 1]).relevance for k in range(4)])
    assert torch.allclose(together, single, atol=1e-5)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_a_seed_decides_and_another_seed_differs(name: str) -> None:
    model, x = CASES["table"]
    one = METHODS[name](model, x, generator=1).relevance
    assert torch.equal(one, METHODS[name](model, x, generator=1).relevance)
    assert not torch.equal(one, METHODS[name](model, x, generator=2).relevance)


@pytest.mark.parametrize("name", METHODS)
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = CASES["table"]
    model = copy.deepcopy(model).double()
    whole = METHODS[name](model, x)
    monkeypatch.setattr("torchtheory.explanation.score.AT_ONCE", 1)  # 16 points at a time
    small = METHODS[name](model, x)
    if name in {"SmoothGrad", "minimal set"}:  # drawn chunk by chunk: other numbers, same law
        assert small.relevance.shape == whole.relevance.shape
    else:
        assert torch.allclose(whole.relevance, small.relevance, atol=1e-12)


def test_what_has_no_slope_is_still_explained_by_asking() -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach().round().sum(1)

    x = torch.tensor([[1.2, 2.1, -3.4]])
    for method in (sensitivity, gradient_times_input, integrated_gradients, taylor):
        with pytest.raises(UnsupportedModel, match="occlusion, shapley or lime"):
            method(Rounded(), x)
    for method in (occlusion, shapley):
        assert torch.allclose(method(Rounded(), x).relevance, torch.tensor([[1.0, 2.0, -3.0]]))


def test_entries_and_numbers_of_the_inputs() -> None:
    model, x = CASES["both"]
    with open_score(model, x, 1) as score:
        assert score.points.shape == (4, 4 + 5 * 3)
        assert score.places.tolist() == [0, 1, 2, 3] + [4 + k for k in range(5) for _ in range(3)]
        numbers = score.by_place(torch.ones(1, 19))
        assert numbers.tolist() == [[1, 1, 1, 1, 3, 3, 3, 3, 3]]
        assert torch.allclose(score.by_place(score.shared(numbers)), numbers)
        assert torch.equal(score.points_of(x), score.points)
        values, gradients = score.gradients_in_chunks(score.points)
        assert torch.allclose(values, score.values)
        assert torch.allclose(gradients, score.gradients(score.points)[1])
