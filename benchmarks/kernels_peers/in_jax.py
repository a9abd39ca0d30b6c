"""neural-tangents beside torchtheory: run by `benchmarks/kernels.py` in an environment of its own.

The three implementations of the empirical kernel are timed on a slice of the inputs (compiled,
after a warm-up), and the fastest computes the kernel. neural-tangents divides a traced kernel
by the number of outputs; it is multiplied back, so that all contenders return the sum.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import arguments, report, seconds_of

# The package imports its TensorFlow bridge on loading; nothing here goes through it, and without
# this line the environment would need TensorFlow.
sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")

try:
    import jax
    import neural_tangents as nt
    from neural_tangents import stax
except ImportError as error:
    print(f'{{"missing": "neural-tangents ({error.name} is not installed)"}}')
    sys.exit()

IMPLEMENTATIONS = (
    nt.NtkImplementation.JACOBIAN_CONTRACTION,
    nt.NtkImplementation.NTK_VECTOR_PRODUCTS,
    nt.NtkImplementation.STRUCTURED_DERIVATIVES,
)
SLICE = {"mlp": 50, "cnn": 8}


def network(kind: str, data: Any) -> tuple[Callable[..., Any], list[Any], np.ndarray]:
    """The function, its parameters and the inputs, from arrays in torch's layouts."""
    plain = {"W_std": 1.0, "b_std": 1.0, "parameterization": "standard"}
    x, layers, parameters = data["x"], [], []
    height = width = 0
    if kind == "cnn":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        height, width = x.shape[1:3]
    count = sum(name.startswith("weight") for name in data.files)
    for i in range(count):
        weight, bias = data[f"weight{i}"], data[f"bias{i}"]
        if weight.ndim == 4:
            layers += [stax.Conv(len(weight), (3, 3), padding="SAME", **plain), stax.Relu()]
            pair = (weight.transpose(2, 3, 1, 0), bias[None, None, None])
            parameters += [pair, ()]
            continue
        if kind == "cnn":
            pooled = bool(data["pool"])
            layers.append(stax.GlobalAvgPool() if pooled else stax.Flatten())
            parameters.append(())
            if not pooled:  # channels come last here
                cut = weight.reshape(len(weight), -1, height, width)
                weight = cut.transpose(0, 2, 3, 1).reshape(len(weight), -1)
        layers.append(stax.Dense(len(weight), **plain))
        parameters.append((weight.T, bias[None]))
        if i < count - 1:
            layers.append(stax.Relu())
            parameters.append(())
    return stax.serial(*layers)[1], jax.tree_util.tree_map(jax.numpy.asarray, parameters), x


def empirical(
    kind: str, data: Any, implementation: nt.NtkImplementation, samples: int | None = None
) -> Callable[[], Any]:
    """The compiled kernel of all or of the first few samples."""
    f, parameters, x = network(kind, data)
    trace = kind == "mlp"
    factor = len(parameters[-1][1][0]) if trace else 1
    kernel = nt.empirical_ntk_fn(
        f, trace_axes=(-1,) if trace else (), vmap_axes=0, implementation=implementation
    )
    compiled = jax.jit(lambda v, p: kernel(v, None, p) * factor)
    inputs = jax.numpy.asarray(x[:samples])
    return lambda: compiled(inputs, parameters).block_until_ready()


def probe(kind: str, data: Any) -> dict[str, float]:
    """Seconds of each implementation on a slice of the inputs: the better call of two, warm."""
    found = {}
    for implementation in IMPLEMENTATIONS:
        work = empirical(kind, data, implementation, SLICE[kind])
        work()
        found[implementation.name] = min(seconds_of(work)[0] for _ in range(2))
    return found


def infinite(data: Any) -> Callable[[], Any]:
    """The limit kernel; in float32 its diagonal is right to about 1e-4 only, and so is the norm
    of the difference on few samples (sqrt(1 - c^2) at c = 1)."""
    dense = stax.Dense(1, W_std=2**0.5)
    kernel_fn = stax.serial(dense, stax.Relu(), dense, stax.Relu(), dense)[2]
    compiled = jax.jit(lambda v: kernel_fn(v, None, "ntk"))
    inputs = jax.numpy.asarray(data["x"])
    return lambda: compiled(inputs).block_until_ready()


def main() -> None:
    given = arguments(["neural-tangents", "probe"])
    data = np.load(given.problem)
    kind = str(data["kind"])
    if given.contender == "probe":
        print(json.dumps(probe(kind, data)))
        return
    notes: dict[str, Any] = {}
    if kind == "infinite":
        work = infinite(data)
    else:  # the probe has its own process: what it needs is not the winner's peak memory
        command = [sys.executable, __file__, "probe", given.problem, f"--threads={given.threads}"]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        seconds = json.loads(told.splitlines()[-1])
        best = min(seconds, key=seconds.__getitem__)
        notes = {"implementation": best, "probe": seconds}
        work = empirical(kind, data, nt.NtkImplementation[best])
    version = f"neural-tangents {nt.__version__}, jax {jax.__version__}"
    report(given, work, version=version, **notes)


if __name__ == "__main__":
    main()
