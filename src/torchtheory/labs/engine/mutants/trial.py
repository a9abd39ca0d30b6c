"""What is done in a process of its own: a lab watched, a mutant tried."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal
from unittest import mock

import torch

from torchtheory.core import progress, record
from torchtheory.core.figure import Figure
from torchtheory.labs.engine.mutants.calls import watched_calls
from torchtheory.labs.engine.mutants.mutations import CHANGES, REACH, Function, Mutant, install
from torchtheory.labs.engine.registry import find_lab
from torchtheory.labs.engine.run import run_lab

#: What became of a mutant. `unreached`: what the function returned was never different.
Status = Literal["killed by a lab", "killed by a test", "timed out", "unreached", "survived"]

#: Loaded once in a server process from which the others are forked. No room may be among them.
_PRELOADED = ["torchtheory.labs.engine.mutants.trial", "scipy.stats", "sklearn", "pytest"]


@dataclass(frozen=True, slots=True)
class Watched:
    """A lab run as it is.

    Attributes:
        lab: its name.
        problem: why it cannot judge a mutant; empty where it passes.
        seconds: how long it took.
        functions: the library functions that it takes numbers from.
    """

    lab: str
    problem: str
    seconds: float
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant.

    Attributes:
        by: the lab or the tests that noticed.
        seconds: how long that took.
    """

    mutant: Mutant
    status: Status
    by: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Judges:
    """Who has to notice a mutant: labs first, the fastest before the others, then tests.

    Attributes:
        labs: names of labs that pass as they are.
        doctests: names of documented objects in the function's module.
        tests: node ids for pytest, relative to `root`.
        root: the directory pytest runs in.
    """

    labs: tuple[str, ...] = ()
    doctests: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    root: str = "."


def watch_lab(name: str) -> Watched:
    """Run a lab and see which functions it takes numbers from."""
    start = time.perf_counter()
    with _quietly():
        find_lab(name)
        try:
            run_lab(name)  # what is imported or cached on the first run is not the lab's call
            start = time.perf_counter()
            with watched_calls() as functions:
                run = run_lab(name)
        except Exception as error:
            return Watched(name, f"raises {type(error).__name__}", time.perf_counter() - start)
    problem = "; ".join(run.problems)
    return Watched(name, problem, time.perf_counter() - start, tuple(sorted(functions)))


def try_mutant(mutant: Mutant, judges: Judges) -> tuple[Status, str]:
    """Make one function wrong in this process, for good, and see who notices."""
    install(mutant)
    for name in judges.labs:
        if not _lab_passes(name):
            return "killed by a lab", name
    noticed = failing_tests(mutant.function.module, judges)
    if noticed:
        return "killed by a test", noticed
    if mutant.change in CHANGES and not REACH.changed:
        return "unreached", ""
    return "survived", ""


def failing_tests(module: str, judges: Judges) -> str:
    """The first tests of a function that fail in this process; empty if all pass."""
    with _quietly():
        for name in judges.doctests:
            if _doctest_fails(module, name):
                return f"the doctest of {name}"
        if judges.tests:
            import pytest

            os.chdir(judges.root)
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
            code = pytest.main([*options, *judges.tests])
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return f"tests ({len(judges.tests)})"
    return ""


def in_own_process(function: Callable[..., Any], *arguments: Any, limit: float) -> tuple[Any, str]:
    """The result of a call in a new process, and what went wrong there.

    Args:
        limit: after so many seconds the process is killed, and the problem is `"timed out"`.
    """
    methods = multiprocessing.get_all_start_methods()
    # forked from a server that has torch loaded and nothing running: quick, and no lock is held
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            return None, "timed out"
        result, problem = receiver.recv()
    except EOFError:
        return None, "the process died"
    else:
        return result, problem
    finally:
        process.kill()
        process.join()
        receiver.close()


def _child(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        answer = function(*arguments), ""
    except BaseException as error:
        answer = None, f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # nobody waits any more
        sender.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _lab_passes(name: str) -> bool:
    with _quietly():
        try:
            return run_lab(find_lab(name)).passed
        except Exception:
            return False


def _doctest_fails(module: str, name: str) -> bool:
    try:
        loaded: Any = importlib.import_module(module)
        documented = loaded
        for part in name.split("."):
            documented = getattr(documented, part)
    except Exception:  # the mutant cannot even be imported
        return True
    # by hand: a search of the module would take a decorated function for one of another module
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
    for test in finder.find(documented, name, module=False, globs=dict(vars(loaded))):
        runner.run(test, out=lambda _: None)
    return runner.failures > 0


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No figures, no bars, nothing printed."""
    with (
        mock.patch.object(record, "draw", _no_figure),
        progress.hidden(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def _no_figure(name: str, plot: object, *, caption: str = "", **options: Any) -> Figure:
    return Figure(name, caption, None, b"")
