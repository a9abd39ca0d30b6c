"""The command line: exit codes, one sentence for a mistake, JSON for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory import __version__, cli
from torchtheory.core import catalogue
from torchtheory.core.record import Control
from torchtheory.labs.engine import registry as labs_module
from torchtheory.labs.engine.registry import lab, labs
from torchtheory.labs.engine.run import Run

SMALL = ["perceptron-novikoff", "--set", "samples=40", "--set", "trials=2"]
CLAIM = {
    "id", "statement", "source", "promised", "relation", "measured", "tolerance", "verdict",
    "reason", "control",
}  # fmt: skip


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(name)

        return json.loads(self.out, parse_constant=refuse)


Call = Callable[..., Outcome]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Run a command in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(labs_module, "_LABS", dict(labs()))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return run


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
    run.claim(
        "N-08",
        r"x \le 1",
        promised=1,
        relation="<=",
        measured=run.rand(size),
        control=Control("b", 2),
    )


def false(run: Run) -> None:
    run.claim("N-08", "x", promised=1, relation="<=", measured=3, control=Control("b", 2))


def raises(run: Run) -> None:
    raise RuntimeError("many\nlines")


def interrupted(run: Run) -> None:
    raise KeyboardInterrupt


def register(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., object]) -> None:
    """These are all the labs there are."""
    monkeypatch.setattr(labs_module, "_LABS", {})
    for function in functions:
        title = "The interval [a, b] and [/x]"
        lab(f"zz-{function.__name__}", room="nets", covers=["N-08"], title=title)(function)


# ------------------------------------------------------------------------------------ help


COMMANDS = [
    ["audit"], ["lab", "list"], ["lab", "show"], ["lab", "run"], ["index"], ["errata"], ["doctor"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_an_example(call: Call, command: list[str], flag: str) -> None:
    outcome = call(*command, flag)
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert f"torchtheory {' '.join(command)}" in outcome.out
    assert outcome.err == ""


def test_help_lists_every_command(call: Call) -> None:
    outcome = call("--help")
    assert all(name in outcome.out for name in ("audit", "lab", "index", "errata", "doctor"))
    assert all(name in call("lab", "--help").out for name in ("list", "show", "run"))
    assert "Usage" in call().out + call().err
    assert call("--version").out == f"torchtheory {__version__}\n"


# ------------------------------------------------------------------------------------ labs


def test_lab_list(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = call("lab", "list", "--json").json["labs"]
    assert all(set(row) == {"name", "room", "title", "covers"} for row in rows)
    assert {row["name"] for row in rows} == set(labs())
    names = [r["name"] for r in call("lab", "list", "--covers", "N-08", "--json").json["labs"]]
    assert names == ["perceptron-novikoff"]
    nets = call("lab", "list", "--room", "nets", "--json").json["labs"]
    assert {r["room"] for r in nets} == {"nets"}
    assert "perceptron-novikoff" in call("lab", "list").out
    register(monkeypatch, good)
    assert "The interval [a, b] and [/x]" in call("lab", "list").out


def test_lab_show(call: Call) -> None:
    shown = call("lab", "show", "perceptron-novikoff")
    assert shown.code == 0
    assert all(word in shown.out for word in ("samples", "a whole number", "N-08", "200", "2000"))
    data = call("lab", "show", "perceptron-novikoff", "--json").json
    assert set(data) == {
        "name", "room", "title", "covers", "errata", "description", "parameters",
    }  # fmt: skip
    samples = {"name": "samples", "type": "a whole number", "quick": 200, "full": 2000}
    assert samples in data["parameters"]


def test_lab_run_json(call: Call) -> None:
    outcome = call("lab", "run", *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    (run,) = outcome.json["runs"]
    keys = {"lab", "room", "preset", "seed", "seconds", "claims", "tables", "figures"}
    assert keys <= set(run)
    assert (run["lab"], run["room"]) == ("perceptron-novikoff", "nets")
    assert (run["preset"], run["seed"]) == ("quick", 0)
    assert run["claims"]
    for claim in run["claims"]:
        assert set(claim) >= CLAIM
        assert claim["verdict"] in ("holds", "violated", "vacuous", "not applicable")
        if claim["control"] is not None:
            assert set(claim["control"]) >= CLAIM
            assert claim["control"]["verdict"] == "violated"
    assert run["parameters"]["samples"] == 40
    again = call("lab", "run", *SMALL, "--json").json["runs"][0]
    assert again == run  # read back, seconds and all
    forced = call("lab", "run", *SMALL, "--json", "--force").json["runs"][0]
    assert forced["claims"] == run["claims"]
    pages = list(Path("torchtheory-runs").glob("perceptron-novikoff/*/report.html"))
    assert len(pages) == 1
    assert Path("torchtheory-runs/index.html").exists()


def test_lab_run_text_and_exit_codes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, good, false, raises)
    passed = call("lab", "run", "zz-good", "--out", "o")
    assert (passed.code, passed.err) == (0, "")
    assert "report: o/index.html" in passed.out.replace(os.sep, "/")
    assert call("lab", "run", "zz-false", "--out", "o").code == 1
    # one lab that raises: one line, exit code 1, and the others are there
    outcome = call("lab", "run", "--all", "--out", "o")
    assert outcome.code == 1
    assert outcome.err == "torchtheory: lab zz-raises: RuntimeError: many lines\n"
    assert "zz-good" in outcome.out
    alone = call("lab", "run", "zz-raises", "--out", "new/deep")
    assert alone.code == 1
    assert alone.err.count("\n") == 1
    assert call("lab", "run", "zz-good", "zz-good", "--verbose", "--set", "size=3").code == 0


def test_an_interrupt_is_one_line_and_keeps_what_is_finished(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, good, interrupted)
    outcome = call("lab", "run", "--all", "--out", "o")
    assert outcome.code == 130
    assert outcome.err == "torchtheory: interrupted; what was finished before is kept\n"
    assert Path("o/zz-good/quick-0/report.html").exists()
    assert not list(Path("o").glob(".partial*"))
    assert not Path("o/zz-interrupted").exists()
    monkeypatch.setattr("torchtheory.audit.example.digits_example", lambda seed: interrupted)
    monkeypatch.setattr("torchtheory.audit.engine.audit.audit", lambda *a, **k: interrupted(None))  # type: ignore[arg-type]
    monkeypatch.setattr(
        "torchtheory.audit.example.digits_example", lambda seed: (nn.ReLU(), None, None, None)
    )
    assert call("audit").code == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the labs to run, or say --all"),
        (["--all", "perceptron-novikoff"], "name the labs to run, or say --all"),
        (["perceptron-novikof"], "did you mean 'perceptron-novikoff'"),
        (["perceptron-novikoff", "--set", "sample=3"], "did you mean 'samples'"),
        (["perceptron-novikoff", "--set", "samples=many"], "parameter samples must be a whole nu"),
        (["perceptron-novikoff", "--set", "samples=inf"], "parameter samples must be a whole nu"),
        (["perceptron-novikoff", "--set", "samples"], "--set takes name=value"),
        (["perceptron-novikoff", "--set", "=3"], "--set takes name=value"),
        (["--all", "--set", "samples=3"], "no parameter of lab"),
        (["perceptron-novikoff", "--seed", "-1"], "--seed"),
        (["perceptron-novikoff", "--seed", "99999999999999999999"], "a seed is"),
        (["perceptron-novikoff", "--set", "samples=-5"], "lab perceptron-novikoff: "),
        (["perceptron-novikoff", "--jobs", "0"], "--jobs"),
        (["perceptron-novikoff", "--preset", "medium"], "--preset"),
        (["perceptron-novikoff", "--out", "file"], "file is a file; --out needs a directory"),
        (["perceptron-novikoff", "--out", "file/below"], "cannot write to"),
        (["perceptron-novikoff", "--bogus"], "No such option"),
    ],
)
def test_lab_run_refuses(call: Call, arguments: list[str], sentence: str) -> None:
    Path("file").write_text("")
    assert sentence in refused(call("lab", "run", *arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lab", "list", "--room", "netz"], "did you mean 'nets'"),
        (["lab", "list", "--covers", "n-08"], "did you mean 'N-08'"),
        (["lab", "show", "nothing"], "no lab is named 'nothing'"),
        (["index", "--source", "note"], "did you mean 'notes'"),
        (["index", "--room", "attic"], "no room is named 'attic'"),
        (["nonsense"], "No such command"),
        (["lab", "nonsense"], "No such command"),
        (["errata", "--out", "file"], "is a file"),
    ],
)
def test_unknown_names(call: Call, arguments: list[str], sentence: str) -> None:
    Path("file").write_text("")
    assert sentence in refused(call(*arguments))


# --------------------------------------------------------------------- catalogue and errata


def test_index(call: Call) -> None:
    data = call("index", "--json").json
    assert set(data) == {"total", "covered", "background", "missing", "entries"}
    assert data["total"] == len(data["entries"]) == len(catalogue.entries()) == 1158
    assert data["covered"] + data["background"] + data["missing"] == 1158
    keys = {"id", "name", "source", "kind", "status", "labs"}
    assert all(keys <= set(e) for e in data["entries"])
    for e in data["entries"]:
        assert (e["status"] == "covered") == bool(e["labs"])
    found = call("index", "novikoff", "--json").json
    assert "N-08" in {e["id"] for e in found["entries"]}
    missing = call("index", "--source", "notes", "--missing", "--json").json
    assert {e["status"] for e in missing["entries"]} <= {"missing"}
    assert call("index", "--room", "nets", "--json").json["total"] < 1158
    assert "N-08" in call("index", "N-08").out
    assert "1158" in call("index").out
    assert call("index", "zzzz-nothing", "--json").json["total"] == 0


def test_errata(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "novikoff-fewer-than-floor"

    def refuting(run: Run) -> None:
        run.claim("N-08", "x", promised=1, relation="<=", measured=0, control=Control("b", 2))
        run.erratum(key, "x", promised=1, relation="<=", measured=2)

    def failing(run: Run) -> None:
        raise RuntimeError("no numbers")

    monkeypatch.setattr(labs_module, "_LABS", {})
    lab("zz-errata", room="nets", covers=["N-08"], title="t", errata=[key])(refuting)
    data = call("errata", "--json").json["errata"]
    (erratum,) = data
    assert (erratum["key"], erratum["id"], erratum["lab"]) == (key, "N-08", "zz-errata")
    assert {"source", "printed", "correct", "counterexamples"} <= set(erratum)
    assert erratum["counterexamples"][0]["verdict"] == "violated"
    assert call("errata", "zzz-nothing", "--json").json == {"errata": []}
    assert "Novikoff" in call("errata", "N-08").out or "updates" in call("errata", "N-08").out
    # a lab that fails is not silence
    other = "novikoff-fewer-than-ceiling"
    lab("zz-failing", room="nets", covers=["N-08"], title="t", errata=[other])(failing)
    outcome = call("errata", "--json")
    assert outcome.code == 1
    assert len(outcome.json["errata"]) == 2
    sentence = f"erratum {other} has no numbers: lab zz-failing did not finish"
    assert outcome.err == f"torchtheory: {sentence}\n"


def test_doctor(call: Call) -> None:
    data = call("doctor", "--json").json
    assert set(data) == {"versions", "machine", "data", "labs"}
    assert data["versions"]["torch"] == torch.__version__
    assert data["labs"]["registered"] == len(labs())
    assert "torch threads" in call("doctor").out


# ------------------------------------------------------------------------------------ audit


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


def test_audit_of_a_users_model(call: Call) -> None:
    write_problem()
    outcome = call(*MODEL, "--weights", "weights.safetensors", "--json", "--out", "o")
    assert outcome.code == 0, outcome.err
    data = outcome.json
    assert data["title"] == "zz_cli_models:make"
    assert {f["name"] for f in data["findings"]} >= {"risk", "curvature", "lipschitz"}
    written = {p.name for p in Path("o").iterdir()}
    assert written == {"report.html", "report.md", "audit.json", "figures"}
    assert json.loads(Path("o/audit.json").read_text("utf-8")) == data
    text = call(*MODEL, "--only", "layers", "--only", "margins", "--out", "o")
    assert text.code == 0
    assert "report: o" in text.out
    first, second = (call(*MODEL, "--only", "risk", "--seed", "3", "--json").json for _ in "ab")
    assert [f["tables"] for f in first["findings"]] == [f["tables"] for f in second["findings"]]


def test_audit_of_the_example_keeps_the_limit(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtheory.audit.example.EPOCHS", 1)
    data = call("audit", "--only", "layers", "--limit", "50", "--json").json
    assert data["facts"]["samples"] == "1,348 train, 449 test"
    assert data["facts"]["sub-sampled"].startswith("50 of 1348 train samples, drawn at random")


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
        (["--task", "binary"], {}, "one logit a sample"),
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


def test_audit_options_that_do_not_go_together(call: Call) -> None:
    assert "--model needs --data" in refused(call("audit", "--model", "a:b"))
    assert "go with --model" in refused(call("audit", "--weights", "a.pt"))


# --------------------------------------------------------------------------- as a process


TWICE = """
import sys
from torchtheory import cli
for more in ([], ["--json"]):
    try:
        cli.main(["index", "N-08", *more])
    except SystemExit as ended:
        assert ended.code == 0
    print("=====")
"""


def test_a_terminal_that_only_knows_ascii(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii", "LANG": "C"},
        capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    text, data, _ = done.stdout.decode("ascii").split("=====")
    assert "N-08" in text
    (entry,) = json.loads(data)["entries"]
    assert "§" in entry["source"]  # escaped, not lost


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("command", ["index --json | head -1", "--version | true"])
def test_a_reader_that_has_seen_enough(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m torchtheory.cli {command}",
        shell=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to one process")
def test_ctrl_c_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "zz_waiting.py").write_text(
        "from pathlib import Path\nimport time\nfrom torch import nn\n"
        "def make():\n    Path('started').touch()\n    time.sleep(60)\n    return nn.ReLU()\n"
    )
    np.savez(tmp_path / "d.npz", x_train=np.zeros((2, 2)), y_train=np.zeros(2))
    started = subprocess.Popen(
        [sys.executable, "-m", "torchtheory.cli", "audit", "--model", "zz_waiting:make",
         "--data", "d.npz"],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a suite in the background of a shell ignores SIGINT, and what it starts would as well
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    end = time.monotonic() + 120
    while not (tmp_path / "started").exists():
        assert started.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert (out, err) == ("", "torchtheory: interrupted; what was finished before is kept\n")


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
