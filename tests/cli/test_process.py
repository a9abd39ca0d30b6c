"""The program as a process: what it loads, its streams, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.parametrize("arguments", [["--help"], ["lab", "run", "--help"], ["--version"]])
def test_help_does_not_load_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom torchtheory.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as ended:\n    assert ended.code == 0\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("command", ["index --json | head -1", "--version | true"])
def test_a_reader_that_has_seen_enough(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m torchtheory {command}",
        shell=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("size --list >&-", 0, ""),
        ("size --list --json >&-", 0, ""),
        ("size --list >&- 2>&-", 0, ""),
        ("size 2>&-", 2, ""),
        (
            "size --list > /dev/full",
            2,
            "torchtheory: cannot write the output: No space left on device\n",
        ),
        ("size 2> /dev/full", 2, ""),
    ],
)
def test_streams_that_take_nothing(tmp_path: Path, command: str, code: int, err: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m torchtheory {command}",
        shell=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, err)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to one process")
def test_ctrl_c_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "zz_waiting.py").write_text(
        "from pathlib import Path\nimport time\nfrom torch import nn\n"
        "def make():\n    Path('started').touch()\n    time.sleep(60)\n    return nn.ReLU()\n"
    )
    np.savez(tmp_path / "d.npz", x_train=np.zeros((2, 2)), y_train=np.zeros(2))
    started = subprocess.Popen(
        [sys.executable, "-m", "torchtheory", "audit", "--model", "zz_waiting:make",
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
