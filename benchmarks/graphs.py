"""Networks on graphs against PyTorch Geometric: time and memory of a training step.

A random undirected graph of 10,000 nodes and 100,000 edges, 64 features per node, two layers of 64,
forward and backward, float32 on one thread.

  GCN   our GraphConvolution twice; PyTorch Geometric's GCNConv as it is built by default (edges,
        normalized at each call) and with everything kept: a CSR matrix and cached=True.
  GAT   our GraphAttention twice, 4 heads of 16; GATConv on edges.

Outputs and gradients of the same weights are compared before anything is timed. The networks take
turns, and the time of each is its shortest, in milliseconds. Memory is the peak of a process of its
own above what it held before the step, in MiB, after a step on a small graph.

    python benchmarks/graphs.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch_geometric.nn as peer
from torch import Tensor, nn

from torchtheory.core.memory import resident_memory
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.pyg import from_pyg

FEATURES, HEADS = 64, 4

Step = Callable[[], list[Tensor]]


def random_graph(nodes: int, pairs: int) -> Graph:
    source = torch.Generator().manual_seed(0)
    ends = torch.randint(nodes, (2, pairs), generator=source)
    ends = ends[:, ends[0] != ends[1]]  # what to do with a loop is not agreed upon
    ends = ends.sort(0).values.unique(dim=1)  # a pair that is drawn twice would weigh twice
    return as_graph(ends, nodes=nodes, directed=False)


def peer_layers(kind: str, cached: bool) -> list[nn.Module]:
    torch.manual_seed(0)
    if kind == "GCN":
        return [peer.GCNConv(FEATURES, FEATURES, cached=cached) for _ in range(2)]
    return [peer.GATConv(FEATURES, FEATURES // HEADS, heads=HEADS) for _ in range(2)]


def step(name: str, graph: Graph) -> Step:
    """A training step of two layers: the output and all gradients of the weights."""
    kind, variant = name.split(", ")
    layers = peer_layers(kind, variant == "kept CSR")
    on: object = graph.edges
    if variant == "ours":
        layers, on = [from_pyg(layer) for layer in layers], graph
    elif variant == "kept CSR":
        on = graph.sparse(torch.float32)  # symmetric: its own transpose
    x = torch.randn(graph.nodes, FEATURES, generator=torch.Generator().manual_seed(1))

    def run() -> list[Tensor]:
        for layer in layers:
            layer.zero_grad()
        out = layers[1](layers[0](x, on).relu(), on)
        out.square().mean().backward()
        return [out.detach(), *(g for layer in layers for g in gradients(layer))]

    return run


def gradients(layer: nn.Module) -> list[Tensor]:
    """Of the bias and of the matrix, `[outputs, inputs]`."""
    named = dict(layer.named_parameters())
    matrix = next(p for n, p in named.items() if n in ("lin.weight", "linear.weight", "values"))
    return [named["bias"].grad, matrix.grad]


def times_of(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: 1e3 * seconds for name, seconds in best.items()}


def peak(name: str) -> None:
    """In a process of its own: the peak of one step above what was held before it, in MiB."""
    step(name, random_graph(50, 200))()
    run = step(name, random_graph(10_000, 100_000))
    before = resident_memory()
    run()
    print((resident_memory(peak=True) - before) / 2**20)


def memory_of(name: str) -> float:
    command = [sys.executable, __file__, "--peak", name]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(made.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if chosen.peak:
        peak(chosen.peak)
        return
    graph = random_graph(10_000, 100_000)
    print(f"{graph}, {FEATURES} features, two layers, forward and backward")
    print(f"{'':24s} {'ms':>8s} {'ours is faster':>15s} {'MiB':>7s} {'ours takes':>11s}")
    for kind, variants in {"GCN": ["by default", "kept CSR"], "GAT": ["by default"]}.items():
        names = [f"{kind}, {v}" for v in ["ours", *variants]]
        steps = {name: step(name, graph) for name in names}
        wanted = steps[names[1]]()
        for name in names:
            for found, exact in zip(steps[name](), wanted, strict=True):
                torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-5)
        times = times_of(steps, chosen.repeats)
        memory = {name: memory_of(name) for name in names}
        for name in names:
            faster, share = times[name] / times[names[0]], memory[names[0]] / memory[name]
            print(
                f"{name:24s} {times[name]:8.2f} {faster:14.2f}x {memory[name]:7.1f} {share:11.2f}"
            )


if __name__ == "__main__":
    main()
