"""The constant that serves best, its loss, and the errors of the most frequent class."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import optimize
from torch import Tensor, nn

from torchtheory.models.problem import Problem
from torchtheory.training.losses.risks import best_constant, constant_loss, most_frequent_errors


def targets(kind: str) -> tuple[Tensor, int]:
    """Targets and how many outputs a model of them has."""
    draw = torch.Generator().manual_seed(0)
    if kind == "regression":
        return torch.randn(50, 3, generator=draw) + 2, 3
    if kind == "binary":
        return (torch.rand(50, 1, generator=draw) < 0.2).float(), 1
    return torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 50, True, generator=draw), 3


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass"])
def test_no_other_constant_has_a_smaller_loss(kind: str) -> None:
    y, outputs = targets(kind)
    problem = Problem(nn.Linear(2, outputs), (torch.zeros(50, 2), y))
    assert problem.task == kind
    found = best_constant(problem, problem.train)
    assert found is not None
    assert found.shape == (outputs,)

    def loss(constant: Tensor) -> float:
        return float(problem.loss(constant.expand(50, outputs), problem.train.y))

    least = constant_loss(problem, problem.train)
    assert least is not None
    assert loss(found) == pytest.approx(least, rel=1e-5)
    for seed in range(20):
        other = 0.3 * torch.randn(outputs, generator=torch.Generator().manual_seed(seed))
        assert loss(found + other) >= least - 1e-6


def test_entropies_by_hand() -> None:
    y = torch.tensor([0, 0, 0, 1])
    problem = Problem(nn.Linear(2, 2), (torch.zeros(4, 2), y))
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert constant_loss(problem, problem.train) == pytest.approx(entropy)
    test = Problem(nn.Linear(2, 2), (torch.zeros(4, 2), y), (torch.zeros(3, 2), 1 - y[1:]))
    assert test.test is not None
    assert most_frequent_errors(test, test.train) == 1
    assert most_frequent_errors(test, test.test) == 2  # of the training data's class


def test_classes_that_do_not_occur_and_positions_without_a_label() -> None:
    y = torch.tensor([[0, 1, -100], [0, 0, -100]])
    problem = Problem(nn.Linear(4, 3), (torch.zeros(2, 3, 4), y), task="labeling")
    found = best_constant(problem, problem.train)
    assert found is not None
    assert found.shape == (3, 3)
    assert torch.allclose(found[0].exp(), torch.tensor([0.75, 0.25, 0.125]))
    expected = F.cross_entropy(torch.tensor([0.75, 0.25]).log().expand(4, 2), y[y >= 0])
    assert constant_loss(problem, problem.train) == pytest.approx(float(expected), rel=1e-6)


def test_labels_all_alike_have_a_finite_logit() -> None:
    problem = Problem(nn.Linear(2, 1), (torch.zeros(20, 2), torch.ones(20, 1)), task="binary")
    found: Any = best_constant(problem, problem.train)
    assert float(found) == pytest.approx(math.log(39))  # half a sample of the other class
    assert constant_loss(problem, problem.train) == 0.0


def test_where_no_constant_is_known() -> None:
    problem = Problem(nn.Linear(2, 3), torch.zeros(20, 2))  # a generator, say
    assert problem.task == "unlabeled"
    assert best_constant(problem, problem.train) is None
    assert constant_loss(problem, problem.train) is None


WEIGHTS = torch.tensor([1.0, 5.0, 0.2]).double()
LOSSES: dict[str, tuple[str, Any]] = {
    "absolute": ("regression", nn.L1Loss()),
    "huber": ("regression", nn.HuberLoss(delta=0.3)),
    "quantile": ("regression", lambda f, y: torch.maximum(0.8 * (y - f), 0.2 * (f - y)).mean()),
    "cosh": ("regression", lambda f, y: (f - y).cosh().log().mean()),
    "weighted": (
        "multiclass",
        lambda f, y: (F.cross_entropy(f, y, WEIGHTS, reduction="none")).mean(),
    ),
    "smoothed": ("multiclass", nn.CrossEntropyLoss(label_smoothing=0.2)),
    "hinges": ("multiclass", nn.MultiMarginLoss(p=2)),
    "squares of one-hot rows": (
        "multiclass",
        lambda f, y: (f - F.one_hot(y, 3)).square().mean(),
    ),
    "weighted coins": (
        "binary",
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0]).double()),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_constant_is_best_for_the_loss_that_is_given(name: str) -> None:
    kind, loss = LOSSES[name]
    y, outputs = targets(kind)
    y = y.double() if y.is_floating_point() else y
    y = y.exp() if kind == "regression" else y  # whose mean is no median
    model = nn.Linear(2, outputs).double()
    problem = Problem(model, (torch.zeros(50, 2).double(), y), loss=loss)
    assert problem.task == kind
    found = best_constant(problem, problem.train)
    assert found is not None

    def height(constant: Any) -> float:
        rows = torch.as_tensor(constant, dtype=torch.float64).expand(50, outputs)
        return float(problem.loss(rows, problem.train.y))

    least = min(
        optimize.minimize(height, start, method="Powell", options={"xtol": 1e-9}).fun
        for start in (found.numpy() + 0.3, found.numpy() - 0.2, 0 * found.numpy())
    )
    assert height(found) == pytest.approx(least, abs=1e-4)
    assert constant_loss(problem, problem.train) == pytest.approx(height(found))
    # the constant of the usual loss is not as good
    plain = Problem(model, (torch.zeros(50, 2).double(), y), task=kind)
    usual = best_constant(plain, plain.train)
    assert height(usual) > height(found) + 1e-3


def test_probabilities_are_those_of_the_classes() -> None:
    y, _ = targets("multiclass")
    model = nn.Sequential(nn.Linear(2, 3), nn.Softmax(1))

    def loss(p: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(p.log(), y)

    problem = Problem(model, (torch.randn(50, 2), y), loss=loss)
    assert not problem.loss_takes_logits
    found = best_constant(problem, problem.train)
    assert found is not None
    assert torch.allclose(found, torch.bincount(y, minlength=3) / 50)


def test_logarithms_of_probabilities_are_those_of_the_classes() -> None:
    y, _ = targets("multiclass")
    model = nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(1))
    problem = Problem(model, (torch.randn(50, 2), y), loss=nn.NLLLoss())
    found = best_constant(problem, problem.train)
    assert found is not None
    shares = torch.bincount(y, minlength=3) / 50
    assert torch.allclose(found.exp(), shares)
    entropy = float(torch.special.entr(shares).sum())
    assert constant_loss(problem, problem.train) == pytest.approx(entropy, rel=1e-5)


def test_scores_that_are_no_probabilities_are_descended_to() -> None:
    y = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])[:, None]
    weighted = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(6.0))
    problem = Problem(nn.Linear(2, 1), (4 * torch.randn(8, 2), y), loss=weighted, task="binary")
    found = best_constant(problem, problem.train)
    assert found is not None
    assert float(found) == pytest.approx(math.log(6 * 2 / 6), abs=1e-3)


def test_a_loss_that_wants_something_else_leaves_the_usual_constant() -> None:
    def loss(f: Tensor, y: Tensor) -> Tensor:
        if not f.requires_grad and len(f) == 50:
            raise KeyError("no constants")
        return (f - y).abs().mean()

    y, outputs = targets("regression")
    problem = Problem(nn.Linear(2, outputs), (torch.zeros(50, 2), y), loss=loss)
    found = best_constant(problem, problem.train)
    assert found is not None
    assert torch.allclose(found, y.mean(0))
