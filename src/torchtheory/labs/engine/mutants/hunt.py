"""The hunt: which mutants there are, who judges them, and what became of each."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

import torchtheory
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.core.parallel import Backend, run_tasks
from torchtheory.labs.engine.fingerprint import module_fingerprint
from torchtheory.labs.engine.mutants.mutations import Function, Mutant, mutants_of
from torchtheory.labs.engine.mutants.trial import (
    Fate,
    Judges,
    Watched,
    failing_tests,
    in_own_process,
    try_mutant,
    watch_lab,
)
from torchtheory.labs.manifest import ListedLab
from torchtheory.report.numbers import percent

#: Mutants that nobody can notice, with the reason, in its table `[mutants]` by their ids.
DEBTS = Path(torchtheory.__file__).parent / "labs" / "debts.toml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """How mutants are hunted.

    Attributes:
        per_function: at most so many mutants of a function.
        sample: so many mutants in all, drawn with `seed`; all unless given.
        limit: seconds that the tests of a mutant may take, on top of five times what its labs take.
        tests: the directory of the tests; no tests are run where there is none.
        out: a directory for what is finished, so that an interrupted hunt goes on where it was.
    """

    per_function: int = 4
    sample: int | None = None
    seed: int = 0
    limit: float = 60.0
    tests: Path = Path("tests")
    out: Path = Path("torchtheory-mutants")
    jobs: int = 1
    backend: Backend = "loky"

    def __post_init__(self) -> None:
        for name in ("per_function", "sample", "jobs"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, least=1)
        positive_number(self.limit, "limit")


@dataclass(frozen=True, slots=True)
class Bag:
    """What came of a hunt.

    Attributes:
        fates: every mutant that was tried.
        unfit: labs that do not pass as they are and judge nobody, with the reason.
        equivalent: ids of mutants that nobody can notice, with the reason.
    """

    fates: tuple[Fate, ...]
    unfit: Mapping[str, str] = field(default_factory=dict)
    equivalent: Mapping[str, str] = field(default_factory=dict)

    @property
    def survivors(self) -> list[Fate]:
        """Those that nobody noticed, without the equivalent ones."""
        return [f for f in self.fates if f.status == "survived" and f.mutant.id not in self.equivalent]

    @property
    def counts(self) -> Counter[str]:
        """How many mutants came to which end."""
        return Counter[str](
            "equivalent" if f.status == "survived" and f.mutant.id in self.equivalent else f.status for f in self.fates
        )

    @property
    def score(self) -> float:
        """The share of the mutants that were noticed; 1 where there was none."""
        counts = self.counts
        total = len(self.fates) - counts["equivalent"] - counts["unreached"]
        return 1 - counts["survived"] / total if total else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "counts": dict(self.counts),
            "survivors": [f.mutant.id for f in self.survivors],
            "mutants": [_fate_json(f) for f in self.fates],
            "unfit_labs": dict(self.unfit),
        }


def hunt(labs: Sequence[ListedLab], settings: Settings, room: str | None = None) -> Bag:
    """Make the functions that labs take numbers from wrong, and see which mutants survive.

    Args:
        labs: the labs that are run.
        room: only functions of this room.
    """
    memory = _Memory(settings.out)
    watched = _watch(labs, settings, memory)
    modules = {lab.name: lab.module for lab in labs}
    callers: defaultdict[Function, list[Watched]] = defaultdict(list)
    for one in sorted(watched, key=lambda w: w.seconds):
        for function in one.functions:
            if not one.problem and (room is None or function.room == room):
                callers[function].append(one)
    mutants = _choose(sorted(callers), settings)
    judges = {f: _judges(f, callers[f], settings.tests) for f in {m.function for m in mutants}}
    tasks = []
    for mutant in mutants:
        who = judges[mutant.function]
        limit = settings.limit + 5 * sum(w.seconds for w in callers[mutant.function])
        tasks.append((mutant, who, limit, _key(mutant, who, modules)))
    fates = {f.mutant: f for f in _try(tasks, settings, memory)}
    return Bag(
        tuple(fates[m] for m in mutants if m in fates),
        {w.lab: w.problem for w in watched if w.problem},
        equivalent_mutants(),
    )


def equivalent_mutants(path: Path = DEBTS) -> dict[str, str]:
    """The mutants that are known to change nothing, with the reason: `"<id>" = "<reason>"`."""
    try:
        with path.open("rb") as file:
            listed = tomllib.load(file).get("mutants", {})
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileProblem(f"cannot read {path}: {error}") from None
    return {str(name): str(reason) for name, reason in listed.items()}


def find_tests(function: Function, tests: Path) -> tuple[str, ...]:
    """Node ids of the tests of the function's room that use its name, or a helper that does.

    A method is found by the name of its class as well.
    """
    words = re.compile(rf"\b({'|'.join(map(re.escape, function.qualname.split('.')))})\b")
    found = []
    for path in sorted(tests.joinpath(function.room).rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if words.search(text):
            found += [f"{path}::{name}" for name in _tests_using(text, words)]
    return tuple(found)


def print_bag(bag: Bag, console: Console) -> None:
    """The survivors, and how many mutants came to which end."""
    if bag.survivors:
        grid = Grid(box=None, header_style="bold", pad_edge=False)
        for column in ("function", "survives"):
            grid.add_column(column, overflow="fold")
        for fate in bag.survivors:
            grid.add_row(Text(fate.mutant.function.name), Text(fate.mutant.change))
        console.print(grid)
    for name, problem in bag.unfit.items():
        console.print(Text(f"lab {name} judges nobody: {problem}", style="yellow"))
    dead = {f.mutant.id for f in bag.fates if f.status != "survived"} & set(bag.equivalent)
    for name in sorted(dead):
        console.print(Text(f"listed as equivalent, but noticed: {name}", style="yellow"))
    counts = ", ".join(f"{count} {status}" for status, count in sorted(bag.counts.items()))
    console.print(f"{len(bag.fates)} mutants: {counts}; score {percent(round(bag.score, 4))}")


class _Memory:
    """What is finished, one line each, in files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "finished.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        except OSError as error:
            raise FileProblem(f"cannot use {directory}: {error.strerror}") from None
        self.known: dict[str, Any] = {}
        for line in lines:
            try:
                found = json.loads(line)
                self.known[found["key"]] = found["result"]
            except (ValueError, KeyError, TypeError):  # half a line, from a hunt that was killed
                continue

    def add(self, key: str, result: Any) -> None:
        self.known[key] = result
        line = json.dumps({"key": key, "result": result}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")


def _watch(labs: Sequence[ListedLab], settings: Settings, memory: _Memory) -> list[Watched]:
    keys = [f"watched {lab.name} {module_fingerprint(lab.module)}" for lab in labs]
    missing = [k for k, key in enumerate(keys) if key not in memory.known]
    watch = partial(_watch_apart, limit=600.0)
    names = [labs[k].name for k in missing]
    for outcome in run_tasks(watch, names, jobs=settings.jobs, backend=settings.backend, description="labs"):
        watched = outcome.get()
        functions = [[f.module, f.qualname] for f in watched.functions]
        result = [watched.lab, watched.problem, watched.seconds, functions]
        memory.add(keys[missing[outcome.place]], result)
    found = []
    for key in keys:
        lab, problem, seconds, functions = memory.known[key]
        found.append(Watched(lab, problem, seconds, tuple(Function(*f) for f in functions)))
    return found


def _watch_apart(name: str, limit: float) -> Watched:
    watched, problem = in_own_process(watch_lab, name, limit=limit)
    return watched or Watched(name, problem, limit)


def _choose(functions: Sequence[Function], settings: Settings) -> list[Mutant]:
    found = []
    for function in functions:
        try:
            source = _source(function.module)
            found += mutants_of(function, source, settings.per_function, settings.seed)
        except InvalidInput:  # made by a decorator or in a loop: it has no text of its own
            continue
    if settings.sample is not None and settings.sample < len(found):
        found = sorted(random.Random(settings.seed).sample(found, settings.sample))
    return found


def _judges(function: Function, callers: Sequence[Watched], tests: Path) -> Judges:
    name, parts = "", []
    for part in function.qualname.split("."):
        name = f"{name}.{part}".lstrip(".")
        parts.append(name)
    return Judges(
        tuple(w.lab for w in callers),
        tuple(reversed(parts)),
        find_tests(function, tests.resolve()) if tests.is_dir() else (),
        str(tests.resolve().parent),
    )


def _try(tasks: Sequence[tuple[Mutant, Judges, float, str]], settings: Settings, memory: _Memory) -> Iterator[Fate]:
    waiting = []
    for task in tasks:
        if task[3] in memory.known:
            yield _fate(memory.known[task[3]])
        else:
            waiting.append(task)
    sound: dict[tuple[str, Judges], bool] = {}
    for outcome in run_tasks(_try_apart, waiting, jobs=settings.jobs, backend=settings.backend, description="mutants"):
        mutant, judges, limit, key = waiting[outcome.place]
        fate = outcome.get()
        if fate.status == "killed by a test":
            # tests that fail without the mutant say nothing about it
            asked = (mutant.function.module, judges)
            if asked not in sound:
                failing, problem = in_own_process(failing_tests, *asked, limit=limit)
                sound[asked] = not (failing or problem)
            if not sound[asked]:
                fate = Fate(mutant, "survived", "its tests fail without it too", fate.seconds)
        memory.add(key, _fate_json(fate))
        yield fate


def _try_apart(task: tuple[Mutant, Judges, float, str]) -> Fate:
    mutant, judges, limit, _ = task
    start = time.perf_counter()
    answer, problem = in_own_process(try_mutant, mutant, judges, limit=limit)
    seconds = round(time.perf_counter() - start, 2)
    if problem == "timed out":
        return Fate(mutant, "timed out", "", seconds)
    if problem == "the process died":
        return Fate(mutant, "killed by a lab", problem, seconds)
    if problem:
        raise RuntimeError(f"{mutant.id}: {problem}")
    status, by = answer
    return Fate(mutant, status, by, seconds)


def _key(mutant: Mutant, judges: Judges, modules: Mapping[str, str]) -> str:
    """The mutant and a digest of all that its fate follows from."""
    digest = hashlib.sha256(mutant.function.module.encode())
    for name in [mutant.function.module, *(modules[lab] for lab in judges.labs)]:
        digest.update(module_fingerprint(name).encode())
    for path in sorted({node.split("::")[0] for node in judges.tests}):
        digest.update(Path(path).read_bytes())
    return f"{mutant.id} {digest.hexdigest()[:16]}"


def _fate_json(fate: Fate) -> dict[str, Any]:
    return {
        "id": fate.mutant.id,
        **fate.mutant.to_json(),
        "status": fate.status,
        "by": fate.by,
        "seconds": fate.seconds,
    }


def _fate(data: dict[str, Any]) -> Fate:
    return Fate(Mutant.from_json(data), data["status"], data["by"], data["seconds"])


def _source(module: str) -> str:
    """The text of a module, which is not imported for it."""
    root = Path(torchtheory.__file__).parent.joinpath(*module.split(".")[1:])
    path = root.with_suffix(".py")
    return (path if path.is_file() else root / "__init__.py").read_text(encoding="utf-8")


def _tests_using(text: str, words: re.Pattern[str]) -> list[str]:
    """The tests of a file that use one of the words, directly or by a helper of the file."""
    parts: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            parts[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    parts[target.id] = ast.unparse(node)
    using = {name for name, part in parts.items() if words.search(part)}
    while True:
        helpers = [n for n in using if not n.startswith("test")]
        if not helpers:
            break
        by = re.compile(rf"\b({'|'.join(map(re.escape, helpers))})\b")
        more = {name for name, part in parts.items() if by.search(part)} - using
        if not more:
            break
        using |= more
    return [n for n in parts if n in using and re.match(r"test_|Test", n)]
