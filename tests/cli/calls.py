"""What the tests of the commands share: an outcome, labs and a problem made by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory.labs.engine import registry as labs_module
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(name)

        return json.loads(self.out, parse_constant=refuse)


Call = Callable[..., Outcome]


def refused(outcome: Outcome) -> str:
    """Exit code 2, one sentence on stderr, nothing on stdout."""
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("torchtheory: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    return outcome.err


def good(run: Run, size: int = 2) -> None:
    """What is claimed: [a, b] is kept, [/x] as well."""
    says = run.states("N-08", r"x \le 1")
    says.at_most(run.rand(size), 1)
    says.fails("b", 2)


def false(run: Run) -> None:
    says = run.states("N-08", "x")
    says.at_most(3, 1)
    says.fails("b", 2)


def raises(run: Run) -> None:
    raise RuntimeError("many\nlines")


def interrupted(run: Run) -> None:
    raise KeyboardInterrupt


def forget_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no labs, neither registered nor in the package."""
    monkeypatch.setattr(labs_module, "_LABS", {})
    monkeypatch.setattr(labs_module, "_shipped", dict)


def register(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., object]) -> None:
    """These are all the labs there are."""
    forget_labs(monkeypatch)
    for function in functions:
        title = "The interval [a, b] and [/x]"
        lab(f"zz-{function.__name__}", room="nets", covers=["N-08"], title=title)(function)


def write_problem(**arrays: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(
        "data.npz", **({"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]} | arrays)
    )
    Path("zz_cli_models.py").write_text(
        "import sys\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))\n"
        "def raises():\n    raise RuntimeError('no\\nmodel')\n"
        "def leaves():\n    sys.exit(0)\n"
    )
    sys.modules.pop("zz_cli_models", None)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    save_file(net.state_dict(), "weights.safetensors")


MODEL = ["audit", "--model", "zz_cli_models:make", "--data", "data.npz"]
