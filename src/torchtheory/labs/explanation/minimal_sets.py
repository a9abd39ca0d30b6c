"""Minimal relevant sets: the features that fix a score, and no others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.explanation.methods.minimal_sets import RelevantSet, minimal_relevant_set
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense


@lab(
    "minimal-sets",
    room="explanation",
    covers=["C-17"],
    title="Keep a few features, let the others be noise: the score stays if they are the right ones",
    full={"samples": 60, "features": 24, "steps": 400, "trials": 200},
    least={"features": 10, "steps": 30, "trials": 10},
)
def minimal_sets(run: Run, samples: int = 10, features: int = 12, steps: int = 120, trials: int = 40) -> None:
    """Rate-distortion explanations of scores of which it is known what they depend on.

    A score of k of the features is explained with Gaussian noise: the weights of the others go to
    0, and the distortion of the k that are left is 0. For a linear score and independent noise the
    weights have a closed form, a soft threshold.

    Args:
        samples: inputs that are explained.
        features: of each input.
        steps: of the optimization.
        trials: independent runs for the closed form.
    """
    counts = (2, 4, 6)
    # all terms are positive: of two that cancel, both could be left to the noise
    x = 1.5 + 0.5 * run.rand(samples, features)
    weights = 1 + 0.3 * run.rand(features)
    curves, found, spoiled, last = {}, [], [], []
    # every feature counts, and none more than the others
    every = torch.ones(features, dtype=torch.bool)
    full = minimal_relevant_set(score(weights, every), x, steps=steps, penalty=0.05, generator=run.generator)
    for k in counts:
        used = torch.randperm(features, generator=run.generator)[:k]
        mask = torch.zeros(features, dtype=torch.bool)
        mask[used] = True
        few = minimal_relevant_set(score(weights, mask), x, steps=steps, penalty=0.05, generator=run.generator)
        found.append(wrong(few, mask))
        spoiled.append(wrong(full, mask))
        last.append((few.distortions[:, k], full.distortions[:, k]))
        curves[f"{k} features count"] = few.distortions.mean(0).tolist()
    curves["all features count"] = full.distortions.mean(0).tolist()
    says = run.states(
        "C-17", r"f\text{ depends on }k\text{ features}:\ \{i:s_i>\tfrac12\}\text{ misses none and has no other}"
    )
    says.equal(torch.cat(found), 0.0)
    says.fails("f depends on all of them", torch.cat(spoiled))
    says = run.states("C-17", r"D(\text{the first }k\text{ features in the order of }s)=0")
    says.equal(torch.cat([kept for kept, _ in last]), 0.0)
    says.fails("f depends on all of them", torch.cat([kept for _, kept in last]))
    says = run.states("C-17", r"D(1,\ldots,1)=0")
    says.equal(full.distortions[:, -1], 0.0)
    says.fails("one feature is left to the noise", full.distortions[:, -2])
    says = run.states("C-17", r"\text{the smallest set without distortion has }k\text{ features}")
    says.equal(few.smallest(0.0), counts[-1])
    says.fails("f depends on all of them", full.smallest(0.0))

    # -- a closed form
    w = torch.tensor([2.0, 1.5, 1.0, 0.3], dtype=torch.float64)
    line, origin = dense(w[None]), torch.zeros(trials, 4, dtype=torch.float64)
    penalty = 0.4
    made = minimal_relevant_set(line, origin, penalty=penalty, steps=2 * steps, draws=64, generator=run.generator)
    common = run.randn(400, 1).expand(-1, 4) + 0.1 * run.randn(400, 4)
    shared = minimal_relevant_set(line, origin, penalty=penalty, steps=2 * steps, draws=64, background=common,
                                  generator=run.generator)  # fmt: skip
    threshold = penalty * float(w.square().sum()) / 2 / 4
    for i in range(3):
        promised = 1 - threshold / float(w[i]) ** 2
        says = run.states(
            "C-17",
            rf"f=w\cdot x,\ \nu\sim\mathcal N(0,I):\ s_i=\bigl(1-\lambda D(0)/(p\,w_i^2)\bigr)_+,\ w_i={float(w[i]):g}",
        )
        says.mean(made.weights[:, i], promised, 0.02, against=(1.0, 1 - 2 * threshold / float(w[i]) ** 2),
                  confidence=0.9999)  # fmt: skip
        says.fails("noise that is nearly the same in all features", shared.weights[:, i])
    says = run.states("C-17", r"w_i^2<\lambda D(0)/p:\ s_i=0")
    says.equal(made.weights[:, 3], 0.0)
    run.curves(
        "rate-distortion",
        few.sizes.tolist(),
        curves,
        axes=("features that are kept", "distortion / that of keeping none"),
        caption="Distortion of the first features in the order of their weights, mean over inputs: it ends at 0 as "
        "soon as all features are kept that count.",
    )


def score(weights: Tensor, mask: Tensor) -> nn.Module:
    """A score that is not linear in the features of the mask, and ignores the others."""
    kept = weights * mask

    def value(t: Tensor) -> Tensor:
        z = t * kept
        return z.sum(1) + 0.5 * (z.sin() * mask).sum(1)

    return as_layer(value)


def wrong(found: RelevantSet, mask: Tensor) -> Tensor:
    """How many features of each input are kept that do not count, or count and are not kept."""
    return (found.kept() != mask).sum(1)
