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
    least={"samples": 10_000, "points": 41},
)
def primer_gaussians(run: Run, samples: int = 20_000, points: int = 201) -> None:
    """The mean and the covariance of the density are its two parameters; affine maps act on them.

    Total mass, mean and covariance of densities on the line and in the plane come from
    quadrature. Samples of X are mapped by affine maps into more and fewer dimensions, and their
    moments and characteristic function are compared with those of N(Aμ+b, AΣAᵀ), at a confidence
    shared among all comparisons of a claim. Noise of random signs with the same mean and
    covariance has the right moments and the wrong characteristic function: it is not Gaussian.

    Args:
        samples: of each Gaussian.
        points: of the grid that moments are integrated on.
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
    says.fails("$(2π)^{-k/2}$ is left out, for a law on the line", masses[0] * math.sqrt(2 * math.pi), promised=1.0)
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
        y, signs = x @ A.T + b, corners @ A.T + b
        bent = y + (y - image.mean).abs()
        says = run.states("L-041", rf"\mathbb E[AX+b]=A\mu+b \text{{ ({name})}}")
        found, promised, rival = worst(y, image.mean, image.mean - b)
        says.mean(found, promised, against=[rival])
        found, promised, _ = worst(bent, image.mean, image.mean)
        says.fails("the map has a kink: AX + b + |AX - Aμ|", found, promised=promised)

        # variances of coordinates and of sums of them: all entries of the covariance, and none is 0
        U = torch.cat([torch.eye(len(A)).double(), run.randn(4, len(A))])
        variances = ((U @ image.covariance) * U).sum(1)
        says = run.states("L-041", rf"u^\top\operatorname{{Cov}}(AX+b)\,u=u^\top A\Sigma A^\top u \text{{ ({name})}}")
        found, promised, rival = worst(((y - image.mean) @ U.T).square(), variances, variances / 2)
        says.mean(found, promised, against=[rival, 4 * rival])
        centered = bent - bent.mean(0)
        found, promised, _ = worst((centered @ U.T).square(), variances, variances)
        says.fails("the map has a kink: AX + b + |AX - Aμ|", found, promised=promised)

        radii = torch.tensor([[0.75], [1.0], [1.5], [2.0]], dtype=torch.float64)
        t = run.randn(4, len(A))
        t = radii * t / ((t @ image.covariance) * t).sum(1, keepdim=True).sqrt()
        centering = torch.exp(-1j * (t @ image.mean))
        wanted = (centering * image.characteristic_function(t)).real
        says = run.states(
            "L-041",
            r"\mathbb E\cos(t^\top(AX+b-A\mu-b))=e^{-\frac12t^\top A\Sigma A^\top t}"
            rf" \text{{, the characteristic function ({name})}}",
        )
        found, promised, rival = worst(torch.cos((y - image.mean) @ t.T), wanted, wanted.square())
        says.mean(found, promised, against=[rival])
        found, promised, _ = worst(torch.cos((signs - image.mean) @ t.T), wanted, wanted)
        says.fails("X has random signs for noise, with the same mean and covariance", found, promised=promised)
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
    white = torch.linalg.solve(law.root(), (x - law.mean).T)
    says = run.states("L-040", r"\mathbb E\bigl(\Sigma^{-1/2}(X-\mu)\bigr)_i^4=3 \text{ (samples)}")
    says.mean(white.flatten() ** 4, 3.0, against=[9 / 5, 6.0], confidence=0.999)
    flat = math.sqrt(12) * (run.rand(3 * samples) - 0.5)
    says.fails("uniform noise of the same variance", flat**4)


def worst(
    columns: Tensor, promised: Tensor, rivals: Tensor, confidence: float = 0.999
) -> tuple[Interval, float, float]:
    """The mean that misses its promise by most, at a confidence for all columns together; its rival."""
    each = 1 - (1 - confidence) / columns.shape[1]
    found = [
        (mean_interval(column, confidence=each), float(value), float(rival))
        for column, value, rival in zip(columns.T, promised, rivals, strict=True)
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
