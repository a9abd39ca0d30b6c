"""Running many labs: one after the other or side by side, taking up what is already finished."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchtheory.core import progress
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.random import as_generator
from torchtheory.labs.engine.registry import Lab, Preset, find_lab
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.engine.store import RunStore


@dataclass(frozen=True, slots=True)
class Failure:
    """A lab that raised instead of finishing."""

    lab: Lab
    sentence: str
    bad_input: bool = False


def run_many(
    labs: Sequence[Lab],
    store: RunStore,
    *,
    preset: Preset = "quick",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    jobs: int = 1,
    force: bool = False,
) -> Iterator[Run | Failure]:
    """Run labs and keep each in ``store`` the moment it is finished; yields as they finish.

    A lab whose finished run is in the store (same configuration, seed and code) is read back
    unless ``force``. With ``jobs`` > 1 each process gets its share of the cores.
    """
    if jobs < 1:
        raise InvalidInput(f"jobs must be at least 1, not {jobs}")
    as_generator(seed)
    for lab in labs:  # a wrong parameter is met before the first lab is run
        lab.configure(preset, settings or {})
    store.sweep()
    waiting = []
    for lab in labs:
        done = None if force else store.load(lab, preset, seed, settings)
        if done is not None:
            yield done
        else:
            waiting.append(lab)
    if jobs == 1 or len(waiting) < 2:
        with progress.display():
            for lab in progress.track(waiting, "labs"):
                yield _run_here(lab, store, preset, seed, settings)
        return
    yield from _run_beside(waiting, store, preset, seed, settings, min(jobs, len(waiting)))


def _run_here(
    lab: Lab, store: RunStore, preset: Preset, seed: int, settings: Mapping[str, Any] | None
) -> Run | Failure:
    try:
        run = run_lab(lab, preset=preset, seed=seed, settings=settings)
    except TorchTheoryError as error:
        return Failure(lab, str(error), bad_input=True)
    except Exception as error:
        return Failure(lab, _sentence(error))
    try:
        store.save(run)
    except TorchTheoryError:  # the directory cannot be written to: no other lab could either
        raise
    except Exception as error:
        return Failure(lab, f"its report could not be made: {_sentence(error)}")
    return run


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _run_beside(
    labs: Sequence[Lab],
    store: RunStore,
    preset: Preset,
    seed: int,
    settings: Mapping[str, Any] | None,
    jobs: int,
) -> Iterator[Run | Failure]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # spawn: a forked torch may hang on the locks of its thread pools
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _start_worker, (threads,))
    try:
        with _interrupts_ignored():  # the processes inherit that: Ctrl-C is for this one to handle
            pending: dict[Future[tuple[str, bool] | None], Lab] = {
                pool.submit(_work, lab.name, store.root, preset, seed, dict(settings or {})): lab
                for lab in labs
            }
        for future in progress.track(as_completed(pending), "labs", total=len(labs)):
            lab = pending[future]
            try:
                failed = future.result()
            except BrokenProcessPool:
                failed = ("the process running it was killed", False)
            except TorchTheoryError as error:
                failed = (str(error), True)
            run = None
            if failed is None:  # by the worker's code, which may have been edited since we began
                run = store.load(lab, preset, seed, settings, same_code=False)
            yield run or Failure(lab, *(failed or ("its result could not be read back", False)))
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


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


def _start_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(
    name: str, root: Path, preset: Preset, seed: int, settings: dict[str, Any]
) -> tuple[str, bool] | None:
    with progress.hidden():
        outcome = _run_here(find_lab(name), RunStore(root), preset, seed, settings)
    return (outcome.sentence, outcome.bad_input) if isinstance(outcome, Failure) else None
