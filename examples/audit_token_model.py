"""What theory says about a language model: one output at every token.

    python examples/audit_token_model.py [--directory audit-tokens] [--epochs 15]

A recurrent network learns to name the next letter of sequences that a Markov chain writes. The
chain's entropy is the least loss that any model can have, so one sees how far this one has come.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt


class Language(nn.Module):
    """Logits `[n, length, letters]` of the letter that follows each one."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(self.embed(text))[0])
        return logits


def written(chain: Tensor, count: int, length: int) -> Tensor:
    """Sequences `[count, length]` of a Markov chain with the given transition matrix."""
    text = torch.randint(len(chain), (count, 1))
    for _ in range(length - 1):
        text = torch.cat([text, torch.multinomial(chain[text[:, -1]], 1)], 1)
    return text


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-tokens")
    parser.add_argument("--letters", type=int, default=12)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--length", type=int, default=17)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    chain = (2.5 * torch.randn(options.letters, options.letters)).softmax(1)
    text = written(chain, 2 * options.samples, options.length)
    x, y = text[:, :-1], text[:, 1:]
    train = x[: options.samples], y[: options.samples]
    test = x[options.samples :], y[options.samples :]
    model = Language(options.letters, options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(options.epochs):
        for batch in torch.randperm(options.samples).split(64):
            optimizer.zero_grad()
            logits = model(train[0][batch])
            F.cross_entropy(logits.flatten(0, 1), train[1][batch].flatten()).backward()
            optimizer.step()

    report = tt.audit(model, train, test, budget=options.budget, title="Letters of a Markov chain")
    print(*report.summary, sep="\n")
    least = -chain.log()[test[0], test[1]].mean()
    print(f"The chain itself has a loss of {float(least):.3g} per letter on the test data.")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
