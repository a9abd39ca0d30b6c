"""What commands write to: nothing of the user's is lost, and a refusal comes before the work."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory.audit import checkpoints
from torchtheory.audit.bare_weights import audit as bare
from torchtheory.core.marks import form_of
from torchtheory.labs.engine import many
from torchtheory.report import files

from .calls import MODEL, Call, good, refused, register, write_problem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links")

WEIGHTS = ["audit", "--weights", "w.safetensors", "--only", "weight-values"]
EXPLAIN = ["explain", *MODEL[1:], "--method", "gradient-times-input", "--samples", "2"]


@pytest.fixture
def workshop(call: Call) -> Path:
    write_problem()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for name in ("w", "v"):
        save_file(net.state_dict(), f"{name}.safetensors")
    return Path.cwd()


def contents(place: Path) -> dict[str, str]:
    """Everything in a directory: what it is, and what it holds."""
    found = {}
    for path in sorted(place.rglob("*")):
        kind = path.lstat().st_mode
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(place))] = f"{kind} {hashlib.sha256(held).hexdigest()}"
    return found


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes time fails the test: it may not begin."""

    def begun(*_: object, **__: object) -> Any:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(checkpoints, "audit_weights", begun)
    monkeypatch.setattr(checkpoints, "audit", begun)
    monkeypatch.setattr(bare, "weights", begun)
    for module in ("explanation.explain", "audit.comparison.compare"):
        name = module.rpartition(".")[2]
        monkeypatch.setattr(importlib.import_module(f"torchtheory.{module}"), name, begun)
    monkeypatch.setattr(many, "run_lab", begun)


@pytest.mark.parametrize("option", ["--sarif", "--junit"])
def test_logs_replace_nothing_but_such_logs(
    workshop: Path, call: Call, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    Path("mine.xml").write_text('<?xml version="1.0"?><testsuites name="pytest tests"/>')
    Path("mine.sarif").write_text('{"$schema": "sarif-2.1.0.json", "version": "2.1.0", "runs": []}')
    os.link("w.safetensors", "hard")
    os.symlink("w.safetensors", "soft")
    os.symlink("nowhere", "dangling")
    os.symlink("/dev/null", "device")
    os.mkfifo("pipe")
    os.mkdir("folder")
    before = contents(workshop)
    with monkeypatch.context() as patch:
        no_work(patch)
        for place in (
            "w.safetensors", "./w.safetensors", "data.npz", "zz_cli_models.py", "mine.xml", "hard",
            "mine.sarif", "soft", "dangling", "device", "/dev/null", "pipe", "folder", ".", "",
            "data.npz/x", "x" * 300, "new/" + "x" * 300, "torchtheory-audit/report.html",
            "torchtheory-audit",
        ):  # fmt: skip
            refused(call(*WEIGHTS, option, place))
            assert contents(workshop) == before, place
        refused(call(*MODEL, "--data", "data.npz", option, "data.npz"))
    form = {"--sarif": "SARIF log", "--junit": "JUnit log"}[option]
    for _ in range(2):  # its own log is replaced
        assert call(*WEIGHTS, option, "logs/a").code == 0
        assert form_of(Path("logs/a").read_bytes()) == form
    other = {"--sarif": "--junit", "--junit": "--sarif"}[option]
    no_work(monkeypatch)
    assert "is not replaced" in refused(call(*WEIGHTS, other, "logs/a"))
    both = refused(call(*WEIGHTS, option, "logs/b", other, "./logs/../logs/b"))
    assert "--sarif and --junit would both write to" in both


REPORTS = {
    "audit": (WEIGHTS, list(files.AUDIT)),
    "checkpoints": (
        [*WEIGHTS, "v.safetensors"],
        [*files.SERIES, "w/report.html", "w/audit.json", "v/checkpoint.json", "w/figures"],
    ),
    "explain": (EXPLAIN, ["explanation.html", "explanation.json", "explanation.npz", "figures"]),
    "compare": (["compare", "one", "two"], list(files.COMPARISON)),
    "lab": (
        ["lab", "run", "zz-good"],
        ["index.html", "zz-good/quick-0/report.html", "zz-good/quick-0/claims.json",
         "zz-good/quick-0/figures", "zz-good"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", REPORTS)
def test_reports_replace_nothing_but_reports(
    workshop: Path, call: Call, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    line, names = REPORTS[command]
    register(monkeypatch, good)
    if command == "compare":
        for out in ("one", "two"):
            assert call(*WEIGHTS, "--out", out).code == 0
    with monkeypatch.context() as patch:
        no_work(patch)
        for number, name in enumerate(names):
            kinds = ["file", "link", "pipe"]
            if not name.endswith("figures") and name != "zz-good":
                kinds.append("folder")
            for kind in kinds:
                out = workshop / f"out-{number}-{kind}"
                (out / name).parent.mkdir(parents=True)
                if kind == "file":
                    (out / name).write_text("mine")
                elif kind == "folder":
                    (out / name).mkdir()
                    (out / name / "thesis.tex").write_text("mine")
                elif kind == "link":
                    (out / name).symlink_to(workshop)
                else:
                    os.mkfifo(out / name)
                before = contents(workshop)
                outcome = call(*line, "--out", str(out))
                assert outcome.code == 2, (name, kind)
                sentence = refused(outcome)
                assert "cannot write" in sentence, (name, kind)
                assert contents(workshop) == before, (name, kind)
        for place in ("w.safetensors", "w.safetensors/x", "x" * 300, "new/" + "x" * 300):
            assert "cannot write to" in refused(call(*line, "--out", place)) or command == "lab"
    for _ in range(2):  # its own report is replaced
        assert call(*line, "--out", "mine/of reports").code in (0, 1)


def test_a_report_may_stand_beside_the_users_files(workshop: Path, call: Call) -> None:
    """In the current directory, which is that of the model and the data."""
    before = contents(workshop)
    for _ in range(2):
        assert call(*WEIGHTS, "--out", ".", "--sarif", "a.sarif").code == 0
        assert call(*EXPLAIN, "--out", ".").code == 0
    after = contents(workshop)
    assert {k: after[k] for k in before} == before
    assert set(files.AUDIT) <= set(after)
    assert not [name for name in after if ".partial" in name]


def test_an_input_of_ours_is_not_replaced(
    workshop: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of an explanation may be given as data; not at the place of the next one."""
    assert call(*EXPLAIN, "--out", "o").code == 0
    no_work(monkeypatch)
    os.link("o/explanation.npz", "other.npz")
    for data in ("o/explanation.npz", "other.npz"):
        line = ["explain", "--model", "zz_cli_models:make", "--data", data, "--out", "o"]
        assert "it is an input of this command" in refused(call(*line))


def test_every_file_of_a_report_is_of_the_form_that_is_foretold(
    workshop: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, good)
    lines: dict[str, tuple[list[str], dict[str, str]]] = {
        "a": ([*MODEL, "--only", "layers"], files.AUDIT),
        "b": ([*WEIGHTS, "v.safetensors"], files.SERIES),
        "b/w": ([], files.AUDIT | files.CHECKPOINT),
        "c": (EXPLAIN, files.EXPLANATION),
        "d": (["compare", "a", "b/w"], files.COMPARISON),
        "e": (["lab", "run", "zz-good"], files.INDEX),
        "e/zz-good/quick-0": ([], files.RUN),
    }
    for out, (line, forms) in lines.items():
        if line:
            assert call(*line, "--out", out).code in (0, 1)
        written = {p for p in Path(out).iterdir() if p.is_file()}
        assert {p.name for p in written} == {name for name in forms if "/" not in name}
        for path in written:
            assert form_of(path.read_bytes()) == forms[path.name]


# ------------------------------------------------------------------------- several checkpoints


CODE = {
    "zz_nets.py": "from zz_parts import layers\ndef make():\n    import zz_late\n"
    "    return zz_late.wrap(layers())\n",
    "zz_parts/__init__.py": "from .inner import layers\n",
    "zz_parts/inner.py": "from torch import nn\ndef layers():\n"
    "    return [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)]\n",
    "zz_late.py": "from torch import nn\ndef wrap(layers):\n    return nn.Sequential(*layers)\n",
    "zz_unrelated.py": "x = 1\n",
    "zz_data.py": "import numpy as np\ndef load():\n    kept = np.load('deep/er/kept.npz')\n"
    "    return kept['x'], kept['y']\n",
}


def made_request(data: str) -> checkpoints.Request:
    return checkpoints.Request(model="zz_nets:make", data=data)


def test_a_fingerprint_follows_code_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in CODE.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    arrays = {"x": np.zeros((6, 3), np.float32), "y": np.arange(6) % 2}
    Path("deep/er").mkdir(parents=True)
    np.savez("deep/er/kept.npz", **arrays)
    for inner in ("x_train", "idx/MNIST/raw"):
        Path(inner).mkdir(parents=True)
    np.save("x_train/a.npy", arrays["x"])
    np.save("y_train.npy", arrays["y"])
    Path("idx/MNIST/raw/train-images-idx3-ubyte").write_bytes(b"1")

    def seen() -> list[str]:
        return [made_request(data).fingerprint() for data in (".", "idx", "zz_data:load")]

    def changed() -> list[bool]:
        nonlocal last
        before, last = last, seen()
        return [a != b for a, b in zip(before, last, strict=True)]

    last = seen()
    assert changed() == [False] * 3
    for name in ("zz_nets.py", "zz_parts/__init__.py", "zz_parts/inner.py", "zz_late.py"):
        Path(name).write_text(CODE[name] + "# another\n")
        assert changed() == [True] * 3, name
    Path("zz_unrelated.py").write_text("x = 2\n")
    Path("notes.md").write_text("words")
    assert changed() == [False] * 3
    np.save("x_train/a.npy", arrays["x"] + 1)
    assert changed() == [True, False, False]
    Path("idx/MNIST/raw/train-images-idx3-ubyte").write_bytes(b"2")
    assert changed() == [False, True, False]
    np.savez("deep/er/kept.npz", **(arrays | {"x": arrays["x"] + 1}))
    assert changed() == [False, False, True]
    assert "zz_nets" not in sys.modules  # nothing of the model is run to find out


def test_changed_code_is_audited_again(
    workshop: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    whole = checkpoints.run_request

    def counting(request: checkpoints.Request) -> Any:
        made.append(str(request.weights))
        return whole(request)

    monkeypatch.setattr(checkpoints, "run_request", counting)
    line = [*MODEL, "--only", "layers", "--weights", "w.safetensors", "v.safetensors"]
    for again in (2, 0):
        assert call(*line, "--out", "o").code == 0
        assert len(made) == again
        made.clear()
    with Path("zz_cli_models.py").open("a") as file:
        file.write("# another\n")
    assert call(*line, "--out", "o").code == 0
    assert len(made) == 2
    made.clear()
    # a record vouches for the report it was written with, and for no other
    Path("o/v/audit.json").write_bytes(Path("o/w/audit.json").read_bytes() + b" ")
    assert call(*line, "--out", "o").code == 0
    assert made == ["v.safetensors"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_model_that_raises_anything_costs_its_own_checkpoint_only(
    workshop: Path, call: Call, jobs: str
) -> None:
    Path("zz_odd.py").write_text(
        "import os, sys\nfrom torch import nn\n"
        "class Odd(BaseException):\n    pass\n"
        "class Net(nn.Sequential):\n"
        "    def load_state_dict(self, state, *a, **k):\n"
        "        if float(state['0.bias'][0]) == 7:\n            raise Odd('no\\n words')\n"
        "        return super().load_state_dict(state, *a, **k)\n"
        "def make():\n"
        "    return Net(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))\n"
    )
    sys.modules.pop("zz_odd", None)
    state = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict()
    state["0.bias"][0] = 7
    save_file(state, "w7.safetensors")
    names = ["w7", "w", "v"]
    line = ["audit", "--model", "zz_odd:make", "--data", "data.npz", "--only", "layers"]
    weights = [f"{name}.safetensors" for name in names]
    outcome = call(*line, "--weights", *weights, "--jobs", jobs, "--out", "o")
    assert outcome.code == 2
    assert outcome.err.startswith("torchtheory: w7.safetensors: ")
    assert "Odd: no words" in outcome.err
    assert outcome.err.count("\n") == 1
    done = json.loads(Path("o/series.json").read_text("utf-8"))["audits"]
    assert [a["name"] for a in done] == ["w", "v"]


def test_names_that_are_no_utf_8(workshop: Path, call: Call) -> None:
    names = [os.fsdecode(name) for name in (b"a\xff.pt", b"b\xfe.pt")]
    for name in names:
        torch.save(nn.Linear(3, 2).state_dict(), "t.pt")
        os.rename("t.pt", name)
    out = os.fsdecode(b"o\xff")
    logs = ["--sarif", f"{out}/s", "--junit", f"{out}/j"]
    for _ in range(2):
        outcome = call("audit", *names, "--only", "weight-values", "--out", out, *logs)
        assert outcome.code in (0, 1), outcome.err
    outcome = call("compare", f"{out}/a", f"{out}/b", "--out", out)
    assert outcome.code == 0, outcome.err
    assert call("audit", names[0], "--out", "p").code in (0, 1)
    assert call("compare", "p", f"{out}/b").code == 0
    save_file(nn.Linear(3, 2).state_dict(), "t.safetensors")
    os.rename("t.safetensors", os.fsdecode(b"c\xff.safetensors"))
    assert "not a readable" in refused(call("audit", os.fsdecode(b"c\xff.safetensors")))
