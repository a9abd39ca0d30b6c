"""Explanations that only ask for scores: what occlusion and LIME give, and how surely."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from torchtheory.explanation.explanation import flat
from torchtheory.explanation.methods.lime import lime
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense, mlp

FEATURES = 5


@lab(
    "perturbation-explanations",
    room="explanation",
    covers=["C-11", "C-12"],
    title="What is learned by taking features away: occlusion, patches, and a linear surrogate",
    full={"trials": 2000, "samples": 200, "draws": (100, 160, 250, 400, 630, 1000, 1600)},
    # a mean square over n trials errs by √(2/n): over six numbers of draws the slope's interval is then
    # narrower than what it must exclude
    least={"trials": 900, "draws": 50},
    items={"draws": 6},
)
def perturbation_explanations(
    run: Run, trials: int = 1500, samples: int = 40, draws: tuple[int, ...] = (80, 126, 200, 320, 500, 800, 1280)
) -> None:
    """Occlusion of features and patches against closed forms, and LIME against the best linear fit.

    For an additive score occlusion gives each feature its own term, with a background the term's
    distance from its mean, and of probabilities the difference that the term makes. With
    interactions the differences no longer add up. LIME's coefficients come near those of the best
    weighted linear fit over all sets of features as the root of the number of sets that were drawn,
    and their intervals cover them.

    Args:
        trials: independent fits by LIME for the same input.
        samples: inputs for occlusion.
        draws: numbers of sets of features per fit.
    """
    w, b = run.randn(FEATURES), run.randn(1)
    w = w.sign() * (0.5 + w.abs())
    x = run.randn(samples, FEATURES)
    plain, paired = dense(w[None], b), as_layer(lambda t: t @ w + b + t.sum(1) ** 2 / 2)
    background = run.randn(30, FEATURES)
    says = run.states("C-12", r"f=w\cdot x+b\text{ with a background}:\ R_i=w_i(x_i-\bar b_i)")
    says.equal(occlusion(plain, x, background=background).flat, w * (x - background.mean(0)), 1e-9)
    says.fails("f has products of features", occlusion(paired, x, background=background).flat)
    says = run.states("C-12", r"f\text{ additive}:\ \sum_iR_i=f(x)-f(0)")
    waves = as_layer(lambda t: (w * t).sin().sum(1))
    says.equal(occlusion(waves, x).total, occlusion(waves, x).score, 1e-9)
    says.fails("f has products of features, which are counted for each of them", occlusion(paired, x).total,
               promised=occlusion(paired, x).score - b)  # fmt: skip
    says = run.states("C-12", r"P=\mathrm{softmax}(f,0)_1:\ R_i=P(x)-P(x_{|x_i=0})=\sigma(f(x))-\sigma(f(x)-w_ix_i)")
    two = nn.Sequential(plain, as_layer(lambda t: torch.cat([torch.zeros_like(t), t], 1)))
    bent = nn.Sequential(paired, as_layer(lambda t: torch.stack([torch.zeros_like(t), t], 1)))
    for_two = (x @ w + b).sigmoid()[:, None] - ((x @ w + b)[:, None] - w * x).sigmoid()
    says.equal(occlusion(two, x, 1, probabilities=True).flat, for_two, 1e-9)
    says.fails("f has products of features", occlusion(bent, x, 1, probabilities=True).flat)
    images = run.randn(samples, 2, 6, 6)
    terms = run.randn(2, 6, 6)
    linear = as_layer(lambda t: (t * terms).sum((1, 2, 3)))
    square = as_layer(lambda t: (t * terms).sum((1, 2, 3)) + t.sum((1, 2, 3)) ** 2 / 2)
    patches = (images * terms).reshape(samples, 2, 3, 2, 3, 2).sum((1, 3, 5))
    says = run.states("C-12", r"\text{linear score of an image}:\ R(\text{patch})=\sum_{i\in\text{patch}}w_ix_i")
    says.equal(by_patch(linear, images), patches, 1e-9)
    says.fails("f has products of pixels", by_patch(square, images))

    # -- LIME
    net = mlp([FEATURES, 16, 1], "tanh", generator=run.generator)
    point = 2 * run.randn(1, FEATURES)
    best = best_fit(net, point[0])
    copies = point.expand(trials, -1)
    made = {n: lime(net, copies, samples=n, generator=run.generator) for n in draws}
    errors = [float((m.flat - best[1:]).square().mean().sqrt()) for m in made.values()]
    some = copies[:50]
    shrunk = [
        float((lime(net, some, samples=n, penalty=0.05 * n, generator=run.generator).flat - best[1:])
              .square().mean().sqrt()) for n in draws
    ]  # fmt: skip
    says = run.states("C-11", r"\text{root mean square of }\hat\beta-\beta\sim n^{-1/2},\ \beta\text{ the best fit}")
    says.slope(draws, errors, -0.5, 0.06, against=(-0.75, -0.25))
    says.fails("a penalty that grows with n", draws, shrunk)
    last = made[draws[-1]]
    assert last.error is not None
    apart = (last.flat - best[1:]) / flat(last.error)
    says = run.states("C-11", r"P\bigl(|\hat\beta_i-\beta_i|\le1.96\,\text{standard errors}\bigr)\ge0.95")
    which = torch.arange(trials)  # one coefficient of each fit, so that they are independent
    says.share(apart[which, which % FEATURES].abs() <= 1.96, 0.95)
    chosen = lime(net, copies, samples=draws[-1], select=2, generator=run.generator)
    assert chosen.error is not None
    covered = (chosen.flat - best[1:]).abs() <= 1.96 * flat(chosen.error)
    says.fails("features chosen by the same draws, which the errors do not count", covered[which, which % FEATURES])
    says = run.states("C-11", r"\text{spread over draws}^2/\text{standard error}^2=1")
    says.mean(apart[which, which % FEATURES].square(), 1.0, against=(0.5, 2.0), confidence=0.9999)
    line = dense(w[None], b)
    says = run.states("C-11", r"f=w\cdot x+b:\ \hat\beta_i=w_ix_i\text{ from any draws}")
    says.equal(lime(line, x, samples=30, generator=run.generator).flat, w * x, 1e-9)
    says.fails("f has products of features", lime(paired, x, samples=30, generator=run.generator).flat)
    run.curves(
        "lime",
        list(draws),
        {"LIME": errors, "penalty that grows with n": shrunk},
        {
            "standard errors": [
                float(flat(m.error).square().mean().sqrt()) for m in made.values() if m.error is not None
            ]
        },
        axes=("sets of features that are drawn", "error of a coefficient"),
        log="xy",
        caption="Distance of LIME's coefficients from the best linear fit over all sets, root mean square over "
        "independent draws (marks), and what their standard errors say (dashed).",
    )


def by_patch(net: nn.Module, images: Tensor) -> Tensor:
    """What the entries of each patch of 2 × 2 pixels add up to, `[n, 3, 3]`."""
    relevance = occlusion(net, images, patch=2).flat
    return relevance.reshape(len(images), 2, 3, 2, 3, 2).sum((1, 3, 5))


def best_fit(net: nn.Module, x: Tensor, width: float = 0.25) -> Tensor:
    """Intercept and coefficients of the weighted linear fit over all sets of features."""
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(x))), dtype=torch.float64)
    weights = torch.exp(-(((1 - z.mean(1).sqrt()) / width) ** 2))
    design = torch.cat([torch.ones(len(z), 1, dtype=torch.float64), z], 1)
    root = weights.sqrt()[:, None]
    with torch.no_grad():
        scores = net(z * x)
    solution: Tensor = torch.linalg.lstsq(root * design, root * scores).solution[:, 0]
    return solution
