"""The linear autoencoder, its optimum and principal components."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.decomposition import PCA, TruncatedSVD
from torch import Tensor

from torchtheory.data.real import digits
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.neurons.autoencoder import LinearAutoencoder, least_loss, low_rank


@lab(
    "linear-autoencoder",
    room="neurons",
    covers=["L-047", "L-048", "L-049", "L-050", "L-051"],
    title="The best linear autoencoder is the truncated SVD; gradient descent finds it",
    errata=["autoencoder-loss-normalized-twice", "truncated-product-is-identity"],
    full={"samples": 1000, "features": 30, "code": 5, "steps": 20_000, "digits_used": 1797},
    least={"samples": 25, "features": 6, "steps": 1_000, "digits_used": 50},
)
def linear_autoencoder(
    run: Run,
    samples: int = 60,
    features: int = 8,
    code: int = 3,
    steps: int = 1500,
    digits_used: int = 300,
) -> None:
    """x ↦ DCx with a code of few numbers: gradients, rank, closed form, uniqueness, PCA.

    Gradients written out are compared with automatic ones, ranks with the bottleneck, losses of
    random and trained competitors with Eckart and Young's bound. Gradient descent from random
    weights reaches the closed-form loss. On the digits of scikit-learn the optimum equals its
    TruncatedSVD, and equals its PCA only after centering. The picture shows the loss against the
    code's length next to the bound, and digits rebuilt from few numbers.

    Args:
        samples: random inputs.
        features: of an input.
        code: width of the code.
        steps: of gradient descent.
        digits_used: digits in the part on real data.
    """
    x = run.randn(samples, features) * torch.linspace(2, 0.3, features).double()
    net = LinearAutoencoder(features, code, generator=run.generator)
    c, d = net.encoder.weight.detach(), net.decoder.weight.detach()
    by_sample = 0.5 * (x - x @ c.T @ d.T).square().sum(1)
    frobenius = float((x - x @ c.T @ d.T).norm() ** 2)
    loss = float(net.loss(x).detach())
    says = run.states("L-047", r"L=\tfrac1n\sum_i\ell_{x_i}=\tfrac1{2n}\|X-DCX\|_F^2,\quad \ell_x=\tfrac12\|x-DCx\|^2")
    says.equal([float(by_sample.mean()), frobenius / (2 * samples)], loss, 1e-12)
    says.fails("the Frobenius form without 1/n", frobenius / 2)
    run.refutes(
        "autoencoder-loss-normalized-twice", r"\tfrac1{2n}\sum_i\ell_{x_i}=\tfrac1{2n}\sum_i\|x_i-DCx_i\|^2"
    ).equal(
        float(by_sample.sum()) / (2 * samples),
        frobenius / (2 * samples),
        1e-12,
        where="the left side is half the right one: ℓ has its own factor ½",
    )
    run.states("L-047", r"z=Cx\in\mathbb R^m,\ y=Dz\in\mathbb R^d:\ \text{shapes}").equal(
        [net.encode(x).shape[1], net.decode(net.encode(x)).shape[1]], [code, features]
    )
    gradients(run, net, x)
    ranks(run, features, code, x)
    eckart_young(run, x, code)
    optimum(run, x, code, steps)
    real_digits(run, digits_used)


def gradients(run: Run, net: LinearAutoencoder, x: Tensor) -> None:
    """L-048: written out, and entry by entry."""
    auto = torch.autograd.grad(net.loss(x), [net.encoder.weight, net.decoder.weight])
    written = net.gradients(x)
    c, d = net.encoder.weight.detach(), net.decoder.weight.detach()
    residual = x @ c.T @ d.T - x
    entries_c = torch.einsum("si,jk,sj->ki", x, d, residual) / len(x)
    entries_d = torch.einsum("sj,ki,si->jk", residual, c, x) / len(x)
    says = run.states(
        "L-048", r"\partial\ell/\partial C=D^\top(y-x)x^\top,\ \partial\ell/\partial D=(y-x)x^\top C^\top"
    )
    says.equal([gap(a, b) for a, b in zip(auto, written, strict=True)], within=1e-13)
    says.fails("x − y for y − x", [gap(a, -b) for a, b in zip(auto, written, strict=True)])
    run.states(
        "L-048",
        r"\partial\ell/\partial C_{ki}=x_i\sum_jD_{jk}(y_j-x_j),\quad "
        r"\partial\ell/\partial D_{jk}=(y_j-x_j)\sum_iC_{ki}x_i",
    ).equal([gap(auto[0], entries_c), gap(auto[1], entries_d)], within=1e-13)


def ranks(run: Run, features: int, code: int, x: Tensor) -> None:
    """L-049: the bottleneck bounds the rank."""
    pairs = [(run.randn(m, features), run.randn(features, m)) for m in range(1, features)]
    thin = run.randn(code, 1) @ run.randn(1, features)
    pairs.append((thin, run.randn(features, code)))

    def rank(matrix: Tensor) -> int:
        return int(torch.linalg.matrix_rank(matrix))

    says = run.states("L-049", r"\mathrm{rank}(DC),\mathrm{rank}(DCX)\le\min\{\mathrm{rank}\,C,\mathrm{rank}\,D\}\le m")
    says.at_most(
        [r for c, d in pairs for r in (rank(d @ c), rank(x @ (d @ c).T))],
        [min(rank(c), rank(d)) for c, d in pairs for _ in range(2)],
        where="one pair has an encoder of rank 1",
    )
    says.fails(
        "DC + I, a shortcut around the bottleneck", rank(pairs[0][1] @ pairs[0][0] + torch.eye(features)), promised=1
    )


def eckart_young(run: Run, x: Tensor, code: int) -> None:
    """L-050: nothing of that rank comes closer."""
    sizes = range(1, min(x.shape))
    best = {r: low_rank(x, r) for r in sizes}
    says = run.states("L-050", r"\|X-X_r\|_F=\sqrt{\sum_{i>r}\sigma_i^2}")
    says.equal([float((x - best[r].matrix).norm()) for r in sizes], [best[r].error for r in sizes], 1e-12)
    says.fails("the largest r singular values thrown away", float(best[code].matrix.norm()), promised=best[code].error)
    others = []
    for r in sizes:
        noise = best[r].matrix + 1e-3 * run.randn(*x.shape)
        rivals = [
            run.randn(len(x), r) @ run.randn(r, x.shape[1]),
            projected(x, run.randn(r, x.shape[1])),
            alternating(x, run.randn(r, x.shape[1]), 30),
            low_rank(noise, r).matrix,
        ]
        others += [float((x - rival).norm()) - best[r].error for rival in rivals]
    says = run.states("L-050", r"\mathrm{rank}\,Y\le r\Rightarrow\|X-Y\|_F\ge\|X-X_r\|_F")
    says.at_least(
        others, 0, 1e-12, where="random factors, random projections, alternating least squares, perturbed $X_r$"
    )
    says.fails("rank r + 1", best[code + 1].error - best[code].error)
    svd = TruncatedSVD(n_components=code, algorithm="arpack", random_state=0)
    theirs = torch.from_numpy(svd.inverse_transform(svd.fit_transform(x.numpy())))
    run.states(["L-050", "L-051"], r"X_r\text{ and }DCX\text{ equal scikit-learn's TruncatedSVD}").equal(
        [gap(theirs, best[code].matrix), gap(theirs, LinearAutoencoder.optimal(x, code)(x))], within=1e-10
    )


def optimum(run: Run, x: Tensor, code: int, steps: int) -> None:
    """L-051: the closed form, its freedom, and gradient descent."""
    best = LinearAutoencoder.optimal(x, code)
    wanted = least_loss(x, code)
    mixing = run.randn(code, code) + 3 * torch.eye(code).double()
    mixed = LinearAutoencoder.optimal(x, code, mixing)
    wrong = LinearAutoencoder.optimal(x, x.shape[1]).encoder.weight.detach()[-code:]
    says = run.states("L-051", r"C=U_m^\top,\ D=U_m:\ L=\tfrac1{2n}\sum_{i>m}\sigma_i^2")
    says.equal(float(best.loss(x).detach()), wanted, 1e-12)
    says.fails("the last m singular vectors", float(LinearAutoencoder.from_matrices(wrong, wrong.T).loss(x).detach()))
    says = run.states("L-051", r"C=M^{-1}U_m^\top,\ D=U_mM\text{ for invertible }M:\ \text{same map}")
    says.equal(gap(mixed(x), best(x)), within=1e-12, where="the optimum is not unique")
    says.fails("C = MU_mᵀ, D = U_mM", gap(twice(best, mixing)(x), best(x)))
    u = torch.linalg.svd(x.T, full_matrices=True).U
    product = u[:, :code].T @ u
    run.states("L-051", r"U_m^\top U=(I_m\ \ 0)").equal(
        gap(product, torch.eye(code, x.shape[1]).double()), within=1e-13
    )
    run.refutes("truncated-product-is-identity", r"U_m^\top U=I_m:\ \text{columns of the product}").equal(
        product.shape[1], code, where="it is an m×d matrix, ($I_m$ 0)"
    )
    losses = descend(run, x, code, steps)
    says = run.states(
        ["L-051", "L-048"], r"\text{gradient descent from random weights reaches }\tfrac1{2n}\sum_{i>m}\sigma_i^2"
    )
    says.equal(losses[-1], wanted, 1e-6, where=f"{steps} full steps")
    says.fails("stopped after 5 steps", losses[5])


def real_digits(run: Run, used: int) -> None:
    """L-051 on real data, and where PCA comes in."""
    pixels = digits(torch.float64)[0][:used]
    mean = pixels.mean(0)
    code = 8
    centered = pixels - mean
    pca = PCA(n_components=code, svd_solver="full")
    theirs = torch.from_numpy(pca.inverse_transform(pca.fit_transform(pixels.numpy())))
    ours = LinearAutoencoder.optimal(centered, code)(centered) + mean
    raw = LinearAutoencoder.optimal(pixels, code)(pixels)
    says = run.states(["L-051", "L-047"], r"\text{on centered data the optimum is PCA (scikit-learn, digits)}")
    says.equal(gap(ours, theirs), within=1e-10)
    says.fails("nothing centered", gap(raw, theirs))
    lengths = list(range(1, 41))
    bound = [least_loss(pixels, m) for m in lengths]
    reached = [float(LinearAutoencoder.optimal(pixels, m).loss(pixels).detach()) for m in lengths]
    run.figure(
        "digits",
        lambda axes: plot_digits(axes, pixels, lengths, bound, reached),
        caption="Left: loss of the optimal autoencoder against the length of its code, and "
        "Eckart-Young. Right: digits, and what is left of them with 4 and 16 numbers.",
        grid=(1, 2),
        size=(9, 3.4),
    )


def projected(x: Tensor, directions: Tensor) -> Tensor:
    """The rows of x projected on the span of random directions."""
    basis = torch.linalg.qr(directions.T).Q
    found: Tensor = x @ basis @ basis.T
    return found


def alternating(x: Tensor, right: Tensor, rounds: int) -> Tensor:
    """Alternating least squares for x ≈ left @ right."""
    left = x @ torch.linalg.pinv(right)
    for _ in range(rounds):
        right = torch.linalg.pinv(left) @ x
        left = x @ torch.linalg.pinv(right)
    found: Tensor = left @ right
    return found


def twice(net: LinearAutoencoder, mixing: Tensor) -> LinearAutoencoder:
    c, d = net.encoder.weight.detach(), net.decoder.weight.detach()
    return LinearAutoencoder.from_matrices(mixing @ c, d @ mixing)


def descend(run: Run, x: Tensor, code: int, steps: int) -> list[float]:
    """Full gradient descent with the gradients written out; the loss after every step."""
    net = LinearAutoencoder(x.shape[1], code, generator=run.generator)
    rate = 0.4 / float(torch.linalg.matrix_norm(x.T @ x / len(x), 2))
    losses = []
    with torch.no_grad():
        for _ in run.track(range(steps), "gradient descent"):
            losses.append(float(net.loss(x)))
            by_c, by_d = net.gradients(x)
            net.encoder.weight.sub_(rate * by_c)
            net.decoder.weight.sub_(rate * by_d)
        losses.append(float(net.loss(x)))
    return losses


def plot_digits(axes: Any, pixels: Tensor, lengths: list[int], bound: list[float], reached: list[float]) -> None:
    left, right = axes[0]
    left.semilogy(lengths, bound, color="0.75", linewidth=5, label="Eckart-Young")
    left.semilogy(lengths, reached, color=COLORS[0], marker="o", markersize=3, label="optimum")
    left.set_xlabel("length of the code")
    left.set_ylabel("loss")
    left.legend()
    rows = [pixels[:6]]
    rows += [LinearAutoencoder.optimal(pixels, m)(pixels[:6]).detach() for m in (4, 16)]
    tiles = [torch.nn.functional.pad(r.reshape(6, 8, 8), (1, 1, 1, 1)) for r in rows]
    picture = torch.cat([torch.cat(list(row), dim=1) for row in tiles])
    right.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
    right.set_yticks([4.5, 14.5, 24.5], ["original", "4 numbers", "16 numbers"])
    right.set_xticks([])
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    right.grid(False)
