"""What theory says about models without labels: an autoencoder, and a variational one.

    python examples/audit_autoencoder.py [--directory audit-autoencoder] [--epochs 20]

Both learn to reproduce scikit-learn's digits, and are audited with the images alone. The second one
draws random numbers each time it is run: the audit fixes them, and averages its loss over them.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.data.real import digits, split


def autoencoder(code: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, code),
        nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, 64),
    )  # fmt: skip


class Variational(nn.Module):
    """Returns the image it makes of a random code, and the code's mean and log-variance."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def loss(outputs: Tensor | tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    if isinstance(outputs, Tensor):
        return F.mse_loss(outputs, x)
    made, mean, log_variance = outputs
    divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
    return F.mse_loss(made, x) + 1e-3 * divergence


def main(arguments: list[str] | None = None) -> list[tt.audit.Audit]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-autoencoder")
    parser.add_argument("--code", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1300)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    (x, _), (test, _) = split(*digits(), test_fraction=0.25)
    train = x[: options.samples]
    models = {"autoencoder": autoencoder(options.code), "variational": Variational(options.code)}
    reports = []
    for name, model in models.items():
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(options.epochs):
            for batch in torch.randperm(len(train)).split(64):
                optimizer.zero_grad()
                loss(model(train[batch]), train[batch]).backward()
                optimizer.step()
        report = tt.audit(model, train, test, budget=options.budget, title=name)
        print(f"\n{name}:", *report.summary, sep="\n")
        print("written to", report.save(f"{options.directory}/{name}"))
        reports.append(report)
    return reports


if __name__ == "__main__":
    main()
