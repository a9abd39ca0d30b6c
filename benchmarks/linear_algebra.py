"""Matrix-free linear algebra beside its peers: products with the operator, time, and accuracy.

Each row solves one problem with torchtheory and with a peer in the same process, and prints the
ratio of the times (below 1: torchtheory is faster). scipy's ARPACK and CG get the same torch
products through a `scipy.sparse.linalg.LinearOperator`, so that the methods are compared and not
two BLAS libraries; curvlinops is measured where it is installed.

    python benchmarks/linear_algebra.py --size 2000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from torch import Tensor

from torchtheory.core.random import as_generator, gaussian
from torchtheory.linalg.conjugate_gradients import conjugate_gradients
from torchtheory.linalg.density import spectral_density
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import operator_norm, singular_values
from torchtheory.linalg.trace import trace


class Counted:
    """A matrix that counts the columns it is applied to, for torch and for scipy alike."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.count = matrix, 0

    def torch(self) -> LinearOperator:
        def apply(v: Tensor, M: Tensor) -> Tensor:
            self.count += v.shape[1]
            return M @ v

        return LinearOperator(
            (self.matrix.shape[0], self.matrix.shape[1]),
            lambda v: apply(v, self.matrix),
            lambda v: apply(v, self.matrix.T),
            batched=True,
            dtype=self.matrix.dtype,
        )

    def scipy(self) -> sparse.LinearOperator:
        def apply(v: np.ndarray, M: Tensor) -> np.ndarray:
            self.count += 1
            return (M @ torch.from_numpy(v.reshape(-1))).numpy()

        return sparse.LinearOperator(
            tuple(self.matrix.shape),
            matvec=lambda v: apply(v, self.matrix),
            rmatvec=lambda v: apply(v, self.matrix.T),
            dtype=np.float64,
        )


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    best, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def compare(
    name: str,
    counted: Counted,
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    difference: Callable[[Any, Any], float],
    repeats: int,
) -> None:
    counted.count = 0
    our_time, our_result = timed(ours, repeats)
    our_products, counted.count = counted.count // repeats, 0
    peer_time, peer_result = timed(peer, repeats)
    peer_products = counted.count // repeats
    print(
        f"{name:<34}{our_products:>9}{peer_products:>9}{our_time * 1e3:>10.1f}"
        f"{peer_time * 1e3:>10.1f}{our_time / peer_time:>8.2f}"
        f"{difference(our_result, peer_result):>12.1e}"
    )


def spectra(n: int) -> dict[str, Tensor]:
    bulk = torch.linspace(0, 1, n - 5, dtype=torch.float64)
    spikes = torch.tensor([12.0, 15.0, 20.0, 30.0, 50.0], dtype=torch.float64)
    return {
        "bulk and outliers": torch.cat([bulk, spikes]),
        "uniform": torch.linspace(-1, 1, n, dtype=torch.float64),
        "power law": torch.arange(1, n + 1, dtype=torch.float64) ** -1.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1500, help="dimension n (default: 1500)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="best of this many runs (default: 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the matrices (default: 0)")
    arguments = parser.parse_args()
    n, repeats = arguments.size, arguments.repeats
    generator = as_generator(arguments.seed)

    def random(*shape: int) -> Tensor:
        return gaussian(*shape, generator=generator, dtype=torch.float64)

    print(f"n = {n}, float64, {torch.get_num_threads()} thread(s), best of {repeats}")
    print(
        f"{'':<34}{'products':>18}{'time [ms]':>20}{'ratio':>8}{'difference':>12}\n"
        f"{'':<34}{'ours':>9}{'scipy':>9}{'ours':>10}{'scipy':>10}"
    )
    basis, _ = torch.linalg.qr(random(n, n))
    for name, spectrum in spectra(n).items():
        matrix = (basis * spectrum) @ basis.T
        counted = Counted((matrix + matrix.T) / 2)
        A, S = counted.torch(), counted.scipy()
        for k in (1, 5):
            compare(
                f"top {k}, {name}",
                counted,
                lambda A=A, k=k: top_eigenpairs(A, k, tolerance=1e-8).values,
                lambda S=S, k=k: np.sort(
                    sparse.eigsh(S, k, which="LA", tol=1e-8, return_eigenvectors=False)
                )[::-1],
                lambda a, b: float(np.abs(a.numpy() - b).max()),
                repeats,
            )

    counted = Counted(random(n, n // 2) / n**0.5)
    A, S = counted.torch(), counted.scipy()
    compare(
        "5 singular values, Gaussian",
        counted,
        lambda: singular_values(A, 5, tolerance=1e-8).values,
        lambda: np.sort(sparse.svds(S, 5, tol=1e-8, return_singular_vectors=False))[::-1],
        lambda a, b: float(np.abs(a.numpy() - b).max()),
        repeats,
    )
    compare(
        "operator norm, Gaussian",
        counted,
        lambda: float(operator_norm(A, tolerance=1e-8)),
        lambda: float(sparse.svds(S, 1, tol=1e-8, return_singular_vectors=False)[0]),
        lambda a, b: abs(a - b),
        repeats,
    )

    spectrum = torch.logspace(-3, 0, n, dtype=torch.float64)
    matrix = (basis * spectrum) @ basis.T
    counted = Counted((matrix + matrix.T) / 2)
    A, S = counted.torch(), counted.scipy()
    rhs = random(n, 8)
    compare(
        "CG, one right-hand side",
        counted,
        lambda: conjugate_gradients(A, rhs[:, 0]).x,
        lambda: sparse.cg(S, rhs[:, 0].numpy(), rtol=1e-8, atol=0)[0],
        lambda a, b: float(np.abs(a.numpy() - b).max()),
        repeats,
    )
    compare(
        "CG, eight right-hand sides",
        counted,
        lambda: conjugate_gradients(A, rhs).x,
        lambda: np.stack([sparse.cg(S, b, rtol=1e-8, atol=0)[0] for b in rhs.T.numpy()], 1),
        lambda a, b: float(np.abs(a.numpy() - b).max()),
        repeats,
    )

    print("\nEstimates, beside the exact value (no peer in scipy)")
    for label, work, exact in (
        ("trace, Hutch++, 99 products", lambda: trace(A), float(spectrum.sum())),
        (
            "trace, Hutchinson, 99 products",
            lambda: trace(A, method="hutchinson"),
            float(spectrum.sum()),
        ),
        (
            "mean log eigenvalue, 10 x 50 steps",
            lambda: spectral_density(A, probes=10, steps=50).moment(torch.log),
            float(spectrum.log().mean()),
        ),
    ):
        seconds, estimate = timed(work, repeats)
        print(
            f"{label:<36}{seconds * 1e3:>9.1f} ms  {estimate.value:.5f} ± "
            f"{estimate.standard_error:.5f}  exact {exact:.5f}"
        )
    compare_curvlinops(A, float(spectrum.sum()), repeats)


def compare_curvlinops(A: LinearOperator, exact: float, repeats: int) -> None:
    """Hutch++ of curvlinops on the same matrix."""
    try:
        from curvlinops import hutchpp_trace
    except ImportError as error:
        print(f"curvlinops: skipped ({error})")
        return
    matrix = A.to_dense()
    ours, estimate = timed(lambda: trace(A, samples=99), repeats)
    theirs, value = timed(lambda: hutchpp_trace(matrix, num_matvecs=99), repeats)
    print(
        "Hutch++, 99 products: "
        f"ours {ours * 1e3:.1f} ms (error {abs(estimate.value - exact):.1e}), "
        f"curvlinops {theirs * 1e3:.1f} ms (error {abs(float(value) - exact):.1e}), "
        f"ratio {ours / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
