"""The columns of Table 1 on MNIST: as printed, made anew, and kept from one run to the next."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.outputs import write_outputs
from torchtheory.data.image_sets import load_image_set
from torchtheory.generalization import pac_bayes
from torchtheory.generalization.pac_bayes.certification import risk_certificate
from torchtheory.models.samples import Samples
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.history import History
from torchtheory.training.loop.trainer import fit

SAMPLES = 55_000
DELTA, DELTA_DRAWS = 0.025, 0.01
PRIOR_EPOCHS = 12
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of Table 1 as it is printed, or one of ours (with nothing printed)."""

    hidden: tuple[int, ...]
    labels: str = "true"
    prior: str = "init"
    classes: int = 2
    train: float = math.nan
    test: float = math.nan
    snn_train: float = math.nan
    snn_test: float = math.nan
    bound: float = math.nan
    kl: float = math.nan
    thousands: int = 0
    warm_up: float = 0.0  # ours: where the natural steps are too long at first


COLUMNS = {
    "T-600": Column((600,), "true", "init", 2, 0.001, 0.018, 0.028, 0.034, 0.161, 5144, 471),
    "T-1200": Column((1200,), "true", "init", 2, 0.002, 0.018, 0.027, 0.035, 0.179, 5977, 943),
    "T-300-300": Column((300,) * 2, "true", "init", 2, 0.0, 0.015, 0.027, 0.034, 0.170, 5791, 326, 0.2),
    "T-600-600": Column((600,) * 2, "true", "init", 2, 0.0, 0.016, 0.028, 0.033, 0.186, 6534, 832, 0.2),
    "T-1200-1200": Column((1200,) * 2, "true", "init", 2, 0.0, 0.015, 0.029, 0.035, 0.223, 8558, 2384),
    "T-600-600-600": Column((600,) * 3, "true", "init", 2, 0.0, 0.013, 0.027, 0.032, 0.201, 7861, 1193),
    "R-600": Column((600,), "random", "init", 2, 0.007, 0.508, 0.112, 0.503, 1.352, 201131, 472),
    "D-600": Column((600,), "true", "data", 2),
    "D-600-ten": Column((600,), "true", "data", 10),
}
PRINTED = [name for name, column in COLUMNS.items() if column.kl == column.kl]
TRUE = [name for name in PRINTED if COLUMNS[name].labels == "true"]


def make_column(
    data: tuple[Pair, Pair] | None,
    name: str,
    *,
    epochs: int,
    sgd_epochs: int,
    batch: int,
    seed: int,
) -> dict[str, Any]:
    """One column made anew, as plain numbers."""
    assert data is not None
    started = time.perf_counter()
    c = COLUMNS[name]
    (x, y), (test_x, test_y) = data
    generator = torch.Generator().manual_seed(seed)
    if c.classes == 2:
        y, test_y = (y >= 5).long(), (test_y >= 5).long()
    if c.labels == "random":
        y = torch.randint(0, 2, y.shape, generator=generator)
        test_y = torch.randint(0, 2, test_y.shape, generator=generator)
    outputs = 1 if c.classes == 2 else c.classes
    initial = truncated_network((784, *c.hidden, outputs), generator)
    common: dict[str, Any] = {
        "test": (test_x, test_y),
        "delta": DELTA,
        "delta_draws": DELTA_DRAWS,
        "passes": 8,
        "seed": seed,
    }
    errors: dict[str, float | None]
    if c.prior == "init":
        net, early = copy.deepcopy(initial), copy.deepcopy(initial)

        def snapshot(model: nn.Module, history: History) -> None:
            if len(history.train_losses) == 1:
                early.load_state_dict(model.state_dict())

        fit(
            net,
            (x, y),
            epochs=sgd_epochs,
            batch_size=100,
            optimizer="momentum",
            learning_rate=0.01,
            seed=seed,
            callbacks=[snapshot],
        )
        errors = {"train_error": _error(net, x, y), "test_error": _error(net, test_x, test_y)}
        # the prior is the untrained network, the posterior starts from one epoch of training
        certificate = risk_certificate(
            early,
            (x, y),
            prior=initial,
            prior_data=(),
            epochs=epochs,
            batch_size=batch,
            start_spread=0.3,
            learning_rate=1e-2,
            variance_rate=2e-2,
            noise="local",
            natural=True,
            variance_every=2,
            warm_up=c.warm_up,
            **common,
        )
    else:
        certificate = risk_certificate(initial, (x, y), prior="data", prior_epochs=PRIOR_EPOCHS, epochs=2, **common)
        errors = {"train_error": certificate.deterministic_error, "test_error": None}
    result = certificate.to_json()
    result["history"] = result["history"][-1:]
    return {
        "column": name,
        **errors,
        "parameters": sum(p.numel() for p in initial.parameters()),
        "epochs": len(certificate.history),
        "seconds": time.perf_counter() - started,
        "certificate": result,
    }


def truncated_network(widths: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """Dziugaite and Roy's initialization: normal weights of deviation 0.04 cut at two of them,
    the first layer's biases 0.1, the others 0."""
    net = mlp(widths, dtype=torch.float32)
    with torch.no_grad():
        for i, layer in enumerate(m for m in net if isinstance(m, nn.Linear)):
            nn.init.trunc_normal_(layer.weight, std=0.04, a=-0.08, b=0.08, generator=generator)
            layer.bias.fill_(0.1 if i == 0 else 0.0)
    return net


@torch.no_grad()
def _error(net: nn.Module, x: Tensor, y: Tensor) -> float:
    parts = [pac_bayes.mistakes(net(a), b) for a, b in Samples(x, y).chunks(5000)]
    return float(torch.cat(parts).double().mean())


def mnist() -> tuple[Pair, Pair]:
    """Training and test digits in [0, 1]."""
    (x, y), (test_x, test_y) = load_image_set("mnist")
    flat = [v.reshape(len(v), -1).float() / 255 for v in (x[:SAMPLES], test_x)]
    return (flat[0], y[:SAMPLES]), (flat[1], test_y)


def kept_column(directory: str, name: str, settings: dict[str, int], data: tuple[Pair, Pair] | None) -> dict[str, Any]:
    """A column as the same code and settings have made it before, else made now and kept."""
    if not directory:
        return make_column(data, name, **settings)
    place = Path(directory) / f"{name}-{_fingerprint(settings)}.json"
    try:
        found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        pass
    result = make_column(data, name, **settings)
    record = {"made_by": "torchtheory column", **result}
    write_outputs(directory, {place.name: json.dumps(record, indent=1)})
    return result


def _fingerprint(settings: dict[str, int]) -> str:
    """Of the settings and of the code a column's numbers follow from."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    sources = [Path(__file__), *sorted(Path(pac_bayes.__file__).parent.glob("*.py"))]
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
