"""Networks as chains: the layers that are applied, in the order they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import NAMES, architecture
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.exported import load_exported
from torchtheory.tracing.chain import Step, as_chain, as_steps, parameters_read, straight_paths


class Custom(nn.Module):
    """A module whose forward is given."""

    def __init__(self, forward: Any, **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def kinds(model: nn.Module) -> list[str]:
    return [type(link.module).__name__ for link in as_chain(model)]


def same_function(model: nn.Module, x: Tensor) -> bool:
    y = x
    model.eval()
    for link in as_chain(model):
        y = link.module.eval()(y)
    return torch.equal(y, model(x))


def test_nested_sequentials() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(3, 1))))
    assert [link.name for link in as_chain(net)] == ["0", "1.0", "1.1.0"]
    assert as_chain(net)[2].module is net[1][1][0]


def test_a_layer_that_occurs_twice_is_there_twice() -> None:
    layer, act = nn.Linear(3, 3), nn.SiLU()
    net = nn.Sequential(layer, act, layer, act)
    assert kinds(net) == ["Linear", "SiLU", "Linear", "SiLU"]
    assert same_function(net, torch.randn(2, 3))
    again = Custom(lambda m, x: m.l(m.a(m.l(x))), l=layer, a=act)
    assert kinds(again) == ["Linear", "SiLU", "Linear"]


def test_a_single_layer() -> None:
    assert kinds(nn.Linear(2, 2)) == ["Linear"]
    assert as_chain(nn.Linear(2, 2))[0].name == ""


def test_a_sequential_with_a_forward_of_its_own_is_not_taken_for_a_chain() -> None:
    class Residual(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + super().forward(x)
            return out

    class Named(nn.Sequential):
        pass

    for model in (Residual(nn.Linear(2, 2)), nn.ModuleList([Residual(nn.Linear(2, 2))])[0]):
        with pytest.raises(UnsupportedModel, match=r"not a chain|no layer rule"):
            as_chain(model)
    assert kinds(Named(nn.Linear(2, 2), nn.ReLU())) == ["Linear", "ReLU"]


@pytest.mark.parametrize(
    "reshape",
    [
        lambda x: x.view(x.size(0), -1),
        lambda x: x.view(x.shape[0], -1),
        lambda x: x.reshape(-1, 12),
        lambda x: x.view((x.shape[0], 12)),
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
        lambda x: torch.reshape(x, (-1, 12)),
        lambda x: x.contiguous().view(-1, 12),
    ],
)
def test_reshapes(reshape: Any) -> None:
    net = Custom(
        lambda m, x: m.l(reshape(F.relu(m.c(x)))), c=nn.Conv2d(1, 3, 2), l=nn.Linear(12, 2)
    )
    assert kinds(net)[:2] == ["Conv2d", "ReLU"]
    assert kinds(net)[-1] == "Linear"
    assert same_function(net, torch.randn(5, 1, 3, 3))
    image = Custom(
        lambda m, x: torch.tanh(m.c(x.view(-1, 1, 3, 3))).relu().flatten(1), c=nn.Conv2d(1, 3, 2)
    )
    assert same_function(image, torch.randn(5, 9))
    assert same_function(
        Custom(lambda m, x: m.l(x).squeeze(-1), l=nn.Linear(4, 1)), torch.randn(5, 4)
    )


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (lambda m, x: x + m.l(x), "is not a chain of layers: add does not follow l"),
        (lambda m, x: m.l(x) + m.l(x), "is not a chain of layers"),
        (lambda m, x: m.l(x) * 2, "uses mul, which no layer rule covers"),
        (lambda m, x: (m.l(x), x), "it returns"),
        (lambda m, x: m.l(x) if x.sum() > 0 else x, "could not be traced"),
        (lambda m, x: m.l(x) @ m.l(x).T, "is not a chain of layers"),
        (lambda m, x: m.l(x) @ torch.ones(4), "uses matmul, which no layer rule"),
        (lambda m, x: x.view(x.size(1), -1, 2).view(-1, x.size(0), x.size(1)), "uses view"),
    ],
)
def test_what_is_no_chain_is_refused_with_the_operation(forward: Any, sentence: str) -> None:
    with pytest.raises(UnsupportedModel, match=sentence) as caught:
        as_chain(Custom(forward, l=nn.Linear(4, 4)))
    assert "\n" not in str(caught.value)


def test_two_inputs_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Bilinear(2, 2, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = self.l(x, y)
            return out

    with pytest.raises(UnsupportedModel, match="has 2 inputs, and this is about one"):
        as_chain(Two())
    with pytest.raises(UnsupportedModel, match="has 2 inputs; a chain has one"):
        as_chain(Two(), (torch.ones(3, 2), torch.ones(3, 2)))


def test_tracing_leaves_the_model_alone() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.cache = m.l(x)
        return m.cache * torch.ones(2)

    net = Custom(forward, l=nn.Linear(2, 2)).train()
    before = set(vars(net))
    with pytest.raises(UnsupportedModel):
        as_chain(net)
    assert set(vars(net)) == before
    assert net.training


def test_tracing_follows_the_evaluation_branch() -> None:
    net = Custom(lambda m, x: m.l(x + 1 if m.training else x), l=nn.Linear(2, 2)).train()
    assert kinds(net) == ["Linear"]


def test_dropout_counts_as_a_layer_only_where_it_can_be_switched_off() -> None:
    off = Custom(lambda m, x: F.dropout(m.l(x), 0.5, m.training), l=nn.Linear(2, 2))
    assert kinds(off) == ["Linear", "Dropout"]
    for always in (lambda m, x: F.dropout(m.l(x)), lambda m, x: F.dropout(m.l(x), training=True)):
        with pytest.raises(UnsupportedModel, match="uses dropout, which no layer rule covers"):
            as_chain(Custom(always, l=nn.Linear(2, 2)))


def test_a_layer_with_the_name_of_a_method_of_tensors() -> None:
    net = Custom(lambda m, x: m.size(m.dim(x)), dim=nn.Linear(2, 3), size=nn.Linear(3, 1))
    assert [link.name for link in as_chain(net)] == ["dim", "size"]
    heads = Custom(
        lambda m, x: torch.cat([m.kind(m.body(x)), m.size(m.body(x))], 1),
        body=nn.Linear(2, 3), kind=nn.Linear(3, 1), size=nn.Linear(3, 1),
    )  # fmt: skip
    assert ["size"] in [[link.name for link in path][-1:] for path in straight_paths(heads)]


#: Architectures that are made of layers, sums and concatenations.
IN_STEPS = (
    "mlp", "functional", "convolutional", "resnet", "densenet", "layer-norm", "u-net", "mixer",
    "tied", "loops", "weight-norm", "group-norm",
)  # fmt: skip


def composed(steps: list[Step], x: Tensor) -> Tensor:
    values = [x]
    for step in steps:
        values.append(step.link.module(*(values[k + 1] for k in step.inputs)))
    return values[-1]


def archived(model: nn.Module, x: Tensor, path: Path) -> nn.Module:
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return load_exported(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_of_a_network_and_of_its_archive_are_the_same_layers(
    name: str, tmp_path: Path
) -> None:
    given = architecture(name)
    if name not in (*IN_STEPS, "encoder"):  # which is one layer of torch, and many of an archive
        with pytest.raises(UnsupportedModel, match=r"no layer rule|has more|something else"):
            as_steps(given.model, given.x)
        return
    steps = as_steps(given.model, given.x)
    torch.testing.assert_close(composed(steps, given.x), given.model(given.x))
    if name == "encoder":
        return
    loaded = archived(given.model, given.x, tmp_path / "net.pt2")
    found = as_steps(loaded)
    torch.testing.assert_close(composed(found, given.x), given.model(given.x))
    assert [step.inputs for step in found] == [step.inputs for step in steps]
    for one, other in zip(found, steps, strict=True):
        assert type(one.link.module).__name__ == type(other.link.module).__name__
        assert one.link.name == other.link.name or not list(other.link.module.parameters())
        own = dict(loaded.named_parameters())
        for parameter in one.link.module.parameters():
            assert any(parameter is p for p in own.values())


def test_a_weight_that_is_computed_follows_its_parameters() -> None:
    given = architecture("tied")
    first, _, last = as_chain(given.model)
    weight = given.model.encoder.weight
    assert first.module is given.model.encoder
    assert torch.equal(last.module.weight, weight.t())
    assert "weight" not in last.module._parameters
    assert parameters_read(given.model) == {"encoder.weight"}
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(last.module.weight, weight.t())
    last.module(torch.ones(1, 4).double()).sum().backward()
    assert weight.grad is not None


def test_a_layer_that_is_called_with_more_than_a_value_is_made_anew() -> None:
    up = nn.ConvTranspose1d(1, 1, 3, stride=2)
    net = Custom(lambda m, x: m.up(x, output_size=[x.shape[-1] * 2 + 2]), up=up)
    (link,) = as_chain(net)
    x = torch.randn(3, 1, 8)
    assert link.module is not up
    assert link.module.weight is up.weight
    assert torch.equal(link.module(x), net(x))


def test_parts_of_a_sequential_that_are_chains_are_opened() -> None:
    relu = Custom(lambda m, x: F.relu(x))
    odd = Custom(lambda m, x: x * x.sigmoid())
    pair = Custom(lambda m, x: m.b(torch.tanh(m.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 3))
    net = nn.Sequential(nn.Linear(3, 3), relu, pair, odd)
    links = as_chain(net)
    assert [link.name for link in links] == ["0", "1", "2.a", "", "2.b", "3"]
    assert links[-1].module is odd
    assert same_function(net, torch.randn(4, 3))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("gcn", "message-passing")])
def test_an_input_is_found(name: str) -> None:
    given = architecture(name)
    assert [len(p) for p in straight_paths(given.model)]


def test_an_input_is_asked_for() -> None:
    net = Custom(lambda m, x: m.l(x.mean((1, 2)).view(len(x), 3)), l=nn.Linear(3, 2))
    with pytest.raises(UnsupportedModel, match="give a few of its inputs as x="):
        as_chain(net)
