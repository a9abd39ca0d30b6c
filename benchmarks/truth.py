"""Are audits true at every budget? Short ones against one that has all the time.

    python benchmarks/truth.py [--budgets 2 5 20] [--busy]

audits ten networks at each budget and once without any. What a short audit says is false if the
long one does not say it too: a reason why something does not apply, a defect, a violated claim, or
a number whose range has nothing in common with the long audit's. With `--busy` two other processes
use the cores meanwhile. Prints a table and every false statement, and how many ranges of numbers
from a part of the samples were compared, of which a few in a hundred may miss; the exit code is 1
if anything is false.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.core.claim import Verdict
from torchtheory.data.real import digits, split

Case = tuple[nn.Module, Any, Any]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.out = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x.reshape(-1, 1, 8, 8))))
        out: Tensor = self.out((h + F.relu(self.second(h))).mean((2, 3)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x.reshape(-1, 8, 8))[0][:, -1])
        return out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layer(self.embed(x.reshape(-1, 8, 8))).mean(1))
        return out


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(len(widths) - 1):
        layers += [nn.Linear(widths[k], widths[k + 1]), activation()]
    return nn.Sequential(*layers[:-1])


def trained(model: nn.Module, data: tuple[Tensor, Tensor], *, epochs: int = 8) -> nn.Module:
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = F.cross_entropy if not y.is_floating_point() else F.mse_loss
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def cases(seed: int = 0) -> dict[str, Callable[[], Case]]:
    """Ten networks, trained and not, with their data."""
    (x, y), test = split(*digits(), test_fraction=0.25, generator=seed)

    def classifier(make: Callable[[], nn.Module]) -> Callable[[], Case]:
        return lambda: (trained(make(), (x, y)), (x, y), test)

    def regression() -> Case:
        goal, goal_test = x[:, :20].sum(1, keepdim=True), test[0][:, :20].sum(1, keepdim=True)
        return trained(mlp(64, 32, 1), (x, goal)), (x, goal), (test[0], goal_test)

    return {
        "mlp": classifier(lambda: mlp(64, 64, 64, 10)),
        "tanh": classifier(lambda: mlp(64, 32, 32, 10, activation=nn.Tanh)),
        "wide": classifier(lambda: mlp(64, 1024, 10)),
        "linear": classifier(lambda: mlp(64, 10)),
        "residual": classifier(Residual),
        "lstm": classifier(Recurrent),
        "encoder": classifier(Encoder),
        "regression": regression,
        "untrained": lambda: (mlp(64, 32, 10), (x, y), test),
        "few": lambda: (trained(mlp(64, 16, 10), (x[:30], y[:30])), (x[:30], y[:30]), None),
    }


def pattern(sentence: str) -> str:
    """A sentence without its numbers, which another budget may change."""
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", sentence)


def false_statements(short: tt.audit.Audit, full: tt.audit.Audit) -> list[str]:
    """What the short audit says and the one with all the time does not."""
    found = []
    long = {f.name: f for f in full.findings}
    for finding in short.findings:
        other = long[finding.name]
        reasons = {pattern(c.reason) for c in other.claims if c.verdict is Verdict.NOT_APPLICABLE}
        found += [
            f"{finding.name}: does not apply: {c.reason}"
            for c in finding.claims
            if c.verdict is Verdict.NOT_APPLICABLE and pattern(c.reason) not in reasons
        ]
        broken = {c.statement for c in other.claims if c.verdict is Verdict.VIOLATED}
        found += [
            f"{finding.name}: violated: {c.statement}"
            for c in finding.claims
            if c.verdict is Verdict.VIOLATED and c.statement not in broken
        ]
        known = {pattern(w) for w in other.warnings}
        found += [
            f"{finding.name}: defect: {w}" for w in finding.warnings if pattern(w) not in known
        ]
        numbers = {q.name: q for q in other.quantities}
        for q in finding.quantities:
            if q.name in numbers and q.differs_from(numbers[q.name]):
                r = numbers[q.name]
                found.append(
                    f"{finding.name}: {q.label}: {q.value:.4g} [{q.low:.4g}, {q.high:.4g}] at the "
                    f"budget, {r.value:.4g} [{r.low:.4g}, {r.high:.4g}] with all the time"
                )
    return found


def ranges_compared(short: tt.audit.Audit, full: tt.audit.Audit) -> int:
    """How many numbers of the short audit rest on a part of the samples, and the long one has."""
    known = {(f.name, q.name) for f in full.findings for q in f.quantities}
    return sum(
        q.sampled and (f.name, q.name) in known for f in short.findings for q in f.quantities
    )


def spin() -> None:
    while True:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", type=float, nargs="+", default=[2.0, 5.0, 20.0])
    parser.add_argument("--only", nargs="+", default=None, help="some of the networks")
    parser.add_argument("--busy", action="store_true", help="two other processes use the cores")
    given = parser.parse_args()
    torch.manual_seed(0)
    wrong = ranges = 0
    print(f"{'network':12} {'budget':>7} {'took':>7} {'undone':>7} {'false':>6}")
    for name, make in cases().items():
        if given.only and name not in given.only:
            continue
        model, train, test = make()
        full = tt.audit(model, train, test, budget=None)
        others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(2)]
        for other in others if given.busy else ():
            other.start()
        for budget in given.budgets:
            start = time.perf_counter()
            short = tt.audit(model, train, test, budget=budget)
            took = time.perf_counter() - start
            found = false_statements(short, full)
            wrong += len(found)
            ranges += ranges_compared(short, full)
            print(
                f"{name:12} {budget:7g} {took:7.2f} {len(short.undone):7} {len(found):6}",
                flush=True,
            )
            for sentence in found:
                print(f"    {sentence}", flush=True)
        for other in others if given.busy else ():
            other.kill()
    print(f"{wrong} false statements; {ranges} ranges from a part of the samples were compared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
