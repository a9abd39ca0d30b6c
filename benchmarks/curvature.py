"""Curvature of a network beside its peers: eigenvalues, spectral density, one product, memory.

Networks: an MLP 784-256-10 and a small CNN, trained on 2000 images (scikit-learn's digits enlarged
to 28 x 28, repeated with noise). Contenders, where they are installed:

* PyHessian with all images as one batch, whose graph it keeps ("batch"), and with a loader of
  batches as large as our chunks ("loader"). Its `density` calls `torch.eig`, which torch no
  longer has; `torch.linalg.eigh` of the same matrix is put in its place.
* curvlinops: `HessianLinearOperator` with `scipy.sparse.linalg.eigsh`, and its
  `fast_lanczos`.

Eigenvalues: every contender at the loosest tolerance of a ladder at which its five largest have a
relative error of at most 1e-3 (reference: ours in float64 to 1e-9). Spectral density: 50 Lanczos
steps for each probe. One product: against the time its multiplications would take at the rate of a
forward pass, if nothing else cost anything. Memory: the peak of a process that takes a product
over 2000 and over 20000 images with `memory="256MiB"` (on Linux).

    pip install --no-deps pyhessian curvlinops-for-pytorch linear_operator jaxtyping wadler-lindig
    pip install einops einconv
    python benchmarks/curvature.py [--threads 2] [--probes 3] [--only eigenvalues density ...]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits
from torchtheory.linalg.density import spectral_density
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator

T = TypeVar("T")

ROWS = ("eigenvalues", "density", "product", "memory")
LADDER = (0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)


def images(count: int) -> tuple[Tensor, Tensor]:
    x, y = digits()
    x = F.interpolate(x.reshape(-1, 1, 8, 8).float(), size=28, mode="bilinear").flatten(1)
    generator = torch.Generator().manual_seed(0)
    index = torch.arange(count) % len(x)
    return x[index] + 0.02 * torch.randn(count, 784, generator=generator), y[index]


def network(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


def trained(kind: str, x: Tensor, y: Tensor) -> nn.Sequential:
    net = network(kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The median of a few calls, after one that warms up; of processor time on one thread."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    work()
    taken = []
    for _ in range(repeats):
        start = clock()
        work()
        taken.append(clock() - start)
    return statistics.median(taken)


# ------------------------------------------------------------------------------- contenders


def pyhessian(net: nn.Module, x: Tensor, y: Tensor, batch: int | None) -> object:
    from pyhessian import hessian

    torch.eig = _eig  # type: ignore[attr-defined]
    if batch is None:
        return hessian(net, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    loader = list(zip(x.split(batch), y.split(batch), strict=True))
    return hessian(net, nn.CrossEntropyLoss(), dataloader=loader, cuda=False)


def _eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return torch.stack([values, torch.zeros_like(values)], 1), vectors


def curvlinops(net: nn.Module, x: Tensor, y: Tensor, batch: int) -> object:
    from curvlinops import HessianLinearOperator

    data = list(zip(x.split(batch), y.split(batch), strict=True))
    return HessianLinearOperator(
        net, nn.CrossEntropyLoss(), list(net.parameters()), data, check_deterministic=False
    )


def loosest(
    solve: Callable[[float], Sequence[float]], exact: Tensor
) -> tuple[float, float, float] | None:
    """Tolerance, error and seconds of the first step of the ladder that is accurate enough."""
    for tolerance in LADDER:
        found = torch.tensor(sorted(solve(tolerance), reverse=True)).double()
        error = float(((found - exact) / exact).abs().max())
        if error <= 1e-3:
            return tolerance, error, seconds(lambda t=tolerance: solve(t))  # type: ignore[misc]
    return None


# ------------------------------------------------------------------------------------- rows


def eigenvalues(kind: str, chunk: int) -> None:
    x, y = images(2000)
    net = trained(kind, x, y)
    exact_problem = Problem(net, (x, y), memory="16GiB").in_precision(torch.float64)
    exact = top_eigenpairs(hessian_operator(exact_problem), 5, tolerance=1e-9).values

    def ours(tolerance: float) -> Sequence[float]:
        operator = hessian_operator(Problem(net, (x, y), chunk=chunk))
        return top_eigenpairs(operator, 5, tolerance=tolerance).values.tolist()

    def power(batch: int | None) -> Callable[[float], Sequence[float]]:
        return lambda t: pyhessian(net, x, y, batch).eigenvalues(  # type: ignore[attr-defined,no-any-return]
            maxIter=2000, tol=t, top_n=5
        )[0]

    def arpack(tolerance: float) -> Sequence[float]:
        from scipy.sparse.linalg import eigsh

        operator = curvlinops(net, x, y, chunk).to_scipy()  # type: ignore[attr-defined]
        found: Sequence[float] = eigsh(operator, k=5, which="LA", tol=tolerance)[0].tolist()
        return found

    mine = loosest(ours, exact)
    assert mine is not None, "no tolerance reaches the accuracy"
    print(f"{kind}: five largest eigenvalues {[round(float(v), 4) for v in exact]}")
    print(f"  torchtheory          {mine[2]:8.3f} s   tolerance {mine[0]:g}, error {mine[1]:.1e}")
    peers = (
        ("PyHessian, batch", power(None), 3.0),
        ("PyHessian, loader", power(chunk), 3.0),
        ("curvlinops + scipy", arpack, 2.0),
    )
    for name, solve, bar in peers:
        found = attempt(name, lambda solve=solve: loosest(solve, exact))  # type: ignore[misc]
        if found is not None:
            print(
                f"  {name:20s} {found[2]:8.3f} s   tolerance {found[0]:g}, error {found[1]:.1e}: "
                f"{verdict(found[2] / mine[2], bar)}"
            )


def density(kind: str, chunk: int, probes: int) -> None:
    x, y = images(2000)
    net = trained(kind, x, y)

    def ours() -> object:
        operator = hessian_operator(Problem(net, (x, y), chunk=chunk))
        return spectral_density(operator, probes=probes, steps=50)

    def theirs(batch: int | None) -> Callable[[], object]:
        return lambda: pyhessian(net, x, y, batch).density(  # type: ignore[attr-defined,no-any-return]
            iter=50, n_v=probes
        )

    def lanczos() -> object:
        from curvlinops.papyan2020traces.spectrum import fast_lanczos

        operator = curvlinops(net, x, y, chunk)
        return [fast_lanczos(operator, 50) for _ in range(probes)]

    mine = seconds(ours)
    print(f"{kind}: spectral density, {probes} probes of 50 steps")
    print(f"  torchtheory          {mine:8.3f} s")
    peers = (
        ("PyHessian, batch", theirs(None), 1.5),
        ("PyHessian, loader", theirs(chunk), 1.5),
        ("curvlinops", lanczos, 2.5),
    )
    for name, work, bar in peers:
        taken = attempt(name, lambda work=work: seconds(work))  # type: ignore[misc]
        if taken is not None:
            print(f"  {name:20s} {taken:8.3f} s: {verdict(taken / mine, bar)}")


def product(kind: str, chunk: int) -> None:
    x, y = images(2000)
    net = trained(kind, x, y)
    operator = hessian_operator(Problem(net, (x, y), chunk=chunk))
    v = torch.randn(operator.shape[0])
    mine = seconds(lambda: operator @ v, 10)
    with torch.no_grad():
        forward = seconds(lambda: [net(part) for part in x.split(chunk)], 10)
    layers = multiplications(net, x[:1])
    # behind the first layer: two products forward and four backward; in the first, whose input
    # has no derivative, one and one
    needed = 2 * layers[0] + 6 * sum(layers[1:])
    limit = forward * needed / sum(layers)
    print(
        f"{kind}: one product {mine * 1e3:.1f} ms, limit {limit * 1e3:.1f} ms "
        f"({needed / sum(layers):.1f} forward passes): {mine / limit:.2f} times the limit "
        f"(bar: at most 1.3) {'met' if mine <= 1.3 * limit else 'NOT met'}"
    )


def multiplications(net: nn.Module, x: Tensor) -> list[int]:
    """Of every dense and convolutional layer, for one image."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        places = output[0, 0].numel() if output.ndim > 2 else 1
        counts.append(weight.numel() * places)

    hooks = [
        m.register_forward_hook(count)  # type: ignore[arg-type]
        for m in net.modules()
        if isinstance(m, nn.Linear | nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return counts


def memory(kind: str) -> None:
    taken = []
    for copies in (1, 10):
        peaks = []
        for work in ("none", "product"):
            command = [sys.executable, __file__, "--peak", kind, str(copies), work]
            made = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(int(made.stdout.split()[-1]) / 2**10)
        taken.append(peaks[1] - peaks[0])
    print(
        f"{kind}: a product over 2000 images takes {taken[0]:.0f} MiB beyond a process that holds "
        f"them, over 20000 {taken[1]:.0f} MiB"
    )


def peak(kind: str, copies: int, work: str) -> None:
    x, y = images(2000)
    x, y = x.repeat(copies, 1), y.repeat(copies)
    net = network(kind)
    if work == "product":
        operator = hessian_operator(Problem(net, (x, y), memory="256MiB"))
        _ = operator @ torch.randn(operator.shape[0])
    else:
        _ = net(x[:1])
    # not getrusage: a process starts with the largest memory of the one that started it
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def attempt(name: str, work: Callable[[], T]) -> T | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = work()
    except ImportError as error:
        print(f"  {name:20s} is not installed ({error})")
        return None
    if found is None:
        print(f"  {name:20s} reaches the accuracy at no tolerance of the ladder")
    return found


def verdict(ratio: float, bar: float) -> str:
    return f"{ratio:.2f} times ours (bar: {bar:g}) {'met' if ratio >= bar else 'NOT met'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--probes", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--networks", nargs="+", choices=("mlp", "cnn"), default=["mlp", "cnn"])
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        kind, copies, work = options.peak
        peak(kind, int(copies), work)
        return
    for kind in options.networks:
        if "eigenvalues" in options.only:
            eigenvalues(kind, options.chunk)
        if "density" in options.only:
            density(kind, options.chunk, options.probes)
        if "product" in options.only:
            product(kind, options.chunk)
        if "memory" in options.only:
            memory(kind)


if __name__ == "__main__":
    main()
