"""Ranges of the audit contain what is true of all training data, at the rate they promise.

Each audit sees a part of the samples, as it does where time is short; the truth is computed from
all of them in another way: the dense Hessian, the exact gradient, the kernel of all samples.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

import torchtheory as tt
from torchtheory.audit import compare
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.findings.further_training import MOST, train_further
from torchtheory.audit.findings.optimization import precise
from torchtheory.core.quantity import Quantity
from torchtheory.core.random import as_generator
from torchtheory.models.problem import Problem
from torchtheory.optimization.initial_scale import fresh_growths
from torchtheory.optimization.landscape.slices import random_directions

#: Samples there are, and those an audit sees.
POPULATION, SEEN = 240, 108

#: The learning rate that the audits are told.
RATE = 0.05

NETWORKS, SEEDS = 5, 10

FINDINGS = (
    "curvature",
    "training-end",
    "point-reached",
    "gradient-noise",
    "tangent-kernel",
    "laziness",
    "loss-slice",
)


@dataclass(frozen=True)
class Case:
    """A network, where its training began, and all its data."""

    name: str
    model: nn.Module
    initial: dict[str, Tensor]
    x: Tensor
    y: Tensor
    task: str


def _architecture(kind: int) -> tuple[str, str, nn.Module]:
    if kind == 0:
        return "ReLU", "multiclass", nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if kind == 1:
        return "tanh", "regression", nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if kind == 2:
        layers = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)
        return "deep ReLU", "regression", nn.Sequential(*layers)
    if kind == 3:
        return "tanh", "binary", nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    convolution = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return "CNN", "multiclass", nn.Sequential(*convolution, nn.Linear(12, 3))


@functools.cache
def case(kind: int, seed: int) -> Case:
    """A network that was trained for none, some or many steps, on data of its own."""
    generator = torch.Generator().manual_seed(100 * seed + kind)
    with torch.random.fork_rng():
        torch.manual_seed(100 * seed + kind)
        name, task, model = _architecture(kind)
    model = model.double()
    shape = (1, 6, 6) if name == "CNN" else (4,)
    x = torch.randn(POPULATION, *shape, generator=generator, dtype=torch.float64)
    flat = x.flatten(1)
    signal = flat[:, 0] * flat[:, 1] + flat[:, 2]
    noise = torch.randn(POPULATION, generator=generator, dtype=torch.float64)
    if task == "regression":
        y = (signal + 0.3 * noise)[:, None]
    elif task == "binary":
        y = (signal + 0.5 * noise > 0).double()[:, None]
    else:
        y = torch.bucketize(signal + 0.3 * noise, torch.tensor([-0.7, 0.7], dtype=torch.float64))
    initial = {k: v.clone() for k, v in model.state_dict().items()}
    steps = (0, 40, 200)[seed % 3]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = Problem(model, (x, y), task=task).loss  # type: ignore[arg-type]
    for _ in range(steps):
        part = torch.randint(POPULATION, (64,), generator=generator)
        optimizer.zero_grad()
        loss(model(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Case(f"{name} {task} {seed}", model, initial, x, y, task)


def problem_of(found: Case) -> Problem:
    return Problem(
        found.model,
        (found.x, found.y),
        task=found.task,  # type: ignore[arg-type]
        initial=found.initial,
        learning_rate=RATE,
    )


@contextmanager
def no_drawing() -> Iterator[None]:
    """Pictures are no part of this, and take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FindingRecord, "figure", lambda *a, **k: None)
        yield


def audited(found: Case, seed: int, seen: int, names: tuple[str, ...]) -> dict[str, FindingRecord]:
    """The findings on samples drawn at random, as an audit makes them that has less time."""
    problem = problem_of(found).restricted(seen, 1, as_generator(1000 + seed))
    known = all_findings()
    with no_drawing():
        made = {n: examine(known[n], problem, confidence=0.95, seed=seed) for n in names}
    for record in made.values():
        assert record.complete, record.claims
        assert not [c for c in record.claims if str(c.verdict) == "violated"]
    return made


# ------------------------------------------------------------------------------------- truth


class Truth:
    """What is true of a network on all its training data, from dense matrices."""

    def __init__(self, found: Case) -> None:
        self.case = found
        self.problem = problem_of(found)
        self.start = {k: v.detach().clone() for k, v in found.model.named_parameters()}
        self.theta = torch.cat([v.reshape(-1) for v in self.start.values()])

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        parts, place = {}, 0
        for name, value in self.start.items():
            parts[name] = theta[place : place + value.numel()].view_as(value)
            place += value.numel()
        out: Tensor = functional_call(self.case.model, parts, (x,))
        return out

    def loss(self, theta: Tensor) -> Tensor:
        return self.problem.loss(self.outputs(theta, self.case.x), self.problem.train.y)

    @functools.cached_property
    def eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(hessian(self.loss)(self.theta))

    @functools.cached_property
    def gradients(self) -> Tensor:
        """Of every sample, `[n, p]`."""

        def one(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.problem.loss(self.outputs(theta, x[None]), y[None])

        each = vmap(torch.func.grad(one), (None, 0, 0))
        return each(self.theta, self.case.x, self.problem.train.y)

    def jacobian(self, theta: Tensor) -> Tensor:
        """Of the outputs of every sample, `[n, C, p]`."""
        return jacrev(self.outputs)(theta, self.case.x).detach()

    @functools.cached_property
    def squared_gradient(self) -> float:
        return float(self.gradients.mean(0).square().sum())

    def descended(self, step: float, count: int = 10) -> float:
        theta = self.theta.clone()
        for _ in range(count):
            theta = theta - step * torch.func.grad(self.loss)(theta)
        return float(self.loss(theta))

    def constant_loss(self) -> float:
        y = self.problem.train.y
        if self.case.task == "multiclass":
            prediction = torch.bincount(y, minlength=3).double().div(len(y)).log()
        elif self.case.task == "binary":
            prediction = torch.logit(y.mean(0))
        else:
            prediction = y.mean(0)
        return float(self.problem.loss(prediction.expand(len(y), -1), y))

    def numbers(self, seed: int) -> dict[str, float]:
        top, bottom = float(self.eigenvalues[-1]), float(self.eigenvalues[0])
        scale, square, risk = max(top, -bottom), self.squared_gradient, float(self.loss(self.theta))
        spread = float(self.gradients.var(0).sum())
        before, after = (self.jacobian(t) for t in (self._initial, self.theta))
        kernels = [torch.einsum("nap,mbp->nmab", j, j) for j in (before, after)]
        flat = after.reshape(-1, after.shape[-1])
        mean = torch.linalg.eigvalsh(flat.T @ flat / len(after))
        moved = self.theta - self._initial
        now, then = self.outputs(self.theta, self.case.x), self.outputs(self._initial, self.case.x)
        tangent = then + (before @ moved).reshape(then.shape)
        gap, change = (now - tangent).norm(), (now - then).norm()
        drift = (kernels[1] - kernels[0]).norm() / kernels[0].norm()
        fall = max(0.0, risk - self.descended(1 / (2 * top))) / max(risk, self.constant_loss())
        return {
            "sharpness": top,
            "step-limit": 2 / top,
            "smallest-eigenvalue": bottom,
            "hessian-trace": float(self.eigenvalues.sum()),
            "mean-curvature": float(self.eigenvalues.mean()),
            "loss-still-falling": fall,
            "loss-left-to-gain": self.left_to_gain() / max(risk, self.constant_loss()),
            "step-over-limit": RATE * top / 2,
            "loss-after-steps": self.descended(RATE, 20) / risk,
            "gradient-norm": math.sqrt(square),
            "gradient-noise-scale": spread / square,
            "one-step-gain": square / (2 * scale) / risk,
            "kernel-scale": float(mean[-1]),
            "kernel-effective-rank": float(mean.sum() / mean[-1]),
            "linearized-step-limit": 2 / self._gauss_newton(after),
            "kernel-drift": float(drift),
            "linearization-gap": float(gap / change) if float(change) > 0 else 0.0,
            "parameter-movement": float(moved.norm() / self._initial.norm()),
            "disturbed-loss": self.disturbed(),
        }

    def left_to_gain(self) -> float:
        """What L-BFGS and Adam take off the loss when all samples steer them."""
        problem = precise(self.problem)
        return problem.risk(problem.train) - train_further(problem, problem.train, MOST)[0].loss

    def disturbed(self) -> float:
        """The mean over so many random directions that its error is far below that of 16."""
        ways = random_directions(self.problem, 2000, generator=as_generator(12345))
        return float(vmap(self.loss, chunk_size=100)(self.theta + ways).mean())

    @property
    def _initial(self) -> Tensor:
        return torch.cat([self.case.initial[k].reshape(-1) for k in self.start])

    def _gauss_newton(self, jacobian: Tensor) -> float:
        def one(outputs: Tensor, y: Tensor) -> Tensor:
            return self.problem.loss(outputs[None], y[None])

        outputs = self.outputs(self.theta, self.case.x)
        metric = vmap(hessian(one))(outputs.detach(), self.problem.train.y)
        mean = torch.einsum("nap,nab,nbq->pq", jacobian, metric, jacobian) / len(jacobian)
        return float(torch.linalg.eigvalsh(mean)[-1])


# ------------------------------------------------------------------------------------- tests


def _contains(found: Quantity, truth: float) -> bool:
    """Up to the rounding of two ways to one number."""
    rounding = 1e-9 * max(1e-12, abs(truth))
    return found.low - rounding <= truth <= found.high + rounding


#: Ranges that contain everything say nothing: the widest that the median range may be, over the
#: true value. Differences of large numbers (a gradient that is almost 0) have no such bound.
WIDEST = {
    "sharpness": 1.0,
    "hessian-trace": 1.5,
    "disturbed-loss": 1.2,
    "kernel-scale": 0.6,
    "kernel-drift": 0.5,
    "linearization-gap": 0.5,
}


#: Measured where plain steps leave it open whether training is at its end.
SOMETIMES = {"loss-left-to-gain"}


@pytest.mark.slow
def test_ranges_contain_the_truth() -> None:
    hits: dict[str, list[bool]] = defaultdict(list)
    naive: dict[str, list[bool]] = defaultdict(list)
    widths: dict[str, list[float]] = defaultdict(list)
    for kind in range(NETWORKS):
        for seed in range(SEEDS):
            found = case(kind, seed)
            true = Truth(found).numbers(seed)
            for record in audited(found, seed, SEEN, FINDINGS).values():
                for quantity in record.quantities:
                    truth = true[quantity.name]
                    size = max(abs(truth), 1e-12)
                    hits[quantity.name].append(_contains(quantity, truth))
                    naive[quantity.name].append(abs(quantity.value - truth) <= 1e-3 * size)
                    widths[quantity.name].append((quantity.high - quantity.low) / size)
    middle = {name: sorted(v)[len(v) // 2] for name, v in widths.items()}
    print(f"\n{'quantity':26} {'audits':>6} {'contain':>8}  median width / value")
    for name, seen in sorted(hits.items()):
        print(f"{name:26} {len(seen):6} {sum(seen) / len(seen):8.1%}  {middle[name]:.3g}")
    assert set(hits) == set(Truth(case(0, 1)).numbers(1))
    for name, seen in hits.items():
        if name not in SOMETIMES:
            assert len(seen) >= NETWORKS * SEEDS - 1, name
        assert sum(seen) >= 0.93 * len(seen), name
        if name != "parameter-movement":  # which no samples make
            assert sum(naive[name]) < 0.5 * len(seen), name  # a range of no width fails
    for name, widest in WIDEST.items():
        assert middle[name] < widest, name


def test_all_samples_leave_rounding_only() -> None:
    """On all training data the numbers are those of the dense matrices."""
    for kind in range(NETWORKS):
        found = case(kind, 1)
        truth = Truth(found)
        true, values = truth.numbers(1), truth.eigenvalues
        flat = 1e-3 * float(values.abs().max())
        true["negative-directions"] = float((values < -flat).double().mean())
        true["flat-directions"] = float((values.abs() <= flat).double().mean())
        true["positive-directions"] = float((values > flat).double().mean())
        names = ("curvature", "point-reached", "gradient-noise")
        for record in audited(found, 1, POPULATION, names).values():
            for quantity in record.quantities:
                assert _contains(quantity, true[quantity.name]), (found.name, quantity)
                # random vectors, and how samples fall into groups, remain
                if quantity.name not in ("hessian-trace", "mean-curvature", "gradient-noise-scale"):
                    size = max(abs(true[quantity.name]), 1e-3)
                    assert quantity.high - quantity.low <= 5e-3 * size, (found.name, quantity)


@pytest.mark.slow
def test_fresh_weights() -> None:
    """Draws of weights make these numbers as well; the truth is the mean over many."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for depth, width, activation in itertools.product((1, 3), (6, 10), (nn.ReLU, nn.Tanh)):
        layers = [nn.Linear(4, width), activation()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), activation()]
        net = nn.Sequential(*layers, nn.Linear(width, 3)).double()
        x, y = case(0, depth).x, case(0, depth).y
        problem = Problem(net, (x, y))
        few = problem.restricted(64, 1, as_generator(width))
        with no_drawing():
            known = all_findings()["initialization"]
            record = examine(known, few, confidence=0.95, seed=depth)
        found = {q.name: q for q in record.quantities}

        def growth(factor: float, problem: Problem = problem) -> float:
            seen = fresh_growths(problem, problem.train, factor=factor, draws=30, seed=100)
            return math.fsum(seen) / len(seen)

        factor = found["fresh-gradient-factor"]
        hits[factor.name].append(_contains(factor, math.exp(growth(1.0))))
        scale = found.get("advised-scale")
        if scale is not None:  # where the range ends, the growth has changed its sign
            low, high = (growth(f) for f in (scale.low, scale.high))
            hits[scale.name].append(low <= 0 <= high)
    assert len(hits["advised-scale"]) >= 4
    for name, seen in hits.items():
        assert sum(seen) >= 0.93 * len(seen), name


def test_audits_of_one_network_with_more_and_less_data_agree() -> None:
    """`compare` finds nothing changed where only the number of samples differs."""
    names = [*FINDINGS, "layer-balance", "homogeneity", "initialization"]
    found = case(0, 2)
    reports = [
        tt.audit(
            found.model,
            (found.x, found.y),
            only=names,
            initial=found.initial,
            limit=limit,
            budget=None,
        )
        for limit in (96, 180, POPULATION)
    ]
    for one, two in itertools.combinations(reports, 2):
        found_again = compare(one, two)
        assert len(found_again.quantities) > 15
        assert not [c.name for c in found_again.changed]
        assert not found_again.worsened
        assert {q.name for f in one.findings for q in f.quantities} <= {
            q.name for f in two.findings for q in f.quantities
        }
