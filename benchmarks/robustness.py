"""Attacks and bounds: what they cost, in time and memory, against their peers.

  pgd    40 steps of PGD in L inf, radius 0.002, without early leaving, on a network of three
         convolutions (3-32-64-64 channels, ReLU, pooling) and 256 random images of 32 x 32.
         torchtheory's default, where fooled samples leave, is timed too.
  fgsm   one step, same network and images.
  auto   the AutoAttack protocol on an MLP for the digits (64-64-64-10), 256 images, radius 0.1:
         APGD on two losses, FAB and Square with 5000 queries.
  small  PGD in L inf, L2 and L1, 40 steps without early leaving, on an MLP (20-64-64-5) and 64
         samples in [0, 1]: what counts is the overhead of a step. torchattacks has no L1; its L2
         and foolbox's steps cut off at the box after the projection, ours project onto both.
  intervals
         interval bounds of the same MLP and samples, on a first call and on later ones, against
         auto_LiRPA. Its version 0.3 on PyPI does not import with recent torch.

Every run is a process of its own, one thread, the peers in turn; the least processor time and the
smallest growth of the memory of several rounds are shown, with the accuracy that the attack
leaves, or for small networks the least of many calls and the ratio to the fastest peer. Peers are
timed if they can be imported; PYTHONPATH may name where they are.

    python benchmarks/robustness.py pgd --rounds 3
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

CASES = {
    "pgd": ("torchtheory", "torchtheory, leaving", "foolbox", "torchattacks"),
    "fgsm": ("torchtheory", "foolbox", "torchattacks"),
    "auto": ("torchtheory", "torchattacks"),
}


#: Rows of the cases of small networks, and who takes part.
SMALL: dict[str, dict[str, tuple[str, ...]]] = {
    "small": {
        "PGD, L inf": ("torchtheory", "foolbox", "torchattacks"),
        "PGD, L2": ("torchtheory", "foolbox", "torchattacks"),
        "PGD, L1": ("torchtheory", "foolbox"),
    },
    "intervals": {
        "first call": ("torchtheory", "auto_LiRPA"),
        "later calls": ("torchtheory", "auto_LiRPA"),
    },
}
#: Radii of the small network's balls.
RADII = {"PGD, L inf": 0.02, "PGD, L2": 0.05, "PGD, L1": 0.2}


def small_network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    ).eval()
    x = torch.rand(64, 1, 4, 5)  # torchattacks knows images only
    with torch.no_grad():
        return net, x, net(x).argmax(1)


def small_call(row: str, who: str) -> Callable[[], Any]:
    """What is timed: one call on the small network."""
    net, x, y = small_network()
    if row in RADII:
        return small_attack(row, who, net, x, y)
    if who == "torchtheory":
        from torchtheory.robustness.bounds.output_bounds import output_bounds

        if row == "first call":
            return lambda: output_bounds(copy.deepcopy(net), x, 0.05, method="interval")
        return lambda: output_bounds(net, x, 0.05, method="interval")
    from auto_LiRPA import BoundedModule, BoundedTensor
    from auto_LiRPA.perturbations import PerturbationLpNorm

    ball = BoundedTensor(x, PerturbationLpNorm(norm=float("inf"), eps=0.05))
    if row == "first call":
        return lambda: BoundedModule(copy.deepcopy(net), x[:1]).compute_bounds(
            x=(ball,), method="IBP"
        )
    bounded = BoundedModule(net, x[:1])
    return lambda: bounded.compute_bounds(x=(ball,), method="IBP")


def small_attack(row: str, who: str, net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    radius = RADII[row]
    step, norm = radius / 10, row.removeprefix("PGD, L").strip()
    if who == "torchtheory":
        from torchtheory.robustness.attacks.gradient_steps import PGD

        attack = PGD(radius, 40, norm=norm, step=step, box=(0, 1), stop_when_fooled=False)
        return lambda: attack(net, x, y)
    if who == "foolbox":
        import foolbox

        kinds = {"inf": "LinfPGD", "2": "L2PGD", "1": "L1PGD"}
        made = getattr(foolbox.attacks, kinds[norm])(abs_stepsize=step, steps=40)
        model = foolbox.PyTorchModel(net, bounds=(0, 1))
        return lambda: made(model, x, y, epsilons=radius)
    import torchattacks

    kind = torchattacks.PGD if norm == "inf" else torchattacks.PGDL2
    other = kind(net, eps=radius, alpha=step, steps=40)
    return lambda: other(x, y)


def measure_small(row: str, who: str) -> dict[str, float]:
    """The least of many calls in this process."""
    torch.set_num_threads(1)
    call = small_call(row, who)
    taken = []
    for _ in range(40):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return {"seconds": min(taken)}


def show_small(case: str, rounds: int) -> None:
    print(f"{case:14s} {'':14s} {'ms':>9s} {'ratio of ours':>14s}")
    for row, who in SMALL[case].items():
        found: dict[str, float] = {}
        for _ in range(rounds):
            for name in who:
                seconds = in_a_process(f"{row}:{name}", case)
                if seconds is not None:
                    found[name] = min(found.get(name, math.inf), seconds["seconds"])
        for name, seconds_of in found.items():
            ratio = "" if name == "torchtheory" else f"{found['torchtheory'] / seconds_of:14.2f}"
            print(f"{row:14s} {name:14s} {1e3 * seconds_of:9.3f} {ratio}")


def in_a_process(who: str, case: str) -> dict[str, float] | None:
    """What a run of its own measures; None if what it is about cannot be imported."""
    run = subprocess.run(
        [sys.executable, __file__, case, "--one", who], capture_output=True, text=True
    )
    if run.returncode == 0:
        found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
        return found
    if "ModuleNotFoundError" in run.stderr or "ImportError" in run.stderr:
        return None
    sys.exit(run.stderr)


def network_and_images(case: str) -> tuple[nn.Module, Tensor, Tensor, float]:
    """The model, inputs, labels and radius of a case."""
    torch.manual_seed(0)
    if case == "auto":
        from torchtheory.data.real import digits, split
        from torchtheory.training.loop.trainer import fit

        train, test = split(*digits(), 0.3, 0)
        net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
        fit(net, (train[0].reshape(-1, 1, 8, 8), train[1]), epochs=30)
        return net.eval(), test[0][:256].reshape(-1, 1, 8, 8), test[1][:256], 0.1
    layers: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10)).eval()
    x = torch.rand(256, 3, 32, 32)
    with torch.no_grad():
        y = net(x).argmax(1)
    return net, x, y, 0.002


def attacked(case: str, who: str, net: nn.Module, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Adversarial inputs."""
    step = radius / 10
    if who.startswith("torchtheory"):
        from torchtheory.robustness.attacks.ensemble import auto_attack
        from torchtheory.robustness.attacks.gradient_steps import FGSM, PGD

        if case == "auto":
            return auto_attack(net, x, y, radius, box=(0, 1)).adversarial
        if case == "fgsm":
            return FGSM(radius, box=(0, 1))(net, x, y).adversarial
        leaving = who.endswith("leaving")
        return PGD(radius, 40, step=step, box=(0, 1), stop_when_fooled=leaving)(
            net, x, y
        ).adversarial
    if who == "foolbox":
        import foolbox

        model = foolbox.PyTorchModel(net, bounds=(0, 1))
        attack = (
            foolbox.attacks.FGSM()
            if case == "fgsm"
            else foolbox.attacks.LinfPGD(abs_stepsize=step, steps=40)
        )
        return attack(model, x, y, epsilons=radius)[1]  # type: ignore[no-any-return]
    import torchattacks

    if case == "auto":
        return torchattacks.AutoAttack(net, eps=radius, n_classes=10, seed=0)(x, y)  # type: ignore[no-any-return]
    if case == "fgsm":
        return torchattacks.FGSM(net, eps=radius)(x, y)  # type: ignore[no-any-return]
    return torchattacks.PGD(net, eps=radius, alpha=step, steps=40)(x, y)  # type: ignore[no-any-return]


def measure(case: str, who: str) -> dict[str, float]:
    """One run in this process: seconds, MiB that it grew by, accuracy that is left."""
    torch.set_num_threads(1)
    net, x, y, radius = network_and_images(case)
    attacked(case, who, net, x[:2], y[:2], radius)  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = attacked(case, who, net, x, y, radius)
    taken = time.process_time() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with torch.no_grad():
        left = float((net(found).argmax(1) == y).float().mean())
    assert float((found - x).abs().max()) <= radius * 1.0001
    return {"seconds": taken, "MiB": grown / 1024, "accuracy": left}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[*CASES, *SMALL])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        if chosen.case in SMALL:
            print(json.dumps(measure_small(*chosen.one.split(":"))))
        else:
            print(json.dumps(measure(chosen.case, chosen.one)))
        return
    if chosen.case in SMALL:
        show_small(chosen.case, chosen.rounds)
        return
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(chosen.rounds):
        for who in CASES[chosen.case]:
            measured = in_a_process(who, chosen.case)
            if measured is not None:
                found.setdefault(who, []).append(measured)
    print(f"{chosen.case:24s} {'seconds':>9s} {'MiB':>8s} {'accuracy left':>14s}")
    for who, runs in found.items():
        best = {k: min(r[k] for r in runs) for k in ("seconds", "MiB", "accuracy")}
        print(f"{who:24s} {best['seconds']:9.3f} {best['MiB']:8.0f} {best['accuracy']:14.4f}")


if __name__ == "__main__":
    main()
