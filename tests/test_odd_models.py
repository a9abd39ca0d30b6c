"""Every function that takes a model, on models nobody should give: a sentence, and no traces.

The functions are found by their signatures. Each meets every odd model once; it may return or
refuse with an error of ours. Afterwards the model and the process are what they were before.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtheory
from torchtheory.core.errors import TorchTheoryError
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.models.samples import Samples
from torchtheory.models.untouched import ModelState
from torchtheory.robustness import FGSM

#: Those that change the model they are given, as they say.
CHANGE_THE_MODEL = {"training.loop.trainer.fit", "training.initialization.initialize"}

#: Parts of the library that look at one layer or at a model that was taken in before, and what
#: takes seconds and is tried on odd models elsewhere.
NOT_CALLED = (
    "audit.engine.audit.", "audit.findings.", "core.checks.", "models.", "tracing.chain.",
    "equivariance.rules.",
    "nets.residual.image_resnets.",
    "kernels.paths.layers.", "kernels.paths.rules.", "kernels.paths.graph.listed",
    "kernels.tangent.derivatives.",
    "robustness.attacks.victim.",
    "robustness.lipschitz.watched_pass.", "robustness.evaluation.robust_radius",
    "training.pruning.lottery.", "training.backpropagation.chain.is_pointwise",
    "training.backpropagation.there_and_back.",
    "explanation.visual_questions.", "expressivity.bends.", "expressivity.bend_rules.",
    "generalization.pac_bayes.gaussian_layers.",
)  # fmt: skip


class Own(BaseException):
    """What a user's code may raise to get past `except Exception`."""


class Bare(nn.Module):
    def __init__(self) -> None:  # no super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Layer(nn.Module):
    """Does something with a linear layer and its input."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.seen: list[int] = []
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


class Counts(nn.Module):
    """Writes to what it holds; unlike a busy model it can be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(self.seen))
        made: Tensor = self.layer(x)
        return made


class Cyclic(nn.Module):
    """Has itself among its children."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.itself = self

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made


class Nameless(nn.Module):
    """Can neither be copied nor asked for its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made

    def __deepcopy__(self, memo: Any) -> Nameless:
        raise RuntimeError("no copies")

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no names")


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def with_nan() -> nn.Sequential:
    net = chain()
    net[2].weight.data[0, 0] = float("nan")
    return net


def raising(error: BaseException) -> Callable[[], nn.Module]:
    def forward(layer: nn.Linear, x: Tensor) -> Tensor:
        raise error

    return lambda: Layer(forward)


def busy() -> nn.Module:
    """Writes to itself and to every switch of the process, and draws from all generators."""
    made = Layer(lambda layer, x: layer(x))

    def forward(layer: nn.Linear, x: Tensor) -> Any:
        made.calls += 1
        made.seen.append(1)
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return layer(x)

    made.function = forward
    return made


ODD: dict[str, Callable[[], Any]] = {
    "lazy": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LazyLinear(2)),
    "meta": lambda: chain().to("meta"),
    "without super().__init__()": lambda: nn.Sequential(nn.Linear(3, 2), Bare()),
    "no module": lambda: lambda x: x,
    "NaN": with_nan,
    "returns None": lambda: Layer(lambda layer, x: None),
    "returns [n]": lambda: Layer(lambda layer, x: layer(x)[:, 0]),
    "returns a number": lambda: Layer(lambda layer, x: layer(x).sum()),
    "returns classes": lambda: Layer(lambda layer, x: layer(x).argmax(1)),
    "returns complex numbers": lambda: Layer(lambda layer, x: layer(x).to(torch.complex64)),
    "returns a tuple": lambda: Layer(lambda layer, x: (layer(x), x)),
    "returns fewer rows": lambda: Layer(lambda layer, x: layer(x)[:1]),
    "has a layer of width 0": lambda: nn.Sequential(nn.Linear(3, 0), nn.ReLU(), nn.Linear(0, 2)),
    "has no output": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 0)),
    "has complex weights": lambda: chain().to(torch.complex64),
    "no layer": nn.Sequential,
    "contains itself": Cyclic,
    "without names": Nameless,
    "compiled": lambda: torch.jit.script(chain()),
    "raises": raising(KeyError("no")),
    "raises StopIteration": raising(StopIteration()),
    "exits": raising(SystemExit(3)),
    "raises BaseException": raising(Own("no")),
    "counts": Counts,
    "busy": busy,
}


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """By their names, those whose first argument is a model and whose others can be made here."""
    found = {}
    for module in pkgutil.walk_packages(torchtheory.__path__, "torchtheory."):
        if any(part in module.name for part in (".labs", ".cli", "__main__", ".exported")):
            continue
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            full = f"{module.name}.{name}".removeprefix("torchtheory.")
            if name.startswith("_") or getattr(value, "__module__", None) != module.name:
                continue
            if not inspect.isfunction(value) or full.startswith(NOT_CALLED):
                continue
            first = next(iter(inspect.signature(value).parameters.values()), None)
            if first is None or first.name not in ("model", "network", "teacher", "gates"):
                continue
            if "nn.Module" in str(first.annotation) and arguments(value, nn.Linear(3, 2)):
                found[full] = value
    return found


def arguments(function: Callable[..., Any], model: Any, samples: int = 6) -> dict[str, Any]:
    """Arguments of a call with the model; empty where one cannot be made."""
    x, y = torch.rand(samples, 3), torch.arange(samples) % 2
    known: dict[str, Any] = {
        "x": x, "x1": x, "inputs": x, "centers": x, "probe": x, "example": x, "reference": x,
        "foreign": x.flip(0), "explanation": x.flip(0), "y": y, "labels": y, "targets": y,
        "data": (x, y), "train": (x, y), "test": (x, y), "population": (x, y), "batch": (x, y),
        "samples": Samples(x, y), "input_shape": (3,), "shape": (3,), "radius": 0.1, "gamma": 0.1,
        "share": 0.5, "shares": [0.5], "keep": 0.5, "drop": 0.5, "factor": 0.5, "fraction": 0.5,
        "weight_decay": 0.5, "attack": FGSM(0.1), "method": gradient_times_input, "seed": 0,
        "methods": {"g": gradient_times_input}, "candidates": {"a": None}, "group": "permutations",
        "loss": nn.CrossEntropyLoss(), "transforms": [lambda t: t + 0.01], "scheme": "he",
        "low": -1.0, "high": 1.0, "start": torch.zeros(3), "end": torch.ones(3),
        "corners": torch.eye(3), "student": nn.Linear(3, 2),
    }  # fmt: skip
    cheap: dict[str, Any] = {"epochs": 1, "prior_epochs": 1, "steps": 4, "max_queries": 20}
    known["initial"] = known["parameters"] = {k: p.detach() for k, p in named(model)}
    given = {}
    for k, parameter in enumerate(inspect.signature(function).parameters.values()):
        if k == 0:
            given[parameter.name] = model
        elif parameter.default is parameter.empty and parameter.kind not in (2, 4):
            if parameter.name not in known:
                return {}
            one_class = parameter.name == "y" and parameter.annotation == "int"
            given[parameter.name] = 0 if one_class else known[parameter.name]
        elif parameter.name in cheap and isinstance(parameter.default, int):
            given[parameter.name] = min(parameter.default, cheap[parameter.name])
    return given


def named(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters that have values; none of a model that cannot be asked."""
    try:
        found = list(model.named_parameters())
    except (AttributeError, RuntimeError):
        return
    yield from ((k, p) for k, p in found if not nn.parameter.is_lazy(p))


def process() -> dict[str, Any]:
    return {
        "torch's generator": torch.get_rng_state().tolist(),
        "numpy's generator": repr(np.random.get_state()),  # noqa: NPY002
        "Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "attention": torch.backends.mha.get_fastpath_enabled(),
    }


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """The first derivative makes torch import its compiler, which draws numbers."""
    torch.func.grad(torch.sin)(torch.ones(()))


def wrong(name: str, function: Callable[..., Any], model: Any, samples: int = 6) -> list[str]:
    """What a call did that it may not do."""
    given = arguments(function, model, samples)
    state = None
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        with suppress(TorchTheoryError):  # of what is no module
            state = ModelState(model)
    before, found = process(), []
    try:
        made = function(**given)
        if inspect.isgenerator(made):
            list(made)
    except TorchTheoryError:
        pass
    except BaseException as error:
        found.append(f"{name} raised {type(error).__name__}: {str(error)[:80]}")
    after = process()
    found += [f"{name} changed {k}" for k in before if before[k] != after[k]]
    torch.set_default_dtype(before["default dtype"])
    torch.set_grad_enabled(before["gradients"])
    if state is not None and name not in CHANGE_THE_MODEL:
        found += [f"{name} changed {part} of the model" for part in state.changes(model)]
    return found


@pytest.mark.parametrize("kind", ODD)
def test_odd_models_are_refused_in_a_sentence_and_left_as_they_were(kind: str) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in functions().items():
            torch.manual_seed(0)
            found += wrong(name, function, ODD[kind]())
    assert found == []


def test_no_sample_is_refused_in_a_sentence() -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in functions().items():
            torch.manual_seed(0)
            found += wrong(name, function, chain(), samples=0)
    assert found == []


def test_there_are_functions_to_try() -> None:
    assert len(functions()) > 120
    assert "nets.residual.jacobians.jacobian_profile" in functions()
    assert "kernels.tangent.kernel.empirical_ntk" in functions()
