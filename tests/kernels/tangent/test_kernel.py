"""The empirical tangent kernel against Jacobians written out row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.kernels.tangent import features as tangent_features
from torchtheory.kernels.tangent import kernel as tangent
from torchtheory.kernels.tangent.derivatives import Derivatives
from torchtheory.kernels.tangent.kernel import empirical_ntk


def _contracted(j1: Tensor, j2: Tensor) -> dict[str, Tensor]:
    return {
        "full": torch.einsum("ncp,mdp->nmcd", j1, j2),
        "diagonal": torch.einsum("ncp,mcp->nmc", j1, j2),
        "trace": torch.einsum("ncp,mcp->nm", j1, j2),
    }


def test_equals_the_jacobian_contraction(any_model: str, made: Any, jacobian: Any) -> None:
    model, x = made(any_model)
    full = jacobian(model, x)
    for outputs, expected in _contracted(full, full).items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-12)
    for outputs, expected in _contracted(full, full[:2]).items():
        found = empirical_ntk(model, x, x[:2], outputs=outputs)
        assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "convolutions", "lstm", "language model"])
def test_float32(name: str, made: Any, jacobian: Any) -> None:
    model, x = made(name, torch.float32)
    found = empirical_ntk(model, x)
    expected = _contracted(*[jacobian(model, x)] * 2)["full"]
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("name", ["mlp", "convolutions", "one dimension", "own operations"])
@pytest.mark.parametrize("outputs", ["full", "diagonal", "trace"])
def test_little_memory_changes_nothing(name: str, outputs: str, made: Any) -> None:
    model, x = made(name)
    cut = empirical_ntk(model, x, x[1:], outputs=outputs, memory=1000)
    assert torch.allclose(cut, empirical_ntk(model, x, x[1:], outputs=outputs), atol=1e-12)
    cut = empirical_ntk(model, x, outputs=outputs, memory=1000)
    assert torch.allclose(cut, empirical_ntk(model, x, outputs=outputs), atol=1e-12)


def test_several_tiles_and_blocks(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    model, _ = made("mlp")
    x = torch.randn(23, 4, dtype=torch.float64)
    whole = {o: empirical_ntk(model, x, outputs=o) for o in ("full", "diagonal", "trace")}
    monkeypatch.setattr(tangent, "BLOCK", 7)
    monkeypatch.setattr(tangent, "TILE", 3)
    for outputs, expected in whole.items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-12)
        cross = empirical_ntk(model, x, x[:11], outputs=outputs)
        assert torch.allclose(cross, expected[:, :11], atol=1e-12)


def test_structure_is_found_where_there_is_some(made: Any, model_names: list[str]) -> None:
    for name in model_names:
        whole = set(Derivatives(*made(name)).whole)
        expected = {
            "transposed convolution": {"0.weight", "0.bias"},
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


def test_contraction_is_chosen_by_operations(made: Any) -> None:
    dense = Derivatives(*made("mlp"))
    assert tangent._Plan(dense, dense, (100, 100), "trace", 2**30).in_factors == [True] * 3
    images = Derivatives(*made("convolutions"))
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


def test_sequences_of_different_length(made: Any, jacobian: Any) -> None:
    model, x = made("lstm")
    longer = torch.randn(2, 6, 3, dtype=torch.float64)
    expected = _contracted(jacobian(model, x), jacobian(model, longer))
    for outputs, kernel in expected.items():
        assert torch.allclose(empirical_ntk(model, x, longer, outputs=outputs), kernel, atol=1e-12)


def test_outputs_of_any_shape(jacobian: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    x = torch.randn(3, 2, 3, dtype=torch.float64)  # outputs [2, 4]
    assert empirical_ntk(net, x).shape == (3, 3, 8, 8)
    assert torch.allclose(empirical_ntk(net, x), _contracted(*[jacobian(net, x)] * 2)["full"])
    scalar = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    assert empirical_ntk(scalar, x[:, 0]).shape == (3, 3, 1, 1)


def test_at_another_point_and_as_a_function(made: Any) -> None:
    model, x = made("mlp")
    other, _ = made("mlp")
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


def test_the_model_is_left_alone(made: Any) -> None:
    model, x = made("convolutions")
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


PRODUCTS: dict[str, Any] = {
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "scaled addmm": lambda x, w, b: torch.addmm(b, x, w.t(), beta=2.0, alpha=-0.5),
    "addmm from the left": lambda x, w, b: torch.addmm(b[:, None], w, x.T).T,
    "from the left": lambda x, w, b: (w @ x.T).T + b,
    "columns from the left": lambda x, w, b: (w @ x[:, :, None])[:, :, 0] + b,
    "matrix and vector": lambda x, w, b: torch.stack([torch.mv(w, v) for v in x]) + b,
    "einsum": lambda x, w, b: torch.einsum("bi,oi->bo", x, w) + b,
    "einsum from the left": lambda x, w, b: torch.einsum("oi, ib -> ob", w, x.T).T + b,
    "einsum with dots": lambda x, w, b: torch.einsum("...i,io->...o", x, w.mT) + b,
    "einsum of a list": lambda x, w, b: torch.einsum("bi,oi->bo", [x, w]) + b,
    "tensordot": lambda x, w, b: torch.tensordot(x, w, dims=([1], [1])) + b,
    "tensordot of one": lambda x, w, b: torch.tensordot(x, w.t(), 1) + b,
    "inner": lambda x, w, b: torch.inner(x, w) + b,
    "permuted": lambda x, w, b: x @ w.permute(1, 0) + b,
    "named dimensions": lambda x, w, b: x @ w.transpose(dim0=0, dim1=1) + b,
    "swapped": lambda x, w, b: x @ torch.swapaxes(w, -1, 0) + b,
    "a batch of copies": lambda x, w, b: torch.baddbmm(b, x[None], w.t().expand(1, -1, -1))[0],
    "copies from the left": lambda x, w, b: (
        torch.bmm(w[None].expand(2, *w.shape), torch.stack([x.T, 2 * x.T])).sum(0).T + b
    ),
    "scaled copies": lambda x, w, b: (x[None] @ (2 * w.unsqueeze(0)).mT)[0] + b,
    "several positions": lambda x, w, b: F.linear(torch.stack([x, x * x], 1), w, b).sum(1),
}


class _TwoLayers(nn.Module):
    def __init__(self, product: Any) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6))
        self.v, self.c = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.product(x, self.w, self.b))
        out: Tensor = self.product(hidden, self.v, self.c)
        return out


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_linear_layer_is_recognized_however_it_is_written(name: str, jacobian: Any) -> None:
    model, x = _TwoLayers(PRODUCTS[name]).double(), torch.randn(5, 4, dtype=torch.float64)
    assert not set(Derivatives(model, x).whole) & {"w", "v"}
    for outputs, expected in _contracted(*[jacobian(model, x)] * 2).items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-11)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w, b: torch.add(x @ w.t(), b, alpha=0.5),
        lambda x, w, b: torch.sub(x @ w.t(), b, alpha=3),
        lambda x, w, b: b - x @ w.t(),
        lambda x, w, b: torch.add(b, x @ w.t(), alpha=2),
    ],
)
def test_biases_are_found_however_they_are_added(product: Any, jacobian: Any) -> None:
    model, x = _TwoLayers(product).double(), torch.randn(5, 4, dtype=torch.float64)
    assert not Derivatives(model, x).whole
    expected = _contracted(*[jacobian(model, x)] * 2)["full"]
    assert torch.allclose(empirical_ntk(model, x), expected, atol=1e-11)


OTHER_SUMS: dict[str, Any] = {
    "elementwise": lambda x, w: torch.einsum("bi,oi->boi", x, w).sum(-1),
    "batched": lambda x, w: torch.einsum("bi,bi,oi->bo", x, x, w),
    "diagonal": lambda x, w: torch.einsum("bi,ii->bi", x, w[:, :4]),
    "no arrow": lambda x, w: torch.einsum("bi,oi", x, w),
    "summed out": lambda x, w: torch.einsum("bi,oi->b", x, w)[:, None],
    "copies added": lambda x, w: (x[:, None] + w[None].expand(3, -1, -1).sum(0)).sum(-1),
    "one input for many copies": lambda x, w: (
        (x[:, None, None] @ w.t().expand(3, -1, -1)).square().sum((1, 2))
    ),
    "a row": lambda x, w: x * w[0],
    "named factors": lambda x, w: torch.mm(input=x, mat2=torch.transpose(input=w, dim0=0, dim1=1)),
    "named sum": lambda x, w: torch.addmm(input=w[:, 0], mat1=x, mat2=torch.t(input=w)),
    "a part": lambda x, w: x @ w[:, :4].t(),
    "weight twice": lambda x, w: x @ (w.t() @ w),
    "two sums": lambda x, w: torch.tensordot(x[:, None] * x[:, :, None], w[:4] @ w[:4].T, 2)[
        :, None
    ],
}


@pytest.mark.parametrize("name", OTHER_SUMS)
def test_other_products_are_right_as_well(name: str, jacobian: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4 if name == "diagonal" else 5, 4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = OTHER_SUMS[name](x, self.w)
            return out

    model, x = Model().double(), torch.randn(4, 4, dtype=torch.float64)
    expected = _contracted(*[jacobian(model, x)] * 2)["full"]
    assert torch.allclose(empirical_ntk(model, x), expected, atol=1e-11)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, t: x * t.exp(),
        lambda x, t: x * t,
        lambda x, t: x + t,
        lambda x, t: x**t,
        lambda x, t: torch.where(x > 1.5, t * t, x) * t,
        lambda x, t: F.softplus(x - t),
    ],
)
def test_a_parameter_without_dimensions(use: Any, jacobian: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t, self.last = nn.Parameter(torch.tensor(0.3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(use(x, self.t))
            return out

    model, x = Model().double(), 1 + torch.rand(4, 3, dtype=torch.float64)
    for outputs, expected in _contracted(*[jacobian(model, x)] * 2).items():
        assert torch.allclose(empirical_ntk(model, x, outputs=outputs), expected, atol=1e-12)
    alone = jacobian(model, x, ["t"])
    assert torch.allclose(
        empirical_ntk(model, x, only=["t"]), _contracted(alone, alone)["full"], atol=1e-12
    )


def test_what_stands_behind_a_detach_has_no_part_in_the_kernel() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.readout = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.readout(torch.tanh(self.features(x)).detach())
            return out

    net, x = Detached(), torch.randn(5, 3, dtype=torch.float64)
    hidden = torch.tanh(net.features(x)).detach()
    torch.testing.assert_close(empirical_ntk(net, x, outputs="trace"), hidden @ hidden.T + 1)

    class Nothing(Detached):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    assert not empirical_ntk(Nothing(), x, outputs="trace").any()


def test_jacobians_formed_late_and_outputs_in_turn_change_nothing(monkeypatch: Any) -> None:
    """With little memory factors are kept, Jacobians formed in pieces and outputs taken in turn."""
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(9, 24), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 24))
    net = nn.Sequential(words, nn.Flatten(), nn.Linear(4 * 24, 3)).double()
    x = torch.randint(0, 9, (7, 4))
    plans: list[Any] = []
    made = tangent._Plan.__init__

    def noted(self: Any, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        plans.append(self)

    monkeypatch.setattr(tangent._Plan, "__init__", noted)
    monkeypatch.setattr(tangent, "factors_are_cheaper", lambda *_: False)
    monkeypatch.setattr(tangent_features, "WORKSPACE", 3000)
    for outputs in ("trace", "diagonal", "full"):
        for other in (None, x[2:]):
            plenty = empirical_ntk(net, x, other, outputs=outputs, memory="1GiB")  # type: ignore[arg-type]
            little = empirical_ntk(net, x, other, outputs=outputs, memory=150_000)  # type: ignore[arg-type]
            torch.testing.assert_close(little, plenty)
            assert not any(plans[-2].late)
            assert any(plans[-1].late)
            assert len(plans[-2].classes) == 1
    assert len(plans[1].classes) > 1
    assert len(plans[1].blocks[0]) == 1


class Unread(nn.Module):
    """A layer whose output nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unread, self.last = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        self.unread(h)
        return self.last(h)


def test_layers_that_nothing_reads(jacobian: Any) -> None:
    model, x = Unread().double(), torch.randn(4, 3).double()
    full = jacobian(model, x)
    expected = torch.einsum("ncp,mdp->nmcd", full, full)
    assert torch.allclose(empirical_ntk(model, x), expected, atol=1e-12)
