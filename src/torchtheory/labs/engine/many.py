"""Running many labs: one after the other or side by side, taking up what is already finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchtheory.core import progress
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.foreign_text import one_line
from torchtheory.core.parallel import Backend, WorkerKilled, run_tasks
from torchtheory.core.random import as_generator
from torchtheory.labs.engine.registry import (
    Lab,
    Preset,
    find_lab,
    take_up,
)
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.engine.store import RunStore
from torchtheory.report.wording import shown


@dataclass(frozen=True, slots=True)
class Failure:
    """A lab that raised instead of finishing."""

    lab: Lab
    sentence: str
    bad_input: bool = False
    seed: int = 0


def run_many(
    labs: Sequence[Lab],
    store: RunStore,
    *,
    preset: Preset = "quick",
    seed: int | Sequence[int] = 0,
    settings: Mapping[str, Any] | None = None,
    jobs: int = 1,
    backend: Backend = "loky",
    force: bool = False,
) -> Iterator[Run | Failure]:
    """Run labs and keep each in `store` the moment it is finished; yields as they finish.

    A lab whose finished run is in the store (same configuration, seed and code) is read back
    unless `force`.

    Args:
        seed: the seed of the runs, or several: each lab is then run at each of them.
        jobs: how many labs run at a time; each process gets its share of the cores.
        backend: where they run, see `torchtheory.core.parallel.run_tasks`. The workers of a
            cluster need to reach the store's directory.
    """
    whole_number(jobs, "jobs", least=1)
    seeds = [seed] if isinstance(seed, int) else list(seed)
    for one in seeds:
        as_generator(one)
    for lab in labs:  # a wrong parameter is met before the first lab is run
        lab.configure(preset, settings or {})
    store.sweep()
    waiting: list[tuple[Lab, int]] = []
    for lab in labs:
        for one in seeds:
            done = None if force else store.load(lab, preset, one, settings)
            if done is not None:
                yield done
            else:
                waiting.append((lab, one))
    store.refuse_places(waiting, preset, settings)
    if backend == "serial" or (backend == "loky" and (jobs == 1 or len(waiting) < 2)):
        with progress.display():
            for lab, one in progress.track(waiting, "labs"):
                yield _run_here(lab, store, preset, one, settings)
        return
    yield from _run_beside(waiting, store, preset, settings, jobs, backend)


def _run_here(
    lab: Lab, store: RunStore, preset: Preset, seed: int, settings: Mapping[str, Any] | None
) -> Run | Failure:
    try:
        run = run_lab(lab, preset=preset, seed=seed, settings=settings)
    except TorchTheoryError as error:
        return Failure(lab, str(error), bad_input=True, seed=seed)
    except (Exception, SystemExit) as error:
        words = _values_that_work(lab, settings or {})
        return Failure(lab, words + _sentence(error), bad_input=bool(words), seed=seed)
    try:
        store.save(run)
    except TorchTheoryError:  # the directory cannot be written to: no other lab could either
        raise
    except Exception as error:
        return Failure(lab, f"its report could not be made: {_sentence(error)}", seed=seed)
    return run


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(str(error))[:300]}"


def _values_that_work(lab: Lab, settings: Mapping[str, Any]) -> str:
    """What the presets have in place of the user's values; empty if the user set none.

    >>> lab = find_lab("perceptron-novikoff")
    >>> _values_that_work(lab, {"samples": 10**9})
    'with these settings (samples is 200 in quick and 2000 in full) it raised '
    """
    if not settings:
        return ""
    chosen = [lab.parameters[name] for name in settings]
    known = (f"{p.name} is {shown(p.quick)} in quick and {shown(p.full)} in full" for p in chosen)
    return f"with these settings ({', '.join(known)}) it raised "


def _run_beside(
    waiting: Sequence[tuple[Lab, int]],
    store: RunStore,
    preset: Preset,
    settings: Mapping[str, Any] | None,
    jobs: int,
    backend: Backend,
) -> Iterator[Run | Failure]:
    tasks = [(lab.name, seed, lab.place) for lab, seed in waiting]
    work = partial(_work, root=store.root.resolve(), preset=preset, settings=dict(settings or {}))
    jobs = min(jobs, len(tasks))
    for outcome in run_tasks(work, tasks, jobs=jobs, backend=backend, description="labs"):
        lab, seed = waiting[outcome.place]
        run, failed = None, outcome.value
        if isinstance(outcome.error, WorkerKilled):
            failed = (str(outcome.error), False)
        elif isinstance(outcome.error, TorchTheoryError):
            failed = (str(outcome.error), True)
        elif outcome.error is not None:
            failed = (_sentence(outcome.error), False)
        if failed is None:  # by the worker's code, which may have been edited since we began
            run = store.load(lab, preset, seed, settings, same_code=False)
        sentence, bad_input = failed or ("its result could not be read back", False)
        yield run or Failure(lab, sentence, bad_input, seed)


def _work(
    task: tuple[str, int, str | Path | None], root: Path, preset: Preset, settings: dict[str, Any]
) -> tuple[str, bool] | None:
    name, seed, place = task
    if place is not None:
        take_up(place)
    outcome = _run_here(find_lab(name), RunStore(root), preset, seed, settings)
    return (outcome.sentence, outcome.bad_input) if isinstance(outcome, Failure) else None
