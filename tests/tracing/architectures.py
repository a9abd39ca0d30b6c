"""Architectures that everything which looks into networks is tried on.

Each is small, in evaluation mode and in double precision, with inputs that it runs on.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.models.exported import load_exported


@dataclass(frozen=True)
class Architecture:
    """A network with inputs.

    Attributes:
        name: of the architecture.
        model: the network.
        x: a few inputs.
        piecewise_linear: whether it is a piecewise linear function of its input.
        rows_are_samples: whether the rows of the input are independent of each other.
    """

    name: str
    model: nn.Module
    x: Tensor
    piecewise_linear: bool = False
    rows_are_samples: bool = True


class Functional(nn.Module):
    """Functions where others have layers, one of which writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x.flatten(1)), inplace=True))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2 + 3 * k, 3, 3, padding=1) for k in range(3))
        self.head = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up = nn.Conv2d(2, 4, 3), nn.Linear(4, 2), nn.Linear(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return self.head((x * gate[:, :, None, None]).flatten(2).sum(-1))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(6)
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


class OwnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 2, 3).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(3), -1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.head((x + self.out(mixed)).mean(1))


class CausalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=True)
        return self.head(x + y)[:, -1]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class GCN(nn.Module):
    """Rows are nodes of one graph."""

    coupling: Tensor

    def __init__(self) -> None:
        super().__init__()
        a = torch.eye(5) + torch.diag(torch.ones(4), 1) + torch.diag(torch.ones(4), -1)
        self.register_buffer("coupling", a / a.sum(1, keepdim=True))
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.coupling @ F.relu(self.first(self.coupling @ x)))


class MessagePassing(nn.Module):
    """Sums over neighbors by `index_add`; rows are nodes."""

    source: Tensor
    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 4, 0]))
        self.register_buffer("target", torch.tensor([1, 2, 3, 4, 0, 2]))
        self.message, self.update = nn.Linear(6, 8), nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        sent = F.relu(self.message(x))[self.source]
        gathered = torch.zeros(len(x), 8, dtype=x.dtype).index_add_(0, self.target, sent)
        return self.update(torch.cat([x, gathered], 1))


class DeepSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        self.all = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).sum(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 3, 3, padding=1)
        self.bottom = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down(x))
        coarse = F.relu(self.bottom(F.max_pool2d(fine, 2)))
        return self.last(torch.cat([fine, self.up(coarse)], 1))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 6, 2, stride=2)
        self.norm = nn.LayerNorm(6)
        self.tokens = nn.Sequential(nn.Linear(9, 8), nn.GELU(), nn.Linear(8, 9))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(1))


class Tied(nn.Module):
    """The decoder has the weights of the encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.encoder(x)), self.encoder.weight.t())


class Loops(nn.Module):
    """Python that asks for sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            x = x.flatten(1)
        for _ in range(x.shape[-1] // 2):
            x = torch.relu(self.layer(x))
        return self.head(x.view(x.size(0), -1))


class Several(nn.Module):
    """A dictionary of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.trunk(x))
        return {"logits": self.a(h), "value": self.b(h)}


class Clamped(nn.Module):
    """Piecewise linear by other operations than ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = torch.where(h > 0, h, 0.1 * h).clamp(-1, 2)
        return torch.maximum(self.second(h), self.second(-h))


class Word(nn.Module):
    """Integers in."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(11, 6), nn.Parameter(torch.randn(5, 6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position[: x.shape[1]]
        return self.head(self.norm(h).amax(1))


class GroupNormalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.silu(self.norm(self.conv(x))), 2)
        return self.head(F.interpolate(x, scale_factor=2).mean((-2, -1)))


def _vectors() -> Tensor:
    return torch.randn(3, 6)


def _sequences() -> Tensor:
    return torch.randn(3, 5, 6)


def _images() -> Tensor:
    return torch.randn(3, 2, 6, 6)


def _nodes() -> Tensor:
    return torch.randn(5, 6)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def _layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def _weight_norm() -> nn.Module:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))


_MAKERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "mlp": (_mlp, _vectors, "linear"),
    "functional": (Functional, _vectors, "linear"),
    "convolutional": (_conv, _images, "linear"),
    "resnet": (ResNet, _images, "linear"),
    "densenet": (DenseNet, _images, "linear"),
    "squeeze-excite": (SqueezeExcite, _images, ""),
    "layer-norm": (_layer_norm, _vectors, ""),
    "swiglu": (SwiGLU, _vectors, ""),
    "encoder": (Encoder, _sequences, ""),
    "own-attention": (OwnAttention, _sequences, ""),
    "causal-attention": (CausalAttention, _sequences, ""),
    "lstm": (lambda: Recurrent(nn.LSTM), _sequences, ""),
    "gru": (lambda: Recurrent(nn.GRU), _sequences, ""),
    "gcn": (GCN, _nodes, "linear nodes"),
    "message-passing": (MessagePassing, _nodes, "linear nodes"),
    "deep-set": (DeepSet, _sequences, "linear"),
    "u-net": (UNet, _images, "linear"),
    "mixer": (Mixer, _images, ""),
    "tied": (Tied, _vectors, "linear"),
    "loops": (Loops, _vectors, "linear"),
    "several-outputs": (Several, _vectors, ""),
    "weight-norm": (_weight_norm, _vectors, "linear"),
    "clamped": (Clamped, _vectors, "linear"),
    "words": (Word, lambda: torch.randint(11, (3, 5)), ""),
    "group-norm": (GroupNormalized, _images, ""),
}

NAMES = tuple(_MAKERS)


class OnNodes(nn.Module):
    """Two layers of PyTorch Geometric on one graph; rows are nodes."""

    edges: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        layers = importlib.import_module("torch_geometric.nn")
        self.first, self.second = getattr(layers, kind)(6, 8), getattr(layers, kind)(8, 3)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x, self.edges).relu(), self.edges)


def _transformer(kind: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = importlib.import_module("transformers")
        model: nn.Module = getattr(library, kind)(getattr(library, config)(**sizes))
        return model

    return make


_TEXT = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}


def _words() -> Tensor:
    return torch.randint(50, (3, 5))


def _pictures() -> Tensor:
    return torch.randn(3, 3, 16, 16)


#: Networks of other libraries: the module that must be there, and the rest as above.
_OF_LIBRARIES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "gpt2": (
        "transformers",
        _transformer(
            "GPT2LMHeadModel", "GPT2Config", vocab_size=50, n_embd=8, n_layer=2, n_head=2,
            n_positions=16, bos_token_id=0, eos_token_id=0,
        ),
        _words,
        "",
    ),
    "bert": (
        "transformers",
        _transformer(
            "BertForSequenceClassification", "BertConfig", intermediate_size=16, **_TEXT
        ),
        _words,
        "",
    ),
    "llama": (
        "transformers",
        _transformer(
            "LlamaForCausalLM", "LlamaConfig", intermediate_size=16, num_key_value_heads=1, **_TEXT
        ),
        _words,
        "",
    ),
    "vit": (
        "transformers",
        _transformer(
            "ViTForImageClassification", "ViTConfig", hidden_size=8, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        ),
        _pictures,
        "",
    ),
    "convnext": (
        "transformers",
        _transformer(
            "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[4, 4, 6],
            depths=[1, 1, 1], num_stages=3, patch_size=2,
        ),
        _pictures,
        "",
    ),
    "pyg-gcn": ("torch_geometric", lambda: OnNodes("GCNConv"), _nodes, "linear nodes"),
    "pyg-gat": ("torch_geometric", lambda: OnNodes("GATConv"), _nodes, "nodes"),
}  # fmt: skip

#: With those of libraries that are installed.
ALL_NAMES = NAMES + tuple(
    name for name, (library, *_) in _OF_LIBRARIES.items() if importlib.util.find_spec(library)
)


def architecture(name: str, seed: int = 0) -> Architecture:
    """One of them, with weights and inputs drawn from a seed."""
    make, inputs, facts = _MAKERS[name] if name in _MAKERS else _OF_LIBRARIES[name][1:]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, x = make().double().eval(), inputs()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # statistics of a trained network
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
    if x.is_floating_point():
        x = x.double()
    return Architecture(name, model, x, "linear" in facts, "nodes" not in facts)


def outputs_of(made: Any) -> Tensor:
    """The output that an architecture is about."""
    return made["logits"] if isinstance(made, dict) else made


@cache
def archived(name: str) -> nn.Module:
    """The same network out of a `.pt2` archive; one whose rows are nodes cannot be exported."""
    a = architecture(name)
    batch = {0: torch.export.Dim("n", min=2, max=64)}
    program = torch.export.export(a.model, (a.x,), dynamic_shapes=(batch,))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.pt2"
        torch.export.save(program, file)
        return load_exported(file)
