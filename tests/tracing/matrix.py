"""What every analysis says of every architecture: `python -m tests.tracing.matrix` writes the page.

A cell is empty where the analysis works, else the reason in one sentence: an operation that has no
rule, or why the theory does not speak of such a network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.tracing.architectures import ALL_NAMES, Architecture, architecture
from torch import Tensor, nn

from torchtheory.convolution.receptive_fields import dependence
from torchtheory.core.errors import ModelRaised, TorchTheoryError
from torchtheory.equivariance.layers import equivariance_by_layer
from torchtheory.explanation.lrp import lrp
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.kernels.infinite.module_kernels import module_limit
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.problem import Problem
from torchtheory.nets.residual.jacobians import jacobian_profile
from torchtheory.nets.symmetries import hidden_layers
from torchtheory.robustness.bounds.output_bounds import output_bounds
from torchtheory.robustness.lipschitz.bound import bounds_about
from torchtheory.robustness.lipschitz.semidefinite import semidefinite_lipschitz
from torchtheory.tracing.chain import as_steps
from torchtheory.tracing.folding import fold_batch_norm
from torchtheory.tracing.recorder import record
from torchtheory.tracing.watching import watch_units
from torchtheory.training.backpropagation.chain import backpropagate
from torchtheory.training.signal_propagation import predict_signal_of


def _one_input(a: Architecture) -> Tensor:
    """What one input is: a row, or the whole table of a network whose rows are nodes."""
    return a.x[:1] if a.rows_are_samples else a.x[None]


def _output(a: Architecture) -> Any:
    return None if isinstance(a.model(a.x), Tensor) else "logits"


def _units(a: Architecture) -> Any:
    made = a.model(a.x)
    outputs = made if isinstance(made, Tensor) else made["logits"]
    problem = Problem(a.model, (a.x, torch.zeros_like(outputs)), output=_output(a))
    return watch_units(problem, problem.train)


def _path(a: Architecture) -> Any:
    return path_norms(a.model, _one_input(a).shape[1:])


def _pieces(a: Architecture) -> Any:
    x = _one_input(a)[0]
    return affine_pieces(a.model, x, x + 0.1)


class Logits(nn.Module):
    """One of several outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(x)["logits"]
        return outputs


def _alone(a: Architecture) -> nn.Module:
    return a.model if _output(a) is None else Logits(a.model)


def _first_entry(outputs: Tensor) -> Tensor:
    return outputs.flatten(1)[:, 0]


def _square(outputs: Tensor, _: None) -> Tensor:
    return outputs.square().sum()


#: By name: what is asked of an architecture.
ANALYSES: dict[str, Callable[[Architecture], Any]] = {
    "operations": lambda a: record(a.model, a.x),
    "layers": lambda a: as_steps(a.model, a.x),
    "folding": lambda a: fold_batch_norm(a.model, a.x),
    "units": _units,
    "relevance": lambda a: lrp(_alone(a), a.x, _first_entry),
    "Jacobians": lambda a: jacobian_profile(_alone(a), a.x),
    "backpropagation": lambda a: backpropagate(_alone(a), a.x, None, _square),
    "dependence": lambda a: dependence(a.model, _one_input(a)[0]),
    "equivariance": lambda a: equivariance_by_layer(
        a.model, "translations" if a.x.ndim == 4 else "permutations", a.x, output=_output(a)
    ),
    "tangent kernel": lambda a: empirical_ntk(_alone(a), a.x),
    "Lipschitz bound": lambda a: bounds_about(a.model, a.x, output=_output(a)).lipschitz(0.1),
    "semidefinite bound": lambda a: semidefinite_lipschitz(
        _alone(a), _one_input(a).shape[1:], steps=1
    ),
    "output bounds": lambda a: output_bounds(a.model, a.x, 0.01, output=_output(a)),
    "pieces": _pieces,
    "path norms": _path,
    "hidden layers": lambda a: hidden_layers(a.model),
    "infinite width": lambda a: module_limit(a.model, a.x),
    "predicted signals": lambda a: predict_signal_of(a.model, a.x),
}


def cell(analysis: str, name: str) -> str:
    """Empty if it works, else the reason."""
    a = architecture(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ANALYSES[analysis](a)
        except ModelRaised as error:
            return f"raised: {error}"
        except TorchTheoryError as error:
            return str(error)
        except Exception as error:
            return f"RAW {type(error).__name__}: {error}"
    return ""


PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

_HEAD = """# What works on which architecture

Every analysis that looks into a network, on small networks of many kinds (those of transformers and
PyTorch Geometric are theirs). A cross means that it works; otherwise the reason stands below: an
operation that has no rule, or why the theory does not speak of such a network. The page is made by
`python -m tests.tracing.matrix`.

"""


def page(cells: dict[str, dict[str, str]]) -> str:
    """The page of the documentation."""
    lines = [f"| architecture | {' | '.join(cells)} |", f"|---|{':-:|' * len(cells)}"]
    for name in ALL_NAMES:
        marks = " | ".join("" if cells[k][name] else "×" for k in cells)
        lines.append(f"| {name} | {marks} |")
    counts = " | ".join(str(sum(not r for r in row.values())) for row in cells.values())
    lines.append(f"| **of {len(ALL_NAMES)}** | {counts} |")
    for analysis, row in cells.items():
        reasons = [f"- {name}: {_plain(reason)}" for name, reason in row.items() if reason]
        if reasons:
            lines += ["", f"## {analysis[0].upper()}{analysis[1:]}", "", *reasons]
    return _HEAD + "\n".join(lines) + "\n"


def _plain(reason: str) -> str:
    """One sentence without what Markdown would take for its own."""
    short = reason if len(reason) <= 160 else f"{reason[:159]}…"
    return short.replace("*", "·").replace("<", "").replace("|", "/")


def main() -> None:
    """Write the page, and print how many of each work."""
    cells = {k: {name: cell(k, name) for name in ALL_NAMES} for k in ANALYSES}
    PAGE.write_text(page(cells))
    for analysis, row in cells.items():
        print(f"{analysis}: {sum(not r for r in row.values())} of {len(row)}")


if __name__ == "__main__":
    main()
