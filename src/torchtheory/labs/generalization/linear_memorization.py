"""Linear models that memorize anything, and fit the test data from arbitrarily far away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.generalization.memorization.linear import far_interpolant, memorize_targets
from torchtheory.labs.engine import Run, lab
from torchtheory.neurons.regression import least_squares


@lab(
    "linear-memorization",
    room="generalization",
    covers=["B-08", "B-09"],
    title="Zero training and test error at any distance from the truth",
    full={"samples": 200, "features": 500},
    least={"samples": 5, "outputs": 1, "features": 6, "distance": 1},
    most={"distance": 1000000000.0},
)
def linear_memorization(
    run: Run, samples: int = 50, features: int = 80, outputs: int = 3, distance: float = 1e6
) -> None:
    """Features with more columns than independent rows, Gaussian and from a network.

    Any targets at all are reproduced when the training rows are independent. And as long as
    training and test rows together leave a direction free, weights as far from the truth and as
    large as one likes have the same training and test predictions, up to an error one chooses. With
    enough test rows no direction is left, and the statement is false. Look at the errors in the
    figure: flat on the given test points, and growing with the norm on others.

    Args:
        samples: that are memorized.
        features: more than samples, so that directions remain in which weights are free.
        outputs: of the linear model.
        distance: from the true weights at which the errors are still zero.
    """
    run.assumes(features > samples, f"{features} features leave no direction free on {samples} samples")
    memorize(run, samples, features, outputs)
    constructed(run, distance)
    other_points(run)


def memorize(run: Run, m: int, n: int, s: int) -> None:
    """Theorem 2.1 (i), on Gaussian features and on the last hidden layer of a ReLU network."""
    gaussian = run.randn(m, n)
    y = run.randn(m, s)
    net = nn.Sequential(nn.Linear(5, n), nn.ReLU()).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape))
        hidden = net(run.randn(m, 5))
    errors = [
        memorize_targets(phi, labels).residual / float(labels.norm())
        for phi in (gaussian, hidden)
        for labels in (y, run.signs(m, s))
    ]
    twice = torch.cat([gaussian, gaussian[:1]])  # the first row again, with other targets
    other = torch.cat([y, y[:1] + 1])
    weights = torch.stack([least_squares(twice, other[:, k]).weight for k in range(s)], dim=1)
    says = run.states("B-08", r"\operatorname{rank}\Phi=m\ \Rightarrow\ \forall Y\ \exists w:\ \Phi w=Y")
    says.at_most(
        errors, 0.0, 1e-9, where=f"relative residual, m = {m}, n = {n}: Gaussian features and random ReLU features"
    )
    says.fails(
        "a row that occurs twice with different targets: rank m - 1; the best weights there are",
        float((twice @ weights - other).norm() / other.norm()),
    )


def cases(run: Run) -> list[tuple[Tensor, Tensor, Tensor]]:
    """More columns than rows, and fewer columns than rows of low rank (Corollary 2.2)."""
    low = run.randn(15, 20)
    return [
        (run.randn(20, 60), run.randn(20, 60), run.randn(60, 2)),
        (run.randn(60, 15) @ low, run.randn(60, 15) @ low, run.randn(20, 2)),
    ]


def constructed(run: Run, distance: float) -> None:
    """Theorem 2.1 (ii) and Corollary 2.2: (a), (b), (c) and the two identities."""
    rows = []
    fits, sizes, lengths, identities = [], [], [], []
    for phi, test, star in cases(run):
        for error in (0.0, 0.1):
            found = far_interpolant(phi, test, star, error=error, distance=distance, generator=run.generator)
            missed = [
                phi @ found.weights - phi @ star - error * found.train_change,
                test @ found.weights - test @ star - error * found.test_change,
            ]
            # rounding grows with the weights: errors are relative to the size of the products
            scale = float(phi.norm()) * found.norm
            fits += [float(e.norm()) / scale for e in missed]
            sizes += [float(found.train_change.norm()), float(found.test_change.norm())]
            lengths += [found.norm / distance, found.distance / distance]
            identities += pythagoras(phi, test, star, error, found.weights, found.within,
                                     found.beyond)  # fmt: skip
            rows.append(
                (len(phi), phi.shape[1], error, found.norm, found.distance,
                 float((phi @ (found.weights - star)).norm()),
                 float((test @ (found.weights - star)).norm()))
            )  # fmt: skip
    phi, test, star = cases(run)[0]
    wide = far_interpolant(phi, test, star, distance=distance, generator=run.generator)
    fresh = run.randn(20, 60)
    says = run.states("B-09", r"\Phi w=Y+\epsilon A,\quad\Phi_{\rm test}w=Y_{\rm test}+\epsilon B")
    says.at_most(fits, 0.0, 1e-12, where="relative to the size of the products; n > m, and n ≤ m with rank 15 of 20")
    says.fails(
        "test rows that were not in M", float((fresh @ (wide.weights - star)).norm() / (fresh.norm() * wide.norm))
    )
    run.states("B-09", r"\|A\|_F\le1,\ \|B\|_F\le1").at_most(sizes, 1.0, 1e-12)
    full = torch.cat([phi, run.randn(60, 60)])
    unique = torch.stack([least_squares(full, full @ star[:, k]).weight for k in range(star.shape[1])], dim=1)
    says = run.states("B-09", r"\|w\|_F\ge\delta,\ \|w-w^*\|_F\ge\delta")
    says.at_least(lengths, 1.0, where=f"both over δ = {distance:g}")
    says.fails(
        "60 more test rows, rank M = n: weights with zero error are the truth itself",
        float((unique - star).norm()) / distance,
    )
    run.states(
        "B-09",
        r"\|w-w^*\|_F^2=\epsilon^2\|C_1\|_F^2+\alpha^2\|\bar C\|_F^2,\quad"
        r"\|w\|_F^2=\|w_1^*+\epsilon C_1\|_F^2+\|w_2^*+\alpha\bar C\|_F^2",
    ).equal(identities, 1.0, 1e-10, where="ratios of the two sides")
    run.table(
        "far-interpolants",
        ("m", "n", "ε", "|w|", "|w - w*|", "training error", "test error"),
        rows,
        caption=f"δ = {distance:g}. Errors are Frobenius norms, ε plus rounding of |w|.",
    )


def pythagoras(
    phi: Tensor,
    test: Tensor,
    star: Tensor,
    error: float,
    w: Tensor,
    within: Tensor,
    beyond: Tensor,
) -> list[float]:
    """Left over right side of both identities, with w* split by an independent projection."""
    stacked = torch.cat([phi, test])
    row = torch.linalg.pinv(stacked, rtol=1e-10) @ stacked
    first, second = row @ star, star - row @ star
    apart = (error * within).square().sum() + beyond.square().sum()
    whole = (first + error * within).square().sum() + (second + beyond).square().sum()
    return [float((w - star).square().sum() / apart), float(w.square().sum() / whole)]


def other_points(run: Run) -> None:
    """Test error by norm, on the test points in M and on fresh ones of the same law."""
    phi, test, star = run.randn(20, 60), run.randn(20, 60), run.randn(60, 1) / 60**0.5
    fresh = run.randn(200, 60)
    distances = [10.0**k for k in range(-2, 5)]
    known, new = [], []
    for d in distances:
        w = far_interpolant(phi, test, star, error=1e-3, distance=d, generator=0).weights
        known.append(float((test @ (w - star)).square().mean().sqrt()))
        new.append(float((fresh @ (w - star)).square().mean().sqrt()))
    says = run.states("B-09", r"\text{the error on }\Phi_{\rm test}\text{ does not grow with }\delta")
    says.at_most(known, 1e-3 / 20**0.5, 1e-9, where="root mean square over the 20 test points, ε = 0.001")
    says.fails("200 fresh points of the same law", new)

    run.curves(
        "error-by-distance",
        distances,
        {"the 20 test points in M": known, "200 fresh points": new},
        axes=("distance δ from the truth, at least", "root mean square error"),
        log="xy",
        caption="The theorem is about given test points: on them weights at any distance do well, "
        "and on others of the same law they do not.",
    )
