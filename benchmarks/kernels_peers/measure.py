"""What every contender of `benchmarks/kernels.py` does the same way, in whichever environment.

A contender is one process: it reads its problem from an .npz file, calls its work once (the
warm-up: late imports, compilation) and reads off its peak memory, then times the repetitions,
writes the kernel to an .npy file, and prints one line of JSON. Only numpy is needed here.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Work = Callable[[], Any]


def arguments(contenders: list[str]) -> argparse.Namespace:
    """The command line of a contender; `--threads` is made true by pinning the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=contenders)
    parser.add_argument("problem", help=".npz with the inputs x and the weights")
    parser.add_argument("--kernel", help="write the kernel here (.npy)")
    parser.add_argument("--repeats", type=int, default=1, help="timed calls after the first")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--file", help="the kernel as a memory-mapped file, resumed if it exists")
    parser.add_argument("--once", action="store_true", help="the first call is the timed one")
    found = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if found.threads < len(cores):
        os.sched_setaffinity(0, cores[: found.threads])
    return found


def peak_bytes() -> int:
    """The largest resident memory this process has had so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def seconds_of(work: Work) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def report(
    given: argparse.Namespace,
    work: Work,
    *,
    yardstick: Work | None = None,
    as_numpy: Callable[[Any], np.ndarray] = np.asarray,
    **more: Any,
) -> None:
    """Time `work` and, in turn with it, `yardstick`; print the line of JSON.

    The peak is read after the first call of `work`, before the yardstick or the writing of the
    kernel can raise it.
    """
    empty = peak_bytes()
    print("begun", flush=True)
    first, kernel = seconds_of(work)
    peak = peak_bytes()
    seconds, yardsticks = [], []
    if yardstick is not None:
        yardstick()
    for _ in range(0 if given.once else given.repeats):
        del kernel
        duration, kernel = seconds_of(work)
        seconds.append(duration)
        if yardstick is not None:
            yardsticks.append(seconds_of(yardstick)[0])
    if given.kernel:
        np.save(given.kernel, as_numpy(kernel))
    print(
        json.dumps(
            {
                "seconds": seconds or [first],
                "first": first,
                "peak": peak,
                "empty": empty,
                "yardstick": yardsticks,
                **more,
            }
        ),
        flush=True,
    )
