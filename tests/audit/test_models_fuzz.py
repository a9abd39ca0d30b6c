"""Generated models of every kind: no traceback, no false alarm, and nothing is changed.

A model is drawn from its seed: layers for the kind of input, then some of the things that people
do to modules. The audit and the functions that take a module run it, and whatever it writes while
it runs (its own attributes, an embedding's rows, the generators of the process) must not stay.
"""

from __future__ import annotations

import copy
import json
import os
import random
import threading
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import torchtheory as tt
from torchtheory.audit.engine import finding as registry
from torchtheory.audit.engine.finding import all_findings
from torchtheory.core.budget import within
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.record import Record
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.linearization import linearize
from torchtheory.models.model import PureFunction
from torchtheory.models.problem import Problem
from torchtheory.nets.homogeneity import measure_homogeneity
from torchtheory.nets.normalization import fold_batch_norm
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.robustness.lipschitz.layers import layer_norms
from torchtheory.tracing.chain import as_chain
from torchtheory.tracing.layer_features import layer_values
from torchtheory.tracing.layer_results import layer_outputs
from torchtheory.training.losses.distillation import teacher_outputs
from torchtheory.training.regularizers.augmentation import invariance_gap
from torchtheory.training.regularizers.darc import output_size

SEEDS = range(120)
SAMPLES = 10
VARIABLE = "TORCHTHEORY_FUZZ"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and is tested elsewhere."""
    monkeypatch.setattr(Record, "figure", lambda *_, **__: None)
    monkeypatch.setattr(registry, "_FINDINGS", dict(all_findings()))
    monkeypatch.setenv(VARIABLE, "0")  # and whatever a model sets it to is forgotten


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """The first derivative makes torch import its compiler, which sets a variable and a filter."""
    torch.func.grad(torch.sin)(torch.ones(()))


# --------------------------------------------------------------------------------- the models


@dataclass
class Case:
    """A model with data, and what is odd about it."""

    model: nn.Module
    x: Tensor
    y: Tensor
    oddities: list[str]

    def __str__(self) -> str:
        return f"{self.model}\non {list(self.x.shape)} {self.x.dtype}: {', '.join(self.oddities)}"


class Pooled(nn.Module):
    """Runs a recurrent or attention layer and averages over time."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        attends = isinstance(self.inner, nn.MultiheadAttention)
        out = self.inner(x, x, x) if attends else self.inner(x)
        pooled: Tensor = (out[0] if isinstance(out, tuple) else out).mean(1)
        return pooled


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.tanh(self.inner(x))
        return out


class Listed(nn.Module):
    """Layers in a ModuleList and a ModuleDict, applied in a loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.ends = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        for step, end in zip(self.steps, self.ends.values(), strict=True):
            x = end(step(x))
        return x


class InPlace(nn.Module):
    """Writes to what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        x.mul_(0.5).add_(0.1)
        return F.relu_(x)


class ByHand(nn.Module):
    """A layer without `nn.Linear`, with a parameter of no dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight) * self.scale.exp()


def vector_body(draw: random.Random) -> tuple[list[nn.Module], Tensor, int]:
    inputs, width = draw.randint(1, 4), draw.randint(2, 4)
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(draw.randint(0, 2)):
        layers += draw.choice(
            [
                lambda: [nn.ReLU(inplace=draw.random() < 0.5), nn.Linear(width, width)],
                lambda: [nn.Tanh(), nn.Linear(width, width, bias=False)],
                lambda: [nn.BatchNorm1d(width), nn.GELU()],
                lambda: [nn.LayerNorm(width), nn.SiLU()],
                lambda: [nn.BatchNorm1d(width, track_running_stats=False), nn.ReLU()],
                lambda: [nn.Dropout(0.5), nn.PReLU()],
                lambda: [Residual(width)],
                lambda: [Listed(width)],
                lambda: [InPlace()],
                lambda: [ByHand(width)],
                lambda: [nn.Softmax(-1)],
                lambda: [nn.LeakyReLU(), nn.Unflatten(1, (1, width)), nn.Flatten()],
            ]
        )()
    return layers, torch.randn(SAMPLES, inputs), width


def image_body(draw: random.Random) -> tuple[list[nn.Module], Tensor, int]:
    channels, width = draw.randint(1, 2), draw.randint(2, 3)
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
    layers += draw.choice([[], [nn.BatchNorm2d(width)], [nn.GroupNorm(1, width)]])
    layers += [nn.ReLU(), draw.choice([nn.MaxPool2d(2), nn.AvgPool2d(2)])]
    if draw.random() < 0.5:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return layers, torch.randn(SAMPLES, channels, 4, 4), width
    return [*layers, nn.Flatten()], torch.randn(SAMPLES, channels, 4, 4), 4 * width


def sequence_body(draw: random.Random) -> tuple[list[nn.Module], Tensor, int]:
    inner = draw.choice(
        [
            lambda: nn.LSTM(2, 3, batch_first=True),
            lambda: nn.GRU(2, 4, batch_first=True, bidirectional=True),
            lambda: nn.RNN(2, 3, batch_first=True, num_layers=2, dropout=0.1),
            lambda: nn.MultiheadAttention(2, 1, batch_first=True),
            lambda: nn.TransformerEncoderLayer(2, 1, 4, batch_first=True),
        ]
    )()
    width = {nn.LSTM: 3, nn.GRU: 8, nn.RNN: 3}.get(type(inner), 2)
    return [Pooled(inner)], torch.randn(SAMPLES, 3, 2), width


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def token_body(draw: random.Random) -> tuple[list[nn.Module], Tensor, int]:
    limit = draw.choice([None, 0.3, 1.0])
    if draw.random() < 0.4:
        layers: list[nn.Module] = [nn.EmbeddingBag(7, 3, max_norm=limit)]
    else:
        often = draw.random() < 0.3
        layers = [nn.Embedding(7, 3, max_norm=limit, scale_grad_by_freq=often), Mean()]
    return layers, torch.randint(0, 7, (SAMPLES, 4)), 3


class Counted:
    """Not a module, a tensor or a container."""

    def __init__(self) -> None:
        self.n = 0


class Wrapped(nn.Module):
    """A network that does something besides its work whenever it runs."""

    def __init__(self, net: nn.Module, act: Callable[[Wrapped, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.net = net
        self.act = act
        self.calls, self.seen, self.deep = 0, [], {"inside": [[]]}  # type: ignore[var-annotated]
        self.counted = Counted()
        self.loose = torch.zeros(2)
        self.array = np.zeros(2)
        self.cache: Tensor | None = None
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        out = self.act(self, x)
        return self.net(x) if out is None else out


def first_weight(module: nn.Module) -> Tensor:
    return next(p for p in module.parameters() if p.ndim)


def counts(self: Wrapped, x: Tensor) -> None:
    self.calls += 1
    self.seen.append(len(x))
    self.deep["inside"][0].append(self.calls)
    self.counted.n += 1
    self.total += 1
    self.loose += 1
    self.array += 1


def caches(self: Wrapped, x: Tensor) -> Tensor:
    self.cache = self.net(x)
    self.seen.append(self.cache)
    return self.cache


def builds(self: Wrapped, x: Tensor) -> None:
    self.extra = nn.Linear(2, 2)
    self.register_parameter("late", nn.Parameter(torch.ones(1)))
    self.register_buffer("later", torch.ones(1))


def freezes(self: Wrapped, x: Tensor) -> None:
    for p in self.parameters():
        if p.is_leaf:
            p.requires_grad_(False)


def clips(self: Wrapped, x: Tensor) -> None:
    first_weight(self).data.clamp_(-0.05, 0.05)


def draws(self: Wrapped, x: Tensor) -> Tensor:
    noise = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
    out: Tensor = self.net(x) * (1 + 0.01 * noise)
    return out


def seeds(self: Wrapped, x: Tensor) -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002


def hooks(self: Wrapped, x: Tensor) -> None:
    self.net.register_forward_hook(lambda *_: None)


def switches(self: Wrapped, x: Tensor) -> None:
    self.train()
    self.net.training = True


def sets(self: Wrapped, x: Tensor) -> None:
    os.environ[VARIABLE] = "1"
    warnings.simplefilter("ignore", FutureWarning)


def raises(self: Wrapped, x: Tensor) -> None:
    self.calls += 1
    if len(x) > 3:
        raise ZeroDivisionError("no more than three")


def exits(self: Wrapped, x: Tensor) -> None:
    self.calls += 1
    raise SystemExit(0)


def pairs(self: Wrapped, x: Tensor) -> Any:
    return self.net(x), None


def names(self: Wrapped, x: Tensor) -> Any:
    return {"logits": self.net(x), "inputs": x}


def detaches(self: Wrapped, x: Tensor) -> Tensor:
    out: Tensor = self.net(x).detach()
    return out


ACTS = [counts, caches, builds, freezes, clips, draws, seeds, hooks, switches, sets, raises, exits,
        pairs, names, detaches]  # fmt: skip


class Hostile(nn.Module):
    """Raises where nobody should look."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getattr__(self, name: str) -> Any:
        if name in ("net", "forward", "training"):
            return super().__getattr__(name)
        raise RuntimeError(f"no {name}")

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


def linears(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m) in (nn.Linear, nn.Conv2d)]


def parametrize(model: nn.Module, draw: random.Random) -> nn.Module:
    for layer in linears(model)[:1]:
        draw.choice(
            [
                parametrizations.weight_norm,
                parametrizations.spectral_norm,
                nn.utils.spectral_norm,
                lambda m: prune.l1_unstructured(m, "weight", amount=0.3),
            ]
        )(layer)
    return model


def share(model: nn.Module, draw: random.Random) -> nn.Module:
    found = linears(model)
    for one in found:
        for other in found:
            if one is not other and one.weight.shape == other.weight.shape:
                other.weight = one.weight
    return model


def freeze(model: nn.Module, draw: random.Random) -> nn.Module:
    for p in model.parameters():
        p.requires_grad_(draw.random() < 0.5)
    return model


def with_gradients(model: nn.Module, draw: random.Random) -> nn.Module:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    return model


def with_hooks(model: nn.Module, draw: random.Random) -> nn.Module:
    for m in model.modules():
        m.register_forward_hook(lambda *_: None)
        m.register_forward_pre_hook(lambda *_: None)
    return model


def uncopyable(model: nn.Module, draw: random.Random) -> nn.Module:
    model.lock = threading.Lock()  # type: ignore[assignment]
    return model


def patched(model: nn.Module, draw: random.Random) -> nn.Module:
    original = model.forward
    if draw.random() < 0.5:
        model.forward = lambda *args: original(*args)  # type: ignore[method-assign]
    else:
        model.forward = types.MethodType(type(model).forward, model)  # type: ignore[method-assign]
    return model


def scripted(model: nn.Module, draw: random.Random) -> nn.Module:
    try:
        return torch.jit.script(model)
    except Exception:  # not every model can be
        return model


def half(model: nn.Module, draw: random.Random) -> nn.Module:
    return model.bfloat16()


def double(model: nn.Module, draw: random.Random) -> nn.Module:
    return model.double()


def acting(model: nn.Module, draw: random.Random) -> nn.Module:
    return Wrapped(model, draw.choice(ACTS))


def twice_acting(model: nn.Module, draw: random.Random) -> nn.Module:
    return Wrapped(Wrapped(model, draw.choice(ACTS)), draw.choice(ACTS))


def hostile(model: nn.Module, draw: random.Random) -> nn.Module:
    return Hostile(model)


def training(model: nn.Module, draw: random.Random) -> nn.Module:
    for m in model.modules():
        m.training = draw.random() < 0.5
    return model


ODDITIES = [parametrize, share, freeze, with_gradients, with_hooks, uncopyable, patched, double,
            half, scripted, acting, acting, acting, twice_acting, hostile, training]  # fmt: skip


def drawn(seed: int) -> Case:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    body = draw.choice([vector_body, vector_body, image_body, sequence_body, token_body])
    layers, x, width = body(draw)
    outputs = draw.choice([1, 1, 3])
    model: nn.Module = nn.Sequential(*layers, nn.Linear(width, outputs))
    chosen = draw.sample(ODDITIES, draw.randint(0, 2))
    chosen.sort(key=lambda change: change is scripted)  # a compiled model takes no more changes
    for change in chosen:
        model = change(model, draw)
    y = torch.arange(SAMPLES) % 3 if outputs == 3 else torch.randn(SAMPLES, 1)
    if outputs == 1 and draw.random() < 0.5:
        y = (torch.arange(SAMPLES) % 2).float()
    return Case(model, x, y, [change.__name__ for change in chosen])


# --------------------------------------------------------------------------- what may not change


def plain(value: Any) -> Any:
    """Numbers and containers that can be compared, of whatever a module holds."""
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8)
        grad = plain(value.grad) if value.is_leaf else None
        return id(value), value.data_ptr(), value.requires_grad, bits.numpy().tobytes(), grad
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes()
    if isinstance(value, dict):
        return id(value), [(k, plain(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return id(value), [plain(v) for v in value]
    if isinstance(value, Counted):
        return value.n
    return copy.copy(value) if isinstance(value, int | float | str | set) else id(value)


def everything(model: nn.Module) -> Any:
    """The model with all that its modules hold, and the state of the process."""
    modules = [
        (name, id(m), {k: plain(v) for k, v in vars(m).items()})
        for name, m in model.named_modules(remove_duplicate=False)
    ]
    parameters = [(k, plain(p)) for k, p in model.named_parameters()]
    process = {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "filters": list(warnings.filters),
        "environment": dict(os.environ),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }
    return modules, parameters, process


def difference(before: Any, after: Any) -> str:
    if before[2] != after[2]:
        return f"the process: {[k for k in before[2] if before[2][k] != after[2][k]]}"
    if before[1] != after[1]:
        return f"parameters: {[a[0] for a, b in zip(before[1], after[1]) if a != b]}"  # noqa: B905
    if before[0] != after[0]:
        found = []
        for (name, _, own), (_, _, now) in zip(before[0], after[0]):  # noqa: B905
            found += [f"{name}.{k}" for k in {**own, **now} if own.get(k) != now.get(k)]
        return f"attributes: {found or 'modules'}"
    return ""


# ----------------------------------------------------------------------------------- the suite


#: What an uncopyable model, which is run itself, may keep: what lies inside its objects.
def excused(case: Case) -> bool:
    return "uncopyable" in case.oddities or "patched" in case.oddities


def audited(case: Case, seed: int) -> tt.audit.Audit | None:
    """The report, or None where the model is refused in one line."""
    try:
        return tt.audit(case.model, (case.x, case.y), budget=BUDGET, seed=seed)
    except TorchTheoryError as error:
        refusal = str(error)
    assert "\n" not in refusal, refusal
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_audit_of_a_generated_model(seed: int) -> None:
    case = drawn(seed)
    before = everything(case.model)
    report = audited(case, seed)
    changed = difference(before, everything(case.model))
    assert changed == "" or excused(case), f"{changed} of {case}"
    if report is None:
        return
    wrong = [(c.statement, c.measured, c.promised) for c in report.violated]
    assert wrong == [], f"{wrong} of {case}"
    assert ("model changed" in report.facts) == (changed != ""), f"{changed} of {case}"
    json.dumps(report.to_json(), allow_nan=False)
    for finding in report.findings:
        for reason in [c.reason for c in finding.claims if c.verdict is Verdict.NOT_APPLICABLE]:
            raised = "ZeroDivisionError" in reason
            assert raised or "could not be computed" not in reason, (
                f"{finding.name}: {reason}\n{case}"
            )


BUDGET = 1.0

Entry = Callable[[Case], Any]
ENTRIES: dict[str, Entry] = {
    "chain": lambda c: as_chain(c.model),
    "fold": lambda c: fold_batch_norm(c.model),
    "outputs": lambda c: layer_outputs(c.model, c.x),
    "values": lambda c: layer_values(c.model, c.x),
    "norms": lambda c: layer_norms(c.model, c.x.shape[1:]),
    "homogeneity": lambda c: measure_homogeneity(c.model, c.x),
    "tangent kernel": lambda c: empirical_ntk(c.model, c.x[:3]),
    "linearize": lambda c: linearize(c.model)(c.x[:3]),
    "gradient": lambda c: (lambda p: gradient(p, p.train))(Problem(c.model, (c.x, c.y))),
    "invariance": lambda c: invariance_gap(c.model, c.x, [lambda x: x.flip(0)]),
    "size": lambda c: output_size(c.model, c.x),
    "teacher": lambda c: teacher_outputs(c.model, c.x),
}  # fmt: skip


def settings_aside(state: Any) -> Any:
    """Without what only the audit puts back: settings of the process that a forward pass makes."""
    modules, parameters, process = state
    kept = {k: v for k, v in process.items() if k not in ("filters", "environment")}
    return modules, parameters, kept


@pytest.mark.parametrize("seed", SEEDS)
def test_functions_that_take_a_model_leave_it(seed: int) -> None:
    case = drawn(seed)
    before = settings_aside(everything(case.model))
    for name in random.Random(seed).sample(sorted(ENTRIES), 3):
        raised = None
        try:
            with within(5.0):
                ENTRIES[name](case)
        except Exception as error:
            raised = error  # what the model raises is passed on
        ours = isinstance(raised, AssertionError | AttributeError | KeyError | IndexError)
        assert not ours, f"{name} raised {raised!r} for {case}"
        changed = difference(before, settings_aside(everything(case.model)))
        assert changed == "" or excused(case), f"{name} changed {changed} of {case}"


def test_a_function_of_a_model_that_writes_is_pure() -> None:
    net = nn.Embedding(5, 3, max_norm=0.5)
    f, ids = PureFunction(net), torch.arange(5)
    theta = {k: 3 * p for k, p in f.parameters.items()}
    kept = theta["weight"].clone()
    assert torch.equal(f(theta, ids), f(theta, ids))
    assert torch.equal(theta["weight"], kept)
