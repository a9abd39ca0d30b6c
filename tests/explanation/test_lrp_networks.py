"""Relevance through whole networks: exact books for every operation, and refusals in words."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import NAMES, architecture
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.composites import Composite, Rules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import layer_relevances, lrp
from torchtheory.explanation.methods.deep_taylor import (
    neuron_expansion,
    product_expansion,
    relevance_variation,
    root_along,
)
from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Flat, Gamma, Product, WSquare, Zero
from torchtheory.models.exported import load_exported
from torchtheory.models.untouched import ModelState
from torchtheory.tracing.folding import fold_batch_norm

pytestmark = pytest.mark.filterwarnings("ignore::torchtheory.explanation.composites.DoubtfulRules")


class Written(nn.Module):
    """A network as somebody writes it: layers, and a function of them and the inputs."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.written = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *x: Tensor) -> Tensor:
        return self.written(self, *x)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.c2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        x = self.b2(self.c2(self.relu(self.b1(self.c1(x)))))
        x += identity
        made: Tensor = self.relu(x)
        return made


def residual() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(True), Block(6), Block(6),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(m.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    return net.double().eval()


def check(net: nn.Module, x: Any, rules: Rules = None, within: float = 1e-11) -> Explanation:
    """The books are exact for each operation and as a whole; samples do not know each other."""
    torch.manual_seed(1)
    net = net.double().eval()
    found = lrp(net, x, rules=rules)
    assert found.ledger is not None
    outputs = net(*x) if isinstance(x, tuple) else net(x)  # what is handed through is the network
    scores = outputs if found.classes is None else outputs.gather(1, found.classes[:, None])
    torch.testing.assert_close(found.score, scores.detach().reshape(-1))
    largest = max([float(e.received.abs().max()) for e in found.ledger] + [1.0])
    for e in found.ledger:
        assert float(e.unexplained.abs().max()) < within * largest, (e.layer, e.operation)
    assert float(found.ledger.unexplained.abs().max()) < within * largest
    some = tuple(t[1:2] for t in x) if isinstance(x, tuple) else x[1:2]
    one = lrp(net, some, target=None if found.classes is None else found.classes[1:2], rules=rules)
    assert one.ledger is not None
    assert float((one.flat - found.flat[1:2]).abs().max()) < within * largest
    for a, b in zip(one.ledger, found.ledger, strict=True):
        assert float((a.received - b.received[1:2]).abs().max()) < within * largest
        assert float((a.to_biases - b.to_biases[1:2]).abs().max()) < within * largest
    return found


@pytest.mark.parametrize(
    "rules",
    [Epsilon(0.1), Zero(), Gamma(1.0), AlphaBeta(1, 0), AlphaBeta(2, 1), Flat(), WSquare()],
    ids=lambda r: r.name,
)
def test_a_residual_network_with_batch_normalization(rules: Rules) -> None:
    net, x = residual(), torch.randn(5, 3, 8, 8).double()
    found = check(net, x, rules)
    if isinstance(rules, Zero):  # skips, normalization and in-place ReLUs keep the identity
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(leaf).amax(1).sum(), leaf)
        torch.testing.assert_close(found.relevance, x * slope, rtol=1e-8, atol=1e-12)


def test_a_skip_connection_by_hand() -> None:
    """x + relu(Ax): in proportion to the two branches, then through each."""
    torch.manual_seed(3)
    a = nn.Linear(4, 4, bias=False).double()
    net = Written(lambda s, x: (x + F.relu(s.a(x))).sum(1), a=a)
    x = torch.rand(6, 4).double() + 0.1
    found = lrp(net, x, rules=Zero())
    with torch.no_grad():
        promised = x + (x[:, None, :] * a.weight * (a(x) > 0)[:, :, None]).sum(1)
    torch.testing.assert_close(found.relevance, promised)
    torch.testing.assert_close(found.total, found.score)


class Words(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 5), nn.Linear(12, 3)
        self.recurrent = kind(5, 6, 2, bidirectional=True, **options)

    def forward(self, words: Tensor) -> Tensor:
        h, _ = self.recurrent(self.embed(words).transpose(0, 1))
        made: Tensor = self.out(h.mean(0))
        return made


@pytest.mark.parametrize("share", ["all", "half"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_of_words(kind: type[nn.RNNBase], share: Any) -> None:
    """As many words as samples, which no shape could tell apart."""
    torch.manual_seed(0)
    found = check(Words(kind), torch.randint(0, 20, (7, 7)), Product(share))
    assert found.relevance.shape == (7, 7)  # type: ignore[union-attr]


@pytest.mark.parametrize("share", ["all", "prop", "half"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_without_biases_all_of_the_score_arrives(kind: type[nn.RNNBase], share: Any) -> None:
    torch.manual_seed(0)
    net = nn.Module()
    net.r, net.o = kind(4, 6, bias=False, batch_first=True), nn.Linear(6, 2, bias=False)
    net.forward = lambda x: net.o(net.r(x)[0][:, -1])  # type: ignore[assignment, operator]
    net = net.double()
    found = lrp(net, torch.randn(5, 6, 4).double(), rules=Composite((), Zero(), Product(share)))
    assert found.gap is not None
    scale = max(1.0, float(found.flat.abs().max()))  # shares in proportion have poles
    assert float(found.gap.abs().max()) < 1e-9 * scale


class Encoder(nn.Module):
    def __init__(self, first: bool, norm_first: bool) -> None:
        super().__init__()
        self.embed, self.out, self.first = nn.Embedding(20, 8), nn.Linear(8, 3), first
        self.place, self.start = nn.Parameter(torch.randn(9, 8)), nn.Parameter(torch.randn(1, 1, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=first, norm_first=norm_first, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        h = self.embed(words) + self.place[: words.shape[1]]
        h = torch.cat([self.start.expand(len(h), -1, -1), h], 1)
        h = self.encoder(h)[:, 0] if self.first else self.encoder(h.transpose(0, 1))[0]
        made: Tensor = self.out(h)
        return made


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "rules", [Epsilon(1e-3), Product("half"), AlphaBeta(2, 1)], ids=lambda r: r.name
)
def test_transformer_encoders(first: bool, norm_first: bool, rules: Rules) -> None:
    torch.manual_seed(0)
    check(Encoder(first, norm_first), torch.randint(0, 20, (5, 7)), rules)


def test_attention_weights_get_nothing_and_values_everything() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, bias=False, batch_first=True).double()
    net = Written(lambda s, x: s.a(x, x, x)[0].sum((1, 2)), a=layer)
    x = torch.randn(4, 5, 6).double()
    found = lrp(net, x, rules=Zero())
    torch.testing.assert_close(found.total, found.score)
    with torch.no_grad():  # attention held fixed, the network is linear
        weights = layer(x, x, x, average_attn_weights=False)[1]
        v = F.linear(x, layer.in_proj_weight[12:])
        leaf = torch.eye(30).double().reshape(30, 5, 6)
        slopes = []
        for a in weights:
            values = F.linear(leaf, layer.in_proj_weight[12:]).unflatten(-1, (2, 3)).transpose(1, 2)
            slopes.append(
                F.linear((a @ values).transpose(1, 2).flatten(2), layer.out_proj.weight).sum((1, 2))
            )
        assert v.shape == x.shape
    torch.testing.assert_close(found.flat, torch.stack(slopes) * x.flatten(1))


def _assigned(s: Any, x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 8, dtype=x.dtype)
    y[:, :6] = x
    y[:, 0] += 1
    y[:, 1] *= 2
    made: Tensor = s.a(y)
    return made


def _in_place(s: Any, x: Tensor) -> Tensor:
    h = s.b(x)
    F.relu(h, inplace=True)  # what it returns is left out on purpose
    h += 1
    h.mul_(2)
    h.clamp_(max=3.0)
    made: Tensor = s.c(h)
    return made


def linears() -> dict[str, nn.Module]:
    torch.manual_seed(4)
    return {"a": nn.Linear(8, 3), "b": nn.Linear(6, 4), "c": nn.Linear(4, 3), "d": nn.Linear(6, 3)}


AT = torch.tensor([0, 0, 1, 3])
PAIRS = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).double()


def _put(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = x[:, 1]
    h[:, 1:3] = x[:, :2]
    return h


def _viewed(h: Tensor) -> Tensor:
    other = h.view(-1)
    h.relu_()
    return other.view(h.shape)


TABLES: dict[str, Callable[..., Tensor]] = {
    "denominator": lambda s, x: s.d(x) / (1 + s.c(s.b(x)).abs()),
    "constants joined": lambda s, x: s.a(torch.cat([x, torch.ones(len(x), 2).double()], 1)),
    "assignment": _assigned,
    "in place": _in_place,
    "normalized by hand": lambda s, x: s.d(
        (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
    ),
    "root mean square by hand": lambda s, x: s.d(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))),
    "unit length": lambda s, x: s.d(F.normalize(x)),
    "outer product": lambda s, x: s.d(torch.einsum("bi,bj->bij", x, s.b(x)).sum(2)),
    "two branches in one batch": lambda s, x: s.a(
        torch.cat(torch.relu(s.b(torch.cat([x, x.flip(1)]))).chunk(2), 1)
    ),
    "maximum": lambda s, x: s.c(torch.maximum(s.b(x), torch.full((4,), 0.3).double())),
    "where": lambda s, x: s.d(torch.where(x > 0, x, -1.0)),
    "rows": lambda s, x: s.d(torch.stack(list(x))),
    "weight from the left": lambda s, x: (s.d.weight @ x.T).T + s.d.bias,
    "addmm": lambda s, x: torch.addmm(s.d.bias, x, s.d.weight.T, alpha=2.0),
    "gate": lambda s, x: s.c(s.b(x) * torch.sigmoid(s.b(x) + 1)),
    "padded": lambda s, x: s.a(F.pad(x, (1, 1), value=2.0)),
    "sorted": lambda s, x: s.d(x.sort(1).values) + s.c(x.topk(4).values),
    "masked": lambda s, x: s.d(x.masked_fill(x > 1, 0.5) * (x > 0)),
    "lerp": lambda s, x: torch.lerp(s.d(x), s.c(s.b(x)), 0.3),
    "softplus": lambda s, x: s.c(F.softplus(s.b(x))),
    "graph": lambda s, x: s.c(
        torch.zeros_like(s.b(x)).scatter_add_(1, AT.expand(len(x), -1), s.b(x))
    ),
    "added at places": lambda s, x: s.c(s.b(x).index_add(1, AT[:2], x[:, :2], alpha=2.0)),
    "tensordot": lambda s, x: torch.tensordot(x, s.d.weight, ([1], [1])),
    "inner": lambda s, x: torch.inner(x, s.d.weight),
    "einsum with dots": lambda s, x: s.c(torch.einsum("...i,ji->...j", x, s.b.weight)),
    "einsum without arrow": lambda s, x: torch.einsum("bi,ji", x, s.d.weight),
    "einsum of one": lambda s, x: s.c(torch.einsum("bij->jb", s.b(x)[:, None] * AT[:2, None]).T),
    "einsum of three": lambda s, x: torch.einsum("bi,ji,kj->bk", x, s.b.weight, s.c.weight),
    "chain": lambda s, x: torch.linalg.multi_dot([x, s.b.weight.T, s.c.weight.T]),
    "columns": lambda s, x: s.a(torch.column_stack([x, s.b(x)[:, :2]])),
    "side by side": lambda s, x: s.a(torch.hstack([x[:, :3], s.b(x), x[:, 0:1]])),
    "pairs": lambda s, x: F.bilinear(s.b(x), s.b(x.flip(1)), PAIRS, s.d.bias),
    "angle": lambda s, x: F.cosine_similarity(s.b(x), s.b(x.flip(1))),
    "windows": lambda s, x: s.a(x.unfold(1, 2, 2).flatten(1).repeat(1, 2)[:, :8]),
    "assigned from a signal": lambda s, x: s.c(_put(s.b(x), x)),
    "copied": lambda s, x: s.c(torch.empty(len(x), 4).double().copy_(s.b(x))),
    "another view": lambda s, x: s.c(_viewed(s.b(x))),
    "cosine": lambda s, x: s.c(torch.cos(s.b(x)) + F.logsigmoid(s.b(x))),
}


@pytest.mark.parametrize("rules", [Epsilon(1e-3), AlphaBeta(2, 1), Flat()], ids=lambda r: r.name)
@pytest.mark.parametrize("name", TABLES)
def test_operations_of_a_forward_method(name: str, rules: Rules) -> None:
    torch.manual_seed(7)
    check(Written(TABLES[name], **linears()), torch.randn(5, 6).double(), rules)


LINEAR = ["graph", "added at places", "tensordot", "inner", "einsum with dots", "einsum of one",
          "einsum without arrow", "einsum of three", "chain", "columns", "side by side", "windows",
          "assigned from a signal", "copied"]  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operations_are_gradient_times_input(name: str) -> None:
    net, x = Written(TABLES[name], **linears()).double(), torch.randn(5, 6).double()
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf)[:, 0].sum(), leaf)
    torch.testing.assert_close(lrp(net, x, 0, Zero()).relevance, x * slope, rtol=1e-8, atol=1e-12)


def test_a_graph_network_on_a_fixed_graph() -> None:
    """Nodes of one graph within each sample, by the messages of PyTorch Geometric."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 0, 3, 2, 2, 1]])
    net = Written(
        lambda s, x: s.o(F.relu(s.h(F.relu(s.g(x, edges)), edges)).mean(1)),
        g=GCNConv(5, 4), h=GCNConv(4, 4), o=nn.Linear(4, 3),
    )  # fmt: skip
    x = torch.randn(4, 4, 5).double()
    check(net, x, Epsilon(0.01))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(lrp(net, x, 1, Zero()).relevance, x * slope, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("share", ["all", "prop", "half"])
def test_denominators_get_nothing_however_they_are_written(share: Any) -> None:
    """A mean square by hand, as language models normalize with."""
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda v: torch.rsqrt(v + 0.1),
        lambda v: (v + 0.1).pow(-0.5),
        lambda v: (v + 0.1).sqrt().reciprocal(),
    ]
    x = torch.randn(5, 6).double()
    rules = Composite((), Epsilon(1e-3), Product(share))
    by_root = Written(lambda s, x: s.d(x / (x.pow(2).mean(1, True) + 0.1).sqrt()), **linears())
    promised = lrp(by_root.double(), x, rules=rules).flat
    for way in ways:
        net = Written(lambda s, x, way=way: s.d(x * way(x.pow(2).mean(1, True))), **linears())
        torch.testing.assert_close(check(net, x, rules).flat, promised)


def test_what_is_written_in_place_gives_what_it_would_give_otherwise() -> None:
    x = torch.randn(5, 6).double()
    layers = linears()
    apart = lambda s, x: s.c((2 * (F.relu(s.b(x)) + 1)).clamp(max=3.0))  # noqa: E731
    a = lrp(Written(_in_place, **layers).double(), x, rules=Epsilon(0.01))
    b = lrp(Written(apart, **layers).double(), x, rules=Epsilon(0.01))
    torch.testing.assert_close(a.relevance, b.relevance)
    torch.testing.assert_close(a.score, b.score)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)],
        [nn.Conv2d(3, 4, 3, stride=2), nn.Upsample(scale_factor=2, mode="bilinear"),
         nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1), nn.AdaptiveMaxPool2d(2)],
        [nn.Conv2d(3, 6, 3, padding="same", dilation=2, groups=3), nn.ReflectionPad2d(1),
         nn.ConstantPad2d(1, 2.0), nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"),
         nn.MaxPool2d(3, 2, 1)],
        [nn.Conv2d(3, 4, 3), nn.Unfold(2, padding=1, stride=2),
         nn.Fold((6, 6), 2, padding=1, stride=2),
         nn.Upsample(scale_factor=1.5, mode="bicubic")],
        [nn.Conv2d(3, 8, 3), nn.PReLU(), nn.PixelShuffle(2), nn.AvgPool2d(3, 2, 1)],
        [nn.Flatten(2), nn.Conv1d(3, 4, 5, stride=3), nn.LayerNorm(20), nn.GELU()],
        [nn.Flatten(1), nn.Linear(192, 8), nn.RMSNorm(8), nn.GLU(), nn.Hardswish()],
    ],
)  # fmt: skip
@pytest.mark.parametrize("rules", [Epsilon(1e-3), Gamma(1.0), Flat()], ids=lambda r: r.name)
def test_layers_of_images(layers: list[nn.Module], rules: Rules) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(*layers, nn.Flatten()).double()
    x = torch.randn(4, 3, 8, 8).double()
    check(nn.Sequential(body, nn.Linear(body(x).shape[1], 3)), x, rules)


def test_several_inputs() -> None:
    torch.manual_seed(0)
    net = Written(
        lambda s, x, y: s.a(torch.relu(s.b(x)) * torch.sigmoid(s.c(y))),
        a=nn.Linear(4, 3), b=nn.Linear(6, 4), c=nn.Linear(2, 4),
    )  # fmt: skip
    found = check(net, (torch.randn(4, 6).double(), torch.randn(4, 2).double()))
    assert float(found.relevance[1].abs().max()) == 0  # the gate gets nothing


@pytest.mark.parametrize(
    ("forward", "match"),
    [
        (lambda s, x: s.c(torch.fft.rfft(x).real), "no rule for fft_rfft .in Written"),
        (lambda s, x: torch.softmax(s.d(x), 1), "ends in a softmax"),
        (lambda s, x: torch.sigmoid(s.d(x)), "ends in a sigmoid"),
        (lambda s, x: s.d(x - x.mean(0)), "samples of a batch are mixed"),
        (lambda s, x: s.d(x.detach()), "no differentiable path"),
        (lambda s, x: s.d(x.argmax(1)[:, None].double().expand(-1, 6)), "no differentiable path"),
        (lambda s, x: s.d(x.flip(0)), "rows of other samples"),
        (lambda s, x: s.c(_put(s.b(x), x.flip(0))), "samples of a batch are mixed"),
        (lambda s, x: torch.func.vmap(s.d)(x), "cannot be followed"),
        (lambda s, x: s.d(x.cummax(1).values), "no rule for cummax .in Written"),
        (lambda s, x: s.d(torch.cumprod(x, 1)), "no rule for cumprod .in Written"),
    ],
)  # fmt: skip
def test_what_has_no_rule_is_named(forward: Callable[..., Tensor], match: str) -> None:
    with pytest.raises(UnsupportedModel, match=match):
        lrp(Written(forward, **linears()).double(), torch.randn(3, 6).double())


def test_a_place_is_named_by_its_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    net.add_module(
        "mixer", Written(lambda s, x: torch.linalg.matrix_exp(x[:, :, None] * x[:, None])[:, 0])
    )
    with pytest.raises(UnsupportedModel, match="in layer 'mixer', Written"):
        lrp(net, torch.rand(2, 4))


def test_an_operation_without_a_rule_may_decide_about_gates() -> None:
    """No relevance goes to a gate, so nothing is asked of what it is made of."""
    net = Written(lambda s, x: s.d(x) * torch.sigmoid(torch.cumprod(x, 1)[:, :3]), **linears())
    check(net, torch.randn(3, 6).double())


def test_refusals_of_models() -> None:
    with pytest.raises(UnsupportedModel, match="draws dropout"):
        lrp(nn.Sequential(nn.Linear(3, 3), nn.Dropout()), torch.rand(2, 3))
    with pytest.raises(UnsupportedModel, match="no embedding"):
        lrp(Written(lambda s, x: s.d(x.double()), **linears()).double(), torch.ones(2, 6).long())
    with pytest.raises(UnsupportedModel, match="share 'prop' of a matrix product"):
        lrp(Encoder(True, True).eval(), torch.randint(0, 20, (2, 4)), rules=Product("prop"))
    norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(UnsupportedModel, match="statistics of the batch"):
        lrp(norm, torch.rand(4, 3))


def test_targets() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4).double()
    zero, one = (lrp(net, x, c, Zero()) for c in (0, 1))
    difference = lrp(net, x, torch.tensor([1.0, -1.0, 0.0]), Zero())
    torch.testing.assert_close(difference.relevance, zero.relevance - one.relevance)  # type: ignore[operator]
    per_sample = lrp(net, x, torch.tensor([0, 1, 0, 1, 0]), Zero())
    torch.testing.assert_close(per_sample.relevance[1], one.relevance[1])  # type: ignore[index]
    bent = lrp(net, x, lambda out: torch.log_softmax(out, 1)[:, 0], Zero())
    assert bent.ledger is not None
    assert bent.ledger.entries[0].operation == "target"
    assert float(bent.ledger.unexplained.abs().max()) < 1e-12


def test_the_model_is_left_alone() -> None:
    net, x = residual().float(), torch.randn(2, 3, 8, 8)
    net.train()
    state, given = ModelState(net), x.clone()
    lrp(net, x)
    assert not state.changes(net), state.changes(net)
    assert torch.equal(x, given)


def test_batch_normalization_is_folded_where_that_is_exact() -> None:
    torch.manual_seed(0)
    net = residual()
    x = torch.randn(3, 3, 8, 8).double()
    folded = fold_batch_norm(net, x)
    assert folded.into == {"1": "0", "3.b1": "3.c1", "3.b2": "3.c2", "4.b1": "4.c1", "4.b2": "4.c2"}
    assert folded.difference < 1e-12
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.model.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in net.modules())

    def after(padding: int, groups: int = 1) -> nn.Module:
        made = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4),
            nn.Conv2d(4, 6, 3, padding=padding, groups=groups), nn.Flatten(), nn.LazyLinear(2),
        )  # fmt: skip
        made(torch.zeros(1, 3, 8, 8))
        norm = made[2]
        nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
        nn.init.normal_(norm.bias)  # type: ignore[arg-type]
        return made.double().eval()

    for groups in (1, 2):
        plain = fold_batch_norm(after(0, groups), x)
        assert plain.into == {"2": "3"}
        assert plain.difference < 1e-12
    kept = fold_batch_norm(after(1), x)
    assert kept.into == {}
    assert "pads with zeros" in kept.kept["2"]


@pytest.mark.parametrize("rules", ["image_cnn", "relu_default", Gamma(0.25), None])
def test_relevance_is_that_of_the_network_without_normalization(rules: Rules) -> None:
    net, x = residual(), torch.randn(3, 3, 8, 8).double()
    plain = fold_batch_norm(net, x)
    found, own = lrp(net, x, 0, rules), lrp(plain.model, x, 0, rules)
    kept = lrp(net, x, 0, rules, fold=False)
    layers = layer_relevances(net, x, 0, rules, ["3.b1", "3.c1"])
    torch.testing.assert_close(found.relevance, own.relevance)
    torch.testing.assert_close(layers["3.b1"], layers["3.c1"])
    assert found.ledger is not None
    assert kept.ledger is not None
    assert found.ledger.folded == plain.into
    assert not any(entry.operation == "batch_norm" for entry in found.ledger)
    assert any(entry.operation == "batch_norm" for entry in kept.ledger)
    assert kept.ledger.folded == {}
    assert set(kept.ledger.not_folded) == set(plain.into)
    difference = float((found.flat - kept.flat).norm() / found.flat.norm())
    assert difference < 1e-2 if rules is None else difference > 0.2


class _Standardized(nn.Conv2d):
    """A convolution whose filters have mean 0 whatever its weights are."""

    def forward(self, input: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(input, (self.weight - mean).sign(), self.bias)


def _normalized_by(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        assert tensor is not None
        nn.init.normal_(tensor)
    net = nn.Sequential(layer, norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    return net.double().eval()


@pytest.mark.parametrize(
    "layer",
    [
        _Standardized(3, 4, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
    ],
    ids=["own forward", "weight norm", "spectral norm"],
)
def test_weights_that_something_else_makes_are_not_folded(layer: nn.Module) -> None:
    net, x = _normalized_by(layer), torch.rand(2, 3, 8, 8).double()
    found = lrp(net, x, 0)
    assert found.ledger is not None
    assert found.ledger.folded == {}
    assert "no linear layer" in found.ledger.not_folded["1"]
    assert "has a rule of its own" in found.ledger.remarks()[0]
    torch.testing.assert_close(found.score, net(x)[:, 0].detach())


@pytest.mark.parametrize("places", [2, 5])
def test_channels_that_are_no_features_of_the_layer_before_are_not_folded(places: int) -> None:
    first = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(places), nn.ReLU(), nn.Flatten())
    net = nn.Sequential(first, nn.Linear(5 * places, 6), nn.BatchNorm1d(6), nn.ReLU())
    nn.init.normal_(first[1].running_mean)
    net, x = net.double().eval(), torch.randn(3, places, 4).double()
    ledger = lrp(net, x, 0).ledger
    assert ledger is not None
    assert (set(ledger.folded), set(ledger.not_folded)) == ({"2"}, {"0.1"})


class _TwoNames(nn.Module):
    """A normalization that is called by the second of its names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.again = self.norm

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.again(self.linear(x)).relu()
        return made


def test_a_normalization_of_two_names_is_folded() -> None:
    net = _TwoNames().double().eval()
    nn.init.normal_(net.norm.running_mean)
    found = fold_batch_norm(net, torch.randn(3, 4).double())
    assert found.into == {"norm": "linear"}
    assert found.unchanged


def _target(name: str) -> Any:
    return (0, 2, 3) if name == "u-net" else None


_BY_LAYER: Rules = {nn.Linear: Gamma(0.5), nn.Conv2d: AlphaBeta(2, 1)}


@pytest.mark.parametrize("rules", [Epsilon(1e-3), _BY_LAYER], ids=["epsilon", "by layer"])
@pytest.mark.parametrize("name", NAMES)
def test_architectures_keep_exact_books(name: str, rules: Rules) -> None:
    a = architecture(name)
    if not a.rows_are_samples:
        with pytest.raises(UnsupportedModel, match="samples of a batch are mixed"):
            lrp(a.model, a.x, rules=rules)
        return
    found = lrp(a.model, a.x, _target(name), rules)
    assert found.ledger is not None
    largest = max(float(e.received.abs().max()) for e in found.ledger)
    for entry in found.ledger:
        assert float(entry.unexplained.abs().max()) < 1e-11 * largest, entry
    assert float(found.ledger.unexplained.abs().max()) < 1e-11 * largest


BRANCHED = ("resnet", "squeeze-excite", "encoder", "lstm", "u-net", "several-outputs", "words")


@pytest.mark.parametrize("name", BRANCHED)
def test_an_archive_has_the_relevance_of_its_module(name: str, tmp_path: Path) -> None:
    a = architecture(name)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(a.model, (a.x,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    net = load_exported(tmp_path / "net.pt2")
    part = 0 if name == "several-outputs" else None  # its keys are not in the archive
    for rules in (Epsilon(1e-3), _BY_LAYER):
        own = lrp(a.model, a.x, _target(name), rules)
        found = lrp(net, a.x, _target(name), rules, output=part)
        torch.testing.assert_close(found.relevance, own.relevance, rtol=1e-10, atol=1e-12)
        assert found.ledger is not None
        assert own.ledger is not None
        assert [(e.layer, e.rule) for e in found.ledger] == [(e.layer, e.rule) for e in own.ledger]


def test_layers_of_an_archive(tmp_path: Path) -> None:
    a = architecture("resnet")
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(a.model, (a.x,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    net, layers = (
        load_exported(tmp_path / "net.pt2"),
        ["stem", "blocks.0", "blocks.1.conv2", "head"],
    )
    own = layer_relevances(a.model, a.x, 0, Epsilon(1e-3), layers, fold=False)
    found = layer_relevances(net, a.x, 0, Epsilon(1e-3), layers, fold=False)
    for layer in layers:
        torch.testing.assert_close(found[layer], own[layer], rtol=1e-10, atol=1e-12)


class _Deciding(nn.Module):
    """Another way for large inputs, told from a number of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.large(x) if bool((x > 1).any()) else self.small(x)
        return made * float(x.detach().abs().max())


def test_the_way_through_a_network_is_that_of_the_samples() -> None:
    net = _Deciding().double()
    x = torch.full((6, 3), 0.5).double()
    x[5] = 2.0  # not among the first ones
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf)[:, 0].sum(), leaf)
    torch.testing.assert_close(lrp(net, x, 0, Zero()).relevance, x * slope)
    below = lrp(net, x[:5], 0, Zero())
    torch.testing.assert_close(below.score, net(x[:5])[:, 0].detach())


def test_no_relevance_passes_what_runs_under_no_grad() -> None:
    def scaled(s: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            size = x.abs().sum(1, keepdim=True)
        made: Tensor = s.d(x * size)
        return made

    net, x = Written(scaled, **linears()).double(), torch.randn(3, 6).double()
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf)[:, 0].sum(), leaf)
    torch.testing.assert_close(lrp(net, x, 0, Zero()).relevance, x * slope, rtol=1e-8, atol=1e-12)


class _OwnSlopes(nn.Module):
    """A network that multiplies its outputs by derivatives that it takes itself."""

    def __init__(self, slopes: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.slopes = slopes

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x) * self.slopes(self.body, x)
        return made


def _by_autograd(body: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        free = x.detach().clone().requires_grad_()
        outputs = body(free)
        (slopes,) = torch.autograd.grad(outputs, free, torch.ones_like(outputs))
    return slopes


def _by_backward(body: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        free = x.detach().clone().requires_grad_()
        body(free).square().sum().backward()
    assert free.grad is not None
    return free.grad


@pytest.mark.parametrize(
    "slopes",
    [
        _by_autograd,
        _by_backward,
        lambda body, x: torch.func.vmap(torch.func.grad(lambda v: body(v).square().sum()))(x),
        lambda body, x: torch.func.vjp(body, x)[1](torch.ones_like(x))[0],
        lambda body, x: torch.func.jvp(body, (x,), (torch.ones_like(x),))[1],
    ],
    ids=["autograd.grad", "backward", "func.grad", "func.vjp", "func.jvp"],
)
def test_a_network_that_differentiates_itself_is_refused(slopes: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"takes derivatives by .* before it returns"):
        lrp(_OwnSlopes(slopes), torch.randn(2, 3).double(), 0)


def test_expansions_of_neurons() -> None:
    g = torch.Generator().manual_seed(0)
    w, x = torch.randn(5, generator=g).double(), torch.rand(20, 5, generator=g).double()
    x = x[(x @ w) > 0.1]
    root = root_along(x, w, x * (1 + 0.5 * (w >= 0)))
    made = neuron_expansion(x, w, root, factor=2.0)
    torch.testing.assert_close(made.messages.sum(1), 2 * (x @ w))
    assert float(made.zero_order.abs().max()) < 1e-12
    assert float(made.residual.abs().max()) < 1e-12
    z_gate, z_signal = torch.randn(9, generator=g).double(), torch.randn(9, generator=g).double()
    tanh = product_expansion(z_gate, z_signal)
    assert bool((tanh.residual.abs() <= tanh.bound).all())
    assert (
        float(product_expansion(z_gate, z_signal.abs(), activation="relu").residual.abs().max())
        < 1e-15
    )


def test_roots_with_a_bias_and_references_that_are_silent() -> None:
    g = torch.Generator().manual_seed(0)
    w, x = torch.randn(5, generator=g).double(), torch.rand(20, 5, generator=g).double()
    root = root_along(x, w, x + 1, bias=0.7)
    assert float((root @ w + 0.7).abs().max()) < 1e-12
    silent = root - w  # below the root
    assert float(neuron_expansion(x, w, silent, bias=0.7).messages.abs().max()) == 0


def test_a_layer_that_is_used_twice_has_the_sum_of_its_calls() -> None:
    torch.manual_seed(0)
    layers = {"a": nn.Linear(5, 5, bias=False), "o": nn.Linear(5, 1, bias=False)}
    net = Written(lambda s, x: s.o(F.relu(s.a(F.relu(s.a(x))))), **layers).double()
    x = torch.randn(4, 5).double()
    found = layer_relevances(net, x, None, Zero(), ["a"])["a"]
    torch.testing.assert_close(found.sum(1), 2 * net(x).detach()[:, 0])


def test_an_operation_that_only_some_chunks_met(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Written(lambda s, x: s.d(x.masked_fill(x > 1, 0.5)), **linears()).double()
    x = torch.linspace(-2, 1.01, 240).double().reshape(40, 6)  # only the last sample is filled
    whole = lrp(net, x, 0)
    monkeypatch.setattr("torchtheory.explanation.score.AT_ONCE", 1)
    parts = lrp(net, x, 0)
    assert whole.ledger is not None
    assert parts.ledger is not None
    torch.testing.assert_close(whole.ledger.to_biases, parts.ledger.to_biases)
    assert float(parts.ledger.unexplained.abs().max()) < 1e-12


def test_factors_are_constant_in_a_linear_region() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    ).double()  # fmt: skip
    x = torch.randn(6, 5).double()
    same = relevance_variation(net, x, 0, Zero(), ["1", "3"], radius=1e-7, generator=0)
    assert max(same.values()) < 1e-9
    moved = relevance_variation(net, x, 0, Gamma(0.5), ["1", "4"], radius=1e-3, generator=0)
    assert moved["4"] < 1e-9  # the score itself
    assert 1e-7 < moved["1"] < 1e-1


@pytest.mark.parametrize(
    "forward",
    [
        lambda s, x: s.c(torch.fft.rfft(x).real),
        lambda s, x: s.d(1 / x),
        lambda s, x: s.d(torch.log(x.abs())),
        lambda s, x: s.d(x - x.mean(0)),
    ],
)
def test_a_refusal_leaves_no_tensors(forward: Callable[..., Tensor]) -> None:
    """An error that the graph of the pass held would hold all of it for ever."""
    net, x = Written(forward, **linears()).double(), torch.randn(3, 6).double()

    def tensors() -> int:
        with pytest.raises(UnsupportedModel):
            lrp(net, x)
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    tensors()
    assert tensors() == tensors()


def test_nothing_is_left_in_memory() -> None:
    """A pass is free as soon as it is over, without waiting for the collector of cycles."""
    net, x = residual(), torch.randn(2, 3, 8, 8).double()
    gc.collect()
    before = sum(isinstance(o, LinearMap) for o in gc.get_objects())
    gc.disable()
    try:
        for rules in (Zero(), Gamma(1.0), AlphaBeta(2, 1)):
            lrp(net, x, rules=rules)
        after = sum(isinstance(o, LinearMap) for o in gc.get_objects())
    finally:
        gc.enable()
    assert after == before
