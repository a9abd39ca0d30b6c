"""Models and weights from outside: named code runs, files never do."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.core.loading import existing_file, load_model, load_weights

MODULE = """
import torch
from torch import nn

def make():
    return nn.Linear(3, 2)

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 2))

    @classmethod
    def small(cls):
        return cls()

ready = nn.ReLU()
number = 3

def raises():
    raise RuntimeError("no\\nweights")

def needs(argument):
    return nn.ReLU()

def returns_text():
    return "a model"

def leaves():
    raise SystemExit(0)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "zz_models.py").write_text(MODULE)
    (tmp_path / "zz_broken.py").write_text("def make(:")
    (tmp_path / "zz_script.py").write_text("import sys; sys.exit('usage: zz')")
    (tmp_path / "zz_needs.py").write_text("import zz_no_such_package")
    yield_names = ("zz_models", "zz_broken", "zz_script", "zz_needs")
    for name in yield_names:
        sys.modules.pop(name, None)
    return tmp_path


def test_functions_classes_methods_and_modules(here: Path) -> None:
    assert isinstance(load_model("zz_models:make"), nn.Linear)
    assert type(load_model("zz_models:Net")).__name__ == "Net"
    assert type(load_model("zz_models:Net.small")).__name__ == "Net"
    assert isinstance(load_model("zz_models:ready"), nn.ReLU)


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("zz_models", InvalidInput, "package.module:factory"),
        (":make", InvalidInput, "package.module:factory"),
        ("zz_models:", InvalidInput, "package.module:factory"),
        ("zz_no_such:make", FileProblem, "cannot import zz_no_such"),
        ("zz_models:nothing", InvalidInput, "zz_models has no 'nothing'"),
        ("zz_models:Net.nothing", InvalidInput, "has no 'Net.nothing'"),
        ("zz_models:number", InvalidType, "is a int, not a function"),
        ("zz_models:raises", InvalidInput, r"raises\(\) raised RuntimeError: no weights"),
        ("zz_models:needs", InvalidInput, "raised TypeError"),
        ("zz_models:returns_text", InvalidType, r"returned a str, not an nn\.Module"),
        ("zz_models:leaves", InvalidInput, "raised SystemExit"),
        ("zz_broken:make", FileProblem, "importing zz_broken raised SyntaxError"),
        ("zz_script:make", FileProblem, "importing zz_script raised SystemExit: usage: zz"),
        ("zz_needs:make", FileProblem, "No module named 'zz_no_such_package'"),
        (".relative:make", FileProblem, "raised TypeError"),
    ],
)
def test_models_that_cannot_be_made(
    here: Path, name: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
def test_weights_are_copied(tmp_path: Path, ending: str) -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    file = tmp_path / f"weights{ending}"
    save = save_file if ending == ".safetensors" else torch.save
    save(source.state_dict(), file)
    load_weights(target, file)
    assert torch.equal(source.weight, target.weight)


def test_weights_of_a_lazy_model(tmp_path: Path) -> None:
    source, target = nn.Linear(3, 2), nn.LazyLinear(2)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    load_weights(target, tmp_path / "w.safetensors")
    assert torch.equal(source.weight, target.weight)


class Malicious:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, ending: str, how: str) -> None:
    trace, file = tmp_path / "was-run", tmp_path / f"model{ending}"
    if how == "torch":
        torch.save({"weight": Malicious(trace)}, file)
    else:
        file.write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(FileProblem, match=r"refused|not a readable safetensors"):
        load_weights(nn.Linear(3, 2), file)
    assert not trace.exists()
    os.system(f"touch {trace}")
    assert trace.exists()  # the pickle would have left it


def test_a_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2), tmp_path / "model.pt")
    with pytest.raises(FileProblem, match="pickled models can run code and are refused"):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    net, file = nn.Sequential(nn.Linear(3, 2)), tmp_path / "w.safetensors"
    before = net[0].weight.clone()

    def refused(state: dict[str, torch.Tensor]) -> str:
        save_file(state, file)
        with pytest.raises(InvalidInput, match="does not fit the model") as caught:
            load_weights(net, file)
        return str(caught.value)

    other = {f"{k}.weight": torch.zeros(1) for k in range(5)}
    sentence = "it lacks 0.bias and also has 1.weight, 2.weight, 3.weight and 1 more"
    assert refused(other).endswith(sentence)
    wrong = {"0.weight": torch.zeros(2, 4), "0.bias": torch.zeros(2)}
    assert refused(wrong).endswith("0.weight has shape [2, 4], the model needs [2, 3]")
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {1: torch.zeros(1)}, torch.zeros(2)])
def test_a_file_without_a_state_dict(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(FileProblem, match="must hold a state dict"):
        load_weights(nn.Linear(3, 2), tmp_path / "w.pt")


def test_files_that_are_none(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(FileProblem, match="there is no file"):
        load_weights(net, tmp_path / "none.pt")
    with pytest.raises(FileProblem, match="is not a file"):
        load_weights(net, tmp_path)
    (tmp_path / "w.bin").write_text("")
    with pytest.raises(FileProblem, match=r"must be a \.safetensors"):
        load_weights(net, tmp_path / "w.bin")
    for ending in (".safetensors", ".pt"):
        (tmp_path / f"w{ending}").write_bytes(b"corrupted")
        with pytest.raises(FileProblem):
            load_weights(net, tmp_path / f"w{ending}")
    with pytest.raises(FileProblem, match="cannot read"):
        existing_file("x" * 5000)
