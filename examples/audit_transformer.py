"""What theory says about a transformer encoder of 20 million parameters.

    python examples/audit_transformer.py [--directory audit-transformer] [--steps 30]

The encoder reads sequences of tokens and says which of four tokens occurs most often in them. It is
trained for some steps, and audited within a minute and 4 GiB.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt

CLASSES = 4


class Encoder(nn.Module):
    def __init__(self, tokens: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        h = self.encoder(self.embed(text) + self.position)
        logits: Tensor = self.out(self.norm(h).mean(1))
        return logits


def texts(count: int, length: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random tokens, a quarter of them from the first four, and which of these is most frequent."""
    text = torch.randint(tokens, (count, length))
    named = torch.rand(count, length) < 0.25
    text[named] = torch.randint(CLASSES, (int(named.sum()),))
    counts = F.one_hot(text.clamp(max=CLASSES), CLASSES + 1).sum(1)[:, :CLASSES]
    return text, counts.argmax(1)


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-transformer")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    train = texts(options.samples, options.length, options.tokens)
    test = texts(options.samples, options.length, options.tokens)
    model = Encoder(options.tokens, options.width, options.layers, options.length)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(options.steps):
        batch = torch.randint(options.samples, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
        optimizer.step()

    model.eval()
    report = tt.audit(
        model, train, test, budget=options.budget, memory="4GiB", title="A transformer encoder"
    )
    print(*report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
