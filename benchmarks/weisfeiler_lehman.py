"""Color refinement of a graph of 1e5 edges, against networkx's hash.

  three rounds   wl_colors(graph, rounds=3), every round verified, against
                 networkx.weisfeiler_lehman_graph_hash(graph, iterations=3), whose first iteration
                 are the degrees.
  stable         wl_colors(graph) until nothing changes, which networkx does not offer.

Each side reads its own kind of graph, made before. The partitions of the two are compared before
anything is timed. Times are the shortest of several runs on one thread, in milliseconds.

    python benchmarks/weisfeiler_lehman.py
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import networkx as nx
import torch

from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.weisfeiler_lehman import wl_colors


def milliseconds(function: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def check(graph: nx.Graph) -> None:
    labeled = graph.copy()
    # one label for all: degrees, joined without a separator, are ambiguous from 10 on
    nx.set_node_attributes(labeled, "x", "label")
    theirs = nx.weisfeiler_lehman_subgraph_hashes(labeled, node_attr="label", iterations=3)
    ours = wl_colors(graph, rounds=3).colors.tolist()
    pairs = {(a, theirs[v][-1]) for a, v in zip(ours, graph, strict=True)}
    assert len(pairs) == len(set(ours)) == len({h[-1] for h in theirs.values()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--edges", type=int, default=100_000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # networkx tells that its hashes changed in a version
    print(f"{chosen.edges:,} edges")
    print(f"{'nodes':>8s} {'networkx, 3':>12s} {'rounds=3':>9s} {'stable':>8s}"
          f" {'times faster at 3, stable':>30s}")  # fmt: skip
    for nodes in (chosen.edges // 5, chosen.edges // 2, chosen.edges):
        source = nx.gnm_random_graph(nodes, chosen.edges, seed=0)
        graph = as_graph(source)
        check(source)
        peer = milliseconds(lambda s=source: nx.weisfeiler_lehman_graph_hash(s), 3)  # type: ignore[misc]
        ours = [
            milliseconds(lambda g=graph, r=rounds: wl_colors(g, rounds=r), chosen.repeats)  # type: ignore[misc]
            for rounds in (3, None)
        ]
        ratios = "  ".join(f"{peer / t:.1f}" for t in ours)
        print(f"{nodes:8,d} {peer:12.1f} {ours[0]:9.1f} {ours[1]:8.1f} {ratios:>30s}")


if __name__ == "__main__":
    main()
