"""Audits of a user's model, and what changed between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory.cli.audit import TaskChoice
from torchtheory.models.targets import TASKS

from .calls import MODEL, Call, refused, write_problem


def test_audit_of_a_users_model(call: Call) -> None:
    write_problem()
    outcome = call(*MODEL, "--weights", "weights.safetensors", "--json", "--out", "o")
    assert outcome.code == 0, outcome.err
    data = outcome.json
    assert data["title"] == "zz_cli_models:make"
    assert {f["name"] for f in data["findings"]} >= {"risk", "curvature", "lipschitz"}
    written = {p.name for p in Path("o").iterdir()}
    assert written == {"report.html", "report.md", "audit.json", "figures"}
    kept = json.loads(Path("o/audit.json").read_text("utf-8"))
    assert kept == {"made_by": "torchtheory audit", **data}
    text = call(*MODEL, "--only", "layers", "--only", "margins", "--out", "o")
    assert text.code == 0
    assert "report: o" in text.out
    first, second = (call(*MODEL, "--only", "risk", "--seed", "3", "--json").json for _ in "ab")
    assert [f["tables"] for f in first["findings"]] == [f["tables"] for f in second["findings"]]


def test_task_and_loss_by_name(call: Call) -> None:
    counts = np.random.default_rng(0).poisson(2.0, size=(40, 2)).astype(np.float32)
    write_problem(y_train=counts, x_test=np.zeros((9, 3), np.float32), y_test=counts[:9])
    for arguments in (
        ["--task", "count"],
        ["--loss", "poisson"],
        ["--loss", "torch.nn:PoissonNLLLoss"],
    ):
        facts = call(*MODEL, "--only", "layers", "--json", *arguments).json["facts"]
        assert facts["task"] == "counts"
    facts = call(*MODEL, "--only", "layers", "--json", "--loss", "absolute").json["facts"]
    assert facts["task"] == "regression, 2 numbers"
    assert facts["loss"] == "yours, L1Loss"


def test_audit_of_the_example_keeps_the_limit(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtheory.audit.example.EPOCHS", 1)
    data = call("audit", "--only", "layers", "--limit", "50", "--json").json
    assert data["facts"]["samples"] == "1,348 train, 449 test"
    assert data["facts"]["sub-sampled"].startswith("50 of 1348 train samples, drawn at random")


def test_an_interrupt_of_the_audit(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    example = (nn.ReLU(), None, None, None)
    monkeypatch.setattr("torchtheory.audit.example.digits_example", lambda seed: example)
    monkeypatch.setattr("torchtheory.audit.engine.audit.audit", interrupted)
    outcome = call("audit")
    assert outcome.code == 130
    assert outcome.err == "torchtheory: interrupted; what was finished before is kept\n"


def test_audit_exit_code_one(call: Call) -> None:
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    write_problem(x_test=x, y_test=(np.arange(400) < 200).astype(np.int64))
    Path("zz_cli_models.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    net = nn.Linear(3, 2)\n"
        "    net.weight.data.zero_(); net.bias.data = torch.tensor([0., 1.])\n    return net\n"
    )
    assert call(*MODEL, "--only", "risk").code == 1


@pytest.mark.parametrize(
    ("arguments", "arrays", "sentence"),
    [
        (["--data", "none.npz"], {}, "there is no file none.npz"),
        (["--data", "x" * 5000 + ".npz"], {}, "cannot read"),
        (["--data", "corrupted.npz"], {}, "not a readable .npz file"),
        (["--data", "weights.safetensors"], {}, "and weights.safetensors is none of them"),
        (["--budget", "soon"], {}, "a time must be positive, such as '90s'"),
        (["--memory", "much"], {}, "memory must be a number of bytes"),
        (["--learning-rate", "-1"], {}, "learning_rate must be a positive number"),
        (["--output", "scores"], {}, "no output 'scores'"),
        (["--output", "²"], {}, "no output '²'"),
        (["--output", "9" * 5000], {}, "no output '999"),
        (["--out", "o" * 300], {}, "ooo: File name too long"),
        ([], {"x_train": np.zeros((40, 7), np.float32)}, "test inputs"),
        ([], {"x_train": np.zeros((39, 3))}, "the train data has 39 inputs but 40 targets"),
        ([], {"x_test": np.full((9, 3), np.nan)}, "the test inputs contain NaN or infinity"),
        ([], {"y_train": np.full(40, 5)}, "labels must lie in 0..1"),
        ([], {"y_train": np.array(["a"] * 40)}, "not numbers"),
        ([], {"y_train": np.array([object()] * 40)}, "not a readable .npz file of numbers"),
        ([], {"x_train": np.zeros((0, 3)), "y_train": np.zeros(0)}, "the train data is empty"),
        (
            [],
            {"x_train": np.zeros((40, 7)), "x_test": np.zeros((9, 7))},
            "the model raised RuntimeError on inputs of shape [8, 7]",
        ),
        (["--weights", "none.pt"], {}, "there is no file none.pt"),
        (["--weights", "corrupted.safetensors"], {}, "not a readable safetensors file"),
        (["--weights", "other.safetensors"], {}, "does not fit the model"),
        (["--weights", "data.npz"], {}, "must be a .safetensors, .pt or .pth file"),
        (["--weights", "pickle.pt"], {}, "pickled models can run code and are refused"),
        (["--model", "zz_cli_models:raises"], {}, "raised RuntimeError: no model"),
        (["--model", "zz_cli_models:leaves"], {}, "raised SystemExit"),
        (["--model", "zz_cli_models:nothing"], {}, "has no 'nothing'"),
        (["--model", "zz_nothing:make"], {}, "cannot import zz_nothing"),
        (["--model", "make"], {}, "package.module:factory"),
        (["--only", "risks"], {}, "did you mean 'risk'"),
        (["--confidence", "2"], {}, "confidence must lie strictly between 0 and 1"),
        (["--task", "clustering"], {}, "--task"),
        (["--task", "binary"], {}, "one logit per sample"),
        (["--loss", "hinge"], {}, "no loss is named 'hinge'"),
        (["--loss", "math:tau"], {}, "math:tau is a float, and a loss is called"),
        (["--loss", "zz_nothing:loss"], {}, "cannot import zz_nothing"),
        (["--limit", "0"], {}, "--limit"),
        (["--seed", "99999999999999999999"], {}, "seed"),
        (["--out", "file"], {}, "cannot write to file"),
    ],
)
def test_audit_refuses(
    call: Call, arguments: list[str], arrays: dict[str, Any], sentence: str
) -> None:
    write_problem(**arrays)
    Path("file").write_text("")
    for name in ("corrupted.npz", "corrupted.safetensors"):
        Path(name).write_bytes(b"corrupted")
    save_file({"weight": torch.zeros(1)}, "other.safetensors")
    torch.save(nn.Linear(3, 2), "pickle.pt")
    assert sentence in refused(call(*MODEL, "--only", "layers", *arguments))


def test_more_memory_than_there_is(call: Call) -> None:
    write_problem()
    for amount in ("9" * 400 + "TiB", "9" * 30 + "B"):
        assert call(*MODEL, "--only", "layers", "--memory", amount).code == 0


def test_a_directory_that_cannot_be_written_to_is_refused_before_the_work(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problem()
    Path("file").write_text("")
    monkeypatch.setattr("torchtheory.models.loading.load_model", None)
    assert "cannot write to file" in refused(call(*MODEL, "--out", "file"))
    assert "cannot write to file/b" in refused(call("compare", "a", "b", "--out", "file/b"))
    assert not Path("torchtheory-audit").exists()


def test_audit_options_that_do_not_go_together(call: Call) -> None:
    assert "--model needs --data" in refused(call("audit", "--model", "a:b"))
    assert "there is no file a.pt" in refused(call("audit", "--weights", "a.pt"))
    assert "--data goes with --model" in refused(call("audit", "--weights", "a.pt", "--data", "b"))


def test_every_task_can_be_asked_for() -> None:
    assert [choice.value for choice in TaskChoice] == list(TASKS)


def test_compare_two_checkpoints(call: Call) -> None:
    write_problem()
    for seed, out in (("0", "before"), ("1", "after")):
        call(*MODEL, "--only", "risk", "--only", "layers", "--seed", seed, "--out", out)
    outcome = call("compare", "before", "after/audit.json", "--out", "c", "--json")
    assert outcome.code == 0, outcome.err
    assert {q["name"] for q in outcome.json["quantities"]} >= {"test-error", "parameters"}
    written = {p.name for p in Path("c").iterdir()}
    assert written == {"comparison.html", "comparison.md", "comparison.json"}
    assert "report: c" in call("compare", "before", "after", "--out", "c").out
    assert "no-such" in refused(call("compare", "before", "no-such"))


def test_a_factory_that_was_called_here_is_not_accused_of_its_mode(call: Call) -> None:
    """Nobody but the command could have called eval() on what the command made."""
    write_problem()
    with Path("zz_cli_models.py").open("a") as file:
        file.write("def noisy():\n    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))\n")
        file.write("ready = noisy()\n")
    name = ["audit", "--data", "data.npz", "--only", "training-mode", "--json", "--model"]
    (made,) = call(*name, "zz_cli_models:noisy").json["findings"]
    assert made["assessments"] == []
    assert [q["value"] for q in made["quantities"]] == [0]
    (found,) = call(*name, "zz_cli_models:ready").json["findings"]  # it was left like that
    assert [a["state"] for a in found["assessments"]] == ["look here"]
