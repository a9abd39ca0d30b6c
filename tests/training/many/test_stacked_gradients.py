"""Stacked chains: their gradients against autograd's, and units that nothing reads."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from torchtheory.models.problem import Problem, Task
from torchtheory.nets.activations.table import POINTWISE_LAYERS
from torchtheory.training.loop.seeds import epoch_order
from torchtheory.training.many.networks import fit_many
from torchtheory.training.many.stacked import StackedModules, layout, stack
from torchtheory.training.many.stacked_chain import StackedChain, linear_layers, units_read
from torchtheory.training.many.stacked_gradients import ChainGradients, TracedGradients
from torchtheory.training.many.stacked_losses import StackedLosses
from torchtheory.training.pruning.masks import Masks

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, **o: torch.optim.SGD(p, **o),
    "momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "nesterov": lambda p, **o: torch.optim.SGD(p, momentum=0.9, nesterov=True, **o),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


TASKS: tuple[Task, ...] = ("multiclass", "regression", "binary")


def single_output(net: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*net[:-1], nn.Linear(net[-1].in_features, 1)).double()


def activations() -> list[nn.Module]:
    arguments: dict[type[nn.Module], tuple[float, ...]] = {nn.Threshold: (0.1, 0.2)}
    made = [kind(*arguments.get(kind, ())) for kind in POINTWISE_LAYERS]
    in_place = [nn.ReLU(inplace=True), nn.ELU(inplace=True), nn.Hardtanh(inplace=True)]
    return [*made, *in_place, nn.Identity(), nn.Flatten()]


def losses_for(task: Task, *, usual: bool, outputs: int = 2) -> tuple[StackedLosses, Tensor]:
    """The losses of a task, and targets for six samples."""
    g = torch.Generator().manual_seed(5)
    targets = {
        "multiclass": torch.randint(0, outputs, (6,), generator=g),
        "binary": torch.randint(0, 2, (6,), generator=g).double(),
        "regression": torch.randn(6, outputs, generator=g, dtype=torch.float64),
    }
    y = targets[task]
    net = nn.Linear(3, 1 if task == "binary" else outputs).double()
    chosen = None if usual else (F.multi_margin_loss if task == "multiclass" else F.l1_loss)
    problem = Problem(net, (torch.zeros(6, 3).double(), y), task=task, loss=chosen)
    return StackedLosses(problem, usual=usual), problem.train.y


def agree(chain: StackedChain, x: Tensor, *, shared: bool, task: Task = "multiclass") -> None:
    """Formulas and autograd, more than once: memory that is kept must not be remembered."""
    for usual in (True, False):
        losses, y = losses_for(task, usual=usual)
        ours, theirs = ChainGradients(chain, losses), TracedGradients(chain, losses)
        y = y if shared else y.expand(len(x), *y.shape)
        own = y.expand(len(chain.models), *y.shape) if shared else y
        both = own if shared else own.flip(1)
        for inputs, labels in (
            (x, y),
            (x.flip(-1), both),
            (x[:2], y[:2]) if shared else (x[:, :2], y[:, :2]),
        ):
            expected = chain.on_shared(inputs) if shared else chain(inputs)
            total = losses(expected, labels)[0].sum()
            masks = chain.masks or [1] * len(chain.trained)
            by_autograd = [
                m * g for m, g in zip(masks, torch.autograd.grad(total, chain.trained), strict=True)
            ]
            made, others = theirs(inputs, labels, shared=shared)
            outputs, gradients = ours(inputs, labels, shared=shared)
            for values in (made, outputs):
                torch.testing.assert_close(values, expected.detach(), rtol=1e-12, atol=1e-12)
            for g, other in zip([*gradients, *others], [*by_autograd] * 2, strict=True):
                assert not g.requires_grad
                torch.testing.assert_close(g, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", activations(), ids=repr)
def test_formulas_are_what_autograd_says(activation: nn.Module, bias: bool, shared: bool) -> None:
    torch.manual_seed(0)
    first = [nn.Flatten()] if isinstance(activation, nn.Flatten) else []
    between = nn.Identity() if first else activation
    networks = [
        nn.Sequential(
            *first,
            nn.Linear(3, width),
            between,
            nn.Linear(width, 4, bias),
            between,
            nn.Linear(4, 2),
        ).double()
        for width in (5, 2, 3)
    ]
    x = torch.randn(6, 3) if shared else torch.randn(3, 6, 3)
    for task in TASKS[: 3 if isinstance(activation, nn.ReLU) else 1]:
        chain = StackedChain([single_output(net) if task == "binary" else net for net in networks])
        agree(chain, x.double(), shared=shared, task=task)


@pytest.mark.parametrize("frozen", [[], [0], [0, 2], [2], [4], [2, 4]])
@pytest.mark.parametrize("shared", [True, False])
def test_frozen_layers_and_odd_orders(frozen: list[int], shared: bool) -> None:
    torch.manual_seed(1)

    def network() -> nn.Module:
        net = nn.Sequential(
            nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)
        ).double()
        for place in frozen:
            net[place].weight.requires_grad_(False)
            net[place].bias.requires_grad_(place == 2)
        return net

    x = torch.randn(6, 3) if shared else torch.randn(2, 6, 3)
    agree(StackedChain([network(), network()]), x.double(), shared=shared)
    odd = [
        nn.Sequential(
            nn.ReLU(), nn.Tanh(), nn.ReLU(), nn.Linear(3, 4), nn.Linear(4, 4),
            nn.Tanh(), nn.ReLU(), nn.ReLU(), nn.Identity(), nn.ReLU(), nn.Linear(4, 2), nn.ReLU(),
        ).double()
        for _ in range(2)
    ]  # fmt: skip
    agree(StackedChain(odd), x.double(), shared=shared)


# ---------------------------------------------------------------------- units that nothing reads


def pruned_alone(
    net: nn.Module, masks: Masks, x: Tensor, y: Tensor, optimizer: str, decay: float, epochs: int
) -> nn.Module:
    """The usual loop, with torch's own pruning."""
    net = copy.deepcopy(net)
    for name, mask in masks.items():
        module, _, parameter = name.rpartition(".")
        prune.custom_from_mask(net.get_submodule(module), parameter, mask)
    steps = OPTIMIZERS[optimizer](net.parameters(), lr=0.01, weight_decay=decay)
    for epoch in range(1, epochs + 1):
        for index in torch.split(epoch_order(len(x), 0, epoch), 16):
            steps.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            steps.step()
    for name in masks:
        module, _, parameter = name.rpartition(".")
        prune.remove(net.get_submodule(module), parameter)
    return net


def network(*sizes: int, activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1]).double()


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_networks_as_if_alone(optimizer: str, decay: float) -> None:
    """Also the weights that lead to units that nothing reads; decay moves those."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(50, 6, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (50,), generator=g)
    networks = [network(6, 12, 8, 3, activation=nn.Sigmoid, seed=k) for k in range(4)]
    masks: list[Masks | None] = []
    for k, net in enumerate(networks):
        share = (0.03, 0.1, 0.5, 0.0)[k]
        masks.append(
            {
                name: torch.rand(p.shape, generator=g) < share
                for name, p in net.named_parameters()
                if p.ndim == 2
            }
        )
    many = fit_many(
        networks, (x, y), masks=masks, epochs=3, batch_size=16, optimizer=optimizer,
        learning_rate=0.01, weight_decay=decay,
    )  # fmt: skip
    for k, net in enumerate(networks):
        found, mask = many.network(k), masks[k]
        assert mask is not None
        alone = pruned_alone(net, mask, x, y, optimizer, decay, epochs=3)
        kept = dict(alone.named_parameters())  # in the order that pruning left them in
        for name, p in found.named_parameters():
            torch.testing.assert_close(p, kept[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(many.outputs(x)[k], alone(x), rtol=1e-9, atol=1e-12)


def test_a_pruned_network_is_smaller() -> None:
    net = network(6, 40, 20, 3)
    masks = {"2.weight": torch.zeros(20, 40, dtype=torch.bool)}
    masks["2.weight"][4, 7] = masks["2.weight"][5, 9] = True
    masks["4.weight"] = torch.zeros(3, 20, dtype=torch.bool)
    masks["4.weight"][0, 4] = True
    assert layout(net).sizes == ((40, 6), (20, 40), (3, 20))
    assert layout(net).parameters == sum(p.numel() for p in net.parameters())
    assert layout(net, masks).sizes == ((1, 6), (1, 1), (3, 1))
    assert layout(net, masks).parameters == 7 + 2 + 6
    lean = stack([net], [masks], lean=True)
    assert [list(p.shape) for p in lean.trained] == [
        [1, 1, 6], [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 3, 1], [1, 3, 1]
    ]  # fmt: skip
    assert torch.equal(lean.trained[0][0, 0], net[0].weight[7])
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(lean.on_shared(x), stack([net], [masks]).on_shared(x))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4).map(lambda s: [*s, 2]),
    share=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_left_out_units_do_not_count(sizes: list[int], share: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    networks = [network(*sizes, activation=nn.Tanh, seed=seed + k) for k in range(2)]
    masks: list[Masks] = [
        {
            name: torch.rand(p.shape, generator=g) < share
            for name, p in net.named_parameters()
            if p.ndim == 2
        }
        for net in networks
    ]
    lean, whole = StackedChain(networks, masks, lean=True), StackedChain(networks, masks)
    x = torch.randn(2, 6, sizes[0], dtype=torch.float64, generator=g)
    torch.testing.assert_close(lean(x), whole(x), rtol=1e-12, atol=1e-13)
    agree(lean, x, shared=False)
    for k, net in enumerate(networks):
        theirs = dict(whole.network(k).named_parameters())
        for name, ours in lean.network(k).named_parameters():
            assert torch.equal(ours, theirs[name])
        read = units_read(
            linear_layers(net),
            {id(p): masks[k][n] for n, p in net.named_parameters() if p.ndim == 2},
        )
        for depth, units in enumerate(read[1:-1]):
            reaches = _reaches_an_output(net, masks[k], depth).nonzero().flatten().tolist()
            if reaches:
                assert units.tolist() == reaches
            else:  # one unit stays, and what it reads
                assert len(units) == 1 or masks[k][f"{2 * depth + 2}.weight"].any()


def _reaches_an_output(net: nn.Sequential, masks: Masks, depth: int) -> Tensor:
    """Which units of a hidden layer have a path of weights to an output."""
    weights = [masks[f"{2 * k}.weight"].double() for k in range(depth + 1, (len(net) + 1) // 2)]
    paths = weights[0]
    for weight in weights[1:]:
        paths = weight @ paths
    return paths.any(0)


# ------------------------------------------------------------ layers that are not what they seem


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("what", ["weight norm", "hook", "own forward", "hook of the whole"])
def test_hooks_are_not_passed_over(what: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=g, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    net = network(4, 8, 2)
    if what == "weight norm":
        nn.utils.weight_norm(net[0])
        net = net.double()
    elif what == "hook":
        net[0].register_forward_hook(lambda module, given, value: 3 * value)
    elif what == "hook of the whole":
        net.register_forward_hook(lambda module, given, value: 3 * value)
    else:
        net[1].forward = torch.tanh
    assert isinstance(stack([net]), StackedModules)
    many = fit_many([net], (x, y), epochs=4, learning_rate=0.05)
    trained = many.network(0)
    with torch.no_grad():
        torch.testing.assert_close(many.outputs(x)[0], trained(x), rtol=1e-9, atol=1e-12)
        assert F.cross_entropy(trained(x), y) < 0.8 * F.cross_entropy(net(x), y)
