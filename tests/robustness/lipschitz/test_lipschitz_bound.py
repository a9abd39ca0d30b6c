"""Bounds of the Lipschitz constant: never below the steepest slope found, and near it where each
rule is met with equality."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.linalg.singular_values import DENSE, spectral_norm
from torchtheory.models.model import evaluating
from torchtheory.robustness.lipschitz.bound import bounds_about, lipschitz_bound
from torchtheory.robustness.lipschitz.layers import layer_norms
from torchtheory.robustness.lipschitz.maxima import adaptive_windows


class Of(nn.Module):
    """A network from a function of its layers and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def jacobian_norm(net: nn.Module, x: Tensor) -> Tensor:
    def single(z: Tensor) -> Tensor:
        return net(z[None])[0].reshape(-1)

    with evaluating(net):  # fused attention has no second derivative
        rows = torch.func.jacrev(single)(x)
    return torch.linalg.matrix_norm(rows.reshape(rows.shape[0], -1), 2)


def steepest(net: nn.Module, center: Tensor, radius: float, starts: int = 3) -> float:
    """The largest norm of the Jacobian that gradient ascent finds in a ball."""
    net = net.double().eval().requires_grad_(False)
    best = float(jacobian_norm(net, center))
    reach = radius if math.isfinite(radius) else 5.0
    for seed in range(starts):
        generator = torch.Generator().manual_seed(seed)
        offset = torch.randn(center.shape, generator=generator, dtype=torch.float64)
        offset *= reach / max(1.0, float(offset.norm()))
        for _ in range(40):
            offset.requires_grad_()
            norm = jacobian_norm(net, center + offset)
            best = max(best, float(norm.detach()))
            if not norm.requires_grad:
                break
            (slope,) = torch.autograd.grad(norm, offset, allow_unused=True)
            offset = offset.detach()
            if slope is None or not bool(slope.isfinite().all()) or float(slope.norm()) == 0:
                break
            offset = offset + 0.1 * reach * slope / slope.norm()
            offset = offset * min(1.0, reach / float(offset.norm()))
    return best


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normalized(c: int, seed: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(c)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            assert tensor is not None
            tensor.copy_(normal(c, seed=seed))
        assert norm.running_var is not None
        norm.running_var.copy_(normal(c, seed=seed + 1).square() + 0.1)
    return norm


# ------------------------------------------------------------------------------- random networks


class Block(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = normalized(c, 3), normalized(c, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.one(x)), inplace=True)
        h = self.norm2(self.two(h))
        h += x
        return F.relu(h)


def squeeze_and_excite(m: Any, x: Tensor) -> Tensor:
    h = m.conv(x)
    gate = torch.sigmoid(m.gate(h.mean((2, 3))))
    out: Tensor = m.head((h * gate[:, :, None, None]).flatten(1))
    return out


def by_hand(m: Any, x: Tensor) -> Tensor:
    """Attention written out, with a mask."""
    q, k, v = m.qkv(x).chunk(3, -1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    out: Tensor = F.softmax(scores.masked_fill(mask, -math.inf), dim=-1) @ v
    return out


def joined(m: Any, x: Tensor) -> Tensor:
    parts = torch.cat([F.gelu(m.one(x)), torch.tanh(m.two(x)), x], dim=1)
    out: Tensor = m.head(F.layer_norm(parts, parts.shape[1:]))
    return out


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Of:
    layer = kind(3, 4, batch_first=True, **options)
    width = 8 if options.get("bidirectional") else 4

    def forward(m: Any, x: Tensor) -> Tensor:
        states, _ = m.layer(x)
        out: Tensor = m.head(states[:, -1])
        return out

    return Of(forward, layer=layer, head=nn.Linear(width, 2))


def random_networks() -> dict[str, tuple[nn.Module, tuple[int, ...], float]]:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1), 2, enable_nested_tensor=False
    )
    return {
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(1, 3, 3, bias=False), normalized(3, 1), nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2), nn.Conv2d(3, 2, 2), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
                nn.Dropout(), nn.Linear(2, 3),
            ),
            (1, 8, 8), math.inf,
        ),
        "residual": (
            nn.Sequential(nn.Conv2d(1, 2, 3), Block(2), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
            (1, 5, 5), math.inf,
        ),
        "gates of channels": (
            Of(squeeze_and_excite, conv=nn.Conv2d(1, 3, 2), gate=nn.Linear(3, 3),
               head=nn.Linear(27, 2)),
            (1, 4, 4), 1.0,
        ),
        "joined": (
            Of(joined, one=nn.Linear(3, 4), two=nn.Linear(3, 2), head=nn.Linear(9, 2)),
            (3,), 0.5,
        ),
        "attention": (
            nn.Sequential(nn.LayerNorm(4), Of(lambda m, x: m.a(x, x, x)[0],
                          a=nn.MultiheadAttention(4, 2, batch_first=True))),
            (3, 4), math.inf,
        ),
        "attention by hand": (Of(by_hand, qkv=nn.Linear(3, 9)), (4, 3), 0.7),
        "encoder": (
            Of(lambda m, x: m.encoder(x.transpose(0, 1))[0], encoder=encoder), (3, 4), 0.2
        ),
        "pre-norm encoder": (
            nn.TransformerEncoderLayer(4, 2, 6, norm_first=True, activation="gelu",
                                       batch_first=True),
            (3, 4), math.inf,
        ),
        "lstm": (recurrent(nn.LSTM), (5, 3), math.inf),
        "two gru": (recurrent(nn.GRU, num_layers=2, bidirectional=True), (4, 3), 1.0),
        "plain": (recurrent(nn.RNN), (4, 3), math.inf),
        "gated linear": (nn.Sequential(nn.Linear(3, 6), nn.GLU(), nn.Linear(3, 2)), (3,), 2.0),
        "groups": (
            nn.Sequential(nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.SiLU(), nn.InstanceNorm1d(4)),
            (1, 6), math.inf,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", random_networks())
@pytest.mark.parametrize("seed", range(2))
def test_no_slope_is_steeper_than_the_bound(name: str, seed: int) -> None:
    net, shape, radius = random_networks()[name]
    net = net.double().eval()
    center = normal(*shape, seed=seed)
    bound = lipschitz_bound(net, shape, radius=radius, center=center)
    found = steepest(net, center, radius)
    assert 0 < found <= bound * (1 + 1e-9)
    # at the center itself
    at = float(bounds_about(net, center[None]).lipschitz(0.0)[0])
    assert float(jacobian_norm(net, center)) <= at * (1 + 1e-9)
    assert at <= bound * (1 + 1e-9)
    # and of pairs of points
    one, two = (
        center + min(radius, 3.0) * z / z.norm() * torch.rand(()).item()
        for z in (normal(*shape, seed=seed + 9), normal(*shape, seed=seed + 10))
    )
    moved = float((net(one[None]) - net(two[None])).norm())
    assert moved <= bound * float((one - two).norm()) * (1 + 1e-9)


# ----------------------------------------------------------------------------------- tight cases


def test_affine_maps_are_multiplied_out() -> None:
    """Batch normalization folds into its convolution, and a shortcut into a linear branch."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 3, 3, padding=1), normalized(3, 2)
    folded = nn.Sequential(conv, norm, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 4))
    bound = lipschitz_bound(folded, (2, 6, 6))
    folded = folded.double().eval().requires_grad_(False)
    exact = float(jacobian_norm(folded, normal(2, 6, 6)))
    assert bound == pytest.approx(exact, rel=1e-9)
    assert bound < 0.9 * math.prod(n.lipschitz for n in layer_norms(folded, (2, 6, 6)))
    shortcut = Of(lambda m, x: x - m.a(x), a=nn.Linear(4, 4))
    exact = float(jacobian_norm(shortcut.double().requires_grad_(False), normal(4)))
    assert lipschitz_bound(shortcut, (4,)) == pytest.approx(exact, rel=1e-9)
    side_by_side = Of(lambda m, x: torch.cat([m.a(x), x[:, :2]], 1), a=nn.Linear(4, 3))
    exact = float(jacobian_norm(side_by_side.double().requires_grad_(False), normal(4)))
    assert lipschitz_bound(side_by_side, (4,)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.AdaptiveMaxPool2d(4)])
def test_maxima_are_attained(pool: nn.Module) -> None:
    """One entry wins in every window that it is in."""
    found = 0.0
    for place in range(49):
        x = torch.zeros(49, dtype=torch.float64)
        x[place] = 1.0
        found = max(found, float(pool(x.reshape(1, 1, 7, 7)).norm()))
    assert lipschitz_bound(pool, (1, 7, 7)) == pytest.approx(found)


def test_adaptive_windows_are_torchs() -> None:
    for size in range(1, 12):
        for outputs in range(1, size + 1):
            x = torch.eye(size, dtype=torch.float64)[:, None]
            covered = F.adaptive_max_pool1d(x, outputs)[:, 0].sum(1)
            assert adaptive_windows(size, outputs) == int(covered.max())


def test_layer_normalization_is_attained() -> None:
    """On the whole space at equal entries; on a ball at its shortest point, across it."""
    norm = nn.LayerNorm(5).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 2.0, 1.0, 2.0, 2.0]))
    flat = torch.full((5,), 3.0, dtype=torch.float64)
    whole = lipschitz_bound(norm, (5,))
    assert whole == pytest.approx(2 / math.sqrt(norm.eps))
    assert float(jacobian_norm(norm, flat)) > 0.9 * whole
    center = 3 * normal(5, seed=1)
    up = center - center.mean()
    bound = lipschitz_bound(norm, (5,), radius=0.5, center=center)
    nearest = center - 0.5 * up / up.norm()
    assert 0.9 * bound < float(jacobian_norm(norm, nearest)) <= bound * (1 + 1e-12)


def test_products_joints_and_softmax_are_attained() -> None:
    square = Of(lambda m, x: x * x)
    assert lipschitz_bound(square, (3,), radius=2.0, center=torch.tensor([1.0, 0, 0])) == (
        pytest.approx(6.0)
    )
    assert lipschitz_bound(square, (3,)) == math.inf
    branches = Of(lambda m, x: torch.cat([torch.relu(x), torch.relu(2 * x)], 1))
    assert lipschitz_bound(branches, (3,)) == pytest.approx(math.sqrt(5))
    assert float(jacobian_norm(branches, torch.ones(3).double())) == pytest.approx(math.sqrt(5))
    summed = Of(lambda m, x: torch.relu(x) + torch.relu(2 * x))
    assert lipschitz_bound(summed, (3,)) == pytest.approx(3.0)
    even = torch.tensor([0.0, 0.0, -60.0]).double()
    assert float(jacobian_norm(nn.Softmax(-1), even)) == pytest.approx(0.5)
    assert lipschitz_bound(nn.Softmax(-1), (3,)) == 0.5
    corner = torch.tensor([40.0, 0.0, 0.0]).double()
    assert float(jacobian_norm(nn.LogSoftmax(-1), corner)) == pytest.approx(math.sqrt(3))
    assert lipschitz_bound(nn.LogSoftmax(-1), (3,)) == pytest.approx(math.sqrt(3))


def attend(m: Any, x: Tensor) -> Tensor:
    q, k, v = (x.unflatten(1, (3, 4, 2))[:, i] for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


@pytest.mark.parametrize("part", ["values", "queries", "keys"])
def test_attention_comes_near_its_bound_in_each_part(part: str) -> None:
    """Two groups of keys at opposite ends, read by queries that weigh both alike."""
    net = Of(attend)
    q, k, v = torch.zeros(3, 4, 2, dtype=torch.float64)
    if part == "values":  # every query reads the first value alone
        k[0, 0], q[:, 0] = 12.0, 12.0
    elif part == "queries":  # values and keys two units apart, each with probability one half
        k[:2, 0], k[2:, 0], v[:2, 0], v[2:, 0] = 1.0, -1.0, 1.0, -1.0
    else:  # the same values, read alike by long queries at a right angle to what tells keys apart
        v[:2, 0], v[2:, 0] = 5.0, -5.0
        q[:, 1] = 3.0
    x = torch.stack([q, k, v]).reshape(24)
    # the part alone: the others are fixed, so that their constants are 0
    index = {"queries": 0, "keys": 1, "values": 2}[part]
    fixed = x.reshape(3, 4, 2)

    def alone(m: Any, z: Tensor) -> Tensor:
        own = z.reshape(-1, 4, 2)
        others = [fixed[i].expand(len(z), 4, 2) + 0 * own for i in range(3)]
        others[index] = own
        return F.scaled_dot_product_attention(*others, scale=1.0)

    single = Of(alone)
    start = fixed[index].reshape(8)
    found = float(jacobian_norm(single, start))
    bound = float(bounds_about(single, start[None]).lipschitz(0.0)[0])
    assert found <= bound * (1 + 1e-12)
    assert found > bound / 2.1
    whole = float(bounds_about(net, x[None]).lipschitz(0.0)[0])
    assert float(jacobian_norm(net, x)) <= whole


def test_attention_has_no_bound_on_the_whole_space() -> None:
    torch.manual_seed(0)
    net = Of(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(2, 1, batch_first=True))
    net = net.double().eval()
    assert lipschitz_bound(net, (3, 2)) == math.inf
    # a token at 0 weighs two opposite ones alike, and moving it shifts all weight to one of them
    ends = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]]).double() / 2
    slopes = [float(jacobian_norm(net, r * ends).detach()) for r in (1.0, 10.0, 100.0)]
    assert 10 * slopes[0] < 5 * slopes[1] < slopes[2]
    bounds = [lipschitz_bound(net, (3, 2), radius=r) for r in (1.0, 10.0, 100.0)]
    assert all(s <= b < math.inf for s, b in zip(slopes, bounds, strict=True))


def test_gates_are_bounded() -> None:
    """An LSTM is Lipschitz on the whole space, since its gates and states are bounded."""
    torch.manual_seed(0)
    net = recurrent(nn.LSTM).double()
    assert 0 < lipschitz_bound(net, (5, 3)) < math.inf
    linear = recurrent(nn.RNN, nonlinearity="relu").double()
    layer: Any = linear.layer
    with torch.no_grad():  # one step: what a ReLU passes on as it is
        for name, p in layer.named_parameters():
            p.copy_(p.abs() if "weight" in name else torch.zeros_like(p))
    x = torch.ones(1, 3, dtype=torch.float64)
    assert lipschitz_bound(linear, (1, 3)) == pytest.approx(
        float(spectral_norm(linear.head.weight) * spectral_norm(layer.weight_ih_l0))  # type: ignore
    )
    assert float(jacobian_norm(linear, x)) <= lipschitz_bound(linear, (1, 3))


# ------------------------------------------------------------------------- what else is promised


def test_large_matrices_are_bounded_from_products() -> None:
    weight = normal(DENSE + 60, DENSE + 30, seed=3)
    exact = float(torch.linalg.matrix_norm(weight, 2))
    assert exact <= spectral_norm(weight) <= 1.1 * exact


def test_many_centers_are_those_of_each() -> None:
    for name in ("joined", "encoder", "lstm", "residual"):
        net, shape, _ = random_networks()[name]
        centers = normal(4, *shape)
        both = bounds_about(net, centers, chunk=2)
        for radius in (0.0, 0.3):
            alone = [lipschitz_bound(net, shape, radius=radius, center=c) for c in centers]
            torch.testing.assert_close(both.lipschitz(radius), torch.tensor(alone).double())


def test_a_function_with_its_arguments_in_another_order() -> None:
    norm = normalized(2, 4).double().eval().requires_grad_(False)

    def direct(m: Any, x: Tensor) -> Tensor:
        mean, variance = m.norm.running_mean, m.norm.running_var
        return torch.batch_norm(
            x, m.norm.weight, m.norm.bias, mean, variance, False, 0.1, m.norm.eps, False
        )

    assert lipschitz_bound(Of(direct, norm=norm), (2, 3, 3)) == pytest.approx(
        float(jacobian_norm(norm, normal(2, 3, 3)))
    )


def test_differences_of_classes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    apart = bounds_about(net, normal(2, 3)).class_differences()
    theta, first = net[2].weight, spectral_norm(net[0].weight)
    expected = (theta[:, None] - theta).norm(dim=-1) * first
    torch.testing.assert_close(apart, expected.detach().expand(2, 4, 4))
    bare = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    apart = bounds_about(bare, normal(1, 3)).class_differences()
    assert float(apart[0, 0, 1]) == pytest.approx(math.sqrt(2) * spectral_norm(bare[0].weight))
    assert float(apart[0, 1, 1]) == 0


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else 100 * x


class Overwriting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x[:, :1]
        y += 5 * x[:, 1:2]
        return x


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Sequential(nn.Linear(3, 3), Deciding()), r"another way \(in layer '1', Deciding\)"),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), "statistics of the batch"),
        (Of(lambda m, x: x / x.norm(dim=1, keepdim=True)), "divides"),
        (Of(lambda m, x: torch.exp(x)), "no rule for exp"),
        (Of(lambda m, x: x if (x == 3).all() else 2 * x), "asks what is in its input"),
        (Of(lambda m, x: x.gather(1, x.max(1).indices[:, None])), "where the maxima are"),
        (Of(lambda m, x: F.dropout(x, 0.5)), "random"),
        (Of(lambda m, x: torch.ones(1, 2)), "does not depend"),
        (Of(lambda m, x: x + torch.randn_like(x) * torch.tanh(x)), "draws random numbers"),
        (Of(lambda m, x: x * torch.rand(3)), "draws random numbers"),
        (nn.Embedding(3, 2), "embedding"),
    ],
)
def test_what_has_no_bound_is_named_with_its_place(net: nn.Module, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        lipschitz_bound(net, (3,))


def test_bad_arguments() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(InvalidInput, match="radius"):
        lipschitz_bound(net, (3,), radius=-1.0)
    with pytest.raises(ShapeMismatch, match="center"):
        lipschitz_bound(net, (3,), center=torch.zeros(2))
    with pytest.raises(InvalidInput, match="radius"):
        bounds_about(net, torch.zeros(4, 3)).lipschitz(torch.ones(2))


def test_the_model_is_left_as_it_is() -> None:
    net = random_networks()["convolutions"][0].float().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    lipschitz_bound(net, (1, 8, 8))
    assert all(m.training for m in net.modules())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all("forward" not in vars(m) and not m._forward_hooks for m in net.modules())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


def test_convolutions_have_their_norm_for_certain() -> None:
    """Also behind circular padding, which torch applies by itself, and with a normalization."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    for mode, share in (("circular", 1e-9), ("zeros", 0.02)):
        conv = nn.Conv2d(3, 16, 3, padding=1, padding_mode=mode)  # type: ignore[arg-type]
        norm = nn.BatchNorm2d(16)
        norm.running_var.uniform_(0.3, 2.0)  # type: ignore[union-attr]
        nn.init.normal_(norm.weight)
        for net in (nn.Sequential(conv), nn.Sequential(conv, norm)):
            net.double().eval()
            bounds = bounds_about(net, x)
            basis = torch.eye(768, dtype=torch.float64).reshape(-1, 3, 16, 16)
            with torch.no_grad():
                matrix = (net(basis) - net(torch.zeros_like(x))).flatten(1)
            exact = float(torch.linalg.matrix_norm(matrix, 2))
            assert mode == "zeros" or bounds.failure == 0
            assert exact * (1 - 1e-9) <= float(bounds.lipschitz()[0]) <= exact * (1 + share)


def test_transposed_convolutions() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.BatchNorm2d(6))
    net.double().eval()
    x = torch.randn(1, 4, 12, 12, dtype=torch.float64)
    basis = torch.eye(576, dtype=torch.float64).reshape(-1, 4, 12, 12)
    with torch.no_grad():
        matrix = (net(basis) - net(torch.zeros_like(x))).flatten(1)
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert exact * (1 - 1e-9) <= float(bounds_about(net, x).lipschitz()[0]) <= exact * 1.03


def test_a_bound_is_no_smaller_than_an_exact_norm() -> None:
    """Of a matrix of ones the norm is known, and rounding must not take the bound below it."""
    for rows, columns in ((3, 7), (300, 700), (11, 13)):
        net = nn.Linear(columns, rows)
        net.weight.data.fill_(1.0)
        exact = math.sqrt(rows * columns)
        assert exact < lipschitz_bound(net, (columns,)) < exact * (1 + 1e-8)
        double = nn.Sequential(net, nn.ReLU(), nn.Linear(rows, 2))
        double[2].weight.data.fill_(0.1)
        tenth = float(torch.tensor(0.1))
        assert lipschitz_bound(double, (columns,)) > exact * tenth * math.sqrt(2 * rows)


def test_functions_without_a_constant_are_refused() -> None:
    for layer, words in ((nn.Softplus(1.0, 1.0), "jumps"), (nn.CELU(-0.5), "CELU")):
        with pytest.raises(UnsupportedModel, match=words):
            lipschitz_bound(nn.Sequential(nn.Linear(2, 2), layer), (2,))
