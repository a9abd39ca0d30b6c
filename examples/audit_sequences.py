"""What theory says about a recurrent network and a transformer.

    python examples/audit_sequences.py [--directory audit-sequences] [--epochs 20]

Both read sequences of letters and say whether the first is also the last. They are trained, audited
and compared; the reports are written to two directories below the given one.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt

LETTERS = 3


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, 2)

    def forward(self, letters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(letters))
        logits: Tensor = self.out(states[:, -1])
        return logits


class Attention(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, width)
        self.position = nn.Parameter(torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 2)

    def forward(self, letters: Tensor) -> Tensor:
        h = self.encoder(self.embed(letters) + self.position)
        logits: Tensor = self.out(h[:, -1])
        return logits


def sequences(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Random letters, and whether the first is the last; half of the sequences are made so."""
    letters = torch.randint(LETTERS, (count, length))
    letters[: count // 2, -1] = letters[: count // 2, 0]
    letters = letters[torch.randperm(count)]
    return letters, (letters[:, 0] == letters[:, -1]).long()


def fit(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def main(arguments: list[str] | None = None) -> list[tt.audit.Audit]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-sequences")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    train = sequences(options.samples, options.length)
    test = sequences(options.samples, options.length)
    models = {
        "lstm": Recurrent(options.width),
        "transformer": Attention(options.width, options.length),
    }
    reports = []
    for name, model in models.items():
        fit(model, *train, options.epochs)
        report = tt.audit(model, train, test, budget=options.budget, title=name)
        print(f"\n{name}:", *report.summary, sep="\n")
        print("written to", report.save(f"{options.directory}/{name}"))
        reports.append(report)
    return reports


if __name__ == "__main__":
    main()
