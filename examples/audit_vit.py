"""What theory says about a vision transformer.

    python examples/audit_vit.py [--directory audit-vit] [--epochs 15]

A small vision transformer reads scikit-learn's digits in patches of 2 x 2 pixels. It is trained,
audited, and the report is written.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.data.real import digits, split


class VisionTransformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1)
        logits: Tensor = self.out(self.norm(self.encoder(tokens + self.position))[:, 0])
        return logits


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-vit")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--samples", type=int, default=1300)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    (x, y), (x_test, y_test) = split(*digits(), test_fraction=0.25)
    x, y = x[: options.samples].reshape(-1, 1, 8, 8), y[: options.samples]
    model = VisionTransformer(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    for _ in range(options.epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    test = x_test.reshape(-1, 1, 8, 8), y_test
    report = tt.audit(model.eval(), (x, y), test, budget=options.budget)
    print(*report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()
