"""The capacity sweep of Hopfield networks, as one batch and as plain loops.

All three compute the same thing: store random patterns at a range of loads, count the bits that
the first update flips and the patterns that are stable, and follow the dynamics from some of the
patterns to its end.

  batched       torchtheory.neurons.hopfield_capacity.capacity_sweep
  numpy blocks  the same block updates, a loop over loads, trials and patterns, n x n weights
  numpy single  one neuron at a time, with the field kept up to date: the textbook's program

Each runs in a process of its own, so that peak memory is its own, and on one thread. Seconds are
seconds of processor time, which a busy machine disturbs less than the clock on the wall.

    python benchmarks/hopfield.py --quick
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time

METHODS = ("batched", "numpy blocks", "numpy single")


def batched(n: int, loads: list[float], trials: int, probes: int) -> tuple[float, float]:
    from torchtheory.neurons.hopfield_capacity import capacity_sweep

    sweep = capacity_sweep(n, loads, trials, probes=probes, generator=0)
    return float(sweep.bit_error[-1].mean()), float(sweep.overlap[-1].mean())


def loops(
    n: int, loads: list[float], trials: int, probes: int, single: bool
) -> tuple[float, float]:
    import numpy as np

    random = np.random.default_rng(0)
    errors, overlaps = [], []
    for load in loads:
        errors, overlaps = [], []
        for _ in range(trials):
            s = max(1, round(load * n))
            patterns = random.choice(np.array([-1, 1], dtype=np.float32), (s, n))
            weights = patterns.T @ patterns
            np.fill_diagonal(weights, 0)
            wrong = 0
            for x in patterns:
                wrong += np.count_nonzero(np.where(weights @ x >= 0, 1, -1) != x)
            errors.append(wrong / (s * n))
            for target in patterns[:probes]:
                x = target.copy()
                for _ in range(100):
                    order = random.permutation(n)
                    moved = False
                    if single:
                        field = weights @ x
                        for i in order:
                            new = 1.0 if field[i] >= 0 else -1.0
                            if new != x[i]:
                                field += (new - x[i]) * weights[:, i]
                                x[i] = new
                                moved = True
                    else:
                        for block in np.array_split(order, 32):
                            new = np.where(weights[block] @ x >= 0, 1, -1)
                            moved |= bool((new != x[block]).any())
                            x[block] = new
                    if not moved:
                        break
                overlaps.append(float(x @ target) / n)
    return float(np.mean(errors)), float(np.mean(overlaps))


def measure(
    method: str, n: int, loads: list[float], trials: int, probes: int
) -> tuple[float, float, float, float, float]:
    import numpy  # noqa: F401
    import torch

    import torchtheory.neurons.hopfield_capacity  # noqa: F401

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    if method == "batched":
        error, overlap = batched(n, loads, trials, probes)
    else:
        error, overlap = loops(n, loads, trials, probes, single=method == "numpy single")
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return seconds, peak / 1e3, (peak - before) / 1e3, error, overlap


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--neurons", type=int, default=1000)
    parser.add_argument("--loads", type=int, default=20, help="equally spaced, up to 0.2")
    parser.add_argument("--trials", type=int, default=10, help="networks a load")
    parser.add_argument("--probes", type=int, default=16, help="patterns followed to the end")
    parser.add_argument("--quick", action="store_true", help="n = 300, 8 loads, 4 trials")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.neurons, chosen.loads, chosen.trials = 300, 8, 4
    loads = [0.2 * (k + 1) / chosen.loads for k in range(chosen.loads)]
    # read by the BLAS of the processes started below
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    print(
        f"n = {chosen.neurons}, {chosen.loads} loads to 0.2, {chosen.trials} trials, "
        f"{chosen.probes} probes, one thread"
    )
    print(f"{'method':14}{'seconds':>9}{'ratio':>8}{'peak MB':>9}{'above start':>13}", end="")
    print(f"{'bit error':>11}{'overlap':>9}  (at load 0.2)")
    base = 0.0
    for method in METHODS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, peak, above, error, overlap = pool.apply(
                measure, (method, chosen.neurons, loads, chosen.trials, chosen.probes)
            )
        base = base or seconds
        print(f"{method:14}{seconds:9.2f}{seconds / base:8.1f}{peak:9.0f}{above:13.0f}", end="")
        print(f"{error:11.5f}{overlap:9.3f}", flush=True)


if __name__ == "__main__":
    main()
