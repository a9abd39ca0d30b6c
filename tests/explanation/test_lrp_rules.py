"""Rules against loops over inputs and outputs, dense and convolutional."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.explanation.composites import (
    Composite,
    DoubtfulRules,
    Place,
    first_layer,
    last_layers,
    lower_part,
    preset,
)
from torchtheory.explanation.lrp import layer_relevances, lrp
from torchtheory.explanation.rules import (
    AlphaBeta,
    Epsilon,
    Flat,
    Gamma,
    Product,
    RootPoint,
    Rule,
    WSquare,
    ZBox,
    Zero,
)

LOW, HIGH = -3.0, 4.0


def by_hand(rule: Rule, x: list[float], w: Tensor, b: list[float], r: list[float]) -> list[float]:
    """Relevance of the inputs of a dense layer, number by number, from the table of the source."""
    found = [0.0] * len(x)
    for k in range(len(b)):
        contributions = [x[j] * float(w[k, j]) for j in range(len(x))]
        z = sum(contributions) + b[k]
        seen = [j for j in range(len(x)) if not torch.isnan(w[k, j])]
        if isinstance(rule, Zero):
            shares = [c / z for c in contributions]
        elif isinstance(rule, Epsilon):
            shares = [c / (z + (rule.epsilon if z > 0 else -rule.epsilon)) for c in contributions]
        elif isinstance(rule, Gamma):
            sign = 1 if z > 0 else -1
            more = [c + rule.gamma * (c if sign * c > 0 else 0) for c in [*contributions, b[k]]]
            shares = [c / sum(more) for c in more[:-1]]
        elif isinstance(rule, AlphaBeta):
            everything = [*contributions, b[k]]
            plus = sum(c for c in everything if c > 0)
            minus = sum(c for c in everything if c < 0)
            alpha, beta = rule.alpha, rule.beta
            if rule.empty == "rescale":
                alpha, beta = (alpha if minus else 1.0), (beta if plus else -1.0)
            shares = [
                (alpha * c / plus if c > 0 else 0) - (beta * c / minus if c < 0 else 0)
                for c in contributions
            ]
        elif isinstance(rule, Flat):
            shares = [1 / len(seen)] * len(x)
        elif isinstance(rule, WSquare):
            shares = [float(w[k, j]) ** 2 / float((w[k] ** 2).sum()) for j in range(len(x))]
        else:
            assert isinstance(rule, ZBox)
            box = [
                x[j] * float(w[k, j]) - (LOW if w[k, j] > 0 else HIGH) * float(w[k, j])
                for j in range(len(x))
            ]
            shares = [c / sum(box) for c in box]
        for j in range(len(x)):
            found[j] += shares[j] * r[k]
    return found


RULES = [
    Zero(), Epsilon(0.3), Gamma(0.7), AlphaBeta(1, 0), AlphaBeta(2, 1),
    AlphaBeta(2, 1, "leak"), Flat(), WSquare(), ZBox(LOW, HIGH),
]  # fmt: skip


def layer_and_inputs(seed: int, positive: bool) -> tuple[nn.Linear, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    layer = nn.Linear(5, 4).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
        layer.weight[0] = layer.weight[0].abs()  # an output without negative contributions
        layer.bias[0] = 0.3
    x = torch.rand(3, 5, generator=g).double() * 2 - (0 if positive else 1)
    return layer, x, torch.randn(3, 4, generator=g).double()


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.name} {getattr(r, 'empty', '')}")
@pytest.mark.parametrize("positive", [True, False])
def test_a_dense_layer_by_hand(rule: Rule, positive: bool) -> None:
    layer, x, weights = layer_and_inputs(3, positive)
    with pytest.warns(DoubtfulRules) if rule.wants_positive_inputs and not positive else _quiet():
        found = lrp(layer, x, target=weights, rules=rule)
    with torch.no_grad():
        start = weights * layer(x)
    for i in range(len(x)):
        promised = by_hand(
            rule, x[i].tolist(), layer.weight.detach(), layer.bias.tolist(), start[i].tolist()
        )
        assert found.relevance[i].tolist() == pytest.approx(promised, rel=1e-10, abs=1e-12)  # type: ignore[index]
    assert found.ledger is not None
    assert float(found.ledger.unexplained.abs().max()) < 1e-12


def _quiet() -> object:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.name} {getattr(r, 'empty', '')}")
@pytest.mark.filterwarnings("ignore::torchtheory.explanation.composites.DoubtfulRules")
def test_a_convolution_is_its_matrix(rule: Rule) -> None:
    """Stride, padding, dilation and groups: the layer as a matrix, by the same rule."""
    torch.manual_seed(5)
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2).double()
    x = torch.rand(2, 4, 5, 5).double() * 2 - 0.7
    with torch.no_grad():
        shape = conv(x).shape[1:]
        columns = F.conv2d(
            torch.eye(100).double().reshape(100, 4, 5, 5), conv.weight, None, 2, 1, 1, 2
        ).reshape(100, -1)
        dense = nn.Linear(100, columns.shape[1]).double()
        dense.weight.copy_(columns.T)
        dense.bias.copy_(conv.bias[:, None, None].expand(shape).reshape(-1))  # type: ignore[index]
    weights = torch.randn(2, columns.shape[1]).double()
    flat = nn.Sequential(conv, nn.Flatten())
    found = lrp(flat, x, target=weights, rules=rule)
    if isinstance(rule, Flat):  # what an output does not see has no share
        sees = F.conv2d(
            torch.eye(100).double().reshape(100, 4, 5, 5), torch.ones_like(conv.weight), None,
            2, 1, 1, 2,
        ).reshape(100, -1)  # fmt: skip
        with torch.no_grad():
            start = weights * flat(x)
        promised = (sees / sees.sum(0)) @ start.T
        torch.testing.assert_close(found.flat, promised.T)
    else:
        same = lrp(dense, x.reshape(2, -1), target=weights, rules=rule)
        torch.testing.assert_close(found.flat, same.flat, rtol=1e-9, atol=1e-10)
    assert found.ledger is not None
    assert float(found.ledger.unexplained.abs().max()) < 1e-11


def relu_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3),
        nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3),
    ).double()  # fmt: skip


def test_zero_is_gradient_times_input_and_biases_get_their_slopes() -> None:
    net = relu_network()
    x = torch.randn(4, 2, 8, 8).double()
    found = lrp(net, x, target=1, rules=Zero())
    leaf = x.clone().requires_grad_()
    score = net(leaf)[:, 1]
    (slope,) = torch.autograd.grad(score.sum(), leaf)
    torch.testing.assert_close(found.relevance, x * slope, rtol=1e-9, atol=1e-12)
    for i in range(4):
        biases = {k: p for k, p in net.named_parameters() if k.endswith("bias")}
        slopes = torch.autograd.grad(net(x[i : i + 1])[0, 1], list(biases.values()))
        promised = sum(
            float((b.detach() * s).sum()) for b, s in zip(biases.values(), slopes, strict=True)
        )
        assert float(found.gap[i]) == pytest.approx(promised, rel=1e-9)  # type: ignore[index]
        assert float(found.ledger.to_biases[i]) == pytest.approx(promised, rel=1e-9)  # type: ignore[union-attr]


def test_root_points_make_the_table_without_biases() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(6, 4, bias=False).double()
    x = torch.rand(3, 6).double()
    weights = (layer(x) > 0).double().detach()  # active neurons only
    one = torch.ones_like
    table: list[tuple[Rule, Rule]] = [
        (Zero(), RootPoint([(lambda x: x, one)])),
        (Gamma(0.5), RootPoint([(lambda x: x, lambda w: 1 + 0.5 * (w >= 0))])),
        (AlphaBeta(1, 0), RootPoint([(lambda x: x, lambda w: (w >= 0).to(w))])),
        (WSquare(), RootPoint([(one, lambda w: w)])),
        (
            ZBox(-1.0, 2.0),
            RootPoint(
                [
                    (lambda x: x, one),
                    (one, lambda w: torch.where(w >= 0, 1.0, -2.0).to(w)),
                ]
            ),
        ),
    ]
    for printed, generated in table:
        a = lrp(layer, x, target=weights, rules=printed)
        b = lrp(layer, x, target=weights, rules=generated)
        torch.testing.assert_close(a.relevance, b.relevance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rule", [Zero(), Epsilon(1e-9)], ids=lambda r: r.name)
def test_an_output_of_zero_hands_on_nothing(rule: Rule) -> None:
    """Contributions 1 and -1 of two inputs, and relevance that the flat rule put there."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))  # type: ignore[operator]
        net[1].weight.fill_(3.0)  # type: ignore[operator]
    found = lrp(net, torch.ones(1, 2).double(), rules={"0": rule, "1": Flat()})
    assert found.score.tolist() == [6.0]
    torch.testing.assert_close(found.flat, torch.full((1, 2), 1.5).double())
    assert found.ledger is not None
    torch.testing.assert_close(found.ledger.to_epsilon, torch.tensor([3.0]).double())


@pytest.mark.parametrize("function", [F.softplus, torch.cos, F.logsigmoid, torch.tanh, F.gelu])
def test_functions_of_entries_hand_on_their_change_from_zero(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    found = lrp(OfTwo(lambda a, b: function(a) + 0 * b), (x, torch.ones_like(x)), rules=Zero())
    at_zero = function(torch.zeros_like(x))
    torch.testing.assert_close(found.relevance[0], function(x) - at_zero)
    assert found.ledger is not None
    torch.testing.assert_close(found.ledger.to_biases, at_zero.sum(1))


class OfTwo(nn.Module):
    """The sum of a function of two inputs."""

    def __init__(self, written: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = written

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.written(a, b).flatten(1).sum(1)


@pytest.mark.parametrize("share", ["all", "prop", "half"])
def test_products_by_hand(share: Literal["all", "prop", "half"]) -> None:
    g = torch.Generator().manual_seed(1)
    a, b = (torch.randn(4, 3, generator=g).double() for _ in range(2))
    rules = Composite((), Zero(), Product(share))
    gate = a.sigmoid()
    product = gate * b
    of_gate = {"all": 0 * product, "prop": gate / (gate + b) * product, "half": product / 2}[share]
    for written in (lambda a, b: a.sigmoid() * b, lambda a, b: b * a.sigmoid()):
        found = lrp(OfTwo(written), (a, b), rules=rules)
        torch.testing.assert_close(found.relevance[0], of_gate)
        torch.testing.assert_close(found.relevance[1], product - of_gate)
    signals = lrp(OfTwo(torch.mul), (a, b), rules=rules)  # of two signals neither is a gate
    torch.testing.assert_close(signals.relevance[0], a * b / 2)
    torch.testing.assert_close(signals.relevance[1], a * b / 2)


def test_a_product_of_matrices_by_hand() -> None:
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(4, 3, 5, generator=g).double(), torch.randn(4, 5, 2, generator=g).double()
    found = lrp(OfTwo(torch.matmul), (a, b), rules=Zero())
    each = a[:, :, :, None] * b[:, None]  # what is added up in an entry of the product
    torch.testing.assert_close(found.relevance[0], each.sum(3) / 2)
    torch.testing.assert_close(found.relevance[1], each.sum(1) / 2)
    weights = torch.softmax(a, -1)
    gated = lrp(OfTwo(lambda a, b: torch.softmax(a, -1) @ b), (a, b), rules=Zero())
    assert float(gated.relevance[0].abs().max()) == 0
    torch.testing.assert_close(gated.relevance[1], (weights[:, :, :, None] * b[:, None]).sum(1))


def test_single_and_double_precision_batches_and_chunks_agree() -> None:
    net = relu_network()
    x = torch.randn(70, 2, 8, 8).double()
    for rules in (Epsilon(1e-3), preset("image_cnn"), preset("image_cnn", low=-6, high=6)):
        whole = lrp(net, x, rules=rules)
        one = lrp(net, x[3:4], rules=rules)
        torch.testing.assert_close(whole.relevance[3:4], one.relevance, rtol=1e-8, atol=1e-10)  # type: ignore[index]
        single = lrp(relu_network().float(), x[:5].float(), target=whole.classes[:5], rules=rules)  # type: ignore[index]
        scale = float(whole.flat[:5].abs().max())
        assert float((single.flat.double() - whole.flat[:5]).abs().max()) < 1e-3 * scale
        assert single.ledger is not None
        assert float(single.ledger.unexplained.abs().max()) < 1e-5 * float(single.score.abs().max())


def test_chunks_have_one_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = relu_network(), torch.randn(40, 2, 8, 8).double()
    whole = lrp(net, x)
    monkeypatch.setattr("torchtheory.explanation.score.AT_ONCE", 1)
    parts = lrp(net, x)
    torch.testing.assert_close(whole.relevance, parts.relevance)
    assert whole.ledger is not None
    assert parts.ledger is not None
    for a, b in zip(whole.ledger, parts.ledger, strict=True):
        assert (a.layer, a.operation, a.rule) == (b.layer, b.operation, b.rule)
        torch.testing.assert_close(a.received, b.received)
        torch.testing.assert_close(a.to_biases, b.to_biases)


def test_composites_choose_by_name_type_and_depth() -> None:
    net, x = relu_network(), torch.rand(2, 2, 8, 8).double()
    rules = Composite(
        [
            (first_layer, ZBox(0, 1)),
            ("3", Flat()),
            (last_layers(1), Zero()),
            (nn.Linear, WSquare()),
        ],
        Epsilon(0.5),
    )
    found = lrp(net, x, rules=rules)
    assert found.ledger is not None
    chosen = {e.layer: e.rule for e in found.ledger}
    assert chosen == {
        "9": "zero", "7": "squared weights", "5": "epsilon 0.5", "3": "flat", "0": "box 0 to 1",
    }  # fmt: skip
    lower = lrp(net, x, rules=Composite([(lower_part(0.5), Gamma(1))], Zero()))
    assert lower.ledger is not None
    assert [e.rule for e in lower.ledger if e.layer in "0379"] == ["zero"] * 2 + ["gamma 1"] * 2
    mapped = lrp(net, x, rules={nn.Conv2d: Gamma(2), "7": Zero()})
    assert mapped.ledger is not None
    assert {e.rule for e in mapped.ledger} == {"gamma 2", "zero", "epsilon 1e-06"}


def test_presets_are_what_their_table_says() -> None:
    def conv(depth: int) -> Place:
        return Place("", nn.Conv2d, "conv2d", depth, 6, True)

    dense, lstm = (Place("", k, "linear", 3, 6, True) for k in (nn.Linear, nn.LSTM))
    image, boxed = preset("image_cnn"), preset("image_cnn", low=0, high=1)
    assert [image.rule(conv(d)).name for d in range(6)] == [
        "squared weights", *["gamma 0.25"] * 3, *["epsilon 1e-06"] * 2,
    ]  # fmt: skip
    assert boxed.rule(conv(0)).name == "box 0 to 1"
    assert image.rule(dense).name == "epsilon 1e-06"
    for name, of_dense, of_lstm in (
        ("text_cnn", "epsilon 1e-06", "epsilon 1e-06"),
        ("relu_default", "alpha 1 beta 0", "alpha 1 beta 0"),
        ("vqa", "alpha 1 beta 0", "epsilon 0.001"),
        ("lstm", "epsilon 0.001", "epsilon 0.001"),
        ("transformer", "epsilon 1e-06", "epsilon 1e-06"),
        ("field_of_view", "flat", "flat"),
        ("gradient_times_input", "zero", "zero"),
    ):
        assert preset(name).rule(dense).name == of_dense, name
        assert preset(name).rule(lstm).name == of_lstm, name
        assert preset(name).product.share == "all"


def test_the_first_layer_has_weights() -> None:
    net = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    found = lrp(net, torch.rand(2, 2, 8, 8), rules=Composite([(first_layer, Flat())], Zero()))
    assert found.ledger is not None
    assert {e.layer: e.rule for e in found.ledger} == {"3": "zero", "1": "flat", "0": "zero"}


def test_coefficients_of_both_signs_are_taken_as_they_stand() -> None:
    """Bicubic interpolation has negative ones, of which no rule can take parts."""
    net = nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.Flatten())
    x, weights = torch.randn(2, 1, 4, 4).double(), torch.randn(2, 64).double()
    found = lrp(net, x, weights, AlphaBeta(1, 0))
    torch.testing.assert_close(found.flat, lrp(net, x, weights, Zero()).flat)


def test_relevance_of_layers() -> None:
    net, x = relu_network(), torch.rand(3, 2, 8, 8).double()
    found = layer_relevances(net, x, 2, AlphaBeta(1, 0), ["0", "2", "9"])
    assert found["0"].shape == (3, 6, 8, 8)
    assert found["2"].shape == (3, 6, 4, 4)
    torch.testing.assert_close(found["9"][:, 2], net(x)[:, 2].detach())
    whole = lrp(net, x, 2, AlphaBeta(1, 0))
    assert whole.ledger is not None
    first = next(e for e in whole.ledger if e.layer == "0")
    torch.testing.assert_close(found["0"].flatten(1).sum(1), first.received)
    with pytest.raises(UnknownName):
        layer_relevances(net, x, 2, None, ["nothing"])


def test_doubtful_rules_are_told() -> None:
    net, x = relu_network(), torch.randn(2, 2, 8, 8).double()
    more = [m for _ in range(3) for m in (nn.Conv2d(2, 2, 1), nn.ReLU())]
    deep = nn.Sequential(*more, net).double()
    with pytest.warns(DoubtfulRules, match="noisy"):
        lrp(deep, x, rules=Epsilon())
    with pytest.warns(DoubtfulRules, match="'0' receives negative inputs"):
        lrp(net, x, rules=Gamma())


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (lambda: Epsilon(-1), InvalidInput, "at least 0"),
        (lambda: Gamma(float("nan")), InvalidInput, "at least 0"),
        (lambda: AlphaBeta(0, 1), InvalidInput, "must be 1"),
        (lambda: AlphaBeta(1, 0, "lose"), InvalidInput, "'rescale' or 'leak'"),
        (lambda: ZBox(1, 0), InvalidInput, "at most high"),
        (lambda: RootPoint([]), InvalidInput, "at least one"),
        (lambda: Product("most"), InvalidInput, "'all', 'prop' or 'half'"),
        (lambda: preset("cnn"), UnknownName, "image_cnn|there are|known"),
        (lambda: preset("image_cnn", low=0), InvalidInput, "a low and a high"),
        (lambda: Composite([(nn.Conv2d, 3)]), InvalidType, "a rule is an object"),
        (lambda: Composite([(int, Zero())]), InvalidType, "nn.Module"),
        (
            lambda: lrp(relu_network(), torch.rand(1, 2, 8, 8), rules={"x": Zero()}),
            UnknownName,
            "x",
        ),
        (lambda: lrp(relu_network(), torch.rand(1, 2, 8, 8), rules=3), InvalidType, "rules are"),
        (
            lambda: lrp(relu_network(), 2 * torch.rand(1, 2, 8, 8), rules=ZBox()),
            InvalidInput,
            "leave the box",
        ),
        (
            lambda: lrp(relu_network(), torch.rand(1, 2, 8, 8) - 0.5, rules=ZBox()),
            InvalidInput,
            "leave the box",
        ),
    ],
)
def test_wrong_rules_are_refused(wrong, error, match) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=match):
        wrong()
