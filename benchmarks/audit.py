"""What an audit costs: the embedded example, a ResNet-18-shaped network, and the import.

Each part runs in a process of its own, so that the peak memory is its own. Bars: the default audit
under 60 s; 11 million parameters on 32 x 32 images within 5 minutes and 4 GiB; the import at most
0.5 s on top of torch.

    python benchmarks/audit.py
    python benchmarks/audit.py resnet --budget 300s
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with batch normalization around a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.skip(x))


def resnet18(classes: int = 10) -> nn.Sequential:
    """The layers of ResNet-18 for 32 x 32 images: 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outputs, stride in (
        *((64, 1), (64, 1), (128, 2), (128, 1)),
        *((256, 2), (256, 1), (512, 2), (512, 1)),
    ):
        layers.append(Block(width, outputs, stride))
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def audit_resnet(budget: str) -> None:
    from torchtheory.audit.engine.audit import audit

    torch.manual_seed(0)
    model = resnet18()
    model.train()
    means = torch.randn(10, 3, 32, 32)
    y = torch.arange(1200) % 10
    x = means[y] + torch.randn(1200, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for batch in torch.split(torch.randperm(640), 32):  # so that the averages are those of data
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
        optimizer.step()
    start = time.perf_counter()
    report = audit(
        model, (x[:1000], y[:1000]), (x[1000:], y[1000:]), budget=budget, title="ResNet-18"
    )
    _say(f"ResNet-18, {sum(p.numel() for p in model.parameters()):,} parameters", start)
    for found in report.findings:
        said = ", ".join(sorted({str(c.verdict) for c in found.claims})) or "no claim"
        part = "" if found.complete else " (stopped)"
        print(f"    {found.name:24}{found.seconds:7.1f} s  {said}{part}")
    print(*(f"    - {sentence}" for sentence in report.summary), sep="\n")


def audit_example() -> None:
    from torchtheory.audit.engine.audit import audit
    from torchtheory.audit.example import digits_example

    model, train, test, initial = digits_example()
    start = time.perf_counter()
    audit(model, train, test, initial=initial)
    _say("MLP 64-64-64-10 on digits, default audit", start)


def import_alone() -> None:
    start = time.perf_counter()
    import torchtheory  # noqa: F401

    _say("import torchtheory, after torch", start)


def _say(what: str, start: float) -> None:
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{what}: {seconds:.3g} s, peak memory {peak:.2f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", nargs="?", choices=("import", "example", "resnet"))
    parser.add_argument("--budget", default="280s", help="of the large network")
    options = parser.parse_args()
    match options.part:
        case "import":
            import_alone()
        case "example":
            audit_example()
        case "resnet":
            audit_resnet(options.budget)
        case None:
            for part in ("import", "example", "resnet"):
                command = [sys.executable, __file__, part, "--budget", options.budget]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
