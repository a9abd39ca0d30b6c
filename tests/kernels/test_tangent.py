"""The empirical tangent kernel against Jacobians written out row by row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.conjugate_gradients import conjugate_gradients
from torchtheory.core.eigenvalues import top_eigenpairs
from torchtheory.core.errors import (
    FileProblem,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.linear_operators import LinearOperator
from torchtheory.core.model import PureFunction
from torchtheory.kernels import tangent
from torchtheory.kernels.tangent import empirical_ntk
from torchtheory.kernels.tangent_derivatives import Derivatives
from torchtheory.kernels.tangent_operator import jacobian_operator, ntk_operator


def jacobian(model: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """``[n, C, P]`` by plain autograd, one output of one sample at a time."""
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
    """A cell written out over time: every parameter is used once a step."""

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


def _made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = MODELS[name]()
    return model.to(dtype).eval(), x.to(dtype) if x.is_floating_point() else x


def _contracted(j1: Tensor, j2: Tensor) -> dict[str, Tensor]:
    return {
        "full": torch.einsum("ncp,mdp->nmcd", j1, j2),
        "diagonal": torch.einsum("ncp,mcp->nmc", j1, j2),
        "trace": torch.einsum("ncp,mcp->nm", j1, j2),
    }


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_jacobian_contraction(name: str) -> None:
    model, x = _made(name)
    full = jacobian(model, x)
    for outputs, expected in _contracted(full, full).items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-12)
    for outputs, expected in _contracted(full, full[:2]).items():
        found = empirical_ntk(model, x, x[:2], outputs=outputs)
        assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "convolutions", "lstm", "language model"])
def test_float32(name: str) -> None:
    model, x = _made(name, torch.float32)
    found = empirical_ntk(model, x)
    expected = _contracted(*[jacobian(model, x)] * 2)["full"]
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("name", ["mlp", "convolutions", "one dimension", "own operations"])
@pytest.mark.parametrize("outputs", ["full", "diagonal", "trace"])
def test_little_memory_changes_nothing(name: str, outputs: str) -> None:
    model, x = _made(name)
    cut = empirical_ntk(model, x, x[1:], outputs=outputs, memory=1000)
    assert torch.allclose(cut, empirical_ntk(model, x, x[1:], outputs=outputs), atol=1e-12)
    cut = empirical_ntk(model, x, outputs=outputs, memory=1000)
    assert torch.allclose(cut, empirical_ntk(model, x, outputs=outputs), atol=1e-12)


def test_several_tiles_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = _made("mlp")
    x = torch.randn(23, 4, dtype=torch.float64)
    whole = {o: empirical_ntk(model, x, outputs=o) for o in ("full", "diagonal", "trace")}
    monkeypatch.setattr(tangent, "BLOCK", 7)
    monkeypatch.setattr(tangent, "TILE", 3)
    for outputs, expected in whole.items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-12)
        cross = empirical_ntk(model, x, x[:11], outputs=outputs)
        assert torch.allclose(cross, expected[:, :11], atol=1e-12)


def test_structure_is_found_where_there_is_some() -> None:
    for name in MODELS:
        whole = set(Derivatives(*_made(name)).whole)
        expected = {
            "transposed convolution": {"0.weight", "0.bias"},
            "own operations": {"last"},
            "cross attention": {
                "attention.in_proj_weight", "attention.in_proj_bias", "attention.bias_k",
                "attention.bias_v",
            },
            "weight norm": {
                "0.parametrizations.weight.original0", "0.parametrizations.weight.original1",
                "1.weight",
            },
            "hidden use": {"weight"},
        }.get(name, set())  # fmt: skip
        assert whole == expected, name


def test_contraction_is_chosen_by_operations() -> None:
    dense = Derivatives(*_made("mlp"))
    assert tangent._Plan(dense, dense, (100, 100), "trace", 2**30).in_factors == [True] * 3
    images = Derivatives(*_made("convolutions"))
    plan = tangent._Plan(images, images, (100, 100), "trace", 2**30)
    kept = dict(zip([g.names[0] for g in images.groups], plan.in_factors, strict=True))
    assert not kept["0.weight"]  # 16 positions squared against 3 by 3 patches
    assert kept["8.weight"]


def test_one_sample_one_output_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for p, value in zip(net.parameters(), (0.5, 0.1, 2.0, 0.3), strict=True):
            p.fill_(value)
    x = torch.tensor([[0.7]], dtype=torch.float64)
    h = float(torch.tanh(torch.tensor(0.5 * 0.7 + 0.1, dtype=torch.float64)))
    slope = 2.0 * (1 - h * h)
    by_hand = h * h + 1 + slope**2 * (0.7**2 + 1)
    assert float(empirical_ntk(net, x)) == pytest.approx(by_hand, abs=1e-14)


@given(
    n=st.integers(1, 6), d=st.integers(1, 5), h=st.integers(1, 6), c=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_positive_semidefinite_and_consistent(n: int, d: int, h: int, c: int, seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, c)).double()
        x = torch.randn(n, d, dtype=torch.float64)
    full = empirical_ntk(net, x)
    matrix = full.permute(0, 2, 1, 3).reshape(n * c, n * c)
    values = torch.linalg.eigvalsh(matrix)
    assert float(values[0]) >= -1e-10 * float(values.sum())
    assert torch.allclose(matrix, matrix.T)
    diagonal = empirical_ntk(net, x, outputs="diagonal")
    assert torch.allclose(full.diagonal(dim1=2, dim2=3), diagonal)
    assert torch.allclose(diagonal.sum(2), empirical_ntk(net, x, outputs="trace"))
    parts = [empirical_ntk(net, x, only=[k]) for k in ("0", "2.weight", "2.bias")]
    assert torch.allclose(sum(parts), full)


def test_sequences_of_different_length() -> None:
    model, x = _made("lstm")
    longer = torch.randn(2, 6, 3, dtype=torch.float64)
    expected = _contracted(jacobian(model, x), jacobian(model, longer))
    for outputs, kernel in expected.items():
        assert torch.allclose(empirical_ntk(model, x, longer, outputs=outputs), kernel, atol=1e-12)


def test_outputs_of_any_shape() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    x = torch.randn(3, 2, 3, dtype=torch.float64)  # outputs [2, 4]
    assert empirical_ntk(net, x).shape == (3, 3, 8, 8)
    assert torch.allclose(empirical_ntk(net, x), _contracted(*[jacobian(net, x)] * 2)["full"])
    scalar = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    assert empirical_ntk(scalar, x[:, 0]).shape == (3, 3, 1, 1)


def test_at_another_point_and_as_a_function() -> None:
    model, x = _made("mlp")
    other, _ = _made("mlp")
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.7)
    values = {k: p.detach() for k, p in other.named_parameters()}
    assert torch.allclose(empirical_ntk(model, x, parameters=values), empirical_ntk(other, x))

    def f(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(x, parameters["w"], parameters["b"]))
        return h @ parameters["v"]

    given = {
        "w": torch.randn(5, 4, dtype=torch.float64),
        "b": torch.randn(5, dtype=torch.float64),
        "v": torch.randn(5, 2, dtype=torch.float64),
    }
    rows = torch.func.vmap(torch.func.jacrev(lambda p, v: f(p, v[None])[0]), (None, 0))(given, x)
    j = torch.cat([r.flatten(2) for r in rows.values()], 2)
    assert torch.allclose(empirical_ntk(f, x, parameters=given), _contracted(j, j)["full"])


class Ignores(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def test_parameters_that_do_not_matter() -> None:
    x = torch.randn(3, 2)
    assert torch.equal(empirical_ntk(Ignores(2, 2), x), torch.zeros(3, 3, 2, 2))
    assert torch.equal(empirical_ntk(Ignores(2, 2), x, outputs="trace"), torch.zeros(3, 3))


def test_the_model_is_left_alone() -> None:
    model, x = _made("convolutions")
    model[0].training = True
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    kept = x.clone()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = torch.get_rng_state()
        empirical_ntk(model, x)
        assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(kept, x)


# -- the operator -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "convolutions", "lstm", "language model", "weight norm"])
@pytest.mark.parametrize("memory", ["1GiB", 5000])
def test_operator_equals_the_kernel(name: str, memory: str | int) -> None:
    model, x = _made(name)
    written = jacobian(model, x).flatten(0, 1)
    generator = torch.Generator().manual_seed(0)
    u, v = (
        torch.randn(size, 2, dtype=torch.float64, generator=generator) for size in written.shape
    )
    j = jacobian_operator(model, x, memory=memory)
    assert j.shape == written.shape
    assert torch.allclose(j @ v, written @ v, atol=1e-11)
    assert torch.allclose(j.T @ u, written.T @ u, atol=1e-11)
    kernel = ntk_operator(model, x, memory=memory)
    assert torch.allclose(kernel @ u, written @ (written.T @ u), atol=1e-10)
    some = len(written) // len(x) * 2
    cross = ntk_operator(model, x, x[:2], memory=memory)
    expected = written @ (written[:some].T @ u[:some])
    assert torch.allclose(cross @ u[:some], expected, atol=1e-10)
    blocks = empirical_ntk(model, x).permute(0, 2, 1, 3).reshape(len(written), -1)
    assert torch.allclose(blocks @ u, kernel @ u, atol=1e-10)


def test_operator_serves_the_solvers() -> None:
    model, x = _made("mlp")
    operator = ntk_operator(model, x)
    size = operator.shape[0]
    matrix = operator.to_dense()
    ridge = operator + 0.1 * LinearOperator.identity(size, dtype=torch.float64)
    y = torch.randn(size, dtype=torch.float64)
    solved = conjugate_gradients(ridge, y, tolerance=1e-10)
    exact = torch.linalg.solve(matrix + 0.1 * torch.eye(size, dtype=torch.float64), y)
    assert torch.allclose(solved.x, exact, atol=1e-7)
    top = top_eigenpairs(operator, 2)
    assert torch.allclose(top.values, torch.linalg.eigvalsh(matrix).flip(0)[:2], rtol=1e-6)


# -- files --------------------------------------------------------------------------------------


def test_file_holds_the_kernel_and_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tangent, "BLOCK", 4)
    model, _ = _made("mlp")
    x = torch.randn(11, 4, dtype=torch.float64)
    path = tmp_path / "kernel.npy"
    mapped = empirical_ntk(model, x, file=path)
    assert torch.equal(mapped, empirical_ntk(model, x))
    assert np.array_equal(np.load(path, allow_pickle=False), mapped.numpy())
    note = path.with_name("kernel.npy.tiles")
    lines = note.read_text().splitlines()
    assert lines[1:] == ["0 0", "0 1", "0 2", "1 2", "1 1", "2 2"]
    assert "computation" in json.loads(lines[0])

    # finished tiles are not computed again: a mark in the file survives, an unfinished tile not
    array = np.load(path, mmap_mode="r+")
    array[0, 0], array[10, 10] = 7.0, 7.0
    array.flush()
    note.write_text("\n".join(lines[:-1]) + "\n2 ")  # killed while it noted the last tile
    again = empirical_ntk(model, x, file=path)
    assert bool((again[0, 0] == 7).all())
    assert torch.equal(again[10, 10], mapped.clone()[10, 10] * 0 + empirical_ntk(model, x)[10, 10])
    assert note.read_text().splitlines() == lines


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    model, x = _made("mlp")
    path = tmp_path / "kernel.npy"
    empirical_ntk(model, x, file=path)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, outputs="trace", file=path)
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    model, x = _made("convolutions")
    path = tmp_path / "images.npy"
    empirical_ntk(model, x, file=path)
    model[1].running_var.mul_(2)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    model[1].running_var.div_(2)
    model[2] = nn.Tanh()
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    other = tmp_path / "mine.npy"
    other.write_bytes(b"my own file")
    with pytest.raises(FileProblem, match="choose another"):
        empirical_ntk(model, x, file=other)
    assert other.read_bytes() == b"my own file"
    with pytest.raises(FileProblem, match="cannot write"):
        empirical_ntk(model, x, file=tmp_path / "no such folder" / "kernel.npy")
    half, ones = nn.Linear(2, 1).bfloat16(), torch.ones(2, 2).bfloat16()
    with pytest.raises(InvalidType, match=r"\.npy file cannot hold torch.bfloat16"):
        empirical_ntk(half, ones, file=tmp_path / "half.npy")


def test_killed_and_resumed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        import torch
        from torch import nn
        from torchtheory.kernels import tangent, tiles
        from torchtheory.kernels.tangent_features import Factors

        tangent.BLOCK, tiles.SECONDS_BETWEEN_MARKS = 10, 0.0
        if sys.argv[2] == "slow":
            add = Factors.add_to
            Factors.add_to = lambda *a: (time.sleep(0.05), add(*a))[1]
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        x = torch.randn(60, 4)
        made = tangent.empirical_ntk(net, x, outputs="trace", file=sys.argv[1])
        print(float((made - tangent.empirical_ntk(net, x, outputs="trace")).abs().max()))
        """
    )
    path = tmp_path / "kernel.npy"
    note = tmp_path / "kernel.npy.tiles"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([sys.executable, "-c", script, str(path), "slow"], env=environment)
    end = time.monotonic() + 60
    while time.monotonic() < end and not (note.exists() and note.read_text().count("\n") > 4):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = note.read_text().splitlines()
    assert 4 <= len(before) < 22  # 21 tiles and the first line
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), "fast"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == 0.0
    after = note.read_text().splitlines()
    assert len(after) == 22
    assert len(set(after)) == 22


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "1 .BatchNorm1d. is in training mode"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "output is random; call model.eval"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), "has no running statistics"),
        (nn.Sequential(nn.RReLU(), nn.Linear(4, 2)), "output is random; call model.eval"),
    ],
)
def test_modes_that_have_no_kernel(model: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        empirical_ntk(model, torch.randn(3, 4))


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


class Centred(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


class Summed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_models_that_have_no_kernel() -> None:
    x = torch.randn(3, 4)
    for model, message in (
        (Noisy(4, 2), "output is random"),
        (Centred(4, 2), "depends on the other samples"),
        (Pair(4, 2), "returns tuple"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            empirical_ntk(model, x)
    with pytest.raises(ShapeMismatch, match="first dimension must be the samples"):
        empirical_ntk(Summed(4, 2), x)
    with pytest.raises(UnsupportedModel, match="raised RuntimeError on inputs of shape"):
        empirical_ntk(nn.Linear(5, 2), x)


def test_refused_arguments() -> None:
    net, x = nn.Linear(4, 2), torch.randn(3, 4)
    with pytest.raises(InvalidInput, match="outputs must be"):
        empirical_ntk(net, x, outputs="sum")
    with pytest.raises(InvalidInput, match="memory must be"):
        empirical_ntk(net, x, memory="lots")
    with pytest.raises(UnknownName, match="weigth"):
        empirical_ntk(net, x, only=["weigth"])
    with pytest.raises(InvalidType, match="a list of parameter"):
        empirical_ntk(net, x, only="weight")
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        empirical_ntk(nn.Linear(4, 2).requires_grad_(False), x)
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        empirical_ntk(net, x, only=[])
    with pytest.raises(InvalidInput, match="no sample"):
        empirical_ntk(net, x[:0])
    with pytest.raises(NonFinite, match="inputs contain NaN"):
        empirical_ntk(net, x / 0)
    with pytest.raises(ShapeMismatch, match=r"x1 is torch\.float32"):
        empirical_ntk(net, x, x.double())
    with pytest.raises(InvalidInput, match="needs its parameters"):
        empirical_ntk(lambda p, v: v, x)
    with pytest.raises(InvalidType, match=r"must be a torch.nn.Module or a function"):
        empirical_ntk("net", x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lack bias"):
        empirical_ntk(net, x, parameters={"weight": net.weight})
    broken = nn.Linear(4, 2)
    with torch.no_grad():
        broken.weight[0, 0] = float("nan")
    with pytest.raises(NonFinite, match="weight"):
        empirical_ntk(broken, x)
