"""Gaussian vectors: moments, and what an affine map does to them."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.primer.gaussians import Gaussian, moments_by_quadrature


@lab(
    "primer-gaussians",
    room="primer",
    covers=["L-040", "L-041"],
    title="An affine map of a Gaussian is Gaussian, with mean Aμ + b and covariance AΣAᵀ",
    full={"samples": 1_000_000, "points": 801},
)
def primer_gaussians(run: Run, samples: int = 20_000, points: int = 201) -> None:
    """The mean and the covariance of the density are its two parameters; affine maps act on them.

    Total mass, mean and covariance of densities on the line and in the plane come from
    quadrature. Samples of X are mapped by affine maps into more and fewer dimensions, and their
    moments and characteristic function are compared with those of N(Aμ+b, AΣAᵀ), at a confidence
    shared among all comparisons of a claim. Noise of random signs with the same mean and
    covariance has the right moments and the wrong characteristic function: it is not Gaussian.
    """
    moments(run, points)
    law = random_law(run, 3)
    maps = {
        "rotation": torch.linalg.qr(run.randn(3, 3)).Q,
        "projection to the plane": run.randn(2, 3),
        "to one number": run.randn(1, 3),
        "into five dimensions": run.randn(5, 3),
    }
    affine(run, law, maps, samples)
    plane = Gaussian(torch.tensor([1.0, 0.5]).double(), torch.tensor([[1.0, 0.6], [0.6, 0.5]]).double())
    A = torch.tensor([[0.2, -1.3], [1.1, 0.3]], dtype=torch.float64)
    b = torch.tensor([-3.0, 1.0], dtype=torch.float64)
    run.figure(
        "affine-map",
        lambda axes: plot(axes, plane, A, b, run),
        caption="Samples of X and of Y = AX + b with the ellipses of N(μ, Σ) and N(Aμ+b, AΣAᵀ) "
        "that hold 50, 90 and 99 percent of the mass. Right: a map of rank one has no density.",
        grid=(1, 2),
        size=(10, 4.2),
    )


def moments(run: Run, points: int) -> None:
    laws = [
        Gaussian(torch.tensor([m]).double(), torch.tensor([[v]]).double())
        for m, v in ((0.0, 1.0), (-2.0, 0.25), (5.0, 9.0))
    ]
    laws += [random_law(run, 2) for _ in range(3)]
    masses, means, covariances, wanted_means, wanted = [], [], [], [], []
    for law in laws:
        mass, mean, covariance = moments_by_quadrature(law, points=points)
        masses.append(mass)
        means.append(mean)
        covariances.append(covariance.flatten())
        wanted_means.append(law.mean)
        wanted.append(law.covariance.flatten())
    says = run.states("L-040", r"\int f=1,\quad \int xf(x)\,dx=\mu \text{ on the line and in the plane}")
    says.equal(
        torch.cat([torch.tensor(masses, dtype=torch.float64), *means]),
        torch.cat([torch.ones(len(laws)).double(), *wanted_means]),
        1e-9,
    )
    says.fails("(2π)^{-k/2} is left out, for a law on the line", masses[0] * math.sqrt(2 * math.pi), promised=1.0)
    says = run.states("L-040", r"\operatorname{Cov}X=\int(x-\mu)(x-\mu)^\top f(x)\,dx=\Sigma")
    says.equal(torch.cat(covariances), torch.cat(wanted), 1e-9)
    says.fails(
        "the standard deviation in the place of the variance, as N(μ, σ) could be read",
        covariances[2].sqrt(),
        promised=9.0,
    )
    reference = [stats.multivariate_normal(law.mean.numpy(), law.covariance.numpy()) for law in laws]
    where = [law.mean + run.randn(50, len(law.mean)) for law in laws]
    says = run.states(
        "L-040",
        r"f(x)=(2\pi)^{-k/2}\det\Sigma^{-1/2}e^{-\frac12(x-\mu)^\top\Sigma^{-1}(x-\mu)}"
        r" \text{ (logarithm, against scipy)}",
    )
    says.equal(
        torch.cat([law.log_density(x) for law, x in zip(laws, where, strict=True)]),
        torch.cat([torch.from_numpy(r.logpdf(x.numpy())) for r, x in zip(reference, where, strict=True)]),
        1e-10,
    )
    says.fails(
        "det Σ without the root",
        laws[2].log_density(where[2]) - 0.5 * math.log(9.0),
        promised=laws[2].log_density(where[2]),
    )


def affine(run: Run, law: Gaussian, maps: dict[str, Tensor], samples: int) -> None:
    x = law.sample(samples, generator=run.generator)
    # random signs with the mean and the covariance of the law
    corners = law.mean + run.signs(samples, 3) @ law.root().T
    rows = []
    for name, A in maps.items():
        b = 2 + run.rand(len(A))
        image = law.affine(A, b)
        y, mapped = x @ A.T + b, corners @ A.T + b
        shift, no_shift = worst(y, image.mean), worst(y - b, image.mean)
        centered = products(y - image.mean)
        target = image.covariance.flatten()
        spread = worst(centered, target)
        wrong = worst(centered, 1.5 * target)
        t = run.randn(4, len(A)) / image.covariance.diagonal().sqrt().max()
        wanted = image.characteristic_function(t)
        phase = torch.cat([wanted.real, wanted.imag])
        waves = worst(torch.cat([torch.cos(y @ t.T), torch.sin(y @ t.T)], dim=1), phase)
        # further out the two laws differ most
        radii = torch.tensor([[2.0], [3.0], [4.0], [5.0]], dtype=torch.float64)
        far = radii * t / ((t @ image.covariance) * t).sum(1, keepdim=True).sqrt()
        outside = image.characteristic_function(far)
        off = worst(
            torch.cat([torch.cos(mapped @ far.T), torch.sin(mapped @ far.T)], dim=1),
            torch.cat([outside.real, outside.imag]),
        )
        says = run.states("L-041", rf"\mathbb E[AX+b]=A\mu+b \text{{ ({name})}}")
        says.mean(shift[0], shift[1])
        says.fails("b is left out", no_shift[0], promised=no_shift[1])
        says = run.states("L-041", rf"\operatorname{{Cov}}(AX+b)=A\Sigma A^\top \text{{ ({name})}}")
        says.mean(spread[0], spread[1])
        says.fails("1.5 times the covariance", wrong[0], promised=wrong[1])
        says = run.states(
            "L-041",
            rf"\mathbb E e^{{it^\top(AX+b)}}=e^{{it^\top(A\mu+b)-\frac12t^\top A\Sigma A^\top t}} \text{{ ({name})}}",
        )
        says.mean(waves[0], waves[1])
        says.fails("X has random signs for noise, with the same mean and covariance", off[0], promised=off[1])
        rows.append((name, f"{len(A)} × {A.shape[1]}", image.rank, image.rank == len(A)))
    run.table(
        "maps",
        ["map", "size of A", "rank of AΣAᵀ", "has a density"],
        rows,
        caption="AX + b has a density exactly if A has full row rank (and Σ is invertible)",
    )
    says = run.states(
        "L-041", r"\operatorname{rank}A\Sigma A^\top=\min(p,k): \text{ a density exists only for } p\le k"
    )
    says.equal([law.affine(A, run.randn(len(A))).rank for A in maps.values()], [min(A.shape) for A in maps.values()])
    says.fails("A has two equal rows", law.affine(torch.ones(2, 3).double(), torch.zeros(2).double()).rank, promised=2)
    exact, flat = fourth_moment(x[:, 0]), fourth_moment(run.rand(samples))
    says = run.states("L-040", r"\mathbb E(X_1-\mu_1)^4/\Sigma_{11}^2=3 \text{ (samples)}")
    says.mean(exact, 3.0)
    says.fails("uniform noise", flat)


def fourth_moment(values: Tensor) -> Interval:
    centered = values.flatten() - values.mean()
    return mean_interval(centered**4 / centered.square().mean() ** 2, confidence=0.999)


def products(y: Tensor) -> Tensor:
    """All products of two coordinates, `[n, p * p]`."""
    return (y[:, :, None] * y[:, None, :]).reshape(len(y), -1)


def worst(columns: Tensor, promised: Tensor, confidence: float = 0.999) -> tuple[Interval, float]:
    """The interval that misses its promise by most, at a confidence for all columns together."""
    each = 1 - (1 - confidence) / columns.shape[1]
    found = [
        (mean_interval(column, confidence=each), float(value))
        for column, value in zip(columns.T, promised, strict=True)
    ]
    return max(found, key=lambda f: abs(f[0].estimate - f[1]) / max(f[0].high - f[0].low, 1e-300))


def random_law(run: Run, k: int) -> Gaussian:
    G = run.randn(k, k + 2)
    return Gaussian(run.randn(k), G @ G.T / (k + 2) + 0.2 * torch.eye(k).double())


def plot(axes: Any, law: Gaussian, A: Tensor, b: Tensor, run: Run) -> None:
    x = law.sample(250, generator=run.generator)
    image = law.affine(A, b)
    y = x @ A.T + b
    left, right = axes.ravel()
    for points, shown, color, name in (
        (x, law, COLORS[0], "X"),
        (y, image, COLORS[1], "AX + b"),
    ):
        left.scatter(points[:, 0], points[:, 1], s=4, color=color, alpha=0.35, lw=0, label=name)
        for mass in (0.5, 0.9, 0.99):
            curve = shown.ellipse(mass)
            left.plot(curve[:, 0], curve[:, 1], color=color, lw=1.2)
    left.set(title="full rank")
    left.legend(loc="upper right", markerscale=3)
    flat = torch.tensor([[1.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    z = x @ flat.T + b
    right.scatter(x[:, 0], x[:, 1], s=4, color=COLORS[0], alpha=0.35, lw=0, label="X")
    right.scatter(z[:, 0], z[:, 1], s=4, color=COLORS[2], alpha=0.35, lw=0, label="rank one")
    right.set(title="A of rank one")
    right.legend(loc="upper right", markerscale=3)
    for axis in (left, right):
        axis.set(aspect="equal", xlim=(-7.5, 5.5), ylim=(-3, 7))
