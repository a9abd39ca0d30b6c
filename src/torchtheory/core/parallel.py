"""Many tasks side by side: labs, seeds, sweeps, tiles of a kernel, checkpoints.

`run_tasks` calls one function on each of many tasks and yields the outcomes as they finish. It
goes through joblib: processes of this machine (`loky`), a cluster (`dask`, `ray`), or this process
(`serial`). What the tasks may count on is the same everywhere:

- a task that raises costs nobody else anything: its exception is its outcome, whatever class it is
  of;
- a process that is killed (out of memory, `kill`) costs its own task only;
- Ctrl-C, or leaving the loop early, ends the workers at once; so does the death of this process;
- processes on one machine get their share of its cores.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import cloudpickle
import joblib
import torch
from joblib.externals.loky import process_executor

from torchtheory.core import progress
from torchtheory.core.checks import one_of, whole_number
from torchtheory.core.errors import MissingPackage, OutOfTime, TorchTheoryError
from torchtheory.core.foreign_text import one_line
from torchtheory.core.memory import spare_memory

Backend = Literal["loky", "dask", "ray", "serial"]
BACKENDS: tuple[Backend, ...] = ("loky", "dask", "ray", "serial")

Task = TypeVar("Task")
T = TypeVar("T")


class WorkerKilled(RuntimeError):
    """The process running a task was killed."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of one task.

    Attributes:
        place: the task's place in the sequence given, from 0.
        value: what the function returned; `None` where it raised.
        error: what it raised, or a `WorkerKilled`; `None` where it returned.
    """

    place: int
    value: T | None = None
    error: BaseException | None = None

    def get(self) -> T:
        """The value, or the task's exception raised here."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    @property
    def complaint(self) -> str:
        """What went wrong, on one line; empty where nothing did.

        >>> Outcome(0, error=SystemExit(3)).complaint
        'it raised SystemExit: 3'
        """
        if self.error is None or isinstance(self.error, TorchTheoryError | WorkerKilled):
            return one_line(str(self.error or ""))
        return one_line(f"it raised {_words(self.error)}")[:500]


@dataclass(frozen=True, slots=True)
class _Worker:
    """What a worker process is told with each task.

    Attributes:
        parent: process id of the one that waits for the results, where it is on the same machine.
        marks: a directory in which a file stands for each task being run.
        threads: how many threads the numerical libraries may use; as they are if `None`.
        place: the current directory of the one that waits, which a worker of an earlier call may
            not have seen.
        memory: bytes by which a worker may grow from task to task before another takes its place;
            loky's 300 MB if `None`, which a few dozen tasks reach by what they import.
    """

    parent: int | None = None
    marks: str | None = None
    threads: int | None = None
    place: str | None = None
    memory: int | None = None


def run_tasks(
    function: Callable[[Task], T],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    threads: int | None = None,
    description: str = "tasks",
) -> Iterator[Outcome[T]]:
    """Call `function` on each task and yield the outcomes as they finish, in any order.

    The function and the tasks are sent to the workers with cloudpickle, so a lambda or a function
    of a notebook will do. A worker draws no random numbers of its own: give each task its seed.

    With `loky` a killed worker takes down the pool. The tasks that had been running beside the
    killed one are then begun again, each alone, so a task should write its results in one step.
    Dask and Ray begin the tasks of a lost worker again by themselves.

    Args:
        jobs: how many tasks run at a time. With 1, `loky` runs them in this process, as `serial`
            always does. A Dask cluster decides for itself.
        backend: `"loky"`, `"serial"`, `"dask"` (the current client, else the scheduler that
            `DASK_SCHEDULER_ADDRESS` names, else a cluster on this machine) or `"ray"` (the
            cluster that `RAY_ADDRESS` names, else one on this machine).
        threads: threads per task. Unless given, processes of this machine share its cores, and a
            cluster keeps its own setting.
        description: what the progress bar says.

    >>> sorted(outcome.get() for outcome in run_tasks(abs, [-3, 1, -2]))
    [1, 2, 3]
    >>> [outcome] = run_tasks(lambda x: 1 / x, [0])
    >>> outcome.error
    ZeroDivisionError('division by zero')
    """
    jobs = whole_number(jobs, "jobs", least=1)
    if threads is not None:
        threads = whole_number(threads, "threads", least=1)
    one_of(backend, "backend", BACKENDS)
    return _outcomes(function, list(tasks), jobs, backend, threads, description)


def _outcomes(
    function: Callable[[Task], T],
    tasks: list[Task],
    jobs: int,
    backend: Backend,
    threads: int | None,
    description: str,
) -> Iterator[Outcome[T]]:
    if not tasks:
        return
    if backend == "serial" or (backend == "loky" and jobs == 1):
        with progress.display():
            for place, task in enumerate(progress.track(tasks, description)):
                yield _attempt(function, place, task, here=True)
        return
    outcomes = _on_this_machine if backend == "loky" else _on_a_cluster
    found = outcomes(function, tasks, jobs, backend, threads)
    try:
        yield from progress.track(found, description, total=len(tasks))
    finally:
        found.close()  # before this generator is left: not when the collector comes to it


def _on_this_machine(
    function: Callable[[Task], T],
    tasks: list[Task],
    jobs: int,
    backend: Backend,
    threads: int | None,
) -> Generator[Outcome[T]]:
    threads = threads or max(1, joblib.cpu_count() // jobs)
    waiting = set(range(len(tasks)))
    suspects: list[int] = []
    settings = {"backend": backend, "inner_max_num_threads": threads}
    share = spare_memory() // max(2, jobs)
    with (
        tempfile.TemporaryDirectory(prefix="torchtheory-tasks-") as marks,
        _replaced_workers_unsaid(),
    ):
        worker = _Worker(os.getpid(), marks, threads, os.getcwd(), share)
        while waiting or suspects:
            # a suspect runs alone: if a process is killed again, it was this task's
            chosen = sorted(waiting) if waiting else [suspects.pop()]
            missing = set(chosen)
            # joblib runs a single job in this process, which a task may kill
            pool = min(max(2, jobs), max(2, len(chosen)))
            try:
                for outcome in _dispatch(
                    function, tasks, chosen, worker, settings | {"n_jobs": pool}
                ):
                    missing.discard(outcome.place)
                    waiting.discard(outcome.place)
                    yield outcome
            except BrokenExecutor as error:
                begun = {int(mark.name) for mark in Path(marks).iterdir()} & missing
                for mark in Path(marks).iterdir():
                    mark.unlink(missing_ok=True)
                if not begun:  # no worker comes as far as a task
                    raise
                waiting -= begun
                if len(begun) > 1:
                    suspects += sorted(begun)
                else:
                    killed = WorkerKilled("the process running it was killed")
                    killed.__cause__ = error
                    yield Outcome(begun.pop(), error=killed)


def _on_a_cluster(
    function: Callable[[Task], T],
    tasks: list[Task],
    jobs: int,
    backend: Backend,
    threads: int | None,
) -> Generator[Outcome[T]]:
    connect = {"dask": _connect_dask, "ray": _connect_ray}[backend]
    settings = {"backend": connect(), "n_jobs": jobs}
    yield from _dispatch(function, tasks, range(len(tasks)), _Worker(threads=threads), settings)


def _dispatch(
    function: Callable[[Task], T],
    tasks: list[Task],
    places: Sequence[int],
    worker: _Worker,
    settings: dict[str, Any],
) -> Generator[Outcome[T]]:
    calls = (joblib.delayed(_work)(function, k, tasks[k], worker) for k in places)
    # only while the tasks are sent off: the settings are those of the whole process
    with joblib.parallel_config(**settings):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        # the workers inherit that: Ctrl-C is for this process to handle
        with _interrupts_ignored():
            found = parallel(calls)
    try:
        for place, packed, words in found:
            yield _unpacked(place, packed, words)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that unfinished tasks are canceled: so they should be
            found.close()


def _attempt(function: Callable[[Task], T], place: int, task: Task, here: bool) -> Outcome[T]:
    """Call the function; whatever it raises is its outcome, `sys.exit` and the like too.

    In this process (`here`) Ctrl-C and the end of a deadline are for all tasks. No worker is told
    of either: there they come from the task.
    """
    try:
        return Outcome(place, function(task))
    except BaseException as error:
        if here and (type(error) is KeyboardInterrupt or isinstance(error, OutOfTime)):
            raise
        return Outcome(place, error=error)


def _work(
    function: Callable[[Task], T], place: int, task: Task, worker: _Worker
) -> tuple[int, bytes, str]:
    """One task in a worker process; the outcome is packed here, so that failing at it is one.

    With the words of what was raised: its class may be known to the worker alone.
    """
    _prepare(worker)
    mark = None if worker.marks is None else Path(worker.marks, str(place))
    if mark is not None:
        mark.touch()
    try:
        with progress.hidden():
            outcome = _attempt(function, place, task, here=False)
        words = ""
        if outcome.error is not None:
            words = _words(outcome.error)
            outcome = Outcome(place, error=_portable(outcome.error))
        try:
            return place, cloudpickle.dumps(outcome), words
        except BaseException as error:
            problem = TypeError(f"the result cannot be sent back: {_words(error)}")
            return place, cloudpickle.dumps(Outcome(place, error=problem)), words
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)


def _unpacked(place: int, packed: bytes, words: str) -> Outcome[Any]:
    try:
        return cast(Outcome[Any], pickle.loads(packed))  # made by our own worker
    except BaseException as error:
        if words:
            return Outcome(place, error=RuntimeError(words))
        return Outcome(place, error=TypeError(f"the result cannot be read: {_words(error)}"))


def _portable(error: BaseException) -> BaseException:
    """The exception, or its words where it does not survive being sent."""
    try:
        sent = pickle.loads(cloudpickle.dumps(error))
    except BaseException:
        sent = None
    return error if type(sent) is type(error) else RuntimeError(_words(error))


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # of a class whose __str__ raises
        return type(error).__name__


_prepared: _Worker | None = None


def _prepare(worker: _Worker) -> None:
    global _prepared
    if worker == _prepared:
        return
    if worker.parent is not None and (_prepared is None or _prepared.parent != worker.parent):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = threading.Thread(target=_end_with_parent, args=(worker.parent,), daemon=True)
        watch.start()
    if worker.place is not None:
        os.chdir(worker.place)
    if worker.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(worker.threads)
        torch.set_num_threads(worker.threads)
    if worker.memory is not None and hasattr(process_executor, "_MAX_MEMORY_LEAK_SIZE"):
        process_executor._MAX_MEMORY_LEAK_SIZE = worker.memory
    _prepared = worker


def _end_with_parent(parent: int) -> None:
    """A worker whose parent was killed would finish its task for nobody, then wait for more."""
    # Windows keeps the number of a parent that is gone; workers end there when they are idle
    while sys.platform != "win32":
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(0.2)


@contextmanager
def _replaced_workers_unsaid() -> Iterator[None]:
    """loky warns when it replaces a worker that grew or idled; what fails is an outcome.

    One filter more, and no `catch_warnings`, which would undo what the caller sets meanwhile.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    ours = next((entry for entry in warnings.filters if entry not in before), None)
    try:
        yield
    finally:
        if ours is not None:
            with suppress(ValueError):  # the caller has put other filters in their place
                warnings.filters.remove(ours)  # type: ignore[attr-defined]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


def _connect_dask() -> str:
    try:
        import distributed
    except ImportError:
        raise MissingPackage("backend dask needs the package distributed") from None
    with suppress(ValueError):  # there is no client yet
        distributed.get_client()
        return "dask"
    distributed.Client()
    return "dask"


def _connect_ray() -> str:
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError:
        raise MissingPackage("backend ray needs the package ray") from None

    class YieldingRay(RayBackend):  # type: ignore[misc]
        # inherited as False from joblib's pools of this machine, which may hang when they are
        # left early; Ray's pool is another
        supports_return_generator = True

    joblib.register_parallel_backend("torchtheory-ray", YieldingRay)
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return "torchtheory-ray"
