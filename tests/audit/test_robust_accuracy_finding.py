"""Moved inputs: brittle networks and hidden gradients are named, their healthy twins are not."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings.robust_accuracy import RADII
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import State
from torchtheory.data.real import digits
from torchtheory.models.problem import Problem
from torchtheory.models.untouched import ModelState
from torchtheory.robustness import evaluation

SEEDS = range(20)
BOTH = ("robust-accuracy", "gradient-masking")


def made(name: str, problem: Problem, seed: int = 0, **options: Any) -> FindingRecord:
    return examine(all_findings()[name], problem, confidence=0.95, seed=seed, **options)


def looks(record: FindingRecord) -> list[str]:
    return [a.sentence for a in record.assessments if a.state in (State.DEFECT, State.LOOK)]


def shares(record: FindingRecord, which: str) -> list[float]:
    """The accuracy at each radius, `attacked` or `certified`."""
    return [q.value for q in record.quantities if q.name.startswith(f"{which}-accuracy")]


def reasons(record: FindingRecord) -> str:
    return " ".join(c.reason for c in record.claims)


def fit(model: Any, data: tuple[Tensor, Tensor], steps: int = 80) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model


def dense(*widths: int, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def handwriting(images: bool = False) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    x, y = digits()
    x = x.float().reshape(-1, 1, 8, 8) if images else x.float()
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


# --------------------------------------------------------------------------------- brittle twins


def marked(strength: float, seed: int, n: int = 150, d: int = 64) -> tuple[Tensor, Tensor]:
    """Noise, and a mark over all features that tells the class: nothing else lies along it."""
    draw = torch.Generator().manual_seed(seed)
    x, along = torch.randn(n, d, generator=draw), torch.full((d,), d**-0.5)
    y = torch.randint(0, 2, (n,), generator=draw)
    return x - (x @ along)[:, None] * along + strength * (2 * y - 1)[:, None] * along, y


def mark_reader(d: int = 64) -> nn.Sequential:
    """Reads the mark exactly, whatever its strength."""
    net = dense(d, 2, 2)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[-1.0], [1.0]]) * torch.full((1, d), d**-0.5))
        net[2].weight.copy_(torch.eye(2))
        for layer in (net[0], net[2]):
            layer.bias.zero_()
    return net


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_class_that_hangs_on_what_nobody_sees(seed: int) -> None:
    # a step of 1 % along every feature is 0.08 along the mark
    train, test = marked(0.02, seed), marked(0.02, seed + 50)
    record = made("robust-accuracy", Problem(mark_reader(), train, test), seed)
    (said,) = looks(record)
    assert "accuracy falls from more than 97.6% to less than 2.4%" in said
    train, test = marked(2.0, seed), marked(2.0, seed + 50)
    healthy = made("robust-accuracy", Problem(mark_reader(), train, test), seed)
    assert not looks(healthy)
    assert [a.state for a in healthy.assessments] == [State.FINE]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("seed", range(5))
def test_a_weak_classifier_is_not_called_brittle(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(300, 20, generator=draw), torch.randint(0, 2, (300,), generator=draw)
    problem = Problem(fit(dense(20, 16, 2, seed=seed), (x[:150], y[:150])), (x, y))
    assert not looks(made("robust-accuracy", problem, seed))


# ------------------------------------------------------------------------------------ exact cases


@pytest.mark.parametrize("outputs", [1, 2])
def test_of_a_linear_model_both_are_the_truth(outputs: int) -> None:
    """The largest change of w x with each feature within r sigma_i is r sum |w_i| sigma_i."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=draw) * torch.tensor([1e-3, 1.0, 50.0, 2.0, 0.0])
    x[:, 4] = 7.0  # never changes, so it is not moved
    w = torch.tensor([900.0, 1.0, -0.02, 0.3, 1e6])
    net = nn.Linear(5, outputs)
    with torch.no_grad():
        net.weight.copy_(w if outputs == 1 else torch.stack([-w / 2, w / 2]))
        net.bias.copy_(torch.tensor([-7e6] if outputs == 1 else [3.5e6, -3.5e6]))
    net, x = net.double(), x.double()
    value = net(x).detach()
    value = value[:, 0] if outputs == 1 else value[:, 1] - value[:, 0]
    y = (value > 0).long()
    record = made("robust-accuracy", Problem(net, (x, y.double() if outputs == 1 else y)))
    spread = torch.cat([x, x])[:, :4].std(0)  # of the training data and the samples attacked
    reach = float((w[:4].double().abs() * spread).sum())
    truth = [float((value.abs() > r * reach).double().mean()) for r in RADII]
    assert shares(record, "attacked") == shares(record, "certified") == truth
    assert 0.05 < truth[-1] < 0.97
    assert [c.verdict for c in record.claims] == [Verdict.HOLDS]


def test_a_probability_is_attacked_at_one_half() -> None:
    x, y = marked(0.5, 1)
    logit = nn.Linear(64, 1, bias=False)
    with torch.no_grad():
        logit.weight.fill_(0.125)
    as_logit = made("robust-accuracy", Problem(logit, (x, y.float()[:, None])))
    as_probability = made(
        "robust-accuracy",
        Problem(nn.Sequential(logit, nn.Sigmoid()), (x, y.float()[:, None]), loss=nn.BCELoss()),
    )
    squeezed = made("robust-accuracy", Problem(nn.Sequential(logit, nn.Flatten(0)), (x, y.float())))
    for which in ("attacked", "certified"):
        for other in (as_probability, squeezed):
            assert shares(as_logit, which) == shares(other, which)
    assert shares(as_logit, "attacked") == [1.0, 1.0, 0.0]  # 0.08, 0.24 and 0.8 against 0.5


# ------------------------------------------------------------------------------- real small models


def test_digits_stand_between_certificate_and_attack() -> None:
    train, test = handwriting()
    problem = Problem(fit(dense(64, 32, 10), train), train, test)
    record = made("robust-accuracy", problem)
    attacked, certified = shares(record, "attacked"), shares(record, "certified")
    assert len(attacked) == len(certified) == 3
    assert all(c <= a for c, a in zip(certified, attacked, strict=True))
    assert attacked == sorted(attacked, reverse=True)
    assert attacked[0] > 0.8 > 0.2 > attacked[0] - certified[0]
    assert all(q.low < q.value < q.high for q in record.quantities)
    assert not looks(record)
    assert [c.verdict for c in record.claims] == [Verdict.HOLDS]
    assert {f.name for f in record.figures} == {"sandwich", "perturbations"}


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_shown_with_what_changes_them(channels: int) -> None:
    train, test = handwriting(images=True)
    train, test = ((x.repeat(1, channels, 1, 1), y) for x, y in (train, test))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(channels, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(96, 10),
        )  # fmt: skip
    problem = Problem(fit(net, train), train, test)
    before = ModelState(net)
    for name in BOTH:
        record = made(name, problem, seconds=20.0)
        assert record.complete
        assert not looks(record)
        assert "every pixel moves" in record.headlines[0]
        names = {f.name for f in record.figures}
        assert names == ({"sandwich", "perturbations"} if name == BOTH[0] else {"attacks"})
    assert not before.changes(net)


class Spectral(nn.Module):
    """A network behind an identity that no bound is known of."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]))


def test_without_a_rule_the_attack_alone_and_the_operation_named() -> None:
    x, y = marked(0.5, 1)
    known, unknown = (
        made("robust-accuracy", Problem(net, (x, y)))
        for net in (mark_reader(), Spectral(mark_reader()))
    )
    assert shares(unknown, "attacked") == shares(known, "attacked")
    assert not shares(unknown, "certified")
    assert [c.verdict for c in unknown.claims] == [Verdict.NOT_APPLICABLE]
    assert "rfft" in reasons(unknown)
    assert "layer 'model" not in reasons(unknown)  # nor a name that the user does not know
    assert "not known" in unknown.headlines[0]
    assert [f.name for f in unknown.figures][:1] == ["sandwich"]


def test_a_false_certificate_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(mark_reader(), marked(0.02, 0))
    monkeypatch.setattr(
        evaluation, "margins_in_ball", lambda network, x, *_, **__: torch.ones(len(x))
    )
    record = made("robust-accuracy", problem)
    assert [c.verdict for c in record.claims] == [Verdict.VIOLATED]


def test_what_certifies_nothing_is_vacuous() -> None:
    record = made("robust-accuracy", Problem(mark_reader(), marked(0.02, 0)))
    assert shares(record, "certified") == [0.0, 0.0, 0.0]
    assert [c.verdict for c in record.claims] == [Verdict.VACUOUS]


# --------------------------------------------------------------------------------- hidden gradients


class Scaled(nn.Module):
    """Logits so large that the softmax is 0 or 1."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 * self.inner(x)


class Stairs(nn.Module):
    """Inputs nearly rounded to quarters, with the gradient of that."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        below = (4 * x).detach().floor()
        return self.inner((below + torch.sigmoid(60 * (4 * x - below - 0.5))) / 4)


def crosswise(seed: int, n: int = 300) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_that_hide_are_named(seed: int) -> None:
    train, test = crosswise(seed), crosswise(seed + 50)
    net = fit(dense(6, 24, 2, seed=seed), train)
    healthy, large, rounded = (
        made("gradient-masking", Problem(twin, train, test), seed)
        for twin in (net, Scaled(net), Stairs(net))
    )
    assert not looks(healthy)
    assert [c.verdict for c in healthy.claims] == [Verdict.HOLDS]
    assert any("gradient of the loss in the input is 0" in s for s in looks(large))
    assert any("do not show where the network errs" in s for s in looks(rounded))
    assert [c.verdict for c in rounded.claims] == [Verdict.VIOLATED]


def test_few_differences_are_no_proof() -> None:
    from torchtheory.audit.findings.gradient_masking import _sign_test

    assert _sign_test(0, 0) == 1.0
    assert _sign_test(5, 0) == pytest.approx(1 / 32)
    assert _sign_test(3, 3) == pytest.approx(42 / 64)


# -------------------------------------------------------------------------- where it does not apply


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", BOTH)
def test_reasons_are_said(name: str) -> None:
    x, y = crosswise(0, 60)

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 0.1 * torch.randn_like(x))

    cases = {
        "regression": Problem(dense(6, 4, 1), (x, x[:, :1])),
        "random": Problem(Noisy(), (x, y)),
        "all inputs are equal": Problem(dense(6, 4, 2), (torch.ones(40, 6), y[:40])),
    }
    for word, problem in cases.items():
        record = made(name, problem)
        assert [c.verdict for c in record.claims] == [Verdict.NOT_APPLICABLE]
        assert word in reasons(record)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", BOTH)
def test_without_time_it_is_not_done(name: str) -> None:
    train, test = handwriting()
    problem = Problem(dense(64, 32, 10), train, test)
    record = made(name, problem, seconds=1e-4, at_most=60.0)
    assert [c.verdict for c in record.claims] == [Verdict.NOT_DONE]
    assert not record.assessments
    assert not record.quantities


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", BOTH)
def test_the_same_seed_gives_the_same_numbers(name: str) -> None:
    train, test = handwriting()
    problem = Problem(fit(dense(64, 32, 10), train, 20), train, test)
    state = torch.get_rng_state()
    first, second = (made(name, problem, 3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert [q.value for q in first.quantities] == [q.value for q in second.quantities]
    assert math.isfinite(sum(q.value for q in first.quantities))


def test_half_precision_and_several_outputs() -> None:
    train, test = handwriting()
    net = fit(dense(64, 32, 10), train)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": self.net[0](x), "logits": self.net(x)}

    plain, two = (
        tt.audit(n, train, test, only=["robust-accuracy"], budget=None).findings[0]
        for n in (net, Two())
    )
    assert shares(plain, "attacked") == shares(two, "attacked")
    assert shares(plain, "certified") == shares(two, "certified")
    low = dense(64, 32, 10).to(torch.bfloat16)
    low.load_state_dict(net.state_dict())
    half = [(x.to(torch.bfloat16), y) for x, y in (train, test)]
    record = made("robust-accuracy", Problem(low, half[0], half[1]))
    assert shares(record, "attacked") == pytest.approx(shares(plain, "attacked"), abs=0.05)


# ------------------------------------------------------------------------- which layer costs most


def test_the_layer_with_the_largest_factor_is_named() -> None:
    net = dense(6, 6, 6, 2)
    with torch.no_grad():
        for k, size in ((0, 2.0), (2, 30.0), (4, 0.5)):
            net[k].weight.copy_(size * torch.eye(*net[k].weight.shape))
    record = made("lipschitz", Problem(net, crosswise(0)))
    assert any("multiply to 30; the largest factor is the 30 of layer 2" in n for n in record.notes)
    assert "budget" in [f.name for f in record.figures]
    alone = made("lipschitz", Problem(dense(6, 2), crosswise(0)))
    assert "budget" not in [f.name for f in alone.figures]
