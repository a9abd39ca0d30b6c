"""Sources with a known entropy, and models that are listed by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.language.listed import ListedModel
from torchtheory.sequences.language.sources import MarkovText, python_manual


def test_the_manual_is_english_text() -> None:
    text = python_manual()
    assert len(text) > 100_000
    assert " the " in text


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_stationary_law_is_kept_by_a_step(order: int) -> None:
    chain = MarkovText.random(3, order, generator=1)
    law = chain.stationary()
    assert float(law.sum()) == pytest.approx(1)
    assert float(law.min()) > 0
    assert torch.allclose((law.unsqueeze(-1) * chain.transitions).sum(0), law)


def test_entropies_by_hand() -> None:
    stay = 0.8
    chain = MarkovText(torch.tensor([[stay, 0.2], [0.4, 0.6]]))
    law = [2 / 3, 1 / 3]

    def h(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert chain.stationary().tolist() == pytest.approx(law)
    assert chain.entropy_rate == pytest.approx(law[0] * h(0.8) + law[1] * h(0.4))
    assert chain.conditional_entropy(0) == pytest.approx(h(law[0]))


def test_less_context_is_never_better() -> None:
    chain = MarkovText.random(3, 3, sharpness=2, generator=2)
    values = [chain.conditional_entropy(j) for j in range(4)]
    assert values == sorted(values, reverse=True)
    assert values[0] <= math.log(3)


def test_samples_follow_the_chain() -> None:
    chain = MarkovText.random(2, 2, generator=3)
    x = chain.sample(20_000, 6, generator=4)
    assert x.shape == (20_000, 6)
    joint = chain.stationary().unsqueeze(-1) * chain.transitions
    for start in (0, 3):
        for word in itertools.product(range(2), repeat=3):
            p = float(joint[word])
            share = (x[:, start : start + 3] == torch.tensor(word)).all(1).double().mean()
            # five standard deviations
            assert abs(float(share) - p) < 5 * math.sqrt(p * (1 - p) / 20_000)
    losses = -chain.log_probabilities(x)
    assert losses.shape == (20_000, 4)
    deviation = float(losses.mean(1).std()) / math.sqrt(20_000)
    assert abs(float(losses.mean()) - chain.entropy_rate) < 5 * deviation
    assert torch.equal(x, chain.sample(20_000, 6, generator=4))
    assert chain.sample(3, 1).shape == (3, 1)


def test_the_example_of_the_lectures() -> None:
    model = ListedModel(
        {"A": 0.40, "B": 0.35, "C": 0.25}, {"A": {"A1": 0.5, "A2": 0.2}, "B": {"B1": 0.8}}
    )
    assert model.search("greedy", steps=2) == [(("A", "A1"), 0.2)]
    assert model.search("beam", steps=2, beams=2) == [(("B", "B1"), 0.28), (("A", "A1"), 0.2)]
    best = [(("B", "B1"), 0.28), (("C",), 0.25), (("A", "A1"), 0.2)]
    # what has ended is kept, also over further steps
    for steps in (2, 3, 5):
        assert model.search("beam", steps=steps, beams=3) == best
        assert model.search("exhaustive", steps=min(steps, 4), beams=3) == best
    assert float(model(torch.arange(len(model.names))[None]).exp().sum(-1).min()) == pytest.approx(
        1
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: MarkovText(torch.ones(2, 3) / 3), ShapeMismatch, r"k \+ 1 equal axes"),
        (lambda: MarkovText(torch.eye(2)), InvalidInput, "positive"),
        (lambda: MarkovText(torch.ones(2, 2)), InvalidInput, "sum to 1"),
        (lambda: MarkovText([[1.0]]), InvalidType, "transitions must be a tensor"),  # type: ignore[arg-type]
        (lambda: MarkovText.random(10, 9), InvalidInput, "contexts are more than"),
        (lambda: MarkovText.random(2, 1).conditional_entropy(2), InvalidInput, "context"),
        (
            lambda: MarkovText.random(2, 2).log_probabilities(torch.zeros(1, 2).long()),
            ShapeMismatch,
            "more than 2",
        ),
        (
            lambda: MarkovText.random(2, 1).log_probabilities(torch.tensor([[0, 5]])),
            InvalidInput,
            "the token 5",
        ),
        (lambda: ListedModel({}, {}), EmptyData, "no token can come first"),
        (lambda: ListedModel({"A": 0.7, "B": 0.7}, {}), InvalidInput, "sum to 1.4"),
        (lambda: ListedModel({"A": 1.7}, {}), InvalidInput, "probability of A"),
        (lambda: ListedModel({"<end>": 0.5}, {}), InvalidInput, "not names"),
    ],
)
def test_bad_input_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
