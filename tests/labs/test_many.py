"""Many labs: finished ones are kept, also when the process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtheory.core.errors import FileProblem, InvalidInput, UnknownName
from torchtheory.labs.engine import store as store_module
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run
from torchtheory.labs.engine.store import RunStore

SCRIPT = """
import os, sys, time
from pathlib import Path
from torchtheory.labs.engine.registry import find_lab, lab
from torchtheory.labs.engine.store import RunStore
from torchtheory.labs.engine import store as store_module
from torchtheory.labs.engine.many import Failure, run_many

store_module.code_fingerprint = lambda *_: "the same"  # also when a file is saved in between
HERE = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["ZZ_HERE"])
os.environ["ZZ_HERE"] = str(HERE)
NAMES = ("zz-first", "zz-second", "zz-third")


def make(name):
    def slow(run):
        (HERE / "started").open("a").write(f"{name} {os.getpid()}\\n")
        # the second goes on for ever, until the test says that it may end
        while name == "zz-second" and not (HERE / "go-on").exists():
            time.sleep(0.02)
        says = run.states("N-08", "x")
        says.at_most(run.rand(1), 1)
        says.fails("b", 2)
    slow.__qualname__ = name
    lab(name, room="nets", covers=["N-08"], title=name)(slow)


for name in NAMES:
    make(name)
if __name__ == "__main__":
    jobs = int(sys.argv[2])
    for outcome in run_many([find_lab(n) for n in NAMES], RunStore(HERE / "runs"), jobs=jobs):
        print(outcome.lab.name, "failed" if isinstance(outcome, Failure) else outcome.passed,
              flush=True)
"""


pytestmark = pytest.mark.usefixtures("own_registry")


def register(name: str, function: Callable[..., object]) -> Lab:
    lab(name, room="nets", covers=["N-08"], title="A test")(function)
    return find_lab(name)


def good(run: Run, size: int = 1) -> None:
    says = run.states("N-08", "x")
    says.at_most(run.rand(size), 1)
    says.fails("b", 2)


def test_finished_labs_are_read_back(tmp_path: Path) -> None:
    calls = []

    def counted(run: Run) -> None:
        calls.append(run.seed)
        good(run)

    made, store = [register("zz-counted", counted)], RunStore(tmp_path)
    (first,) = run_many(made, store)
    (second,) = run_many(made, store)
    assert calls == [0]
    assert isinstance(first, Run)
    assert isinstance(second, Run)
    assert second.claims == first.claims
    (forced,) = run_many(made, store, force=True)
    (other,) = run_many(made, store, seed=5)
    assert calls == [0, 0, 5]
    assert isinstance(forced, Run)
    assert isinstance(other, Run)
    assert forced.claims == first.claims
    assert other.claims != first.claims


def test_one_lab_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def raises(run: Run) -> None:
        raise RuntimeError("two\nlines")

    def refuses(run: Run) -> None:
        raise FileProblem("there is no file mnist")

    made = [register("zz-a", raises), register("zz-b", refuses), register("zz-c", good)]
    first, second, third = run_many(made, RunStore(tmp_path))
    assert first == Failure(made[0], "RuntimeError: two lines")
    assert second == Failure(made[1], "there is no file mnist", bad_input=True)
    assert isinstance(third, Run)
    assert {p.name for p in tmp_path.iterdir()} == {"zz-c"}


def test_a_report_that_cannot_be_made_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = store_module.run_page

    def fails_for_a(run: Run) -> str:
        if run.lab.name == "zz-a":
            raise KeyError("symbol")
        return page(run)

    monkeypatch.setattr(store_module, "run_page", fails_for_a)
    made = [register("zz-a", good), register("zz-b", lambda run: good(run))]
    first, second = run_many(made, RunStore(tmp_path))
    assert isinstance(first, Failure)
    assert "report could not be made: KeyError" in first.sentence
    assert isinstance(second, Run)


def test_bad_input_is_met_before_the_first_lab_runs(tmp_path: Path) -> None:
    calls: list[str] = []

    def first(run: Run) -> None:
        calls.append("ran")

    made = [register("zz-a", first), register("zz-b", good)]
    with pytest.raises(UnknownName, match="parameter of lab zz-a"):
        list(run_many(made, RunStore(tmp_path), settings={"size": 2}))
    with pytest.raises(InvalidInput, match="jobs must be a whole number >= 1"):
        list(run_many(made, RunStore(tmp_path), jobs=0))
    assert calls == []


def test_a_directory_that_cannot_be_written_to_ends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot write to"):
        list(run_many([register("zz-a", good)], RunStore(tmp_path / "file" / "below")))


def start(script: Path, here: Path, jobs: int) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, str(script), str(here), str(jobs)],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=hear_interrupts,
    )  # fmt: skip


def hear_interrupts() -> None:
    """A suite in the background of a shell ignores SIGINT, and what it starts would as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def stamps(run: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file()}


def started(here: Path) -> list[str]:
    return [line.split()[0] for line in (here / "started").read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_and_taken_up_again(tmp_path: Path) -> None:
    script = tmp_path / "zz_slow_labs.py"
    script.write_text(SCRIPT)
    first, third = (tmp_path / "runs" / name / "quick-0" for name in ("zz-first", "zz-third"))
    process = start(script, tmp_path, jobs=2)
    # the third runs beside the second, which waits
    wait_for(
        lambda: first.exists() and third.exists() and "zz-second" in started(tmp_path), process
    )
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    workers = {int(line.split()[1]) for line in (tmp_path / "started").read_text().splitlines()}
    end = time.monotonic() + 30
    while any(alive(w) for w in workers):  # none waits for ever for a parent that is gone
        assert time.monotonic() < end
        time.sleep(0.02)
    before = stamps(first) | stamps(third)
    assert not (tmp_path / "runs" / "zz-second").exists()
    # what a kill in the middle of writing would leave
    half = tmp_path / "runs" / ".partial-0123456789abcdef-abcdefgh"
    half.mkdir()
    (half / "config.json").write_text("{}")

    (tmp_path / "go-on").write_text("")
    (tmp_path / "started").write_text("")
    process = start(script, tmp_path, jobs=1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split() == "zz-first True zz-third True zz-second True".split()
    assert stamps(first) | stamps(third) == before
    assert started(tmp_path) == ["zz-second"]
    assert (tmp_path / "runs" / "zz-second" / "quick-0" / "report.html").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to one process")
def test_ctrl_c_ends_the_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    script = tmp_path / "zz_slow_labs.py"
    script.write_text(SCRIPT)
    process = start(script, tmp_path, jobs=2)
    done = tmp_path / "runs" / "zz-first" / "quick-0"
    wait_for(lambda: done.exists() and "zz-second" in started(tmp_path), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    _, err = process.communicate(timeout=60)
    assert err.count("KeyboardInterrupt") == 1  # the script's own; the workers say nothing
    assert (done / "config.json").exists()
    assert not (tmp_path / "runs" / "zz-second").exists()


def test_side_by_side(tmp_path: Path) -> None:
    known = find_lab("threshold-neuron")
    unknown = register("zz-only-here", good)  # in this process, not in the workers
    two = {o.lab.name: o for o in run_many([known, unknown], RunStore(tmp_path / "two"), jobs=2)}
    failure = two["zz-only-here"]
    assert isinstance(failure, Failure)
    assert failure.sentence.startswith("no lab is named 'zz-only-here'")
    run, (alone,) = two["threshold-neuron"], run_many([known], RunStore(tmp_path / "one"))
    assert isinstance(run, Run)
    assert isinstance(alone, Run)
    assert [c.measured for c in run.claims] == [c.measured for c in alone.claims]
