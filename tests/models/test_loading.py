"""Models and weights from outside: named code runs, files never do."""

from __future__ import annotations

import argparse
import json
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
from torchtheory.core.files import existing_file
from torchtheory.models.loading import (
    load_model,
    load_weights,
    read_weights,
    weights_for,
)

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


@pytest.mark.parametrize("ending", [".pt", ".pth", ".ckpt", ".bin", ".safetensors"])
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
    (tmp_path / "w.txt").write_text("")
    with pytest.raises(FileProblem, match=r"must be a \.safetensors"):
        load_weights(net, tmp_path / "w.txt")
    for ending in (".safetensors", ".pt", ".bin", ".ckpt", ".safetensors.index.json"):
        (tmp_path / f"w{ending}").write_bytes(b"corrupted")
        with pytest.raises(FileProblem):
            load_weights(net, tmp_path / f"w{ending}")
    with pytest.raises(FileProblem, match="cannot read"):
        existing_file("x" * 5000)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "net"])
def test_a_checkpoint_wraps_the_state_dict(tmp_path: Path, key: str) -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    moments = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"params": [0]}]}
    checkpoint = {"epoch": 3, key: source.state_dict(), "optimizer": moments}
    torch.save(checkpoint, tmp_path / "w.ckpt")
    load_weights(target, tmp_path / "w.ckpt")
    assert torch.equal(source.weight, target.weight)


def test_a_checkpoint_with_several_state_dicts(tmp_path: Path) -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save({"model": one.state_dict(), "ema": two.state_dict()}, tmp_path / "w.pt")
    assert torch.equal(read_weights(tmp_path / "w.pt")["weight"], one.weight)
    torch.save({"teacher": one.state_dict(), "student": two.state_dict()}, tmp_path / "w.pt")
    with pytest.raises(FileProblem, match=r"several state dicts \(student, teacher\)"):
        read_weights(tmp_path / "w.pt")


def test_what_a_checkpoint_holds_besides_tensors_is_named(tmp_path: Path) -> None:
    content = {"state_dict": nn.Linear(3, 2).state_dict(), "args": argparse.Namespace(lr=0.1)}
    torch.save(content, tmp_path / "w.ckpt")
    with pytest.raises(FileProblem, match=r"it holds argparse\.Namespace.* refused"):
        read_weights(tmp_path / "w.ckpt")


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "model._orig_mod.module."]
)
def test_prefixes_of_wrappers(tmp_path: Path, prefix: str) -> None:
    source, target = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    file = tmp_path / "w.safetensors"
    save_file({prefix + k: v for k, v in source.state_dict().items()}, file)
    assert set(weights_for(target, file)) == {"0.weight", "0.bias"}
    load_weights(target, file)
    assert torch.equal(source[0].weight, target[0].weight)


def test_prefixes_of_real_wrappers(tmp_path: Path) -> None:
    source, target = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    for wrapped in (nn.DataParallel(source), torch.compile(source)):
        torch.save(wrapped.state_dict(), tmp_path / "w.pt")
        nn.init.zeros_(target[0].weight)
        load_weights(target, tmp_path / "w.pt")
        assert torch.equal(source[0].weight, target[0].weight)
    inner = nn.ModuleDict({"body": torch.compile(nn.Linear(3, 2))})
    torch.save(inner.state_dict(), tmp_path / "w.pt")
    load_weights(nn.ModuleDict({"body": nn.Linear(3, 2)}), tmp_path / "w.pt")


def test_prefixes_are_kept_where_the_rest_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"model.weight": torch.zeros(2, 3), "loss.bias": torch.zeros(2)}, file)
    with pytest.raises(InvalidInput, match=r"lacks bias, weight and also has loss\.bias, model\.w"):
        load_weights(nn.Linear(3, 2), file)
    own = nn.ModuleDict({"model": nn.Linear(3, 2)})  # a model whose own names begin like that
    save_file(own.state_dict(), file)
    assert set(weights_for(own, file)) == {"model.weight", "model.bias"}


def sharded(folder: Path, places: Any) -> Path:
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return file


def test_tensors_that_are_larger_than_their_file(tmp_path: Path) -> None:
    """A few bytes stand for gigabytes, by strides of 0 or as entries of a sparse tensor."""
    stretched = torch.zeros(1).expand(30000, 30000)
    place = torch.zeros(2, 1, dtype=torch.long)
    sparse = torch.sparse_coo_tensor(place, torch.ones(1), (10**6, 10**6))
    for tensor in (stretched, sparse):
        torch.save({"a": tensor}, tmp_path / "a.pt")
        assert (tmp_path / "a.pt").stat().st_size < 4000
        with pytest.raises(FileProblem, match=r"would take [\d,.]+ GiB more than the file says"):
            read_weights(tmp_path / "a.pt")
    tied = torch.randn(5, 4)
    honest = {"a": tied, "b": tied, "mask": torch.ones(1).expand(8, 100, 100), "i": torch.eye(3)}
    torch.save(honest | {"i": honest["i"].to_sparse()}, tmp_path / "a.pt")
    found = read_weights(tmp_path / "a.pt")
    assert all(torch.equal(found[k].to_dense(), honest[k]) for k in honest)


def test_sparse_tensors_with_entries_outside(tmp_path: Path) -> None:
    """Where an entry goes is data: to believe it is to write anywhere."""
    place, one = torch.zeros(2, 1, dtype=torch.long), torch.ones(1)
    outside = torch.sparse_coo_tensor(place, one, (3, 3), check_invariants=False)
    outside._indices().fill_(10**9)
    rows, columns = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    crossed = torch.sparse_csr_tensor(rows, columns, torch.ones(2), (2, 2))
    crossed.col_indices().fill_(10**9)
    for tensor in (outside, crossed):
        torch.save({"a": tensor}, tmp_path / "a.pt")
        with pytest.raises(FileProblem, match="is not a plain state dict"):
            read_weights(tmp_path / "a.pt")
    assert not torch.sparse.check_sparse_tensor_invariants.is_enabled()


def test_odd_tensors_and_names(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    torch.save({"a": nested}, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=r"a in .* is a nested tensor"):
        read_weights(tmp_path / "a.pt")
    long = {"x" * 100_000: torch.ones(2, 2)}
    torch.save(long, tmp_path / "a.pt")
    save_file(long, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        with pytest.raises(FileProblem, match="100,000 characters long, and at most 500"):
            read_weights(tmp_path / name)


def test_complex_weights_do_not_become_real(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2, 3) * 1j, "bias": torch.ones(2)}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(InvalidInput, match="weight is complex, and the model's is real"):
        load_weights(nn.Linear(3, 2), tmp_path / "a.pt")
    net = nn.Linear(3, 2, dtype=torch.complex64)
    load_weights(net, tmp_path / "a.pt")
    assert torch.equal(net.weight, state["weight"])


def test_an_archive_of_a_later_version(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    raw = bytearray((tmp_path / "a.pt").read_bytes())
    entry = -1
    while (entry := raw.find(b"PK\x01\x02", entry + 1)) >= 0:
        raw[entry + 6] = 99  # the version that is needed to read it
    (tmp_path / "a.pt").write_bytes(raw)
    for read in (read_weights, load_model):
        with pytest.raises(FileProblem, match=r"not a readable archive: .*version 9\.9"):
            read(str(tmp_path / "a.pt"))


def test_weights_in_several_files(tmp_path: Path) -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    first, second = (f"model-0000{k}-of-00002.safetensors" for k in (1, 2))
    save_file({"weight": source.weight.detach()}, tmp_path / first)
    save_file({"bias": source.bias.detach()}, tmp_path / second)
    load_weights(target, sharded(tmp_path, {"weight": first, "bias": second}))
    assert torch.equal(source.weight, target.weight)
    with pytest.raises(FileProblem, match="lacks bias, which"):
        read_weights(sharded(tmp_path, {"weight": first, "bias": first}))
    with pytest.raises(FileProblem, match="there is no file"):
        read_weights(sharded(tmp_path, {"weight": "none.safetensors"}))
    with pytest.raises(FileProblem, match="names no weights"):
        read_weights(sharded(tmp_path, {}))
    for damaged in ([1], None):
        with pytest.raises(FileProblem, match="not an index"):
            read_weights(sharded(tmp_path, damaged))


@pytest.mark.parametrize("escape", ["parent", "absolute", "inside", "pickle", "number"])
def test_an_index_does_not_choose_other_files(tmp_path: Path, escape: str) -> None:
    here = tmp_path / "model"
    (here / "deeper").mkdir(parents=True)
    for place in (tmp_path, here / "deeper"):
        save_file({"weight": torch.zeros(2, 3)}, place / "secret.safetensors")
    torch.save({"weight": torch.zeros(2, 3)}, here / "secret.pt")
    name = {
        "parent": "../secret.safetensors",
        "absolute": str(tmp_path / "secret.safetensors"),
        "inside": "deeper/secret.safetensors",
        "pickle": "secret.pt",
        "number": 3,
    }[escape]
    with pytest.raises(FileProblem, match=r"not a \.safetensors file beside it"):
        read_weights(sharded(here, {"weight": name}))


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused_as_weights_and_as_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)).save(str(file))
    for read in (read_weights, load_model):
        with pytest.raises(FileProblem, match="is a TorchScript archive, a program") as caught:
            read(str(file))
        assert "state_dict()" in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        (".pt", "package.module:factory and this file as its weights"),
        (".safetensors", "holds weights, not a model"),
        (".pkl", "is a pickle, which can run code"),
        (".onnx", "holds operators of ONNX"),
        (".keras", "is not a PyTorch model"),
        (".py", "nets:make for nets.py"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, ending: str, sentence: str) -> None:
    trace, file = tmp_path / "was-run", tmp_path / f"model{ending}"
    file.write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(FileProblem, match=sentence):
        load_model(str(file))
    assert not trace.exists()
