"""Randomized smoothing: certificates from votes under noise, held to a case that is known."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.robustness.evaluation import evaluate
from torchtheory.robustness.smoothing import SmoothedClassifier
from torchtheory.training.loop.trainer import fit

SIGMA = 0.5


@lab(
    "randomized-smoothing",
    room="robustness",
    covers=["M-148"],
    title="Votes under noise certify a radius, and for a half-space the whole distance",
    full={"points": 10_000, "votes": 1000, "samples": 200, "trials": 10_000},
    least={"points": 60, "votes": 150, "samples": 30, "trials": 50},
)
def randomized_smoothing(
    run: Run, points: int = 2000, votes: int = 300, samples: int = 40, trials: int = 1000, dimension: int = 6
) -> None:
    """The radius σ Φ⁻¹(p) of Cohen, Rosenfeld and Kolter, with p bounded from votes.

    For a half-space the smoothed classifier is the classifier, and its radius is the distance to
    the plane. There the certificate is checked to hold as often as its confidence says, and to be
    no shorter than it must. A trained classifier of two rings then gets its certified-accuracy
    curves: more noise reaches further and sees less.

    Args:
        points: of the half-space, certified one by one.
        votes: for each of them.
        samples: of the trained classifier.
        trials: votes for each of those.
        dimension: of the half-space.
    """
    normal = run.randn(dimension)
    normal = normal / normal.norm()
    net = half_space(normal)
    distance = 0.3 + 0.4 * run.rand(points)
    x = distance[:, None] * normal + across(run, points, normal)
    confidence = 0.95
    smooth = SmoothedClassifier(net, SIGMA)
    found = smooth.certify(x, votes, confidence=confidence, generator=run.generator)
    says = run.states("M-148", r"P\bigl(\text{certified radius}\le\text{distance}\bigr)\ge1-\alpha")
    says.share(found.radii <= distance, confidence)
    tries = [smooth.certify(x, votes, confidence=confidence, generator=run.generator).radii for _ in range(20)]
    best = torch.stack(tries).amax(0)
    says.fails("the votes are repeated 20 times, and the longest radius is kept", best <= distance)
    says = run.states("M-148", r"\text{median certified radius / distance}\le1,\text{ and near it for a half-space}")
    says.at_most(float((found.radii / distance).median()), 1.0)
    says.fails("the longest of 20", float((best / distance).median()))

    fixed = torch.full((points,), 0.4, dtype=torch.float64)
    counts = smooth.votes(0.4 * normal + across(run, points, normal), votes, run.generator)
    shares = counts[:, 1].double() / votes
    promise = float(special.ndtr(float(fixed[0]) / SIGMA))
    says = run.states("M-148", r"f=1_{w\cdot x>0}:\ P[f(x+\sigma\xi)=1]=\Phi(\mathrm{dist}/\sigma)")
    says.mean(shares, promise, against=(promise - 0.03, promise + 0.03), confidence=0.9999)
    slab = SmoothedClassifier(slab_of(normal, 0.5), SIGMA)
    broken = slab.votes(0.4 * normal + across(run, points, normal), votes, run.generator)
    says.fails("the class ends again at distance 1", broken[:, 1].double() / votes)

    # -- a trained classifier
    data = rings(run, 400)
    classifier = mlp([2, 24, 24, 2], "relu", generator=run.generator).double()
    fit(classifier, data, epochs=30, learning_rate=0.01, seed=run.seed)
    x, y = rings(run, samples)
    radii = torch.linspace(0, 1.2, 13).tolist()
    curves = {}
    for sigma in (0.15, 0.3, 0.6):
        noisy = SmoothedClassifier(classifier, sigma).certify(x, trials, generator=run.generator)
        curves[f"certified by noise, σ = {sigma:g}"] = noisy.accuracy(y, radii)
    sandwich = evaluate(classifier, (x, y), "2", radii)
    run.curves(
        "certified-accuracy",
        radii,
        {**curves, "certified by CROWN, the network itself": sandwich.certified_accuracy},
        {"no attack on the network itself succeeds": [s.estimate for s in sandwich.attacked_accuracy]},
        axes=("Euclidean radius", "certified accuracy"),
        ylim=(-0.02, 1.05),
        beside=True,
        caption="Certified accuracy of smoothed classifiers over the radius. They are other classifiers than the "
        "network they are made of, so their curves may cross that of its attacks.",
    )
    moderate = SmoothedClassifier(classifier, 0.3)
    sure = moderate.certify(x, trials, generator=run.generator)
    some = ~sure.abstained & (sure.radii > 0.3)  # there the votes of another draw are clear as well
    toward = toward_center(x[some], y[some])
    says = run.states(
        "M-148", r"\|\delta\|<R:\ \text{samples with }g(x+\delta)\ne g(x),\ \delta\text{ towards the other ring}"
    )
    says.equal(changed(moderate, run, x[some] + 0.7 * sure.radii[some, None] * toward, sure.classes[some], trials))
    says.fails(
        "perturbations of three times the radius",
        changed(moderate, run, x[some] + 3 * sure.radii[some, None] * toward, sure.classes[some], trials),
    )


def half_space(normal: Tensor) -> nn.Sequential:
    """Two classes with a plane through the origin between them."""
    weight = torch.stack([-normal, normal])
    return nn.Sequential(dense(weight, torch.zeros(2, dtype=torch.float64))).requires_grad_(False)


def slab_of(normal: Tensor, middle: float) -> nn.Sequential:
    """Class 1 between two parallel planes: score middle - |w·x - middle| against 0."""
    first = dense(torch.stack([normal, -normal]), torch.tensor([-middle, middle], dtype=torch.float64))
    last = dense(torch.tensor([[0.0, 0.0], [-1.0, -1.0]]).double(), torch.tensor([0.0, middle]).double())
    return nn.Sequential(first, nn.ReLU(), last).requires_grad_(False)


def across(run: Run, count: int, normal: Tensor) -> Tensor:
    """Random vectors along the plane."""
    v = run.randn(count, len(normal))
    return v - (v @ normal)[:, None] * normal


def rings(run: Run, count: int) -> tuple[Tensor, Tensor]:
    """A disc and a ring around it."""
    y = (run.rand(count) < 0.5).long()
    size = torch.where(y > 0, 1.6 + 0.15 * run.randn(count), 0.5 * run.rand(count))
    angle = 2 * math.pi * run.rand(count)
    return size[:, None] * torch.stack([angle.cos(), angle.sin()], 1), y


def toward_center(x: Tensor, y: Tensor) -> Tensor:
    """Unit vectors from the ring to the middle and from the middle to the ring."""
    unit = x / x.norm(dim=1, keepdim=True)
    return torch.where((y > 0)[:, None], -unit, unit)


def changed(smooth: SmoothedClassifier, run: Run, x: Tensor, classes: Tensor, trials: int) -> int:
    """For how many inputs the votes are for other classes than before."""
    return int((smooth.votes(x, trials, run.generator).argmax(1) != classes).sum())
