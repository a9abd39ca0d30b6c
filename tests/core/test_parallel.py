"""Many tasks: each has its own fate, and no process outlives the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import joblib
import pytest
import torch

from torchtheory.core.errors import InvalidInput, MissingPackage, OutOfTime, TorchTheoryError
from torchtheory.core.memory import spare_memory
from torchtheory.core.parallel import Outcome, WorkerKilled, run_tasks


class Awkward(Exception):
    """Cannot be sent: it is made from two things and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_gets_its_own_outcome(jobs: int) -> None:
    def task(k: int) -> object:
        if k == 1:
            raise ZeroDivisionError("one")
        if k == 2:
            raise Awkward("two", "parts")
        if k == 3:
            sys.exit("three")
        if k == 4 and jobs > 1:
            return (n for n in range(3))  # no pickle
        return torch.arange(k)

    outcomes = {o.place: o for o in run_tasks(task, range(6), jobs=jobs)}
    assert set(outcomes) == set(range(6))
    value = outcomes[5].get()
    assert isinstance(value, torch.Tensor)
    assert value.tolist() == [0, 1, 2, 3, 4]
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="one"):
        outcomes[1].get()
    assert "two" in str(outcomes[2].error)
    assert isinstance(outcomes[3].error, SystemExit)
    if jobs > 1:
        assert "cannot be sent back" in str(outcomes[4].error)


class Odd(BaseException):
    """No `Exception`, as `KeyboardInterrupt` is none."""

    def __str__(self) -> str:
        raise ValueError("it has no words")


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_class_of_exceptions_costs_another_task(jobs: int) -> None:
    def task(k: int) -> int:
        if k == 0:
            raise Odd
        if k == 1:
            raise GeneratorExit("one")
        if k == 2:
            raise KeyboardInterrupt  # not the user's: in a worker nobody presses Ctrl-C
        return k

    tasks = range(5) if jobs > 1 else (0, 1, 3, 4)
    outcomes = {tasks[o.place]: o for o in run_tasks(task, tasks, jobs=jobs)}
    assert {k: o.value for k, o in outcomes.items()} == {k: None if k < 3 else k for k in tasks}
    assert isinstance(outcomes[1].error, GeneratorExit)
    assert outcomes[0].complaint.startswith("it raised ")
    assert outcomes[1].complaint == "it raised GeneratorExit: one"
    assert outcomes[3].complaint == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutOfTime])
def test_ctrl_c_and_a_deadline_are_for_all_tasks(error: type[BaseException]) -> None:
    def task(k: int) -> int:
        if k == 1:
            raise error
        return k

    found = run_tasks(task, range(3))
    assert next(found).value == 0
    with pytest.raises(error):
        next(found)


def test_workers_stand_where_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):  # the workers of the first call are there for the second
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        places = {o.get() for o in run_tasks(lambda _: os.getcwd(), range(3), jobs=2)}
        assert places == {str(tmp_path / name)}


def test_outcomes_come_as_they_finish_with_their_share_of_the_cores(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def task(k: int) -> tuple[int, str]:
        while k == 0 and not gate.exists():
            time.sleep(0.01)
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    places, settings = [], set()
    for outcome in run_tasks(task, range(4), jobs=2):
        places.append(outcome.place)
        settings.add(outcome.get())
        if len(places) == 3:
            gate.touch()
    assert places[-1] == 0
    share = max(1, joblib.cpu_count() // 2)
    assert settings == {(share, str(share))}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_worker_costs_its_own_task_only(tmp_path: Path) -> None:
    def task(k: int) -> int:
        (tmp_path / f"{k}-{time.time_ns()}").touch()
        if k == 1:
            while not list(tmp_path.glob("2-*")):  # another is running
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2 if k == 2 else 0.0)
        return 10 * k

    outcomes = {o.place: o for o in run_tasks(task, range(6), jobs=2)}
    assert isinstance(outcomes[1].error, WorkerKilled)
    assert {k: o.value for k, o in outcomes.items() if k != 1} == {
        k: 10 * k for k in range(6) if k != 1
    }
    (alone,) = run_tasks(task, [1], jobs=2)
    assert isinstance(alone.error, WorkerKilled)


def test_settings_of_joblib_do_not_leak_into_the_loop() -> None:
    before = joblib.parallel_config.__module__, joblib.effective_n_jobs(None)
    for _ in run_tasks(abs, range(3), jobs=2):
        assert (joblib.parallel_config.__module__, joblib.effective_n_jobs(None)) == before


def allowed_growth(_: int) -> int:
    from joblib.externals.loky import process_executor

    return int(process_executor._MAX_MEMORY_LEAK_SIZE)


def test_workers_may_grow_and_are_replaced_without_a_word() -> None:
    """loky ends a worker 300 MB above its first task, and says so on the terminal."""
    words = "A worker stopped while some jobs were given to the executor. This can be caused by ..."
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for outcome in run_tasks(allowed_growth, [0, 1, 2], jobs=2):
            assert outcome.get() == spare_memory() // 2
            warnings.warn(words, UserWarning, stacklevel=1)  # as its thread does
            warnings.warn("something of the caller's", UserWarning, stacklevel=1)
        assert [str(w.message) for w in said] == ["something of the caller's"] * 3
        warnings.warn(words, UserWarning, stacklevel=1)
        assert len(said) == 4
    assert warnings.filters == before


def test_bad_input() -> None:
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(TorchTheoryError, match="jobs must be a whole number >= 1"):
            run_tasks(abs, [1], jobs=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="threads must be a whole number >= 1"):
        run_tasks(abs, [1], threads=0)
    with pytest.raises(InvalidInput, match="known: dask, loky, ray, serial"):
        run_tasks(abs, [1], backend="threads")  # type: ignore[arg-type]
    assert list(run_tasks(abs, [], jobs=2)) == []


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_runs_the_same_tasks(backend: str) -> None:
    def task(k: int) -> int:
        if k == 2:
            raise ZeroDivisionError("two")
        return k * k

    try:
        outcomes = list(run_tasks(task, range(5), jobs=2, backend=backend))  # type: ignore[arg-type]
    except MissingPackage:
        pytest.skip(f"{backend} is not installed")
    assert {o.place: o.value for o in outcomes} == {0: 0, 1: 1, 2: None, 3: 9, 4: 16}
    assert [type(o.error) for o in outcomes if o.error] == [ZeroDivisionError]


def test_serial_keeps_the_order_and_the_process() -> None:
    outcomes = list(run_tasks(lambda _: os.getpid(), range(3), jobs=4, backend="serial"))
    assert outcomes == [Outcome(k, os.getpid()) for k in range(3)]


SCRIPT = """
import os, sys, time
from pathlib import Path
from torchtheory.core.parallel import run_tasks

HERE = Path(sys.argv[1])


def task(k):
    (HERE / f"worker-{os.getpid()}").touch()
    while k > 0:
        time.sleep(0.01)
    return k


for outcome in run_tasks(task, range(4), jobs=2):
    (HERE / "first").touch()
    if sys.argv[2] == "leave":
        break
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no signal to one process")
@pytest.mark.parametrize("how", ["interrupt", "kill", "leave"])
def test_no_worker_outlives_its_parent(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), how],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wait_for((tmp_path / "first").exists)
    if how == "interrupt":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    elif how == "kill":
        process.kill()
    _, errors = process.communicate(timeout=60)
    workers = [int(p.name.split("-")[1]) for p in tmp_path.glob("worker-*")]
    assert workers
    wait_for(lambda: not any(alive(w) for w in workers))
    assert errors.count("KeyboardInterrupt") == (how == "interrupt")
    if how != "kill":  # then joblib says what it cleared away
        # an interrupt reaches joblib's own tracker too, which may find a semaphore cleared already
        said = [line for line in errors.splitlines() if "resource_tracker" not in line]
        assert not [line for line in said if "Warning" in line]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
