"""Attacks: what they cost, in time and memory, against foolbox and torchattacks.

  pgd    40 steps of PGD in L inf, radius 0.002, without early leaving, on a network of three
         convolutions (3-32-64-64 channels, ReLU, pooling) and 256 random images of 32 x 32.
         torchtheory's default, where fooled samples leave, is timed too.
  fgsm   one step, same network and images.
  auto   the AutoAttack protocol on an MLP for the digits (64-64-64-10), 256 images, radius 0.1:
         APGD on two losses, FAB and Square with 5000 queries.

Every run is a process of its own, one thread, the peers in turn; the least processor time and the
smallest growth of the memory of several rounds are shown, with the accuracy that the attack
leaves. Peers are timed if they can be imported; PYTHONPATH may name where they are.

    python benchmarks/robustness.py pgd --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

CASES = {
    "pgd": ("torchtheory", "torchtheory, leaving", "foolbox", "torchattacks"),
    "fgsm": ("torchtheory", "foolbox", "torchattacks"),
    "auto": ("torchtheory", "torchattacks"),
}


def network_and_images(case: str) -> tuple[nn.Module, Tensor, Tensor, float]:
    """The model, inputs, labels and radius of a case."""
    torch.manual_seed(0)
    if case == "auto":
        from torchtheory.data.real import digits, split
        from torchtheory.training.trainer import fit

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
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.case, chosen.one)))
        return
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(chosen.rounds):
        for who in CASES[chosen.case]:
            run = subprocess.run(
                [sys.executable, __file__, chosen.case, "--one", who],
                capture_output=True,
                text=True,
            )
            if run.returncode == 0:
                found.setdefault(who, []).append(json.loads(run.stdout.splitlines()[-1]))
            elif "ModuleNotFoundError" not in run.stderr:
                sys.exit(run.stderr)
    print(f"{chosen.case:24s} {'seconds':>9s} {'MiB':>8s} {'accuracy left':>14s}")
    for who, runs in found.items():
        best = {k: min(r[k] for r in runs) for k in ("seconds", "MiB", "accuracy")}
        print(f"{who:24s} {best['seconds']:9.3f} {best['MiB']:8.0f} {best['accuracy']:14.4f}")


if __name__ == "__main__":
    main()
