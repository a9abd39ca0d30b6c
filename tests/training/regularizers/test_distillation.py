"""Learning from a teacher's probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.training.loop.seeds import epoch_order
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.distillation import (
    Distillation,
    distillation_gradient,
    distillation_loss,
    teacher_outputs,
)
from torchtheory.training.regularizers.distillation import agreement, distill


def logits(seed: int, n: int = 4, classes: int = 5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(3 * torch.randn(2, n, classes, generator=g, dtype=torch.float64))  # type: ignore


temperatures = st.floats(0.2, 50)


@given(st.integers(0, 10**6), temperatures)
def test_the_loss_is_torchs_divergence_plus_the_entropy(seed: int, t: float) -> None:
    teacher, student = logits(seed)
    p = (teacher / t).softmax(1)
    divergence = F.kl_div((student / t).log_softmax(1), p, reduction="batchmean")
    entropy = -(p * (teacher / t).log_softmax(1)).sum(1).mean()
    loss = distillation_loss(teacher, student, t)
    assert torch.isclose(loss, divergence + entropy, rtol=1e-9)
    assert loss >= entropy - 1e-12
    assert torch.isclose(distillation_loss(teacher, teacher + 4.0, t), entropy, rtol=1e-9)


@given(st.integers(0, 10**6), temperatures)
def test_the_gradient(seed: int, t: float) -> None:
    teacher, student = logits(seed)
    student.requires_grad_()
    (g,) = torch.autograd.grad(distillation_loss(teacher, student, t), student)
    assert torch.allclose(g * len(g), distillation_gradient(teacher, student, t), atol=1e-12)


def test_by_hand() -> None:
    teacher = torch.tensor([[math.log(3.0), 0.0]])  # probabilities 3/4, 1/4
    student = torch.tensor([[0.0, 0.0]])
    assert float(distillation_loss(teacher, student)) == pytest.approx(math.log(2))
    assert distillation_gradient(teacher, student).tolist()[0] == pytest.approx([-0.25, 0.25])
    warm = distillation_gradient(teacher, student, 1e3) * 1e6
    assert warm.tolist()[0] == pytest.approx([-math.log(3) / 4, math.log(3) / 4], rel=1e-2)


def sample(n: int = 80) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)


def linear(seed: int) -> nn.Linear:
    net = nn.Linear(4, 3)
    for p in net.parameters():
        nn.init.normal_(p, generator=torch.Generator().manual_seed(seed))
    return net


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("augmented", [False, True])
def test_fit_minimizes_the_mixture(weight: float, augmented: bool) -> None:
    x, y = sample()
    teacher, ours, theirs = linear(0), linear(1), linear(1)
    teacher.train()
    fit(
        ours,
        (x, y),
        epochs=2,
        batch_size=20,
        optimizer="sgd",
        distillation=Distillation(teacher, 3.0, weight),
        augment=(lambda x, generator: 2 * x) if augmented else None,
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for epoch in (1, 2):
        for index in epoch_order(80, 0, epoch).split(20):
            batch = 2 * x[index] if augmented else x[index]
            optimizer.zero_grad()
            outputs = theirs(batch)
            soft = distillation_loss(teacher(batch).detach(), outputs, 3.0)
            hard = F.cross_entropy(outputs, y[index])
            ((1 - weight) * hard + weight * 9.0 * soft).backward()
            optimizer.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
    assert teacher.training


def test_a_student_becomes_its_teacher() -> None:
    x, _ = sample(400)
    teacher = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9)).double()  # another precision
    student = linear(2)
    before = [p.clone() for p in teacher.parameters()]
    history = distill(teacher, student, x, temperature=2.0, epochs=60, learning_rate=0.05)
    assert agreement(teacher.float(), student, x) > 0.97
    assert history.train_losses[-1] < history.train_losses[0]
    assert all(
        torch.allclose(a.float(), b) for a, b in zip(before, teacher.parameters(), strict=True)
    )


def test_teacher_outputs_are_chunked_and_plain() -> None:
    teacher = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    x, _ = sample()
    out = teacher_outputs(teacher, x, chunk=7)
    assert not out.requires_grad
    assert torch.allclose(out, teacher[0](x).detach(), atol=1e-6)
    assert teacher.training


X, Y = sample()
REFUSED: list[tuple[type[Exception], str, Any]] = [
    (InvalidInput, "temperature", lambda: Distillation(linear(0), 0.0)),
    (InvalidInput, "temperature", lambda: distillation_loss(X, X, -1.0)),
    (InvalidInput, "temperature", lambda: distillation_gradient(X, X, math.inf)),
    (InvalidInput, "weight", lambda: Distillation(linear(0), 1.0, 1.5)),
    (InvalidType, "teacher must be", lambda: Distillation(lambda x: x)),  # type: ignore
    (ShapeMismatch, "must both be", lambda: distillation_loss(X, X[:, :2])),
    (
        ShapeMismatch,
        "the student has 3 classes",
        lambda: fit(linear(0), (X, Y), distillation=Distillation(nn.Linear(4, 2))),
    ),
    (
        InvalidInput,
        "this is a regression problem",
        lambda: fit(nn.Linear(4, 1), (X, X[:, 0]), distillation=Distillation(linear(0))),
    ),
]


@pytest.mark.parametrize(("error", "sentence", "call"), REFUSED)
def test_refused(error: type[Exception], sentence: str, call: Any) -> None:
    with pytest.raises(error, match=sentence):
        call()


def test_a_network_cannot_be_its_own_teacher() -> None:
    net = linear(0)
    with pytest.raises(InvalidInput, match="same module"):
        fit(net, (X, Y), distillation=Distillation(net))
