"""Whatever is typed: no traceback, an exit code that means something, no control character.

A command ends with 0 (done), 1 (something it found is bad, or a lab failed) or 2 (bad input, one
line on stderr), prints nothing a terminal would obey, and writes nowhere but to `--out`.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from torchtheory import cli
from torchtheory.labs.engine import registry
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run

from .calls import false, forget_labs, good, raises
from .hostile import MUTANTS, CommandLine, Wrong, command_lines, mutants, workshop

#: Other command lines with another TEST_SEED, like everything drawn in the tests.
SEED = 20 + int(os.environ.get("TEST_SEED", "0"))
BATCHES = 14
PER_BATCH = 64
#: A command that takes so many seconds waits for something that never comes.
TOO_LONG = 30

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes, devices and alarms")


def leaves(run: Run) -> None:
    sys.exit(0)


def typed(
    run: Run,
    size: int = 3,
    real: float = 0.5,
    word: str = "x",
    many: tuple[int, ...] = (2, 3),
    choice: Literal["a", "b"] = "a",
    flag: bool = False,
) -> None:
    run.note(f"{word} $x$")
    run.table(f"t{size}", [word, "$y$"], [[word, real]])
    says = run.states("N-08", "x")
    says.at_most(run.rand(size, *many).mean(), 1, where=word)
    says.fails(word, 2)
    run.refutes("novikoff-fewer-than-floor", "x").at_most(2, 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("workshop")
    return folder, workshop(folder, SEED)


@pytest.fixture(autouse=True)
def few_labs(monkeypatch: pytest.MonkeyPatch, place: tuple[Path, dict[str, list[str]]]) -> None:
    monkeypatch.chdir(place[0])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget_labs(monkeypatch)
    for function in (good, false, raises, leaves, typed):
        name, errata = function.__name__, []
        if function is typed:
            errata = ["novikoff-fewer-than-floor"]
        lab(f"zz-{name}", room="nets", covers=["N-08"], title="[a, b] $x$", errata=errata)(function)


class Late(BaseException):
    """Nothing but the end of the command catches it."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    streams = [io.TextIOWrapper(io.BytesIO(), line.encoding, newline="") for _ in "oe"]
    with monkeypatch.context() as patch, at_most(TOO_LONG):
        for name, value in line.environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        code: object = None
        try:
            cli.main(line.arguments)
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    texts = []
    for stream in streams:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        texts.append(stream.buffer.getvalue().decode(line.encoding))
    # a user's module is imported anew by the next command, as in a process of its own
    for name in [m for m in sys.modules if m.startswith(("zz_fuzz", registry.FILE_MODULE))]:
        del sys.modules[name]
    registry._LABS.pop("zz-of-a-file", None)
    return code, *texts


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything but what is below `out` and the places where commands write unless told."""
    found = {}
    for root, folders, files in os.walk(folder):
        if Path(root) == folder:
            folders[:] = [f for f in folders if f != "out" and not f.startswith("torchtheory-")]
        for name in (*folders, *files):
            state = os.lstat(os.path.join(root, name))
            found[os.path.relpath(os.path.join(root, name), folder)] = (
                state.st_size,
                state.st_mtime_ns,
            )
    return found


def test_two_audits_to_compare(
    place: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    audits(place[0], monkeypatch)


def audits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two audits, and more that were tampered with, for the command that compares them."""
    for name, model in (("audit-one", "make"), ("audit-two", "names")):
        if not (folder / name).exists():
            arguments = ("audit", "--model", f"zz_fuzz_models:{model}", "--data", "good.npz")
            line = CommandLine(
                (*arguments, "--only", "layers", "--only", "risk", "--out", name), {}, "utf-8"
            )
            code, _, err = outcome(line, monkeypatch)
            assert code in (0, 1), (code, err)
    record = (folder / "audit-two/audit.json").read_bytes()
    for k, bent in enumerate(mutants(record, MUTANTS, SEED)):
        (folder / f"mutant{k}.json").write_bytes(bent)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_any_command_line(
    batch: int, place: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kinds = place
    audits(folder, monkeypatch)
    lines = list(command_lines(BATCHES * PER_BATCH, SEED, kinds))
    assert len(lines) >= 500
    before, complaints = written(folder), []
    for line in lines[batch::BATCHES]:
        code, out, err = outcome(line, monkeypatch)
        wrong = Wrong()
        wrong.judge(line, code, out, err)
        if (now := written(folder)) != before:
            wrong.found.append(f"wrote {sorted(set(now.items()) ^ set(before.items()))[:3]}")
            before = now
        if wrong.found:
            shown = (err or out)[-300:]
            complaints.append(f"{list(line.arguments)!r}\n    {wrong.found}\n    {shown!r}")
    assert not complaints, f"{len(complaints)} of {PER_BATCH}:\n" + "\n".join(complaints)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_streams_that_are_closed_full_or_broken(
    place: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kinds = place
    audits(folder, monkeypatch)
    draw = random.Random(SEED)
    lines = [
        line
        for line in command_lines(120, SEED + 1, kinds)
        # with all labs of the package these would run for minutes
        if "errata" not in line.arguments and "--all" not in line.arguments
    ][:48]
    ways = ("file", "closed", "full", "broken")
    cases = [
        {
            "arguments": line.arguments,
            "environment": line.environment,
            "stdout": draw.choice(ways),
            "stderr": draw.choice(ways),
        }
        for line in lines
    ]
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out/cases.json").write_text(json.dumps(cases), "utf-8")
    script = Path(__file__).with_name("processes.py")
    done = subprocess.run(
        [sys.executable, str(script), "out/cases.json"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    complaints = []
    codes = json.loads(done.stdout)
    for number, (line, case, code) in enumerate(zip(lines, cases, codes, strict=True)):
        wrong, texts = Wrong(), {}
        for name in ("stdout", "stderr"):
            file = folder / f"out/process-{number}.{name}"
            texts[name] = file.read_text("utf-8") if file.exists() else ""
        unheard = case["stderr"] != "file" and code == 2
        err = "torchtheory: " if unheard else texts["stderr"]
        wrong.judge(line, code, texts["stdout"], err)
        if code == 99:
            wrong.found.append(texts["stderr"][-600:])
        if wrong.found:
            complaints.append(f"{case!r}\n    {wrong.found}")
    assert not complaints, "\n".join(complaints)
