"""What an audit costs: the embedded example, large networks, and the import.

Each part runs in a process of its own, so that the peak memory is its own; it is counted from
where the network and its data stand ready. Bars: the budget holds within a tenth, and so does the
memory; the import takes at most 0.5 s on top of torch.

    python benchmarks/audit.py
    python benchmarks/audit.py resnet --budget 300s
    python benchmarks/audit.py wide --budget 60s --memory 500MiB
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from large_networks import Encoder, resnet18, wide_network
from torchtheory.core.memory import resident_memory


def audit_large(name: str, budget: str, memory: str) -> None:
    from torchtheory.audit.engine.audit import audit

    torch.manual_seed(0)
    model, x, y = LARGE[name]()
    audit(nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2), only=["layers"])  # imports
    train, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    before, start = resident_memory(), time.perf_counter()
    report = audit(model, train, test, budget=budget, memory=memory, title=name)
    parameters = sum(p.numel() for p in model.parameters())
    _say(f"{name}, {parameters:,} parameters, budget {budget}, memory {memory}", start, before)
    for found in report.findings:
        said = ", ".join(sorted({str(c.verdict) for c in found.claims})) or "no claim"
        part = "" if found.complete else " (stopped)"
        print(f"    {found.name:24}{found.seconds:7.1f} s  {said}{part}")
    print(*(f"    - {sentence}" for sentence in report.summary), sep="\n")


def _resnet() -> tuple[nn.Module, Tensor, Tensor]:
    """Trained for one pass, so that its running averages are those of data."""
    model = resnet18().train()
    means, y = torch.randn(10, 3, 32, 32), torch.arange(1200) % 10
    x = means[y] + torch.randn(1200, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for batch in torch.split(torch.randperm(640), 32):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
        optimizer.step()
    return model, x, y


def _encoder() -> tuple[nn.Module, Tensor, Tensor]:
    tokens = torch.randint(0, Encoder.words, (1200, Encoder.length))
    return Encoder().eval(), tokens, torch.arange(1200) % Encoder.classes


def _wide() -> tuple[nn.Module, Tensor, Tensor]:
    y = torch.arange(1200) % 10
    return wide_network(), torch.randn(10, 100)[y] + torch.randn(1200, 100), y


LARGE: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "resnet": _resnet,
    "encoder": _encoder,
    "wide": _wide,
}


def audit_example() -> None:
    from torchtheory.audit.engine.audit import audit
    from torchtheory.audit.example import digits_example

    model, train, test, initial = digits_example()
    before, start = resident_memory(), time.perf_counter()
    audit(model, train, test, initial=initial)
    _say("MLP 64-64-64-10 on digits, default audit", start, before)


def import_alone() -> None:
    command = "import torch, time; s = time.perf_counter(); import torchtheory; "
    command += "print(f'import torchtheory, after torch: {time.perf_counter() - s:.3g} s')"
    subprocess.run([sys.executable, "-c", command], check=True)


def _say(what: str, start: float, before: int) -> None:
    seconds = time.perf_counter() - start
    peak = (resident_memory(peak=True) - before) / 2**30
    print(f"{what}: {seconds:.3g} s, peak memory {peak:.2f} GiB above the start", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", nargs="?", choices=("import", "example", *LARGE))
    parser.add_argument("--budget", default="60s", help="of the large networks")
    parser.add_argument("--memory", default="4GiB", help="of the large networks")
    options = parser.parse_args()
    match options.part:
        case "import":
            import_alone()
        case "example":
            audit_example()
        case None:
            for part in ("import", "example", *LARGE):
                command = [sys.executable, __file__, part, "--budget", options.budget]
                subprocess.run([*command, "--memory", options.memory], check=True)
        case name:
            audit_large(name, options.budget, options.memory)


if __name__ == "__main__":
    main()
