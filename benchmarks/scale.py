"""Tangent kernels and Hessian eigenvalues at scale, beside the naive way where it survives.

The trace tangent kernel of 100 samples and the five largest eigenvalues of the Hessian, of a
ResNet-18-shaped network (11 million parameters, 32 x 32 images) and of a transformer encoder (20
million, 64 tokens). Each measurement is a process of its own with a time limit; its peak memory is
counted from where the network and its data stand ready. Bars, on 2 cores: 60 s and 4 GiB each.

The naive kernel holds the whole Jacobian, so it is compared on as many samples as fit; its single
precision sums of 80 million terms are off by percents, which shows beside ours. The naive
eigenvalues are as many products by two plain backward passes, recorded anew for each, with a
Lanczos basis that is never cut.

    python benchmarks/scale.py
    python benchmarks/scale.py --only kernel-cnn hessian-cnn --limit 300
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from large_networks import Encoder, resnet18
from torchtheory.core.memory import resident_memory
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator

SECONDS, GIBIBYTES = 60.0, 4.0
KERNEL_SAMPLES, EIGENVALUES, PRODUCTS, TOLERANCE = 100, 5, 40, 0.02
#: Samples of the loss whose Hessian is taken, and of the kernel that the naive way can hold.
HESSIAN_SAMPLES = {"cnn": 16, "encoder": 8}
FEW = {"cnn": 4, "encoder": 4}

#: The model and its inputs and labels.
Case = tuple[nn.Module, Tensor, Tensor]


def case(model: str, count: int) -> Case:
    torch.manual_seed(0)
    if model == "cnn":
        return resnet18().eval(), torch.randn(count, 3, 32, 32), torch.arange(count) % 10
    tokens = torch.randint(0, Encoder.words, (count, Encoder.length))
    return Encoder().eval(), tokens, torch.arange(count) % Encoder.classes


# ------------------------------------------------------------------------------ what is measured


def kernel(given: Case) -> dict[str, Any]:
    net, x, _ = given
    found = empirical_ntk(net, x, outputs="trace", memory="2.5GiB")
    return {"trace / samples": float(found.trace()) / len(x)}


def naive_kernel(given: Case) -> dict[str, Any]:
    net, x, _ = given
    parameters = {k: p.detach() for k, p in net.named_parameters()}

    def outputs(point: dict[str, Tensor], sample: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(net, point, (sample[None],))[0]
        return made

    rows = [
        torch.cat([j.flatten(1) for j in torch.func.jacrev(outputs)(parameters, s).values()], 1)
        for s in x
    ]
    jacobian = torch.stack(rows).flatten(1)
    return {"trace / samples": float((jacobian @ jacobian.T).trace()) / len(x)}


def hessian(given: Case) -> dict[str, Any]:
    net, x, y = given
    problem = Problem(net, (x, y), memory="2.25GiB")
    operator = hessian_operator(problem)
    found = top_eigenpairs(operator, EIGENVALUES, tolerance=TOLERANCE, steps=PRODUCTS)
    return {
        "eigenvalues": [float(f"{v:.4g}") for v in found.values],
        "error bars": [float(f"{v:.2g}") for v in found.residuals],
        "products": found.steps,
        "converged": found.converged,
    }


def naive_hessian(given: Case) -> dict[str, Any]:
    net, x, y = given
    weights = [p for p in net.parameters() if p.requires_grad]

    def product(v: Tensor) -> Tensor:
        slopes = torch.autograd.grad(F.cross_entropy(net(x), y), weights, create_graph=True)
        pieces = torch.split(v, [p.numel() for p in weights])
        along = [(g * d.view_as(g)).sum() for g, d in zip(slopes, pieces, strict=True)]
        found = torch.autograd.grad(torch.stack(along).sum(), weights)
        return torch.cat([g.reshape(-1) for g in found])

    count = sum(p.numel() for p in weights)
    basis = [torch.randn(count, generator=torch.Generator().manual_seed(0))]
    basis[0] /= basis[0].norm()
    T = torch.zeros(PRODUCTS, PRODUCTS)
    for j in range(PRODUCTS):
        w = product(basis[-1])
        for i, q in enumerate(basis):
            T[i, j] = w @ q
            w = w - T[i, j] * q
        basis.append(w / w.norm())
    # the loop fills the upper triangle of a symmetric matrix
    values = torch.linalg.eigvalsh(T, UPLO="U").flip(0)[:EIGENVALUES]
    return {"eigenvalues": [float(f"{v:.4g}") for v in values], "products": PRODUCTS}


WORK: dict[str, Callable[[Case], dict[str, Any]]] = {
    "kernel": kernel,
    "naive-kernel": naive_kernel,
    "hessian": hessian,
    "naive-hessian": naive_hessian,
}


# ------------------------------------------------------------------------------------ processes


def measure(work: str, model: str, count: int) -> None:
    """In a process of its own: do it, and print what it took as one line of JSON."""
    given = case(model, count)
    with torch.no_grad():
        given[0](given[1][:1])  # what is loaded once does not count
    before, start, used = resident_memory(), time.perf_counter(), time.process_time()
    found = WORK[work](given)
    seconds = time.perf_counter() - start
    peak = resident_memory(peak=True) - before
    used = time.process_time() - used
    print(json.dumps({"seconds": seconds, "processor": used, "peak": peak, **found}))


def run(work: str, model: str, count: int, limit: float) -> dict[str, Any] | str:
    """What the process says, or a sentence why it says nothing."""
    command = [sys.executable, __file__, "--measure", work, model, str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:g} s"
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return f"ended with code {done.returncode}: {said[-1][:120] if said else 'no word'}"
    made: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return made


def line(name: str, found: dict[str, Any] | str) -> str:
    if isinstance(found, str):
        return f"  {name:30} {found}"
    peak = found["peak"] / 2**30
    more = ", ".join(
        f"{k} {v}" for k, v in found.items() if k not in ("seconds", "peak", "processor")
    )
    taken = f"{found['seconds']:7.1f} s ({found['processor']:.1f} s of processors)"
    return f"  {name:30} {taken}  {peak:5.2f} GiB  {more}"


def ratio(ours: dict[str, Any] | str, naive: dict[str, Any] | str) -> str:
    if isinstance(ours, str) or isinstance(naive, str):
        return "  no ratio"
    faster, smaller = naive["seconds"] / ours["seconds"], naive["peak"] / max(1, ours["peak"])
    return f"  the naive way takes {faster:.2g} times as long and {smaller:.2g} times the memory"


def kernels(model: str, limit: float) -> None:
    net, x, _ = case(model, 1)
    size = sum(p.numel() for p in net.parameters())
    with torch.no_grad():
        outputs = net(x).shape[1]
    print(f"trace tangent kernel, {model}, {size:,} parameters, {outputs} outputs")
    print(line(f"ours, {KERNEL_SAMPLES} samples", run("kernel", model, KERNEL_SAMPLES, limit)))
    held = KERNEL_SAMPLES * outputs * size * 4 / 2**30
    print(f"  naive, {KERNEL_SAMPLES} samples: left out, its Jacobian alone takes {held:,.0f} GiB")
    few = FEW[model]
    ours, naive = (run(work, model, few, limit) for work in ("kernel", "naive-kernel"))
    print(line(f"ours, {few} samples", ours), line(f"naive, {few} samples", naive), sep="\n")
    print(ratio(ours, naive), flush=True)


def hessians(model: str, limit: float) -> None:
    count = HESSIAN_SAMPLES[model]
    print(f"{EIGENVALUES} largest Hessian eigenvalues, {model}, loss over {count} samples")
    ours = run("hessian", model, count, limit)
    print(line("ours", ours), flush=True)
    naive = run("naive-hessian", model, count, limit)
    print(line("naive", naive), ratio(ours, naive), sep="\n", flush=True)


PARTS: dict[str, tuple[Callable[[str, float], None], str]] = {
    "kernel-cnn": (kernels, "cnn"),
    "kernel-encoder": (kernels, "encoder"),
    "hessian-cnn": (hessians, "cnn"),
    "hessian-encoder": (hessians, "encoder"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a measurement")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        work, model, count = options.measure
        measure(work, model, int(count))
        return
    busy = os.getloadavg()[0]
    print(
        f"{torch.get_num_threads()} threads; bars: {SECONDS:g} s and {GIBIBYTES:g} GiB for each of "
        f"ours. Load of the machine before: {busy:.1f}"
        + (" (others use it: times are too long)" if busy > 0.5 else "")
    )
    for name in options.only:
        part, model = PARTS[name]
        part(model, options.limit)


if __name__ == "__main__":
    main()
