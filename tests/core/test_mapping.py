"""Functions on many items, where `torch.func.vmap` is wrong, has no rule, or is right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.core.mapping import Mapped, hessian, jacobian

EYE = 2 * torch.eye(3, dtype=torch.float64)


def solved(v: Tensor) -> Tensor:
    made: Tensor = torch.linalg.solve(EYE, v)
    return made


def test_what_vmap_gets_wrong_is_done_one_by_one() -> None:
    items = torch.randn(4, 1, 3, 1, dtype=torch.float64)
    assert vmap(solved)(items).shape != items.shape  # or there is nothing to mend
    each = Mapped(solved)
    assert torch.allclose(each(items), items / 2, atol=1e-12)
    assert torch.allclose(each(items[:2]), items[:2] / 2, atol=1e-12)


def test_another_way_is_what_counts() -> None:
    places = torch.randn(4, 3, dtype=torch.float64)

    def distances(v: Tensor) -> Tensor:
        return torch.cdist(v[None], places)[0]

    def by_hand(v: Tensor) -> Tensor:
        return (v - places) / (v - places).norm(dim=1, keepdim=True)

    items = torch.randn(4, 3, dtype=torch.float64)
    truth = torch.stack([by_hand(v) for v in items])
    assert not torch.allclose(vmap(jacrev(distances))(items), truth)
    assert torch.allclose(Mapped(jacrev(distances), alone=by_hand)(items), truth)


def test_calls_are_few_where_vmap_is_right() -> None:
    calls = 0

    def one(weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return x @ weights["w"] + weights["b"], (x > -100).all()

    weights = {"w": torch.randn(5, 3, 2), "b": torch.randn(5, 2)}
    x = torch.randn(4, 3)
    each = Mapped(one, (0, None))
    for _ in range(3):
        outputs, positive = each(weights, x)
    assert calls == 5  # two of them alone
    assert outputs.shape == (5, 4, 2)
    assert positive.shape == (5,)
    each(weights, x[:2])
    assert calls == 8


def test_a_function_that_looks_at_numbers_is_done_one_by_one() -> None:
    items = torch.tensor([1.0, -2.0, 3.0])
    halved = Mapped(lambda v: v / 2 if v > 0 else -v)
    assert halved(items).tolist() == [0.5, 2.0, 1.5]


def test_what_a_function_counts_is_not_counted_twice() -> None:
    def one(v: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return v + 1

    counts = torch.zeros(3)
    Mapped(one)(torch.zeros(3, 2), counts)
    assert counts.tolist() == [1.0, 1.0, 1.0]


def test_what_a_function_writes_and_reads_is_as_if_called_once() -> None:
    def counted(v: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return v * count

    def without_rule(v: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return v * float(count)

    def ambiguous(v: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return solved(v * count)

    v = torch.randn(4, 1, 3, 1, dtype=torch.float64)
    for function, wanted in ((counted, v), (without_rule, v), (ambiguous, v / 2)):
        counts = torch.zeros(4, dtype=torch.float64)
        each = Mapped(function)
        assert torch.allclose(each(v, counts), wanted)
        assert counts.tolist() == [1.0] * 4
        assert torch.allclose(each(v, counts), 2 * wanted)


def test_values_that_were_0_are_compared_when_they_are_not() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 3)).double()

    def rows(scale: Tensor, x: Tensor) -> Tensor:
        made: Tensor = scale * jacrev(lambda v: network(v[None])[0])(x)
        return made

    x, scale = torch.randn(3, 3).double(), torch.ones(3).double()
    truth = torch.stack([torch.autograd.functional.jacobian(network, v[None])[0, :, 0] for v in x])
    assert not torch.allclose(vmap(rows)(scale, x), truth)
    each = Mapped(rows)
    assert not each(0 * scale, x).any()
    assert torch.allclose(each(scale, x), truth)


def test_values_that_stay_0_are_not_compared_again() -> None:
    calls = 0

    def one(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return 0 * v

    each = Mapped(one)
    each(torch.ones(3))
    before = calls
    each(torch.ones(3))
    assert calls == before + 1


def test_of_no_items_there_are_no_values() -> None:
    assert Mapped(lambda v: v.sum(0))(torch.ones(0, 3, 2)).shape == (0, 2)


def test_what_all_items_share_may_be_no_tensor() -> None:
    scaled = Mapped(lambda v, by: v * by["scale"], (0, None))
    assert scaled(torch.ones(2), {"scale": 3.0}).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("items", [1, 3, 5])
def test_jacobians_are_right_where_those_of_torch_are_not(items: int) -> None:
    places = torch.randn(5, 3, dtype=torch.float64)

    def distances(v: Tensor) -> Tensor:
        return torch.cdist(v[None], places)[0]

    x = torch.randn(items, 3, dtype=torch.float64)
    away = x[:, None] - places
    truth = away / away.norm(dim=2, keepdim=True)
    assert not torch.allclose(jacrev(distances)(x[0]), truth[0])
    assert torch.allclose(jacobian(distances)(x[0]), truth[0])
    assert torch.allclose(Mapped(jacobian(distances))(x), truth)


def test_items_of_value_0_say_nothing() -> None:
    def alone(v: Tensor) -> Tensor:
        return v * 0 if v > 3 else v

    assert Mapped(lambda v: v * 0, alone=alone)(torch.arange(6.0)).tolist() == [0, 1, 2, 3, 0, 0]


def test_gradients_flow_and_transforms_nest() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    Mapped(lambda v: v.square().sum())(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * x)
    inner = vmap(lambda row: Mapped(torch.sin)(row))(x.detach())
    assert torch.equal(inner, torch.sin(x.detach()))


def test_chance_and_refusals_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="randomness"):
        Mapped(lambda v: v + torch.rand(2))(torch.zeros(3, 2))

    def refusing(v: Tensor) -> Tensor:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        Mapped(refusing)(torch.zeros(3))


def test_second_derivatives_by_two_passes_backward() -> None:
    x = torch.randn(4, generator=torch.Generator().manual_seed(0)).double()
    weight = torch.rand(4, dtype=torch.float64)

    def bent(v: Tensor) -> Tensor:
        return (nn.functional.prelu(v[None], weight) ** 3).sum()

    slopes = torch.where(x > 0, torch.ones_like(x), weight)
    assert torch.allclose(hessian(bent)(x), torch.diag(6 * slopes**3 * x))
    places = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=r"no second derivative .*cdist"):
        hessian(lambda v: torch.cdist(v[None], places).sum())(x)
