"""A small language model of text that ships with Python, trained and audited in two minutes.

    python examples/language_model.py [--directory audit-language] [--steps 600] [--off-by-one]

A transformer learns to name the next character of Python's own help texts. Some topics are kept
apart, and the test sequences come from these. The audit speaks of sequences: those are taken to be
independent samples, the characters of one are not. With `--off-by-one` the mask lets every position
see one too many; the loss is then wonderful, and the audit says why.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.sequences.attention.transformers import LanguageModel


class OneTooMany(nn.Module):
    """A language model with masks that are off by one."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, text: Tensor) -> Tensor:
        n = text.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).tril(1)
        h = self.model.positions(self.model.embedding(text), 0)
        for block in self.model.blocks:
            h = block(h, mask=mask)
        h = h if self.model.norm is None else self.model.norm(h)
        return F.linear(h, self.model.embedding.weight)


def sequences(words: list[str], letters: str, length: int) -> Tensor:
    """Pieces `[n, length + 1]` of texts, one after the other, as numbers of letters."""
    number = {letter: k for k, letter in enumerate(letters)}
    text = torch.tensor([number[c] for c in "\n".join(words) if c in number])
    return text[: len(text) // (length + 1) * (length + 1)].view(-1, length + 1)


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-language")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--off-by-one", action="store_true")
    options = parser.parse_args(arguments)

    names = sorted(topics)
    kept = names[::5]
    letters = "".join(sorted({c for text in topics.values() for c in text if c.isascii()}))
    draw = torch.Generator().manual_seed(0)

    def pieces(of: list[str], count: int) -> tuple[Tensor, Tensor]:
        whole = sequences([topics[name] for name in of], letters, options.length)
        some = whole[torch.randperm(len(whole), generator=draw)[:count]]
        return some[:, :-1], some[:, 1:]

    train = pieces([n for n in names if n not in kept], options.samples)
    test = pieces(kept, options.samples // 4)
    right = LanguageModel(
        len(letters), options.width, heads=4, depth=options.depth, length=options.length,
        generator=0, dtype=torch.float32,
    )  # fmt: skip
    model = OneTooMany(right) if options.off_by_one else right
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, max(2, options.steps))
    for _ in range(options.steps):
        batch = torch.randint(len(train[0]), (64,), generator=draw)
        optimizer.zero_grad()
        F.cross_entropy(model(train[0][batch]).mT, train[1][batch]).backward()
        optimizer.step()
        schedule.step()

    report = tt.audit(model, train, test, budget=options.budget, title="Python's help texts")
    print(*report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
