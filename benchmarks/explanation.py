"""Explanations: what they cost, in time and memory, against captum and zennit.

  epsilon  LRP with epsilon in all layers of a network of three convolutions (3-32-64-64 channels,
           ReLU, pooling) and a dense layer, 64 random images of 32 x 32, against one pass forward
           and backward, and captum.
  gamma    LRP with gamma 0.25 in all layers, same network and images, against zennit.
  shapley  exact Shapley values of one sample of an MLP (64-64-3). captum tries all orders of the
           features, so it is timed with 7 and 8 of them (--features); torchtheory also with 12.
  memory   integrated gradients with 32 steps of 128 images of the network above, against captum,
           and LRP of the same images: growth of the process.

Every run is a process of its own, one thread, the peers in turn; the least processor time and the
smallest growth of the memory of several rounds are shown. Peers are timed if they can be imported;
PYTHONPATH may name where they are.

    python benchmarks/explanation.py epsilon --rounds 5
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

CASES = {
    "epsilon": ("one backward pass", "torchtheory", "captum"),
    "gamma": ("one backward pass", "torchtheory", "zennit"),
    "shapley": ("torchtheory", "captum"),
    "memory": ("torchtheory", "torchtheory, LRP", "captum"),
}
GAMMA, EPSILON, STEPS = 0.25, 1e-6, 32


class Network(nn.Module):
    """Three convolutions and a dense layer; captum knows no rule for the module Flatten."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.features, self.out = nn.Sequential(*layers), nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.features(x).flatten(1))
        return logits


def network_and_images(count: int) -> tuple[nn.Module, Tensor]:
    """The convolutional network and its images."""
    torch.manual_seed(0)
    return Network().eval(), torch.rand(count, 3, 32, 32)


def backward_pass(net: nn.Module, x: Tensor) -> Tensor:
    """The gradient of the predicted score, as a user would take it."""
    x = x.clone().requires_grad_(True)
    out = net(x)
    (gradient,) = torch.autograd.grad(out.gather(1, out.argmax(1)[:, None]).sum(), x)
    return gradient


def prepared(case: str, who: str, features: int) -> Callable[[], Tensor]:
    """What is timed, with everything imported and made ready."""
    if case == "shapley":
        return _shapley(who, features)
    net, x = network_and_images(128 if case == "memory" else 64)
    if who == "one backward pass":
        return partial(backward_pass, net, x)
    if who == "torchtheory, LRP" or (who == "torchtheory" and case != "memory"):
        from torchtheory.explanation.lrp import lrp
        from torchtheory.explanation.rules import Epsilon, Gamma

        rule = Gamma(GAMMA) if case == "gamma" else Epsilon(EPSILON)
        return lambda: lrp(net, x, rules=rule).flat
    if who == "torchtheory":
        from torchtheory.explanation.methods.gradients import integrated_gradients

        return lambda: integrated_gradients(net, x, steps=STEPS).flat
    if who == "zennit":
        return _zennit(net, x)
    from captum.attr import LRP, IntegratedGradients
    from captum.attr._utils.lrp_rules import EpsilonRule

    if case == "memory":
        with torch.no_grad():
            classes = net(x).argmax(1)
        whole = IntegratedGradients(net)
        return lambda: whole.attribute(x, target=classes, n_steps=STEPS)  # type: ignore[no-any-return]

    def of_captum() -> Tensor:
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.MaxPool2d):
                module.rule = EpsilonRule(EPSILON)  # type: ignore[assignment]
        found: Tensor = LRP(net).attribute(x, target=net(x).argmax(1))
        return found

    return of_captum


def _zennit(net: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    _without_torchvision()
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite
    from zennit.rules import Gamma, Pass
    from zennit.types import Activation, Convolution, Linear

    rules = [(Activation, Pass()), (Convolution, Gamma(GAMMA)), (Linear, Gamma(GAMMA))]

    def of_zennit() -> Tensor:
        with Gradient(model=net, composite=LayerMapComposite(rules)) as attributor:
            chosen: Tensor = attributor(x, lambda out: out * _one_hot(out))[1]
            return chosen

    return of_zennit


def _one_hot(out: Tensor) -> Tensor:
    return nn.functional.one_hot(out.argmax(1), out.shape[1]).to(out)


def _without_torchvision() -> None:
    """zennit imports torchvision for names alone."""

    class Names(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for name in ("torchvision", "torchvision.models", "torchvision.models.resnet"):
        sys.modules.setdefault(name, Names(name))


def _shapley(who: str, features: int) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    ).eval()
    x = torch.randn(1, features)
    if who == "torchtheory":
        from torchtheory.explanation.methods.shapley import shapley

        return lambda: shapley(net, x, 0).flat
    from captum.attr import ShapleyValues

    return lambda: ShapleyValues(net).attribute(x, target=0)  # type: ignore[no-any-return]


def measure(case: str, who: str, features: int) -> dict[str, Any]:
    """One run in this process: seconds, MiB that it grew by, and what was found, in short."""
    torch.set_num_threads(1)
    call = prepared(case, who, features)
    if case != "memory" and features < 8:
        call()  # what is only done once is done
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = call()
    taken, runs = time.process_time() - start, 1
    while case != "memory" and taken < 0.5:
        start = time.process_time()
        call()
        taken, runs = min(taken, time.process_time() - start), runs + 1
        if runs >= 20:
            break
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    sums = found.detach().double().reshape(len(found), -1).sum(1)
    return {"seconds": taken, "MiB": grown, "sum": float(sums.mean())}


def timed(case: str, who: str, features: int, rounds: int) -> dict[str, float] | None:
    """The least of several runs, each in a process of its own; None for a peer that is missing."""
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        line = [sys.executable, __file__, case, "--one", who, "--features", str(features)]
        run = subprocess.run(line, capture_output=True, text=True)
        if run.returncode == 0:
            found.append(json.loads(run.stdout.splitlines()[-1]))
        elif "ModuleNotFoundError" in run.stderr:
            return None
        else:
            sys.exit(run.stderr)
    return {k: min(r[k] for r in found) for k in ("seconds", "MiB", "sum")}


def print_shapley(few: int, rounds: int) -> None:
    """Exact Shapley values; what captum would take for 12 features is an extrapolation."""
    ours = {p: timed("shapley", "torchtheory", p, rounds) for p in (few, 12)}
    peer = timed("shapley", "captum", few, rounds)
    for p, found in ours.items():
        assert found is not None
        print(f"torchtheory, {p:2d} features   {found['seconds']:12.5f} s  {found['MiB']:8.0f} MiB")
    if peer is None:
        return
    one, twelve = (ours[p] for p in (few, 12))
    assert one is not None
    assert twelve is not None
    print(f"captum,      {few:2d} features   {peer['seconds']:12.5f} s  {peer['MiB']:8.0f} MiB")
    print(f"measured with {few} features: {peer['seconds'] / one['seconds']:.0f} times faster")
    # it asks for the score of every beginning of every order
    more = math.factorial(12) * 12 / (math.factorial(few) * few)
    whole = peer["seconds"] * more
    print(
        f"extrapolated, not measured: for 12 features captum would ask {more:.3g} times as often, "
        f"so take {whole / 86400:.3g} days, {whole / twelve['seconds']:.2g} times as long"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--features", type=int, default=7, help="of captum's Shapley values")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.case, chosen.one, chosen.features)))
        return
    if chosen.case == "shapley":
        print_shapley(chosen.features, chosen.rounds)
        return
    print(f"{chosen.case:24s} {'seconds':>9s} {'MiB':>8s} {'relevance in all':>17s} {'ratio':>7s}")
    first = None
    for who in CASES[chosen.case]:
        best = timed(chosen.case, who, 0, chosen.rounds)
        if best is None:
            print(f"{who:24s} not installed")
            continue
        first = first or best["seconds"]
        print(
            f"{who:24s} {best['seconds']:9.4f} {best['MiB']:8.0f} {best['sum']:17.5f} "
            f"{best['seconds'] / first:7.2f}"
        )


if __name__ == "__main__":
    main()
