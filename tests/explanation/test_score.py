"""The score that every method asks: hard models, hard targets, and inputs that look alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.explanation.lrp import lrp
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
from torchtheory.explanation.methods.taylor import find_root, taylor
from torchtheory.explanation.score import open_score
from torchtheory.nets.activations.table import as_layer

GRADIENTS: list[Any] = [
    sensitivity,
    gradient_times_input,
    partial(smooth_gradient, samples=3, generator=0),
    partial(integrated_gradients, steps=3),
    taylor,
    partial(minimal_relevant_set, steps=2, draws=2, generator=0),
]
QUESTIONS: list[Any] = [
    occlusion,
    partial(lime, samples=40, generator=0),
    shapley,
    partial(shapley, permutations=4, generator=0),
]


class Positioned(nn.Module):
    """Words with their positions, added in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.in_place = in_place
        self.words = nn.Embedding.from_pretrained(torch.randn(7, 3, generator=generator))
        self.places = nn.Parameter(torch.randn(5, 3, generator=generator))
        self.last = nn.Parameter(torch.randn(3, 2, generator=generator))

    def forward(self, words: Tensor) -> Tensor:
        h = self.words(words)
        if self.in_place:
            h += self.places
        else:
            h = h + self.places
        return h.tanh().sum(1) @ self.last


class Writing(nn.Module):
    """Two inputs, overwritten or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.last = nn.Parameter(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        if self.in_place:
            t -= 0.5
            return t.relu_() @ self.last + u.mul_(2) @ self.last
        return (t - 0.5).relu() @ self.last + (u * 2) @ self.last


@pytest.mark.parametrize("method", [*GRADIENTS, *QUESTIONS, lrp])
def test_a_model_may_write_into_its_inputs(method: Any) -> None:
    x = tuple(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2)))
    kept = [t.clone() for t in x]
    found, plain = method(Writing(True), x), method(Writing(False), x)
    torch.testing.assert_close(found.flat, plain.flat)
    assert all(torch.equal(t, k) for t, k in zip(x, kept, strict=True))
    words = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(3))
    found, plain = method(Positioned(True), words), method(Positioned(False), words)
    torch.testing.assert_close(found.flat, plain.flat)


class Pair(nn.Module):
    """Two sentences by the same embedding, the second first."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        generator = torch.Generator().manual_seed(1)
        self.words = nn.Embedding.from_pretrained(torch.randn(7, 3, generator=generator))
        self.last = nn.Parameter(torch.randn(2, 3, generator=generator))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        after = self.words(second.to(self.kind)).sum(1)
        before = self.words(first.to(self.kind)).sum(1)
        return before @ self.last[0] - after @ self.last[1]


@pytest.mark.parametrize("same", ["the same tensor", "an equal one", "equal in one row"])
def test_two_inputs_may_have_the_same_words(same: str) -> None:
    net = Pair(torch.int64)
    first = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(0))
    second = first if same == "the same tensor" else first.clone()
    if same == "equal in one row":
        second[1:] = (second[1:] + 1) % 7
    before = (net.words(first) @ net.last[0]).detach()
    after = -(net.words(second) @ net.last[1]).detach()
    for method in (gradient_times_input, shapley_of_words, occlusion, integrated_gradients):
        found = method(net, (first, second)).relevance
        torch.testing.assert_close(found[0], before, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1], after, rtol=1e-4, atol=1e-5)
    one = tuple(t[:1] for t in (first, second))
    found = occlusion(net, one).relevance
    torch.testing.assert_close(found[0], before[:1], rtol=1e-4, atol=1e-5)


def shapley_of_words(net: nn.Module, x: Any) -> Any:
    return shapley(net, x, permutations=4, generator=0)


def test_equal_words_that_the_model_copies_are_told_apart_by_their_order() -> None:
    words = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0)).int()
    found = gradient_times_input(Pair(torch.int64), (words, words.clone()))
    assert len(found.relevance) == 2
    torch.testing.assert_close(found.total, found.score)


def test_words_are_embedded_as_they_stand() -> None:
    class Turned(Pair):
        def forward(self, words: Tensor) -> Tensor:  # type: ignore[override]
            return self.words(words.T).sum(0) @ self.last.T

    with pytest.raises(UnsupportedModel, match=r"no embedding takes the whole numbers \[2, 5\]"):
        occlusion(Turned(torch.int64), torch.ones(2, 5, dtype=torch.long))


def test_gradients_take_one_pass_each_way() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for method in (sensitivity, gradient_times_input):
        found = method(net, x)
        assert (found.forwards, found.backwards) == (1, 1)
        many = method(net, x.repeat(20_000, 1))
        assert (many.forwards, many.backwards) == (2, 1)
        torch.testing.assert_close(many.flat[:5], found.flat)
    slope = torch.func.vmap(torch.func.jacrev(net))(x)
    torch.testing.assert_close(sensitivity(net, x, 1).flat, slope[:, 1].detach())
    words = torch.zeros(2, 5, dtype=torch.long)
    assert sensitivity(Positioned(False), words).forwards == 2


@pytest.mark.parametrize("method", GRADIENTS[2:4] + GRADIENTS[5:] + QUESTIONS)
def test_a_target_for_some_rows_only_is_refused(method: Any) -> None:
    net = nn.Linear(4, 3)
    labels = torch.tensor([0, 2])
    with pytest.raises(InvalidInput, match="one number per row of outputs"):
        method(net, torch.eye(4)[:2], lambda out: out[torch.arange(2), labels])


def test_weights_of_outputs_are_finite() -> None:
    with pytest.raises(NonFinite, match="weights of the outputs"):
        gradient_times_input(nn.Linear(4, 2), torch.ones(2, 4), torch.tensor([1.0, torch.nan]))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 1),
        as_layer(lambda t: t.sum(1)),
        as_layer(lambda t: t[:, :, None].expand(-1, 4, 3)),
    ],
)
def test_probabilities_are_those_of_classes(model: nn.Module) -> None:
    target = (0, 1) if model(torch.ones(1, 4)).ndim == 3 else None
    for method in QUESTIONS:
        with pytest.raises(InvalidInput, match="outputs \\[n, classes\\]"):
            method(model, torch.ones(2, 4), target, probabilities=True)


def test_classes_and_votes_can_be_asked() -> None:
    votes = as_layer(lambda t: (t > 0).long())
    x = torch.tensor([[1.0, 2.0, -1.0]])
    for method in QUESTIONS:
        found = method(votes, x, 1).flat
        torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0]]), rtol=0, atol=1e-5)
    with pytest.raises(UnsupportedModel, match="complex"):
        occlusion(as_layer(lambda t: t.to(torch.complex64)), x)


def test_inside_of_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    methods: list[Callable[..., Any]] = [*GRADIENTS, *QUESTIONS, lrp]
    plain = [method(net, x).flat for method in methods]
    with torch.inference_mode():
        there = [method(net, x.clone()).flat for method in methods]
        assert torch.is_inference_mode_enabled()
    for a, b in zip(there, plain, strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_is_left_behind_by_a_failure() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 3:
                raise RuntimeError("too many")
            return self.inner(x)

    net, x = Failing().train(), torch.eye(4)[:2]
    random = torch.get_rng_state()
    for method in (smooth_gradient, occlusion, find_root):
        with pytest.raises(TorchTheoryError, match="too many"):
            method(net, x)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert torch.is_grad_enabled()


def test_a_background_has_samples_of_every_input() -> None:
    x = (torch.ones(2, 4), torch.ones(2, 4))
    for first, second in ((0, 0), (2, 3)):
        background = (torch.zeros(first, 4), torch.zeros(second, 4))
        with pytest.raises(EmptyData, match=f"1 or more, not {first} and {second}"):
            occlusion(Writing(False), x, background=background)
    with pytest.raises(EmptyData, match="1 or more, not 0"):
        integrated_gradients(nn.Linear(4, 1), x[0], background=torch.zeros(0, 4))


def test_a_score_does_not_change_its_points() -> None:
    with open_score(as_layer(lambda t: t.mul_(2).sum(1)), torch.ones(2, 3)) as score:
        score.in_chunks(score.points)
        assert bool((score.points == 1).all())
