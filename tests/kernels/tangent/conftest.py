"""Models of every kind for the tests of the tangent kernel, and their Jacobians row by row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.models.model import PureFunction


def written_out(model: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """`[n, C, P]` by plain autograd, one output of one sample at a time."""
    pure = PureFunction(model)
    names = names or [k for k, p in model.named_parameters() if p.requires_grad]
    samples = []
    for v in x:
        free = {k: p.detach().requires_grad_(k in names) for k, p in pure.parameters.items()}
        out = pure(free, v[None]).reshape(-1)
        rows = []
        for value in out:
            found = torch.autograd.grad(
                value, [free[k] for k in names], retain_graph=True, allow_unused=True
            )
            pieces = [
                torch.zeros(free[k].numel()).to(out) if g is None else g.reshape(-1)
                for k, g in zip(names, found, strict=True)
            ]
            rows.append(torch.cat(pieces))
        samples.append(torch.stack(rows))
    return torch.stack(samples)


class TiedAutoencoder(nn.Module):
    """The decoder's weight is the encoder's, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t(), self.bias)


class OwnOperations(nn.Module):
    """Parameters in products, sums, differences, as scalars times a weight, and in an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 4))
        self.gain = nn.Parameter(torch.randn(4))
        self.shift = nn.Parameter(torch.randn(1, 4))
        self.less = nn.Parameter(torch.randn(4))
        self.last = nn.Parameter(torch.randn(4, 2))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ (self.first / 2 * 0.7) * self.gain + self.shift - self.less)
        return torch.einsum("ni,ij->nj", h, self.last)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.recurrent = kind(3, 4, **options)
        self.first = self.recurrent.batch_first
        with torch.no_grad():
            width = self.recurrent(torch.zeros(1, 1, 3))[0].shape[-1]
        self.read = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            return self.read(self.recurrent(x)[0][:, -1])
        return self.read(self.recurrent(x.transpose(0, 1))[0][-1])


class Cells(nn.Module):
    """A cell written out over time: every parameter is used once per step."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class LanguageModel(nn.Module):
    """Embedding with a padding row, positions, attention, and the embedding again on top."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=0)
        self.position = nn.Parameter(torch.randn(5, 4))
        self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x) + self.position).mean(1))


class CrossAttention(nn.Module):
    """Attention whose keys are not its queries: the packed weight is cut in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[:, :2], x, x, need_weights=False)[0]


class Hidden(torch.autograd.Function):
    """A product that torch's functions do not see."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor):
        x, weight = ctx.saved_tensors
        return g @ weight.T, x.T @ g


class UsedInTheOpenAndHidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return Hidden.apply(torch.tanh(F.linear(x, self.weight)), self.weight)


class LooksAtValues(nn.Module):
    """Which layer a sample goes through depends on its values: no vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(v[None]) if float(v.sum()) < 0 else self.b(v[None]) for v in x])


def _batch_norm(kind: type[nn.Module], width: int) -> nn.Module:
    layer = kind(width)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.Tanh(),
                      nn.Linear(4, 3)),
        torch.randn(6, 4),
    ),
    "frozen first layer": lambda: (
        nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 2)),
        torch.randn(5, 4),
    ),
    "frozen bias": lambda: (_without_bias(), torch.randn(5, 4)),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(4, 4, 3, stride=2, padding=1), _batch_norm(nn.BatchNorm2d, 4), nn.ReLU(),
            nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=2), nn.GELU(),
            nn.Conv2d(6, 6, 3, padding="same", groups=6, bias=False), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(24, 3),
        ),
        torch.randn(4, 4, 8, 8),
    ),
    "one dimension": lambda: (
        nn.Sequential(
            nn.Conv1d(3, 4, 2, padding="same", dilation=3), nn.GroupNorm(2, 4), nn.Tanh(),
            nn.Conv1d(4, 2, 2, stride=2, padding_mode="circular", padding=1), nn.Flatten(),
            nn.Linear(10, 2),
        ),
        torch.randn(4, 3, 9),
    ),
    "three dimensions": lambda: (
        nn.Sequential(
            nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), nn.InstanceNorm3d(3, affine=True), nn.Flatten(),
            nn.Linear(54, 2),
        ),
        torch.randn(3, 2, 4, 4, 4),
    ),
    "transposed convolution": lambda: (
        nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten(),
                      nn.Linear(108, 2)),
        torch.randn(3, 2, 3, 3),
    ),
    "norms on sequences": lambda: (
        nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.RMSNorm(3), nn.Linear(3, 2)),
        torch.randn(4, 2, 4),
    ),
    "tied autoencoder": lambda: (TiedAutoencoder(), torch.randn(5, 5)),
    "own operations": lambda: (OwnOperations(), torch.randn(5, 5)),
    "lstm": lambda: (Recurrent(nn.LSTM, batch_first=True, num_layers=2), torch.randn(3, 4, 3)),
    "bidirectional lstm": lambda: (
        Recurrent(nn.LSTM, bidirectional=True, bias=False), torch.randn(3, 4, 3)
    ),
    "projected lstm": lambda: (Recurrent(nn.LSTM, proj_size=2), torch.randn(3, 4, 3)),
    "gru": lambda: (Recurrent(nn.GRU), torch.randn(3, 4, 3)),
    "rnn": lambda: (Recurrent(nn.RNN, nonlinearity="relu", bidirectional=True),
                    torch.randn(3, 4, 3)),
    "lstm cell": lambda: (Cells(nn.LSTMCell), torch.randn(3, 4, 3)),
    "gru cell": lambda: (Cells(nn.GRUCell), torch.randn(3, 4, 3)),
    "rnn cell": lambda: (Cells(nn.RNNCell), torch.randn(3, 4, 3)),
    "transformer encoder": lambda: (
        nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True),
        torch.randn(3, 2, 4),
    ),
    "language model": lambda: (LanguageModel(), torch.randint(0, 7, (4, 5))),
    "cross attention": lambda: (CrossAttention(), torch.randn(3, 3, 4)),
    "weight norm": lambda: (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.PReLU(),
                      nn.Linear(3, 2)),
        torch.randn(4, 4),
    ),
    "hidden use": lambda: (UsedInTheOpenAndHidden(), torch.randn(4, 3)),
    "looks at values": lambda: (
        LooksAtValues(), torch.randn(4, 3).abs() * torch.tensor([[-1.0], [1], [1], [-1]])
    ),
}  # fmt: skip


def _without_bias() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    net[0].bias.requires_grad_(False)
    net[2].weight.requires_grad_(False)
    return net


def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = MODELS[name]()
    return model.to(dtype).eval(), x.to(dtype) if x.is_floating_point() else x


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `any_model` meets every one of them."""
    if "any_model" in metafunc.fixturenames:
        metafunc.parametrize("any_model", MODELS)


@pytest.fixture(scope="session")
def made() -> Callable[..., tuple[nn.Module, Tensor]]:
    """A model by its name, and inputs for it."""
    return make


@pytest.fixture(scope="session")
def model_names() -> list[str]:
    """All of them."""
    return list(MODELS)


@pytest.fixture(scope="session")
def jacobian() -> Callable[..., Tensor]:
    """`[n, C, P]` row by row."""
    return written_out
