"""One operation after another: bounds hold at corners and where gradients lead, and are tight."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.activations import ACTIVATIONS
from torchtheory.robustness.bounds.bending_rules import RULES as BENDING
from torchtheory.robustness.bounds.certified import certified_accuracy, certified_radius
from torchtheory.robustness.bounds.output_bounds import METHODS, output_bounds
from torchtheory.robustness.bounds.relaxations import Box, Curved, Kinked, Reciprocal, Smooth
from torchtheory.robustness.bounds.training import IntervalTraining, interval_bounds

SOURCE = torch.Generator().manual_seed(0)


def constant(*shape: int) -> Tensor:
    return torch.randn(shape, generator=SOURCE, dtype=torch.float64)


class Step(nn.Module):
    """Something with six features seen as a table of two rows and three columns."""

    def __init__(self, function, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(4, 6).double()
        source = torch.Generator().manual_seed(1)
        self.first.weight.data = scale * torch.randn(6, 4, generator=source).double()
        self.first.bias.data = scale * torch.randn(6, generator=source).double() / 2 + shift

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x).unflatten(1, (2, 3))).flatten(1)


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(2)).double()


def corners(net: nn.Module, x: Tensor, radius: float, seed: int = 0) -> Tensor:
    """Outputs at random corners and points, and where steps along gradients lead."""
    source = torch.Generator().manual_seed(seed)
    d = 2 * torch.rand(60, *x.shape, generator=source, dtype=torch.float64) - 1
    d[:40] = d[:40].sign()
    points = x + radius * d
    found = []
    for _ in range(4):
        points = points.detach().requires_grad_(True)
        out = net(points.flatten(0, 1)).unflatten(0, points.shape[:2])
        found.append(out.detach())
        if not out.requires_grad:
            break
        pull = torch.randn(out.shape, generator=source, dtype=torch.float64)
        (slope,) = torch.autograd.grad((pull * out).sum(), points)
        points = x + (points + radius * slope.nan_to_num().sign() / 2 - x).clamp(-radius, radius)
    return torch.cat(found)


def holds(net: nn.Module, x: Tensor, radius: float, point: float = 1e-7) -> None:
    inside = corners(net, x, radius)
    widths = []
    for method in METHODS:
        found = output_bounds(net, x, radius, method=method, iterations=2)
        assert bool(((found.lower <= inside) & (inside <= found.upper)).all()), method
        widths.append(float(found.width.mean()))
        here = output_bounds(net, x, 0.0, method=method, iterations=2)
        out = net(x).detach()
        assert bool(((here.lower <= out) & (out <= here.upper)).all()), method
        assert float(here.width.max()) <= point, method
    assert all(map(math.isfinite, widths))
    assert widths[3] <= widths[1] <= widths[0]


A, B, SQUARE = constant(2, 2), constant(3, 5), constant(3, 3)
EDGES = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
MASK = torch.tensor([[True, False, True], [False, True, True]])


def written(h: Tensor) -> Tensor:
    made = h.clone()
    made[:, 0] = h[:, 1] * 2
    made[:, :, 1] += 1
    made.mul_(0.5).relu_()
    return made


def scattered(h: Tensor) -> Tensor:
    zero = torch.zeros(len(h), 2, 3, dtype=h.dtype)
    return zero.scatter_add(1, torch.tensor([[[0, 1, 1], [0, 0, 1]]]).expand(len(h), 2, 3), h)


def own_softmax(h: Tensor) -> Tensor:
    e = torch.exp(h - h.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


FORMS = {
    # constants on either side of a product
    "A @ h": lambda h: A @ h,
    "h @ B": lambda h: h @ B,
    "matmul(A, h)": lambda h: torch.matmul(A, h),
    "bmm": lambda h: torch.bmm(A.expand(len(h), 2, 2), h),
    "addmm": lambda h: torch.addmm(B[0], h.flatten(0, 1), B, beta=0.5).unflatten(0, (-1, 2)),
    "einsum left": lambda h: torch.einsum("ij,bjk->bik", A, h),
    "einsum right": lambda h: torch.einsum("bij,jk->bki", h, B),
    "tensordot": lambda h: torch.tensordot(h, B, dims=1),
    "scaled": lambda h: 3 * h / 7 - 0.5 + 2 / torch.tensor([1.0, 2.0, 4.0]) * h,
    # products of two values
    "h * h": lambda h: h * h,
    "gate": lambda h: h[:, 0] * torch.sigmoid(h[:, 1]),
    "product": lambda h: h[:, :1] * h[:, 1:],
    "h @ h.mT": lambda h: h @ h.transpose(1, 2),
    "einsum of both": lambda h: torch.einsum("bij,bkj->bik", h, torch.tanh(h)),
    "vectors": lambda h: torch.linalg.vecdot(h[:, 0], h[:, 1])[:, None],
    "glu": lambda h: F.glu(h.flatten(1), 1),
    "bilinear": lambda h: F.bilinear(h[:, 0], h[:, 1], SQUARE[None]),
    "addcmul": lambda h: torch.addcmul(h, h, h, value=0.5),
    "lerp": lambda h: torch.lerp(h, -h, 0.3),
    "quotient": lambda h: h[:, 0] / (1 + h[:, 1].square()),
    "number over it": lambda h: 2.0 / (3 + torch.tanh(h)),
    # sums
    "sum": lambda h: h.sum(1),
    "mean": lambda h: torch.mean(h, dim=-1, keepdim=True),
    "cumsum": lambda h: h.cumsum(-1),
    "var": lambda h: h.var(-1),
    "std": lambda h: (h + torch.tensor([0.0, 50, 99])).std(-1, correction=0),
    "norm": lambda h: h.norm(dim=-1),
    "norm 1": lambda h: torch.linalg.vector_norm(h, 1, dim=-1),
    "normalized": lambda h: F.normalize(h + 20, dim=-1),
    "index_add": lambda h: torch.zeros_like(h).index_add(1, EDGES[0], h[:, EDGES[1]], alpha=2),
    "scatter_add": scattered,
    "index_put": lambda h: h.index_put((torch.arange(len(h)), torch.tensor(1)), h[:, 0], True),
    # maxima
    "maximum": lambda h: torch.maximum(h[:, 0], h[:, 1]),
    "minimum": lambda h: torch.minimum(h[:, 0], torch.tensor([0.1, -0.2, 0.3])),
    "max of two": lambda h: torch.max(h, -h),
    "amax": lambda h: h.amax(-1),
    "amin": lambda h: h.amin((1, 2), keepdim=True),
    "max": lambda h: h.max(-1)[0],
    "min": lambda h: h.min(1, keepdim=True).values,
    "adaptive max": lambda h: F.adaptive_max_pool1d(h, 2),
    "max pool": lambda h: F.max_pool1d(h, 2, 1, 1),
    # conditions
    "where mask": lambda h: torch.where(MASK, h, 2 * h + 1),
    "where leaky": lambda h: torch.where(h > 0, h, 0.1 * h),
    "where shifted": lambda h: torch.where(h <= 0.5, 0.3 * h + 1, 2 * h),
    "where other": lambda h: torch.where(h[:, :1] >= 0, torch.tanh(h), h[:, 1:] + 1),
    "where two": lambda h: torch.where(h[:, 0] < h[:, 1], h[:, 0], h[:, 1]),
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.25),
    "mask times": lambda h: (h > 0).to(h.dtype) * h + (~(h > 1)).double(),
    "method where": lambda h: h.where(MASK, 3.0),
    # clamps
    "clamp": lambda h: h.clamp(-0.5, 0.7),
    "clamp min": lambda h: h.clamp(min=-0.2),
    "clamp max": lambda h: torch.clamp_max(h, 0.3),
    "clamp tensors": lambda h: torch.clamp(
        h, torch.tensor([-1, 0, 0.2]), torch.tensor([[0.5], [1]])
    ),
    "clamp values": lambda h: torch.clamp(h[:, 0], min=h[:, 1]),
    "clip infinite": lambda h: torch.clip(h, -math.inf, 0.5),
    # softmax
    "softmax": lambda h: h.softmax(-1),
    "softmax rows": lambda h: F.softmax(h, 1),
    "softmin": lambda h: F.softmin(h, -1),
    "masked softmax": lambda h: h.masked_fill(~MASK, -math.inf).softmax(-1),
    "masked by sums": lambda h: (h + torch.zeros(2, 3).masked_fill(~MASK, -math.inf)).softmax(-1),
    "log_softmax": lambda h: h.log_softmax(-1),
    "logsumexp": lambda h: h.logsumexp(-1),
    "own softmax": own_softmax,
    "logaddexp": lambda h: torch.logaddexp(h[:, 0], h[:, 1]),
    # normalizations
    "layer_norm": lambda h: F.layer_norm(h, (3,), torch.tensor([1.0, -2, 0.5]).double()),
    "layer_norm of all": lambda h: F.layer_norm(h, (2, 3)),
    "rms_norm": lambda h: F.rms_norm(h, (3,), eps=0.1),
    "group_norm": lambda h: F.group_norm(h, 1, torch.tensor([2.0, -1]).double()),
    "instance_norm": lambda h: F.instance_norm(h),
    # moves
    "indexed": lambda h: h[:, [1, 0, 1], ::2],
    "written": written,
    "joined": lambda h: torch.cat([h, h.flip(2), torch.ones(len(h), 2, 1)], 2),
    "stacked": lambda h: torch.stack([h, -h], 1).permute(0, 2, 3, 1).reshape(len(h), -1),
    "gathered": lambda h: h.gather(2, torch.tensor([[[2], [0]]]).expand(len(h), 2, 1)),
    "padded": lambda h: F.pad(h, (1, 2), value=0.5),
    "reflected": lambda h: F.pad(h, (1, 2), mode="reflect"),
    "rolled": lambda h: torch.roll(h, 1, 2).tril(),
    "unfolded": lambda h: h.unfold(2, 2, 1),
    "squeezed": lambda h: h[:, :1].squeeze(),
    # images
    "nearest": lambda h: F.interpolate(h[:, None], scale_factor=2),
    "bilinear images": lambda h: F.interpolate(h[:, None], size=(5, 4), mode="bilinear"),
    "bicubic images": lambda h: F.interpolate(h[:, None], size=(5, 4), mode="bicubic"),
    "linear signals": lambda h: F.interpolate(h, size=7, mode="linear", align_corners=True),
    "windows": lambda h: F.unfold(h[:, None], 2),
    "adaptive mean": lambda h: F.adaptive_avg_pool1d(h, 2),
    # attention
    "attention": lambda h: F.scaled_dot_product_attention(h, h * 0.5, torch.tanh(h)),
    "causal": lambda h: F.scaled_dot_product_attention(h, h, h, is_causal=True),
    "mask of attention": lambda h: F.scaled_dot_product_attention(
        h, h, h, attn_mask=torch.tensor([[True, False], [True, True]])
    ),
    # powers
    "power 3": lambda h: h**3,
    "power 4": lambda h: torch.pow(h, 4),
    "power 0.5": lambda h: (h + 30) ** 0.5,
    "power -2": lambda h: (h + 30) ** -2,
    "power of 2": lambda h: 2**h,
    "square": lambda h: h.square(),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_operation(name: str) -> None:
    holds(Step(FORMS[name]), X, 0.05)
    holds(Step(FORMS[name]), X, 0.3)


POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "log1p"}
GIVEN = {"threshold": {"threshold": 0.3, "value": -0.5}}
EVERY = sorted({*ACTIVATIONS} | {"prelu", "logsigmoid"})


def function_of(name: str):
    found = getattr(F, name, None) or getattr(torch, name, None) or getattr(torch.special, name)
    given = GIVEN.get(name, {})
    if name == "prelu":
        given = {"weight": torch.tensor([0.3, 1.7]).double()}
    return lambda h: found(h, **given)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_every_activation(name: str, scale: float) -> None:
    shift = 40.0 if name in POSITIVE else 0.0
    holds(Step(function_of(name), scale, shift), X, 0.2, point=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_every_activation_has_a_rule(name: str) -> None:
    assert name in BENDING


def test_all_activation_layers_of_torch_are_bounded() -> None:
    layers = [
        getattr(nn, name) for name in nn.modules.activation.__all__
        if name not in ("MultiheadAttention", "Softmax2d")
    ]  # fmt: skip
    assert len(layers) > 25
    for layer in layers:
        given = {nn.Threshold: (0.1, 0.5), nn.Softmax: (1,), nn.Softmin: (1,),
                 nn.LogSoftmax: (1,)}.get(layer, ())  # fmt: skip
        net = nn.Sequential(copy.deepcopy(Step(lambda h: h).first), layer(*given)).double().eval()
        for method in ("interval", "crown"):
            found = output_bounds(net, X, 0.1, method=method)
            inside = corners(net, X, 0.1)
            assert bool(((found.lower <= inside) & (inside <= found.upper)).all()), layer


# -- what is known of the numbers ------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_lines_and_images_enclose(name: str) -> None:
    """On intervals of all lengths, by many points inside."""
    activation = ACTIVATIONS[name](**GIVEN.get(name, {}))
    source = torch.Generator().manual_seed(3)
    low = 8 * torch.rand(400, generator=source).double() - 5
    if name in POSITIVE:
        low = low + 5.1
    box = Box(low, low + torch.logspace(-4, 1, 400).double())
    x = box.lower[:, None] + (box.upper - box.lower)[:, None] * torch.linspace(0, 1, 801).double()
    x[:, -1] = box.upper
    y = function_of(name)(x) if name not in ("abs", "rrelu") else activation(x)
    room = 1e-9 * (1 + y.abs())
    low, high = activation.image(box)
    assert bool((low[:, None] <= y + room).all() and (y <= high[:, None] + room).all())
    for lines in (activation.lines(box), *activation.family(box)[0]):
        below, under, above, over = (v[:, None] for v in lines)
        assert bool((below * x + under <= y + room).all())
        assert bool((above * x + over >= y - room).all())


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_curvatures_bound_second_derivatives(name: str) -> None:
    activation = ACTIVATIONS[name](**GIVEN.get(name, {}))
    if not isinstance(activation, Smooth):
        assert isinstance(activation, Curved | Kinked | Reciprocal) or activation.lines
        return
    x = torch.linspace(-12, 12, 24_001, dtype=torch.float64)[1:-1]
    h = 1e-3  # a second difference is a mean of second derivatives
    bend = (activation(x + h) - 2 * activation(x) + activation(x - h)) / h**2
    given = activation.curvature
    box = Box(x - h, x + h)
    most = given(box) if callable(given) else torch.full_like(box.lower, given)
    away = torch.ones_like(box.lower, dtype=torch.bool)
    for place in (*activation.kinks, *(p for p, *_ in activation.jumps)):
        away &= (x - place).abs() > 1.5 * h
    assert bool((bend.abs() <= most * (1 + 1e-9) + 1e-8)[away].all())
    if activation.increasing:
        assert bool((activation(x).diff(dim=0) >= -1e-12).all())
    if activation.lowest is not None:
        least = float(activation(torch.tensor([activation.lowest]).double()))
        assert least <= float(activation(x).min()) + 1e-12


# -- where there is an equality --------------------------------------------------------------------


class Of(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.one = function, nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.one)


SQUARE_BOX = torch.zeros(1, 2).double()


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda x: torch.maximum(x[:, :1], x[:, 1:]), -1.0, 1.0),
        (lambda x: torch.minimum(x[:, :1], x[:, 1:]), -1.0, 1.0),
        (lambda x: x[:, :1] * x[:, 1:], -1.0, 1.0),
        (lambda x: x[:, :1] * x[:, :1], 0.0, 1.0),
        (lambda x: x.square().sum(1, keepdim=True), 0.0, 2.0),
        (lambda x: x.softmax(1)[:, :1], 1 / (1 + math.e**2), 1 / (1 + math.e**-2)),
        (lambda x: x.log_softmax(1)[:, :1], -math.log1p(math.e**2), -math.log1p(math.e**-2)),
        (lambda x: torch.where(x > 0, x, 0.1 * x)[:, :1], -0.1, 1.0),
        (lambda x: torch.where(x > 0, x + 1, 3 * x)[:, :1], -3.0, 2.0),
        (lambda x: x.clamp(-0.5, 0.25)[:, :1], -0.5, 0.25),
        (lambda x: F.hardswish(3 * x)[:, :1], -0.375, 3.0),
        (lambda x: F.layer_norm(x, (2,), eps=0.5)[:, :1], -(1 / 1.5**0.5), 1 / 1.5**0.5),
        (lambda x: torch.tensor([[1.0, 2], [3, -4]]).double() @ x[0][:, None], None, None),
    ],
)
def test_on_a_square(function, low: float, high: float) -> None:
    """max(x, y) on [-1, 1]^2 is [-1, 1]."""
    net = Of(function)
    for method in METHODS:
        if low is None:
            with pytest.raises(UnsupportedModel, match="samples"):
                output_bounds(net, SQUARE_BOX, 1.0, method=method)
            continue
        found = output_bounds(net, SQUARE_BOX, 1.0, method=method)
        assert abs(float(found.lower) - low) < 1e-9
        assert abs(float(found.upper) - high) < 1e-9


def test_a_graph_convolution_of_one_layer_is_exact() -> None:
    """A constant on the left mixes rows, which are nodes and no samples."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", constant(5, 5))
            self.layer = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.a @ x)

    net, x = Graph(), constant(5, 4)
    found = output_bounds(net, x, 0.1)
    reach = 0.1 * net.a.abs().sum(1)[:, None] * net.layer.weight.abs().sum(1)
    out = net(x).detach()
    torch.testing.assert_close(found.lower, out - reach, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.upper, out + reach, rtol=0, atol=1e-12)
    # the ball of a norm is about all nodes together
    size = (net.a.norm(dim=1)[:, None] * net.layer.weight.norm(dim=1)).detach()
    whole = output_bounds(net, x, 0.1, "2")
    torch.testing.assert_close(whole.upper, out + 0.1 * size, rtol=0, atol=1e-12)
    labels = out.argmax(1)
    certified = certified_accuracy(net, (x, labels), 1e-6)
    assert certified.certified.shape == (5,)
    assert bool(certified.certified.all())
    assert not bool(certified_accuracy(net, (x, (labels + 1) % 3), 1e-6).certified.any())
    with pytest.raises(UnsupportedModel, match="one sample"):
        certified_radius(net, x, labels)


def test_normalized_values_stay_within_their_largest() -> None:
    """However wide the ball is."""
    net = Of(lambda x: F.layer_norm(x, (4,)))
    for method in METHODS:
        found = output_bounds(net, torch.zeros(1, 4).double(), 1e3, method=method, iterations=1)
        assert float(found.upper.max()) <= 3**0.5 + 1e-9
        assert float(found.lower.min()) >= -(3**0.5) - 1e-9


def test_what_divides_by_zero_is_unbounded_and_no_error() -> None:
    net = Of(lambda x: 1 / x)
    found = output_bounds(net, SQUARE_BOX, 1.0)
    assert bool((found.lower == -math.inf).all() and (found.upper == math.inf).all())


def test_nothing_but_minus_infinity_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="minus infinity"):
        output_bounds(Of(lambda x: torch.full_like(x, -math.inf).softmax(1) + x.where(
            torch.zeros(2, dtype=torch.bool), -math.inf).softmax(1)), SQUARE_BOX, 1.0)  # fmt: skip
    with pytest.raises(UnsupportedModel, match="minus infinity"):
        output_bounds(Of(lambda x: x.masked_fill(torch.tensor([True, False]), -math.inf) * 2),
                      SQUARE_BOX, 1.0)  # fmt: skip


def test_interval_training_goes_through_new_operations() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)).double()
    box = interval_bounds(net, X, 0.1)
    again = output_bounds(net, X, 0.1, method="interval")
    torch.testing.assert_close(box.lower.detach(), again.lower, rtol=0, atol=1e-9)
    box.upper.sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in net.parameters())
    wrapped = IntervalTraining(net, 0.1)
    for _ in range(2):
        loss = wrapped.loss(wrapped(X), torch.tensor([0, 2]))
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad
    fresh = interval_bounds(net, X, 0.1)
    again = output_bounds(net, X, 0.1, method="interval")
    torch.testing.assert_close(fresh.upper.detach(), again.upper, rtol=0, atol=1e-9)
