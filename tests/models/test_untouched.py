"""Private copies, what is put back, and the witness that tells whether it was."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import PureFunction, evaluation_mode, process_kept
from torchtheory.models.untouched import ModelState, contents_kept, copied, private_copy


class Busy(nn.Module):
    """Writes to everything it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(1))
        self.loose = torch.zeros(1)
        self.nested: dict[str, Any] = {"list": [[]], "tensor": torch.zeros(1)}

    def forward(self, x: Tensor) -> Any:
        self.total += 1
        self.loose += 1
        self.nested["list"][0].append(1)
        self.nested["tensor"].add_(1)
        self.layer.weight.data.mul_(2)
        self.layer.bias.data = torch.ones(2)
        self.layer.weight.requires_grad_(False)
        self.extra = nn.Linear(1, 1)
        self.register_buffer("late", torch.ones(1))
        self.layer.register_forward_hook(lambda *_: None)
        return self.layer(x)


def test_evaluation_mode_puts_everything_back() -> None:
    net = Busy()
    before, numbers = ModelState(net), net.layer.bias.detach().clone()
    with evaluation_mode(net):
        net(torch.ones(1, 2))
        assert before.changes(net)
    assert before.changes(net) == []
    assert torch.equal(net.layer.bias, numbers)
    assert net.nested["list"] == [[]]


def test_it_does_so_after_an_error() -> None:
    net = Busy()
    before = ModelState(net)
    with pytest.raises(RuntimeError, match="shapes"), evaluation_mode(net):
        net(torch.ones(1, 3))
    assert before.changes(net) == []


def test_the_witness_names_what_changed() -> None:
    net = Busy()
    before = ModelState(net)
    net(torch.ones(1, 2))
    changes = before.changes(net)
    for name in ("total", "loose", "nested", "layer.weight", "layer.bias", "extra", "late"):
        assert name in changes
    assert "layer" not in changes
    assert "training" not in changes
    assert ModelState(net).changes(net) == []


@pytest.mark.parametrize("value", [float("nan"), 1j, "a", b"b", frozenset({1}), None, [[[]]]])
def test_the_witness_takes_any_attribute(value: Any) -> None:
    net = nn.Linear(1, 1)
    net.odd = value
    assert ModelState(net).changes(net) == []
    before = ModelState(net)
    net.odd = 5
    assert before.changes(net) == ["odd"]


def test_values_are_only_kept_when_asked() -> None:
    net = Busy()
    with contents_kept(net, values=False):
        net(torch.ones(1, 2))
    assert not hasattr(net, "extra")
    assert float(net.total) == 1


def test_a_copy_of_a_model_with_activations() -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(2, 2)), nn.ReLU())
    net.deep = {"cache": [net(torch.ones(1, 2))]}  # type: ignore[assignment]
    net[0].weight_orig.grad = torch.ones(2, 2)
    own = copied(net)
    x = torch.ones(3, 2)
    assert own is not net
    assert torch.equal(own.eval()(x), net.eval()(x))
    assert all(p.grad is None for p in own.parameters())
    assert net[0].weight_orig.grad is not None


class Selfish(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Exiting(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        sys.exit()


def with_lock() -> nn.Module:
    net = nn.Linear(2, 1)
    net.lock = threading.Lock()  # type: ignore[assignment]
    return net


def with_own_function() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 1))
    net.forward = lambda x: net[0](x)  # type: ignore[method-assign]
    return net


def with_wrapped_method() -> nn.Module:
    net = nn.Linear(2, 1)
    original = net.forward
    net.forward = lambda x: original(x)  # type: ignore[method-assign]
    return net


def with_hook_on_itself() -> nn.Module:
    net = nn.Linear(2, 1)
    net.register_forward_hook(lambda *_: setattr(net, "seen", 1))
    return net


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Selfish(2, 1), "shares tensors"),
        (lambda: Exiting(2, 1), "SystemExit"),
        (with_lock, "lock"),
        (with_own_function, "refers to the model itself"),
        (with_wrapped_method, "refers to the model itself"),
        (with_hook_on_itself, "refers to the model itself"),
    ],
)
def test_what_cannot_be_copied_still_works(make: Any, reason: str) -> None:
    net = make()
    with pytest.raises(UnsupportedModel, match=f"cannot be copied.*{reason}"):
        copied(net)
    assert private_copy(net) is net
    before = ModelState(net)
    f, x = PureFunction(net), torch.ones(3, 2)
    with torch.no_grad():
        assert torch.allclose(f(f.parameters, x), net(x))
    twice = {k: 2 * p for k, p in f.parameters.items()}
    assert torch.allclose(f(twice, x), 2 * f(f.parameters, x))  # the weights that are given are run
    vars(net).pop("seen", None)  # the hook's, of the call above
    assert before.changes(net) == []
    f.parameters["weight" if hasattr(net, "weight") else "0.weight"].mul_(2)
    assert before.changes(net) == []


def test_bound_methods_and_partials_are_copied() -> None:
    net = nn.Linear(2, 1)
    net.forward = types.MethodType(nn.Linear.forward, net)  # type: ignore[method-assign]
    assert private_copy(net) is not net
    net.forward = functools.partial(nn.Linear.forward, net)  # type: ignore[method-assign]
    own = private_copy(net)
    own.weight.data.zero_()
    assert torch.equal(own(torch.ones(1, 2))[0], own.bias)


def test_later_training_does_not_move_the_function() -> None:
    net = nn.Linear(2, 1)
    f, x = PureFunction(net), torch.ones(1, 2)
    first = f(f.parameters, x)
    net.weight.data.add_(1.0)
    assert torch.equal(f(f.parameters, x), first)


class Renormalizing(nn.Module):
    """Writes to its weight without saying so in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(ids, self.weight, max_norm=0.1)


@pytest.mark.parametrize("make", [Renormalizing, lambda: nn.Embedding(5, 3, max_norm=0.1)])
def test_renormalized_rows(make: Any) -> None:
    net = make()
    before = ModelState(net)
    f, ids = PureFunction(net), torch.arange(5)
    f(f.parameters, ids)
    point = {"weight": torch.randn(5, 3)}
    kept = point["weight"].clone()
    assert torch.equal(f(point, ids), f(point, ids))
    assert torch.equal(point["weight"], kept)
    torch.func.grad(lambda p: f(p, ids).square().sum())(f.parameters)
    assert before.changes(net) == []


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException])
def test_a_forward_pass_that_ends_the_program(kind: type[BaseException]) -> None:
    class Ending(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise kind("enough")

    with pytest.raises(UnsupportedModel, match=f"raised {kind.__name__}: enough"):
        PureFunction(Ending(2, 1))({}, torch.ones(1, 2))


def test_an_interrupt_stays_one() -> None:
    class Interrupting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PureFunction(Interrupting(2, 1))({}, torch.ones(1, 2))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int8, torch.int64])
def test_weights_that_are_no_real_numbers(dtype: torch.dtype) -> None:
    net = nn.Linear(2, 2)
    net.mask = nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
    with pytest.raises(UnsupportedModel, match=f"parameter mask of the model is {str(dtype)[6:]}"):
        PureFunction(net)
    net = nn.Linear(2, 2)
    net.register_buffer("mask", torch.ones(2).to(dtype))
    assert PureFunction(net)({}, torch.ones(1, 2)).shape == (1, 2)


def test_the_process_is_kept() -> None:
    before = (random.getstate(), list(warnings.filters), dict(os.environ), torch.get_rng_state())
    threads = torch.get_num_threads()
    with process_kept():
        random.random()
        torch.rand(1)
        warnings.simplefilter("ignore")
        os.environ["TORCHTHEORY_TEST"] = "1"
        os.environ.pop("PATH", None)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(threads + 1)
    assert (random.getstate(), list(warnings.filters), dict(os.environ)) == before[:3]
    assert torch.equal(torch.get_rng_state(), before[3])
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads


WATCHED = """
import os, random, sys, tempfile, warnings
import numpy as np, torch
from torch import nn
def process():
    return (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
def settings():
    return list(warnings.filters), dict(os.environ)
random.seed(1)
first = process()
import torchtheory as tt
tt.audit
assert process() == first, "importing it draws random numbers"
sys.stderr.isatty = lambda: True
before = settings()
report = tt.audit(nn.Linear(2, 1), (torch.ones(4, 2), torch.rand(4, 1)), only=["layers"])
first = first[:2], torch.get_rng_state().tolist()
with tempfile.TemporaryDirectory() as place:
    report.save(place)
assert (process()[:2], process()[2]) == first, "an audit or saving it draws random numbers"
assert settings() == before, "an audit changes settings of the process"
"""


def test_the_first_audit_on_a_terminal_leaves_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
