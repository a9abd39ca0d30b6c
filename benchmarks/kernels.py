"""Tangent kernels beside their peers: time, peak memory, and whether the numbers agree.

Every contender runs in a process of its own, on the same inputs and weights (written once as
.npz), so that its peak memory is its own; the kernels are compared by relative Frobenius norm
(1e-4 in float32; the exit status is 1 if one differs more, or if torchtheory fails). A peer that
is not installed is said to be missing. The rows:

mlp-500     784-512-512-10, ReLU, the kernel summed over the outputs, 500 samples: against the
            contraction of the whole Jacobian (`vmap(jacrev)`, 13 GB).
mlp-2000    the same network, 2000 samples: against nngeometry, neural-tangents, and the matrix
            products that no layer-wise method can avoid, timed in turn with ours in one process.
            nngeometry makes all pairs of outputs; asked for one output at a time it does ten
            times less, which is shown as well, without a bar.
cnn         three 3x3 convolutions (32, 64, 64 channels, stride 1, padding 1, ReLU) and a linear
            layer on 3x32x32, no pooling (655 360 weights in the linear layer; the Jacobian of
            200 samples takes 5.7 GB), all pairs of outputs: against the contraction of the
            Jacobian, made four samples at a time, and neural-tangents.
cnn-pool    the same with an average over the pixels before the linear layer: 57 thousand
            parameters, the case that is kindest to the contraction (shown without a bar).
infinite    the infinitely wide ReLU network of depth 3 with He's variance on 2000 samples of
            dimension 784: against neural-tangents, and against one N x N x d product with the
            entry-wise passes it needs (`infinite_width_yardstick` in kernels_peers/in_torch.py).
own-layers  the mlp on 500 samples with its linear layers written as addmm, W x, einsum and
            tensordot: our own time for nn.Linear over our time for these.
large       the mlp on 10 000 samples with 2 GiB of memory into a file: time and peak, then the
            same killed half-way (SIGKILL) and run again, which must resume and agree.

    python benchmarks/kernels.py --peers-python nt/bin/python
    python benchmarks/kernels.py --quick --only cnn mlp-2000

The environment of neural-tangents (which needs an old jax, and not its TensorFlow), in an empty
virtual environment `nt` of Python 3.11:

    nt/bin/pip install --no-deps neural-tangents==0.6.5
    nt/bin/pip install jax==0.4.25 jaxlib==0.4.25 ml_dtypes==0.3.2 numpy==1.26.4 scipy==1.12.0 \\
        frozendict

nngeometry goes into the environment of torchtheory: `pip install --no-deps nngeometry==0.4`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# No torch here: a child's peak memory is never below that of the process that started it.
import numpy as np

PEERS = Path(__file__).parent / "kernels_peers"
TOLERANCE = 1e-4
GIB = 2**30


@dataclass
class Outcome:
    """What one contender did: or, in `missing`, why it did not."""

    contender: str
    seconds: float = 0.0
    peak: int = 0
    empty: int = 0
    yardstick: float = 0.0
    relative: float = 0.0
    note: str = ""
    missing: str = ""
    kernel: Path | None = None


@dataclass
class Line:
    """One line of the table at the end."""

    row: str
    against: str
    ours: str
    theirs: str
    ratio: str
    bar: str = ""
    met: bool | None = None
    difference: float | None = None
    note: str = ""


@dataclass
class Bench:
    """The settings of a run, where it keeps its files, and the table it fills."""

    python: str | None
    threads: int
    repeats: int
    quick: bool
    seed: int
    directory: Path
    lines: list[Line] = field(default_factory=list)
    failed: bool = False

    def random(self, stream: int) -> np.random.Generator:
        """Independent numbers for each stream, the same in every run with this seed."""
        return np.random.default_rng([self.seed, stream])

    def command(self, contender: str, problem: Path, *options: str) -> list[str] | None:
        """The command of a contender's process; None without an interpreter to run it."""
        in_jax = contender == "neural-tangents"
        python = self.python if in_jax else sys.executable
        if python is None or not Path(python).exists():
            return None
        script = PEERS / ("in_jax.py" if in_jax else "in_torch.py")
        return [python, str(script), contender, str(problem), f"--threads={self.threads}", *options]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        threads = str(self.threads)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "JAX_PLATFORMS": "cpu",
        }
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def run(
        self,
        contender: str,
        problem: Path,
        *options: str,
        needs: float = 0,
        once: bool = False,
        into: Path | None = None,
    ) -> Outcome:
        """One contender in its own process.

        `needs`: bytes without which it is not started; `once`: a single call, too long to repeat;
        `into`: the file the contender itself keeps its kernel in.
        """
        kernel = into or problem.with_name(f"{problem.stem}-{contender}.npy")
        where = f"--{'kernel' if into is None else 'file'}={kernel}"
        extra = ["--once"] if once else [f"--repeats={self.repeats}"]
        command = self.command(contender, problem, where, *extra, *options)
        if command is None:
            outcome = Outcome(contender, missing="no interpreter (--peers-python, see --help)")
        elif available_memory() < needs:
            short = f"needs {needs / GIB:.0f} GiB, {available_memory() / GIB:.0f} GiB are free"
            outcome = Outcome(contender, missing=short)
        else:
            outcome = self.read(contender, self.start(command), kernel)
        self.failed |= contender == "torchtheory" and bool(outcome.missing)
        told = outcome.missing or f"{outcome.seconds:.3f} s, {outcome.peak / GIB:.2f} GiB"
        print(f"  {problem.stem:18s} {contender:24s} {told}  {outcome.note}", flush=True)
        return outcome

    def read(self, contender: str, process: subprocess.Popen[str], kernel: Path) -> Outcome:
        output, _ = process.communicate()
        if process.returncode:
            return Outcome(contender, missing=f"failed with exit status {process.returncode}")
        found = json.loads(output.splitlines()[-1])
        if "missing" in found:
            return Outcome(contender, missing=found["missing"])
        pairs = zip(found["seconds"], found["yardstick"], strict=False)
        return Outcome(
            contender,
            statistics.median(found["seconds"]),
            found["peak"],
            found["empty"],
            statistics.median(found["yardstick"] or [0.0]),
            statistics.median([a / b for a, b in pairs] or [0.0]),
            f"{found['version']} {found.get('implementation', '')}".strip(),
            kernel=kernel,
        )

    def compare(
        self,
        row: str,
        ours: Outcome,
        peer: Outcome,
        faster: float | None,
        lighter: float | None = None,
    ) -> None:
        """A line for a peer: how many times faster (and lighter) we are, and how close."""
        if ours.missing or peer.missing:
            why = peer.missing or f"torchtheory: {ours.missing}"
            self.lines.append(Line(row, peer.contender, "", "", "", note=why))
            return
        ratio = peer.seconds / ours.seconds
        bar = "" if faster is None else f"at least {faster:g}x"
        line = Line(
            row,
            peer.contender,
            f"{ours.seconds:.3f} s",
            f"{peer.seconds:.3f} s",
            f"{ratio:.2f}x",
            bar,
            None if self.quick or faster is None else ratio >= faster,
            difference=difference(ours.kernel, peer.kernel),
            note=peer.note,
        )
        self.lines.append(line)
        memory = peer.peak / ours.peak
        self.lines.append(
            Line(
                row,
                f"{peer.contender}, peak",
                f"{ours.peak / GIB:.2f} GiB",
                f"{peer.peak / GIB:.2f} GiB",
                f"{memory:.2f}x",
                "" if lighter is None else f"at least {lighter:g}x",
                None if self.quick or lighter is None else memory >= lighter,
            )
        )

    def measure_up(self, row: str, what: str, ours: Outcome, at_most: float) -> None:
        """A line for the yardstick: how many times its time we take."""
        if ours.missing:
            self.lines.append(Line(row, what, "", "", "", note=f"torchtheory: {ours.missing}"))
            return
        self.lines.append(
            Line(
                row,
                what,
                f"{ours.seconds:.3f} s",
                f"{ours.yardstick:.3f} s",
                f"{ours.relative:.2f}",
                f"at most {at_most:g}",
                None if self.quick else ours.relative <= at_most,
            )
        )


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return sys.maxsize


def difference(ours: Path | None, peer: Path | None) -> float:
    """Relative Frobenius distance of two stored kernels."""
    assert ours is not None
    assert peer is not None
    a, b = np.load(ours, mmap_mode="r"), np.load(peer, mmap_mode="r")
    if a.shape != b.shape:
        return float("inf")
    apart = size = 0.0
    for one, two in zip(a, b, strict=True):
        apart += float(np.square(one.astype(np.float64) - two).sum())
        size += float(np.square(two.astype(np.float64)).sum())
    return (apart / size) ** 0.5


def tiles_done(kernel: Path) -> int:
    """Tiles that the note beside a kernel's file has as finished, below its first line."""
    note = kernel.with_name(f"{kernel.name}.tiles")
    return max(0, note.read_text().count("\n") - 1) if note.exists() else 0


def problem(
    bench: Bench,
    name: str,
    kind: str,
    x: np.ndarray,
    shapes: Sequence[tuple[int, ...]],
    **more: Any,
) -> Path:
    """Inputs and He weights of a network, as the contenders read them."""
    random, arrays = bench.random(1), {}
    for i, shape in enumerate(shapes):
        scale = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"weight{i}"] = (scale * random.standard_normal(shape)).astype(np.float32)
        arrays[f"bias{i}"] = (0.1 * random.standard_normal(shape[0])).astype(np.float32)
    path = bench.directory / f"{name}.npz"
    np.savez(path, kind=kind, x=x, **arrays, **more)
    return path


def samples(bench: Bench, *shape: int) -> np.ndarray:
    return bench.random(0).standard_normal(shape).astype(np.float32)


MLP = [(512, 784), (512, 512), (10, 512)]
MLP_PARAMETERS = sum(out * (into + 1) for out, into in MLP)


def mlp_500(bench: Bench) -> None:
    n = 20 if bench.quick else 500
    given = problem(bench, "mlp-500", "mlp", samples(bench, n, 784), MLP)
    ours = bench.run("torchtheory", given)
    naive = bench.run("naive", given, needs=1.1 * 40 * n * MLP_PARAMETERS, once=True)
    bench.compare("mlp-500", ours, naive, faster=150, lighter=10)


def mlp_2000(bench: Bench) -> None:
    n = 50 if bench.quick else 2000
    given = problem(bench, "mlp-2000", "mlp", samples(bench, n, 784), MLP)
    ours = bench.run("torchtheory", given)
    bench.compare("mlp-2000", ours, bench.run("nngeometry", given, once=True), faster=10)
    each = bench.run("nngeometry-each-output", given, once=True)
    bench.compare("mlp-2000", ours, each, faster=None)
    bench.compare("mlp-2000", ours, bench.run("neural-tangents", given), faster=1.5)
    bench.measure_up("mlp-2000", "the Gram products", ours, at_most=2)


def cnn(bench: Bench, name: str = "cnn", pool: bool = False) -> None:
    n = 20 if bench.quick else 200
    into = 64 if pool else 64 * 32 * 32
    shapes = [(32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (10, into)]
    given = problem(bench, name, "cnn", samples(bench, n, 3, 32, 32), shapes, pool=pool)
    parameters = sum(int(np.prod(shape)) + shape[0] for shape in shapes)
    ours = bench.run("torchtheory", given)
    naive = bench.run("naive", given, needs=2.2 * 40 * n * parameters, once=True)
    bench.compare(name, ours, naive, faster=None if pool else 3)
    bench.compare(
        name, ours, bench.run("neural-tangents", given, "--repeats=1"), faster=None if pool else 2
    )


def cnn_pool(bench: Bench) -> None:
    cnn(bench, "cnn-pool", pool=True)


def infinite(bench: Bench) -> None:
    n = 50 if bench.quick else 2000
    given = problem(bench, "infinite", "infinite", samples(bench, n, 784), [])
    ours = bench.run("torchtheory", given)
    bench.compare("infinite", ours, bench.run("neural-tangents", given), faster=2)
    bench.measure_up("infinite", "one product and the passes", ours, at_most=3)


def own_layers(bench: Bench) -> None:
    n = 20 if bench.quick else 500
    given = problem(bench, "own-layers", "mlp", samples(bench, n, 784), MLP)
    ours = bench.run("torchtheory", given)
    for product in ("addmm", "from-the-left", "einsum", "tensordot"):
        bench.compare("own-layers", ours, bench.run(product, given), faster=None)


def large(bench: Bench) -> None:
    n = 200 if bench.quick else 10_000
    given = problem(bench, "large", "mlp", samples(bench, n, 784), MLP)
    whole, resumed = bench.directory / "whole.npy", bench.directory / "resumed.npy"
    ours = bench.run("torchtheory", given, once=True, into=whole)
    if ours.missing:
        bench.lines.append(Line("large", "", "", "", "", note=f"torchtheory: {ours.missing}"))
        return
    own = ours.peak - ours.empty
    bench.lines.append(
        Line(
            "large",
            "memory=2GiB",
            f"{own / GIB:.2f} GiB",
            "",
            "",
            "at most 2 GiB",
            None if bench.quick else own <= 2 * GIB,
            note=f"{ours.seconds:.1f} s for {n} samples; {ours.peak / GIB:.2f} GiB with torch",
        )
    )
    command = bench.command("torchtheory", given, "--once", f"--file={resumed}")
    assert command is not None
    with bench.start(command) as process:
        assert process.stdout is not None
        process.stdout.readline()  # begun
        time.sleep(ours.seconds / 2)
        process.send_signal(signal.SIGKILL)
    before = tiles_done(resumed)
    again = bench.run("torchtheory", given, once=True, into=resumed)
    bench.lines.append(
        Line(
            "large",
            "killed half-way, run again",
            f"{again.seconds:.1f} s",
            f"{ours.seconds:.1f} s",
            f"{again.seconds / ours.seconds:.2f}",
            "resumes",
            None if bench.quick else before > 0 and 0 < again.seconds < ours.seconds,
            float("inf") if again.missing else difference(resumed, whole),
            again.missing or f"{before} of {tiles_done(resumed)} tiles before the second run",
        )
    )


ROWS: dict[str, Callable[[Bench], None]] = {
    "mlp-500": mlp_500,
    "mlp-2000": mlp_2000,
    "cnn": cnn,
    "cnn-pool": cnn_pool,
    "infinite": infinite,
    "own-layers": own_layers,
    "large": large,
}


def table(lines: list[Line]) -> str:
    head = ["row", "against", "torchtheory", "peer", "ratio", "bar", "met", "difference", "note"]
    met = {None: "", True: "yes", False: "NO"}
    cells = [
        [
            line.row,
            line.against,
            line.ours,
            line.theirs,
            line.ratio,
            line.bar,
            met[line.met],
            "" if line.difference is None else f"{line.difference:.1e}",
            line.note,
        ]
        for line in lines
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, ["-" * width for width in widths], *cells]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", metavar="PATH", help="interpreter of neural-tangents")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="few samples: do the numbers agree?")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of the short ones")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs and weights")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the table as JSON")
    given = parser.parse_args()
    load = os.getloadavg()
    told = ", ".join(f"{v:.1f}" for v in load)
    print(f"{given.threads} thread(s), load {told}, {available_memory() / GIB:.0f} GiB free")
    if load[0] + given.threads > (os.cpu_count() or 1) + 0.5:
        print("the machine is busy: threads that wait for a core make these ratios worthless")
    with tempfile.TemporaryDirectory(prefix="kernels-") as directory:
        bench = Bench(
            given.peers_python,
            given.threads,
            given.repeats,
            given.quick,
            given.seed,
            Path(directory),
        )
        for row, work in ROWS.items():  # in this order: what is compared last is the largest
            if row in (given.only or ROWS):
                work(bench)
    print(f"\n{table(bench.lines)}")
    print("load afterwards " + ", ".join(f"{v:.1f}" for v in os.getloadavg()))
    if given.json:
        given.json.write_text(json.dumps([asdict(line) for line in bench.lines], indent=1) + "\n")
    differs = [  # not "> TOLERANCE": a kernel with a NaN differs
        line
        for line in bench.lines
        if line.difference is not None and not line.difference <= TOLERANCE
    ]
    for line in differs:
        print(f"{line.row}: differs from {line.against} by {line.difference:.1e}", file=sys.stderr)
    return 1 if differs or bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
