"""Targets of positions, of none and of several outputs; the loss that goes with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, LabelOutOfRange, ShapeMismatch
from torchtheory.models.losses import labeling_loss
from torchtheory.models.problem import Problem
from torchtheory.models.targets import class_dimension
from torchtheory.models.task import infer_task
from torchtheory.training.losses.risks import sample_losses


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels(*shape: int, classes: int = 5, seed: int = 1) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


class Tagger(nn.Module):
    """One logit per class at every token."""

    def __init__(self, words: int = 7, classes: int = 5) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed = nn.Embedding(words, 6)
            self.states = nn.GRU(6, 6, batch_first=True)
            self.out = nn.Linear(6, classes)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.out(self.states(self.embed(words))[0])
        return logits


@pytest.mark.parametrize(
    ("outputs", "targets", "task", "dimension"),
    [
        ((4, 6, 5), (4, 6), "labeling", 2),
        ((4, 5, 6), (4, 6), "labeling", 1),
        ((4, 5, 3, 2), (4, 3, 2), "labeling", 1),
        ((4, 3, 2, 5), (4, 3, 2), "labeling", 3),
        ((4, 6, 6), (4, 6), "labeling", 2),  # both fit: a sequence has its classes last
        ((4, 2, 2, 2), (4, 2, 2), "labeling", 1),  # both fit: an image has them first
        ((4, 6, 1), (4, 6), "labeling", None),  # 0 and 1, by one logit for each position
        ((4, 5), (4,), "multiclass", None),
    ],
)
def test_where_the_classes_are(
    outputs: tuple[int, ...], targets: tuple[int, ...], task: str, dimension: int | None
) -> None:
    y = torch.zeros(targets, dtype=torch.long)
    y[-1] = 1
    assert class_dimension(torch.zeros(outputs), y) == dimension
    assert infer_task(torch.zeros(outputs), y) == task
    if task == "labeling":  # real numbers at positions are a regression or a mistake, never this
        assert infer_task(torch.zeros(outputs), y + 0.5) == "regression"


def test_the_loss_of_a_token_model() -> None:
    x, y = labels(12, 4, classes=7), labels(12, 4)
    net = Tagger()
    p = Problem(net, (x, y), (x[:5], y[:5]))
    assert (p.task, p.classes, p.is_classification) == ("labeling", 5, False)
    f = net(x).detach()
    by_torch = F.cross_entropy(f.flatten(0, 1), y.flatten())
    assert p.risk(p.train) == pytest.approx(float(by_torch), rel=1e-5)
    each = torch.stack([F.cross_entropy(f[i], y[i]) for i in range(12)])
    assert torch.allclose(sample_losses(p, p.train), each, rtol=1e-5)
    wrong, have = p.wrong_labels(p.train)
    assert torch.equal(wrong, (f.argmax(-1) != y).sum(1))
    assert have.tolist() == [4] * 12


def test_positions_without_a_label_do_not_count() -> None:
    x, y = labels(6, 4, classes=7), labels(6, 4)
    masked = y.clone()
    masked[0, 1:] = -100
    masked[3, 2] = -100
    net = Tagger()
    p = Problem(net, (x, masked))
    f = net(x).detach()
    each = [F.cross_entropy(f[i], masked[i], ignore_index=-100) for i in range(6)]
    assert p.risk(p.train) == pytest.approx(float(torch.stack(each).mean()), rel=1e-5)
    wrong, have = p.wrong_labels(p.train)
    assert have.tolist() == [1, 4, 4, 3, 4, 4]
    assert torch.equal(wrong, ((f.argmax(-1) != masked) & (masked != -100)).sum(1))
    # what stands there makes no difference
    moved = f.clone()
    moved[0, 1:] += 100 * drawn(3, 5)
    assert torch.equal(labeling_loss(moved, masked), labeling_loss(f, masked))


def test_dense_predictions_have_their_classes_last() -> None:
    x, y = drawn(6, 2, 4, 3), labels(6, 4, 3)
    net = nn.Conv2d(2, 5, 3, padding=1)
    p = Problem(net, (x, y))
    assert p.outputs(p.train).shape == (6, 4, 3, 5)
    assert p.risk(p.train) == pytest.approx(float(F.cross_entropy(net(x).detach(), y)), rel=1e-5)
    # a loss of the user's own sees the outputs as the model gives them
    own = Problem(net, (x, y), loss=nn.CrossEntropyLoss())
    assert own.risk(own.train) == pytest.approx(p.risk(p.train), rel=1e-5)
    exact = p.in_precision(torch.float64)
    assert exact.risk(exact.train) == pytest.approx(p.risk(p.train), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda y: y.index_fill(0, torch.tensor([2]), -100), LabelOutOfRange, "sample 2 has no"),
        (lambda y: y + 5, LabelOutOfRange, "the model has 5 outputs"),
        (lambda y: y - 1, LabelOutOfRange, "labels run from -1"),
    ],
)
def test_labels_refused(change: Any, error: type[Exception], sentence: str) -> None:
    x, y = labels(6, 4, classes=7), labels(6, 4).clamp(max=4)
    y[0] = 0
    with pytest.raises(error, match=sentence):
        Problem(Tagger(), (x, change(y)))


def test_labels_of_another_length() -> None:
    with pytest.raises(ShapeMismatch, match="one label for every position"):
        Problem(Tagger(), (labels(6, 4, classes=7), labels(6, 3)), task="labeling")


# ------------------------------------------------------------------------------- no targets


def test_an_autoencoder_reproduces_its_inputs() -> None:
    x = drawn(20, 6)
    net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6))
    p = Problem(net, x[:15], x[15:])
    assert p.task == "regression"
    assert "autoencoder" in p.remarks["targets"]
    assert p.risk(p.train) == pytest.approx(
        float(F.mse_loss(net(x[:15]).detach(), x[:15])), rel=1e-5
    )
    assert p.test is not None
    assert torch.equal(p.test.y, x[15:])
    flat = nn.Sequential(nn.Flatten(), nn.Linear(6, 6))
    images = Problem(flat, x.reshape(20, 1, 2, 3))
    assert torch.equal(images.train.y, x)


def test_a_model_without_targets() -> None:
    x = drawn(20, 6)
    net = nn.Linear(6, 9)
    p = Problem(net, x)
    assert (p.task, p.has_loss, p.is_classification) == ("unlabeled", False, False)
    assert p.outputs(p.train).shape == (20, 9)
    assert p.restricted(5, 5, torch.Generator()).train.y.shape == (5, 0)
    with pytest.raises(InvalidInput, match=r"pass train=\(x, y\), or loss="):
        p.risk(p.train)
    assert (
        p.in_precision(torch.float64)
        .outputs(p.train.in_precision(torch.float64))
        .is_floating_point()
    )
    energy = Problem(net, x, loss=lambda outputs, _: outputs.square().mean())
    assert energy.has_loss
    assert energy.risk(energy.train) == pytest.approx(
        float(net(x).detach().square().mean()), rel=1e-5
    )
    # what looks like an autoencoder may be told to be none
    assert Problem(nn.Linear(6, 6), x, task="unlabeled").task == "unlabeled"


def test_targets_that_are_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"no targets: pass train=\(x, y\)"):
        Problem(nn.Linear(6, 3), drawn(20, 6), task="multiclass")
    with pytest.raises(InvalidInput, match=r"pass train=\(x\[:, :-1\], x\[:, 1:\]\)"):
        Problem(Tagger(classes=7), labels(6, 4, classes=7))
    with pytest.raises(InvalidInput, match=r"the test data has no targets: pass test="):
        Problem(nn.Linear(6, 3), (drawn(9, 6), labels(9, classes=3)), drawn(4, 6))


# --------------------------------------------------------------------- several, with weights


class Heads(nn.Module):
    """Classes and a value of the same features."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.kind, self.size = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).tanh()
        return {"kind": self.kind(h), "size": self.size(h), "features": h}


def test_the_weighted_loss_of_several_outputs() -> None:
    x, kind, size = drawn(30, 4), labels(30, classes=3), drawn(30, 2, seed=5)
    net = Heads()
    y = {"size": size, "kind": kind}
    p = Problem(
        net, (x, y), (x[:9], {k: v[:9] for k, v in y.items()}), output={"kind": 1.0, "size": 0.3}
    )
    assert p.task == "combined"
    assert p.outputs(p.train).shape == (30, 5)
    assert p.remarks["loss"].endswith(
        "1 times that of 'kind' (multiclass), 0.3 times that of 'size' (regression)"
    )
    out = net(x)
    expected = F.cross_entropy(out["kind"], kind) + 0.3 * F.mse_loss(out["size"], size)
    assert p.risk(p.train) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(sample_losses(p, p.train).mean()) == pytest.approx(
        float(expected.detach()), rel=1e-5
    )
    leaves = {k: v.clone().requires_grad_() for k, v in p.parameters.items()}
    found = torch.autograd.grad(p.objective(p.train)(leaves), leaves["body.weight"])[0]
    assert torch.allclose(found, torch.autograd.grad(expected, net.body.weight)[0], atol=1e-6)
    again = Problem(net, p.train, output={"kind": 1.0, "size": 0.3})
    assert again.risk(again.train) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize(
    ("output", "y", "error", "sentence"),
    [
        ({"kind": 1.0}, "tensor", InvalidInput, r"pass train=\(x, \{'kind': y_kind\}\)"),
        ({"kind": 1.0, "size": 1.0}, "one", InvalidInput, "these have kind"),
        ({"kind": -1.0}, "one", InvalidType, "a positive weight"),
        ({}, "one", InvalidType, "a positive weight"),
        (None, "one", InvalidInput, r"output=\{'kind': 1.0\}"),
        ("kind", "one", InvalidInput, r"output=\{'kind': 1.0\}"),
    ],
)
def test_weights_refused(output: Any, y: str, error: type[Exception], sentence: str) -> None:
    x, kind = drawn(30, 4), labels(30, classes=3)
    with pytest.raises(error, match=sentence):
        Problem(Heads(), (x, kind if y == "tensor" else {"kind": kind}), output=output)


def test_weights_and_a_loss_are_one_too_many() -> None:
    x, kind = drawn(30, 4), labels(30, classes=3)
    with pytest.raises(InvalidInput, match="not both"):
        Problem(Heads(), (x, {"kind": kind}), output={"kind": 1.0}, loss=F.cross_entropy)
