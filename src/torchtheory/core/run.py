"""Running a lab: seeded, timed, judged; and keeping the result so that nothing finished is lost."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchtheory import __version__
from torchtheory.core import progress
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.core.figure import Figure
from torchtheory.core.lab import Lab, Preset, find_lab, labs
from torchtheory.core.model import global_randomness_kept
from torchtheory.core.record import CounterExample, Record, Table

T = TypeVar("T")


@dataclass(slots=True)
class Run(Record):
    """What a lab gets: randomness, progress, the preset, and a place for results.

    Attributes:
        lab: the lab being run.
        preset: ``quick`` or ``full``.
        seed: everything random in the run follows from it.
        parameters: the values the lab was called with.
        generator: the run's own source of randomness.
        seconds: how long it took; set at the end.
    """

    lab: Lab = field(kw_only=True)
    preset: Preset = "quick"
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=torch.Generator)
    seconds: float = 0.0

    def randn(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers in double precision from the run's generator."""
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def rand(self, *shape: int) -> torch.Tensor:
        """Uniform numbers in [0, 1) in double precision from the run's generator."""
        return torch.rand(*shape, dtype=torch.float64, generator=self.generator)

    def signs(self, *shape: int) -> torch.Tensor:
        """Fair ±1 in double precision from the run's generator."""
        return torch.randint(0, 2, shape, generator=self.generator).double() * 2 - 1

    def track(self, items: Iterable[T], description: str = "") -> Iterator[T]:
        """Iterate with a progress bar."""
        return progress.track(items, description or self.lab.name)

    @property
    def problems(self) -> list[str]:
        """Why the run fails, one sentence each; empty when it passes."""
        found = [f"{c.id}: ${c.statement}$ is violated" for c in self.claims if _violated(c)]
        controls = [c.control for c in self.claims if c.control is not None]
        found += [
            f"the control of {c.id} did not fail ({c.reason})" for c in controls if not _violated(c)
        ]
        if not controls:
            found.append("no claim has a control")
        found += [f"erratum {e.key} is not refuted" for e in self.errata if not _violated(e.claim)]
        judged = [c for c in self.claims if c.verdict is not Verdict.NOT_APPLICABLE]
        met = {i for c in [*judged, *(e.claim for e in self.errata)] for i in c.ids}
        found += [f"covers {i}, but no claim is about it" for i in self.lab.covers if i not in met]
        refuted = {e.key for e in self.errata}
        found += [
            f"declares erratum {k}, but met none" for k in self.lab.errata if k not in refuted
        ]
        undeclared = sorted(refuted - set(self.lab.errata))
        found += [f"met erratum {k} without declaring it" for k in undeclared]
        return found

    @property
    def passed(self) -> bool:
        """Every claim holds, every control fails, everything declared was done."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab.name,
            "room": self.lab.room,
            "title": self.lab.title,
            "preset": self.preset,
            "seed": self.seed,
            "parameters": _plain(self.parameters),
            "seconds": round(self.seconds, 3),
            "passed": self.passed,
            "problems": self.problems,
            **self.content_json(),
        }

    def _repr_html_(self) -> str:
        from torchtheory.report.html import run_fragment

        return run_fragment(self)


def run_lab(
    lab: Lab | str,
    *,
    preset: Preset = "quick",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Run one lab and return its claims, tables and figures.

    >>> run_lab("perceptron-novikoff", settings={"samples": 40}).passed
    True
    """
    found = find_lab(lab) if isinstance(lab, str) else lab
    if not 0 <= seed < 2**63:
        raise InvalidInput(f"seed must be a whole number from 0 to 2**63 - 1, not {seed}")
    parameters = found.configure(preset, settings or {})
    run = Run(
        lab=found,
        preset=preset,
        seed=seed,
        parameters=parameters,
        generator=torch.Generator().manual_seed(seed),
    )
    start = time.perf_counter()
    # a lab draws from run.generator; what does not (a layer's own initialisation) follows the seed
    with global_randomness_kept():
        torch.manual_seed(seed)
        found.function(run, **parameters)
    run.seconds = time.perf_counter() - start
    return run


class RunStore:
    """A directory of finished runs.

    Each run is a directory ``lab/preset-seed`` that appears in one rename when it is complete, so
    that a killed run leaves nothing that looks finished. It holds ``config.json``,
    ``claims.json``, ``figures/`` and ``report.html``.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        try:
            is_file = self.root.exists() and not self.root.is_dir()
        except OSError as error:
            raise FileProblem(f"cannot use {self.root}: {error.strerror}") from None
        if is_file:
            raise FileProblem(f"{self.root} is a file; --out needs a directory")

    def directory(
        self, lab: Lab, preset: Preset, seed: int, settings: Mapping[str, Any] | None = None
    ) -> Path:
        """Where that run is or would be."""
        values = lab.configure(preset, settings or {})
        name = f"{preset}-{seed}"
        if values != lab.configure(preset, {}):
            name += "-" + _digest(json.dumps(_plain(values), sort_keys=True))[:8]
        return self.root / lab.name / name

    def load(
        self,
        lab: Lab,
        preset: Preset,
        seed: int,
        settings: Mapping[str, Any] | None = None,
        *,
        same_code: bool = True,
    ) -> Run | None:
        """The finished run of exactly this configuration by exactly this code, if there is one.

        With ``same_code=False``, also one by other code.
        """
        path = self.directory(lab, preset, seed, settings)
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            wanted = _plain(lab.configure(preset, settings or {}))
            if config["parameters"] != wanted or (same_code and config["code"] != _code(lab)):
                return None
            return _read(path, lab, config)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, run: Run) -> Path:
        """Write a run; it replaces an earlier one of the same configuration in one step."""
        from torchtheory.report.html import run_page

        target = self.directory(run.lab, run.preset, run.seed, run.parameters)
        partial = self._partial("run")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            (partial / "figures").mkdir(parents=True)
            for figure in run.figures:
                (partial / "figures" / f"{figure.name}.png").write_bytes(figure.png)
                if figure.svg is not None:
                    path = partial / "figures" / f"{figure.name}.svg"
                    path.write_text(figure.svg, encoding="utf-8")
            _write_json(partial / "claims.json", run.to_json())
            (partial / "report.html").write_text(run_page(run), encoding="utf-8")
            _write_json(partial / "config.json", self._config(run))
            _replace_directory(partial, target)
        except OSError as error:
            raise FileProblem(f"cannot write to {self.root}: {error.strerror}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def finished(self) -> list[tuple[Run, str]]:
        """Every run in the directory whose lab still exists, with its place relative to it."""
        known = labs()
        found = []
        for path in sorted(self.root.glob("*/*/config.json")):
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
                run = _read(path.parent, known[config["lab"]], config)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            found.append((run, path.parent.relative_to(self.root).as_posix()))
        return found

    def write_index(self) -> Path:
        """Write ``index.html``, the page over all runs in the directory."""
        from torchtheory.report.html import index_page

        runs = self.finished()
        text = index_page([r for r, _ in runs], links=[f"{p}/report.html" for _, p in runs])
        target = self.root / "index.html"
        partial = self._partial("index")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            raise FileProblem(f"cannot write to {self.root}: {error.strerror}") from None
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return target

    def sweep(self) -> None:
        """Remove what killed runs left half-written.

        Writing takes well under a second, so what is ten minutes old belongs to nobody.
        """
        for left in self.root.glob(".partial-*"):
            with suppress(OSError):  # another process may be sweeping as well
                if time.time() - left.stat().st_mtime > 600:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _partial(self, what: str) -> Path:
        """A name nobody else writes to, on the same file system as what it becomes."""
        return self.root / f".partial-{what}-{os.getpid()}-{time.time_ns()}"

    @staticmethod
    def _config(run: Run) -> dict[str, Any]:
        return {
            "lab": run.lab.name,
            "preset": run.preset,
            "seed": run.seed,
            "parameters": _plain(run.parameters),
            "torchtheory": __version__,
            "torch": torch.__version__,
            "code": _code(run.lab),
        }


@cache
def code_fingerprint() -> str:
    """A digest of the package's source: a run is only taken up again by the code that made it."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    files = (p for kind in ("py", "toml", "html", "css") for p in package.rglob(f"*.{kind}"))
    for path in sorted(files):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _code(lab: Lab) -> str:
    """The fingerprint of whatever a lab's numbers follow from: the package, and its own file."""
    if lab.function.__module__.startswith("torchtheory."):
        return code_fingerprint()
    for place in (inspect.getmodule(lab.function), lab.function):
        with suppress(OSError, TypeError):  # a notebook has no file, but its cells are known
            if place is not None:
                return code_fingerprint() + "-" + _digest(inspect.getsource(place))[:8]
    return code_fingerprint()


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they come back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(parameters, default=str), parse_constant=str)
    return plain


def _violated(c: Claim) -> bool:
    return c.verdict is Verdict.VIOLATED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False), "utf-8")


def _replace_directory(new: Path, target: Path) -> None:
    old = new.with_name(new.name + "-old")
    with suppress(FileNotFoundError):
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if not target.exists():
            with suppress(OSError):
                old.rename(target)
            raise
        # another process has put a run of the same configuration there: it has the same numbers
    shutil.rmtree(old, ignore_errors=True)


def _read(path: Path, lab: Lab, config: dict[str, Any]) -> Run:
    data = json.loads((path / "claims.json").read_text(encoding="utf-8"))
    figures = []
    for f in data["figures"]:
        svg = path / "figures" / f"{f['name']}.svg"
        figures.append(
            Figure(
                f["name"],
                f["caption"],
                svg.read_text(encoding="utf-8") if svg.exists() else None,
                (path / "figures" / f"{f['name']}.png").read_bytes(),
            )
        )
    return Run(
        claims=[Claim.from_json(c) for c in data["claims"]],
        errata=[CounterExample(e["key"], Claim.from_json(e["claim"])) for e in data["errata"]],
        tables=[Table.from_json(t) for t in data["tables"]],
        figures=figures,
        notes=data["notes"],
        lab=lab,
        preset=config["preset"],
        seed=config["seed"],
        parameters=config["parameters"],
        seconds=data["seconds"],
    )
