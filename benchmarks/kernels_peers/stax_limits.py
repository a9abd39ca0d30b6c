"""Kernels of infinite width by neural-tangents' stax, for a test of torchtheory to compare with.

    nt/bin/python benchmarks/kernels_peers/stax_limits.py tests/kernels/infinite/stax_limits.json

The environment `nt` is that of `benchmarks/kernels.py`. Inputs are sines of 1, 2, 3, ..., so that
both sides have them; every layer has weights of variance 1.3² over its inputs and biases of
variance 0.4². Images have their channels last here.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

# The package imports its TensorFlow bridge on loading; nothing here goes through it.
sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")

try:
    import jax
    import neural_tangents as nt
    from neural_tangents import stax
except ImportError as error:
    sys.exit(f"{error.name} is not installed")

jax.config.update("jax_enable_x64", True)

LAW = {"W_std": 1.3, "b_std": 0.4}


def inputs(*shape: int) -> np.ndarray:
    """Sines of 1, 2, 3, ...; of images by channels, rows and columns as torch counts them."""
    x = np.sin(np.arange(1.0, 1 + np.prod(shape))).reshape(shape)
    return x.transpose(0, 2, 3, 1) if len(shape) == 4 else x


def dense() -> Any:
    return stax.Dense(1, **LAW)


def conv(**options: Any) -> Any:
    return stax.Conv(1, (3, 3), **options, **LAW)


def residual(branch: Any) -> Any:
    return stax.serial(stax.FanOut(2), stax.parallel(branch, stax.Identity()), stax.FanInSum())


NETWORKS = {
    "dense": ((4, 5), stax.serial(dense(), stax.Relu(), dense(), stax.Erf(), dense())),
    "gelu": ((4, 5), stax.serial(dense(), stax.Gelu(), dense(), stax.Gelu(), dense())),
    "convolution": (
        (3, 2, 7, 7),
        stax.serial(
            conv(padding="SAME"), stax.Relu(), conv(padding="VALID", strides=(2, 2)), stax.Relu(),
            stax.Flatten(), dense(),
        ),
    ),
    "residual": (
        (4, 5),
        stax.serial(
            dense(),
            residual(stax.serial(stax.Relu(), dense(), stax.Relu(), dense())),
            residual(stax.serial(stax.Relu(), dense(), stax.Relu(), dense())),
            stax.Relu(), dense(),
        ),
    ),
    "residual images": (
        (3, 2, 6, 6),
        stax.serial(
            conv(padding="SAME"),
            residual(stax.serial(stax.Relu(), conv(padding="SAME"))),
            stax.Relu(), stax.GlobalAvgPool(), dense(),
        ),
    ),
    "pooling": (
        (3, 2, 6, 6),
        stax.serial(
            conv(padding="SAME"), stax.Relu(), stax.AvgPool((2, 2), (2, 2)),
            conv(padding="SAME"), stax.Relu(), stax.GlobalAvgPool(), dense(),
        ),
    ),
    "layer norm": (
        (4, 5),
        stax.serial(
            dense(), stax.LayerNorm(), stax.Relu(), dense(), stax.LayerNorm(), stax.Erf(), dense()
        ),
    ),
}  # fmt: skip


def main() -> None:
    made: dict[str, Any] = {"versions": f"neural-tangents {nt.__version__}, jax {jax.__version__}"}
    for name, (shape, (_, _, kernel)) in NETWORKS.items():
        found = kernel(jax.numpy.asarray(inputs(*shape)), None, ("nngp", "ntk"))
        made[name] = {
            "shape": list(shape),
            "nngp": np.asarray(found.nngp).round(12).tolist(),
            "ntk": np.asarray(found.ntk).round(12).tolist(),
        }
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
