"""Inputs nobody should give, drawn from a seed: files of every broken kind, names, command lines.

`workshop` writes the files, `command_lines` draws what is typed, `Wrong` says what a command may
not do whatever it was given.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

#: What a terminal, a page, a file system or a plot may stumble over. A command line holds no NUL,
#: and of surrogates only those that stand for bytes which are no UTF-8.
NAMES = (
    "", " ", "-", "--", ".", "..", "../up", "a b", "é√漢", "²", "٣", "0", "-1", "1e999", "nan",
    "x" * 300, "deep/" * 60 + "x", "\x1b[31mred\x1b[0m", "bell\x07", "line\nbreak", "tab\there",
    "\u202eevil", "\x9b31m", "\udcff\udc80", "$\\frac{", "a$b$c", "`x`", "[link](http://a.b)",
    "<script>alert(1)</script>", "|pipe|", "%s%n", "{0}", "[bold]x[/bold]", "[/x]", "~", "*",
    "torch.nn:ReLU", "zz_fuzz_models:make", "N-08", "perceptron",
)  # fmt: skip

MODELS = """\
import sys
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

def names():
    net = nn.Sequential()
    for name, layer in zip(("a$b", "c\\x1b[31m$\\\\frac{", "\\u202e|`d`"), make()):
        net.add_module(name, layer)
    net.__class__ = type("[N](http://a)$\\x1b[1m$", (nn.Sequential,), {})
    return net

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        raise RuntimeError("no\\n\\x1b[2J\\u202e <b> $x$ \\ud800")

class Leaves(Raises):
    def forward(self, x):
        sys.exit(0)

class Sometimes(Raises):
    def forward(self, x):
        if x.requires_grad:
            raise ValueError("\\x1b[31m only without gradients")
        return self.layer(x)

class Several(Raises):
    def forward(self, x):
        return {"\\x1b[31m": self.layer(x), "y": x}

class NotANumber(Raises):
    def forward(self, x):
        return self.layer(x) * float("nan")

class Complex(Raises):
    def forward(self, x):
        return self.layer(x).to(torch.complex64)

def nothing():
    return None

def leaves():
    sys.exit(0)

def loader():
    raise KeyError("\\x1b[31m")

def empty():
    return torch.zeros(0, 3), torch.zeros(0)

def endless():
    return iter(int, 1)

def good():
    x = torch.linspace(-1, 1, 30).reshape(10, 3)
    return (x, (x[:, 0] > 0).long()), (x, (x[:, 0] > 0).long())
"""

LOADERS = tuple(f"zz_fuzz_models:{name}" for name in ("loader", "empty", "endless", "good"))

FACTORIES = (
    "make", "make", "make", "make", "make", "names", "names", "names", "Raises", "Leaves",
    "Sometimes", "Several",
    "NotANumber", "Complex", "nothing", "leaves", "absent", "loader",
)  # fmt: skip

LABS = """\
import torchtheory as tt

@tt.lab("zz-of-a-file", room="nets", covers=["N-08"], title="\\x1b[31m $x$ [b]")
def of_a_file(run, size: int = 2):
    says = run.states("N-08", "x")
    says.at_most(size, 2)
    says.fails("\\x1b[31m", 5)
"""

FINDINGS = (
    "layers", "risk", "margins", "lipschitz", "permutation-symmetry", "units", "curvature",
    "gradients-by-depth", "no-such",
)  # fmt: skip


EXPLAINERS = (
    "lrp", "gradient-times-input", "integrated-gradients", "smooth-gradient", "occlusion",
    "shapley", "lime", "sensitivity", "taylor",
)  # fmt: skip


#: So many records of audits are bent; `mutants` makes them.
MUTANTS = 60


@dataclass
class Wrong:
    """What is wrong with an outcome, in words."""

    found: list[str] = field(default_factory=list)

    def judge(self, line: CommandLine, code: object, out: str, err: str) -> None:
        """Look at the exit code and at what was printed."""
        if code not in (0, 1, 2):
            self.found.append(f"exit code {code!r}")
        for name, text in (("stdout", out), ("stderr", err)):
            if "Traceback" in text:
                self.found.append(f"a traceback on {name}")
            if bad := re.search(
                "(?!\n)[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text
            ):
                self.found.append(f"{bad[0]!r} on {name}")
        lines = err.splitlines()
        if not all(line.startswith("torchtheory: ") for line in lines):
            self.found.append("a line on stderr that is none of the program's")
        # without a command the help is shown; of several labs each may fail, and others not
        if code == 2 and line.arguments not in ((), ("lab",)):
            if not lines or (len(lines) > 1 and not line.several):
                self.found.append(f"{len(lines)} lines on stderr for exit code 2")
            if out and not line.several:
                self.found.append("output beside exit code 2")
        if line.as_json and code in (0, 1) and out:
            try:
                json.loads(out)
            except ValueError as error:
                self.found.append(f"no JSON: {error}")


@dataclass(frozen=True)
class CommandLine:
    """What is typed, and where."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    encoding: str

    @property
    def as_json(self) -> bool:
        words = self.arguments
        return "--json" in words[: words.index("--") if "--" in words else None]

    @property
    def several(self) -> bool:
        """Whether it does several things, of which each may fail: labs, checkpoints."""
        return self.arguments[:2] in (("lab", "run"), ("audit", "--weights"))


def workshop(place: Path, seed: int) -> dict[str, list[str]]:
    """Write files of every kind, good and broken; their names by what they pretend to be."""
    draw = random.Random(seed)
    x = np.random.default_rng(seed).normal(size=(24, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    kinds: dict[str, list[str]] = {}

    def add(kind: str, name: str, content: bytes) -> None:
        (place / name).write_bytes(content)
        kinds.setdefault(kind, []).append(name)

    def broken(kind: str, ending: str, good: bytes) -> None:
        add(kind, f"good{ending}", good)
        add(kind, f"empty{ending}", b"")
        add(kind, f"random{ending}", draw.randbytes(400))
        add(kind, f"text{ending}", "\x1b[31m no $data$ \u202e\n".encode() * 9)
        for k in range(4):
            add(kind, f"cut{k}{ending}", good[: draw.randrange(1, len(good))])
        for k in range(3):
            bent = bytearray(good)
            for _ in range(4):
                bent[draw.randrange(len(bent))] = draw.randrange(256)
            add(kind, f"bent{k}{ending}", bytes(bent))
        (place / f"folder{ending}").mkdir()
        os.mkfifo(place / f"pipe{ending}")
        (place / f"loop{ending}").symlink_to(f"loop{ending}")
        (place / f"gone{ending}").symlink_to("nowhere")
        (place / f"device{ending}").symlink_to("/dev/zero")
        (place / f"closed{ending}").write_bytes(good)
        (place / f"closed{ending}").chmod(0)
        for name in ("folder", "pipe", "loop", "gone", "device", "closed", "absent"):
            kinds[kind].append(f"{name}{ending}")

    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]}
    broken("data", ".npz", _npz(arrays))
    strange = {
        "nan": arrays | {"x_train": x * np.nan},
        "words": arrays | {"y_train": np.array(["\x1b[31m"] * 24)},
        "objects": arrays | {"y_train": np.array([None] * 24)},
        "none": {"x_train": x[:0], "y_train": y[:0]},
        "one": {"x_train": x[:1], "y_train": y[:1]},
        "scalar": {"x_train": np.float64(3), "y_train": np.float64(3)},
        "complex": arrays | {"x_train": x + 1j},
        "bytes": arrays | {"x_train": (x * 9).astype(np.uint8)},
        "huge labels": arrays | {"y_train": y * 2**62},
        "names": {"\x1b[31m": x, "$y$": y},
        "short": arrays | {"y_train": y[:5]},
        "wide": arrays | {"x_train": np.zeros((24, 7)), "x_test": np.zeros((9, 7))},
    }
    for name, content in strange.items():
        add("data", f"{name}.npz", _npz(content))
    add("data", "large.npz", _claimed_array((10**12, 3)))
    add("data", "negative.npz", _claimed_array((-3, 3)))
    table = io.StringIO()
    csv.writer(table).writerows(
        [["a", "b", "c ($)", "y"], *([*r, k] for r, k in zip(x, y, strict=True))]
    )
    broken("table", ".csv", table.getvalue().encode())
    for name, rows in {
        "header": "a,b,y\n", "ragged": "a,b,y\n1,2\n3,4,5,6\n", "twice": "a,a,y\n1,2,0\n3,4,1\n",
        "quote": 'a,b,y\n"1,2,0\n', "signs": "\x1b[31m,$b$,y\n1,2,0\n3,4,1\n",
        "under": "a,b,y\n1_0,2,0\n", "inf": "a,b,y\ninf,1e999,0\n1,2,1\n",
        "wide": ",".join(map(str, range(3000))) + "\n" + "1," * 2999 + "1\n",
        "long": "a,y\n" + "9" * 6000 + ",1\n", "null": "a,b,y\n1,\x00,0\n",
    }.items():  # fmt: skip
        add("table", f"{name}.csv", rows.encode())
    add("table", "some.csv.gz", gzip.compress(table.getvalue().encode())[:-9])
    add("table", "latin.csv", "a,b,ü\n1,2,0\n".encode("latin-1"))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    save_file(net.state_dict(), place / "first.safetensors")
    broken("weights", ".safetensors", (place / "first.safetensors").read_bytes())
    add("weights", "header.safetensors", struct.pack("<Q", 2**60) + b"{}")
    add("weights", "json.safetensors", struct.pack("<Q", 9) + b'{"a": [1]')
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    broken("weights", ".pt", buffer.getvalue())
    torch.save(net, place / "pickled.pt")
    kinds["weights"].append("pickled.pt")
    for folder, name, content in (
        ("idx", "train-images-idx3-ubyte", struct.pack(">4B3I", 0, 0, 8, 3, 2, 2, 2) + bytes(8)),
        ("idx", "train-labels-idx1-ubyte", struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes(2)),
        ("idx65", "train-images-idx3-ubyte", struct.pack(">4B65I", 0, 0, 8, 65, *[2**31] * 65)),
        ("idx65", "train-labels-idx1-ubyte", struct.pack(">4BI", 0, 0, 8, 1, 2**32 - 1)),
        ("idxcut", "train-images-idx3-ubyte", struct.pack(">4B", 0, 0, 8, 3)),
        ("idxcut", "train-labels-idx1-ubyte", b""),
        ("npy", "x_train.npy", draw.randbytes(90)),
        ("npy", "y_train.npy", b"\x93NUMPY\x01\x00\xff\xff"),
    ):
        (place / folder).mkdir(exist_ok=True)
        (place / folder / name).write_bytes(content)
    kinds["data"] += ["idx", "idx65", "idxcut", "npy", "."]
    kinds |= {"archive": [], "mutants": [f"mutant{k}.json" for k in range(MUTANTS)]}
    broken(
        "archive", ".pt2", _zipped({"archive/version": b"0", "archive/models/model.json": b"{}"})
    )
    for name, content in {
        "deep": b"[" * 100_000, "number": b"1", "list": b"[]", "nan": b'{"findings": NaN}',
        "large": b'{"title": "a", "facts": {}, "seconds": 1' + b"0" * 400 + b', "findings": []}',
        "half": b'{"title": "\\ud800", "facts": {"\\u001b": "\\u202e"}, "findings": []}',
        "latin": '{"title": "ü"}'.encode("latin-1"),
        "types": b'{"title": 3, "facts": [], "findings": {}}',
    }.items():  # fmt: skip
        add("audit", f"{name}.json", content)
    os.link(place / "good.npz", place / "hard.npz")
    for name in ("report.html", "explanation.html", "index.html", "comparison.html"):
        (place / "taken" / name).mkdir(parents=True)  # directories with something of the user's
        (place / "taken" / name / "thesis.tex").write_text("mine", "utf-8")
    (place / "linked").mkdir()
    for name in ("audit.json", "explanation.npz", "series.json", "figures", "good"):
        (place / "linked" / name).symlink_to(place / "good.npz")
    (place / "zz_fuzz_models.py").write_text(MODELS, "utf-8")
    (place / "zz_fuzz_labs.py").write_text(LABS, "utf-8")
    (place / "zz_fuzz_broken.py").write_text("import \x0c nothing $\n", "utf-8")
    (place / "zz_fuzz_leaves.py").write_text("raise SystemExit('\\x1b[31m')\n", "utf-8")
    return kinds


def command_lines(count: int, seed: int, kinds: dict[str, list[str]]) -> Iterator[CommandLine]:
    """So many command lines, the same for the same seed."""
    draw = random.Random(seed)
    makers = (
        [_audit] * 9 + [_explain] * 5 + [_weights] * 3 + [_compare] * 4 + [_run] * 5 + [_list] * 2
        + [_show] * 2 + [_index] * 3 + [_errata] * 2 + [_size] * 3 + [_doctor] + [_nonsense] * 2
    )  # fmt: skip
    for k in range(count):
        arguments = draw.choice(makers)(draw, kinds)
        if draw.random() < 0.3:
            arguments.append("--json")
        if draw.random() < 0.05:  # one word too many, anywhere
            at = draw.randrange(len(arguments) + 1)
            if at == 0 or arguments[at - 1] != "--out":
                arguments.insert(at, draw.choice(NAMES))
        if "--out" not in arguments:
            arguments += (
                ["--out", f"out/{k}"]
                if arguments[:1] in (["audit"], ["explain"], ["compare"], ["errata"])
                else []
            )
        environment = {
            "COLUMNS": draw.choice(("80", "100", "", "0", "1", "7", "-5", "many", "10000")),
            "TERM": draw.choice(("xterm-256color", "dumb", "", "\x1b[31m")),
            "LANG": draw.choice(("C", "en_US.UTF-8", "nonsense")),
            "TORCHTHEORY_DATA": draw.choice(("data", "", "\x1b[31m", "x" * 300)),
        }
        yield CommandLine(
            tuple(arguments), environment, draw.choice(("utf-8", "utf-8", "ascii", "latin-1"))
        )


_NO_FOLDERS = ("good.npz", "good.npz/below", "x" * 300, "gone.npz", "pipe.npz")


def _options(
    draw: random.Random, good: dict[str, tuple[str, ...]], bad: dict[str, tuple[str, ...]]
) -> list[str]:
    """A few options with good values, and in half of the cases one with any value at all."""
    found = []
    for option in draw.sample(sorted(good), k=draw.choice((0, 1, 2, 3))):
        found += [option] if not good[option] else [option, draw.choice(good[option])]
    if draw.random() < 0.5:
        option = draw.choice(sorted(bad))
        # a file of any name may be written to, and the test asks where files appear
        names = () if option in ("--out", "--sarif", "--junit") else NAMES
        found += [option, draw.choice(bad[option] + names)]
    return found


#: No logs: inputs, files of other kinds and what is no file; none of them may change.
_NO_LOGS = (
    "good.safetensors", "./good.pt", "good.npz", "zz_fuzz_models.py", "large.json", "pipe.npz",
    "gone.npz", "device.npz", "loop.npz", "folder.npz", "closed.npz", "good.npz/x", ".", "", "/",
    "/dev/null", "x" * 300, "out/" + "x" * 300, "audit-one", "audit-one/audit.json",
    "audit-one/report.html", "hard.npz", "zz_fuzz_broken.py", "..",
)  # fmt: skip

_NUMBERS = ("0", "-1", "1e999", "nan", "9" * 400, "1e-300", "²", "٣")


def _audit(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    model = f"zz_fuzz_models:{draw.choice(FACTORIES)}"
    if draw.random() < 0.15:
        model = draw.choice([*kinds["archive"], *kinds["weights"], *NAMES])
    data = "good.npz"
    if draw.random() < 0.4:
        data = draw.choice([*kinds["data"], *kinds["table"], *LOADERS])
    line = ["audit", "--model", model, "--data", data, "--budget", "1s"]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        line += ["--only", draw.choice(FINDINGS)]
    if data.endswith((".csv", ".gz")):
        line += ["--target", draw.choice(("y", "y", "y", "a", "c ($)", "a,y", *NAMES[::7]))]
    weights = tuple(kinds["weights"])
    good = {
        "--weights": ("good.safetensors", "good.pt"),
        "--initial-weights": ("good.safetensors",),
        "--prior-weights": ("good.pt",),
        "--learning-rate": ("0.1", "1e-9"),
        "--memory": ("1GiB", "9" * 400 + "TiB"),
        "--confidence": ("0.9",),
        "--limit": ("5", "100"),
        "--seed": ("3",),
        "--task": ("multiclass", "binary", "regression", "multilabel", "count", "ordinal", "own"),
        "--loss": ("squared", "logistic", "cross-entropy", "poisson"),
        "--output": ("0", "y", "\x1b[31m"),
        "--fail-on": ("never", "violated", "defect", "look"),
        "--sarif": ("out/logs/a.sarif",),
        "--junit": ("out/logs/b.xml",),
        "--details": (),
    }
    bad = {
        "--weights": weights,
        "--initial-weights": weights,
        "--prior-weights": weights,
        "--test-data": tuple(kinds["table"]),
        "--task": (),
        "--loss": ("", "math:tau", "os:getcwd", "a:b:c", "\x1b[31m"),
        "--output": ("²", "99999999999", "9" * 5000),
        "--learning-rate": _NUMBERS,
        "--memory": ("1B", "0B", "1e9GiB", "much", *_NUMBERS),
        "--budget": ("soon", "0s", "9" * 400 + "h", *_NUMBERS),
        "--confidence": _NUMBERS,
        "--limit": _NUMBERS,
        "--seed": _NUMBERS,
        "--only": (),
        "--fail-on": (),
        "--sarif": (*_NO_LOGS, "out/logs/b.xml"),
        "--junit": (*_NO_LOGS, "out/logs/a.sarif"),
    }
    line += _options(draw, good, bad)
    if draw.random() < 0.1:
        places = (*_NO_FOLDERS, "out/" + "deep/" * 60 + "x", "out/a b", "out/\x1b[31m")
        line += ["--out", draw.choice(places)]
    return line


def _explain(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    model = f"zz_fuzz_models:{draw.choice(FACTORIES)}"
    if draw.random() < 0.15:
        model = draw.choice([*kinds["archive"], *kinds["weights"], *NAMES])
    data = "good.npz"
    if draw.random() < 0.4:
        data = draw.choice([*kinds["data"], *kinds["table"], *LOADERS])
    line = ["explain", "--model", model, "--data", data]
    for _ in range(draw.choice((0, 1, 1, 2))):
        line += ["--method", draw.choice((*EXPLAINERS, *EXPLAINERS, *NAMES))]
    if data.endswith((".csv", ".gz")):
        line += ["--column", draw.choice(("y", "y", "y", "a", "c ($)", "a,y", *NAMES[::7]))]
    files = tuple(kinds["table"] + kinds["audit"])
    good = {
        "--weights": ("good.safetensors", "good.pt"),
        "--rules": ("epsilon=0.01", "gamma=1", "alpha-beta=2,1", "flat", "relu_default"),
        "--samples": ("1", "3"),
        "--target": ("0", "1"),
        "--seed": ("3",),
        "--output": ("0", "y", "\x1b[31m"),
        "--names": ("signs.csv",),
    }
    bad = {
        "--weights": tuple(kinds["weights"]),
        "--rules": ("epsilon=", "epsilon=nan", "z-box=1", "gamma=1e999", "alpha-beta=1,1"),
        "--samples": _NUMBERS,
        "--index": ("2", *_NUMBERS),
        "--target": _NUMBERS,
        "--patch": ("2", *_NUMBERS),
        "--permutations": ("4", *_NUMBERS),
        "--blur": _NUMBERS,
        "--seed": _NUMBERS,
        "--names": files,
        "--words": files,
        "--output": ("²", "99999999999"),
    }
    line += _options(draw, good, bad)
    if draw.random() < 0.15:
        line += ["--out", draw.choice((*_NO_FOLDERS, "out/a b", "taken", "linked", "out/logs"))]
    return line


def _weights(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    good = ["good.safetensors", "good.pt"]
    chosen = [draw.choice([*good, *kinds["weights"]]) for _ in range(draw.choice((1, 1, 2, 3)))]
    line = ["audit", "--weights", *chosen, "--budget", "1s"]
    if draw.random() < 0.4:
        model, data = draw.choice(FACTORIES), draw.choice(("good.npz", *LOADERS, *kinds["data"]))
        line += ["--model", f"zz_fuzz_models:{model}", "--data", data, "--only", "layers"]
    options: dict[str, tuple[str, ...]] = {
        "--fail-on": ("never", "violated", "defect", "look"),
        "--sarif": ("out/logs/a.sarif",),
        "--junit": ("out/logs/b.xml",),
        "--only": ("weight-values", "weight-units"),
        "--again": (),
        "--seed": ("3",),
    }
    bad = {"--only": (), "--jobs": _NUMBERS, "--budget": _NUMBERS, "--confidence": _NUMBERS}
    bad |= {"--sarif": _NO_LOGS, "--junit": _NO_LOGS, "--out": (*_NO_FOLDERS, "taken", "linked")}
    return line + _options(draw, options, bad)


def _compare(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    first = draw.choice(("audit-one", "audit-one/audit.json"))
    second = draw.choice(("audit-two", *kinds["audit"], *kinds["audit"], *kinds["mutants"] * 3))
    pair = [first, second]
    if draw.random() < 0.2:
        pair[1] = draw.choice((*NAMES, "good.npz", ".", "pipe.npz", "device.npz", "closed.npz"))
    draw.shuffle(pair)
    good: dict[str, tuple[str, ...]] = {"--verbose": (), "--fail-on-worse": (), "--json": ()}
    good["--markdown"] = ()
    return ["compare", *pair, *_options(draw, good, {"--out": _NO_FOLDERS})]


def _run(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    labs = (
        "zz-good",
        "zz-good",
        "zz-typed",
        "zz-typed",
        "zz-typed",
        "zz-false",
        "zz-raises",
        "zz-leaves",
    )
    line = ["lab", "run", *draw.choices(labs, k=draw.choice((1, 1, 1, 2, 3)))]
    if draw.random() < 0.1:
        line[-1] = draw.choice(("zz-of-a-file", *NAMES))
    if draw.random() < 0.05:
        line = ["lab", "run", "--all"]
    if draw.random() < 0.5:
        name = draw.choice(("size", "size", "real", "word", "word", "many", "choice", "flag"))
        values = ("1", "3", "0.5", "b", "true", "2,2", "x", *NAMES, *_NUMBERS, "1e9", "1_0", "none")
        line = ["lab", "run", "zz-typed", "--set", f"{name}={draw.choice(values)}"]
    good = {
        "--module": ("zz_fuzz_labs.py", "zz_fuzz_labs"),
        "--preset": ("quick", "full"),
        "--seed": ("1", "7"),
        "--seeds": ("1", "2"),
        "--force": (),
        "--verbose": (),
    }
    bad = {
        "--module": _MODULES,
        "--preset": ("medium",),
        "--seed": _NUMBERS,
        "--seeds": _NUMBERS,
        "--jobs": _NUMBERS,
        "--set": ("size", "=", "size=", "\x1b[31m=3", "size=" + "9" * 5000),
        "--out": _NO_FOLDERS,
    }
    line += _options(draw, good, bad)
    return line if "--out" in line else [*line, "--out", "out/runs"]


_MODULES = (
    "zz_fuzz_labs.py", "zz_fuzz_labs", "zz_fuzz_broken.py", "zz_fuzz_broken", "zz_fuzz_leaves.py",
    "good.npz", "absent.py", "folder.npz", "pipe.npz", *NAMES,
)  # fmt: skip


def _list(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    good = {"--room": ("nets", "kernels"), "--covers": ("N-08",), "--module": ("zz_fuzz_labs.py",)}
    bad = {"--room": (), "--covers": ("N-99",), "--module": _MODULES}
    return ["lab", "list", *_options(draw, good, bad)]


def _show(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    lab = draw.choice(("zz-good", "zz-typed", "zz-of-a-file", draw.choice(NAMES)))
    good = {"--module": ("zz_fuzz_labs.py",), "--json": (), "--module=zz_fuzz_labs": ()}
    return ["lab", "show", lab, *_options(draw, good, {"--module": _MODULES})]


def _index(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    words = draw.sample(
        ("gradient", "descent", "N-08", "ntk", *NAMES[::3]), k=draw.choice((0, 1, 2))
    )
    good: dict[str, tuple[str, ...]] = {
        "--source": ("notes",),
        "--room": ("kernels", "nets"),
        "--missing": (),
        "--loose": (),
        "--out": ("out/runs",),
    }
    bad = {"--source": (), "--room": (), "--out": _NO_FOLDERS}
    return ["index", *words, *_options(draw, good, bad)]


def _errata(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    words = draw.sample(("novikoff", "N-08", *NAMES[::3]), k=draw.choice((0, 1, 1, 2)))
    good: dict[str, tuple[str, ...]] = {"--out": ("out/errata",), "--json": (), "--out=out/e": ()}
    return ["errata", *words, *_options(draw, good, {"--out": _NO_FOLDERS})]


def _size(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    classes = ("sobolev", "barron", "lipschitz", "manifold")
    line = ["size", "--class", draw.choice(classes), "--dim", draw.choice(("1", "5", "1000000"))]
    line += ["--error", draw.choice(("0.1", "1e-2", "1e-300"))]
    numbers = ("1", "2", "5", "0.5")
    good: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("--smoothness", "--p", "--order", "--lipschitz", "--radius"), numbers),
        **dict.fromkeys(("--ambient", "--charts", "--constant", "--barron-constant"), ("1", "50")),
        **dict.fromkeys(("--shallow", "--continuous", "--list"), ()),
    }
    large = (*_NUMBERS, "1e300", "inf", "1000000", "2")
    options = [option for option, values in good.items() if values]
    options += ["--class", "--dim", "--error", "--weights-exponent"]
    return line + _options(draw, good, dict.fromkeys(options, large))


def _doctor(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    return ["doctor"]


def _nonsense(draw: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    words = (
        "audit",
        "lab",
        "run",
        "index",
        "--help",
        "-h",
        "--version",
        "--all",
        "--json=1",
        *NAMES,
    )
    line = draw.choices(words, k=draw.choice((0, 1, 2, 3)))
    # without a model the audit trains its own example, which takes a while
    return [*line, "--no-such-option"] if "audit" in line else line


def mutants(audit: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Records of an audit in which a few values were exchanged for others."""
    draw = random.Random(seed)
    others: tuple[Any, ...] = (
        None, True, -1, 10**400, 1e308, "", "\x1b[31m", "\ud800", "nan", "$x$", [], {}, [[[]]],
        {"a": 1},
        "x" * 5000, [None] * 9, "inf",
    )  # fmt: skip
    for _ in range(count):
        record = json.loads(audit)
        for _ in range(draw.choice((1, 1, 2, 5))):
            node = record
            while True:
                key = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
                if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.15:
                    break
                node = node[key]
            if isinstance(node, dict) and draw.random() < 0.25:
                del node[key]
            else:
                node[key] = draw.choice(others)
            if not record:
                break
        yield json.dumps(record).encode()


def _npz(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _claimed_array(shape: tuple[int, ...]) -> bytes:
    """An archive whose array says it has this shape, and holds nothing."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    return _zipped({"x_train.npy": array, "y_train.npy": array})


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
