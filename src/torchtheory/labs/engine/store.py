"""Keeping runs, so that nothing finished is lost."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torchtheory import __version__
from torchtheory.core.claim import Claim
from torchtheory.core.errors import FileProblem
from torchtheory.core.figure import Figure
from torchtheory.core.files import kind_of, read_json
from torchtheory.core.marks import record_text
from torchtheory.core.outputs import Place, is_leftover, refuse_places, write_outputs
from torchtheory.core.record import Table
from torchtheory.core.statement import CounterExample
from torchtheory.labs.engine.fingerprint import (
    module_fingerprint,
    package_fingerprint,
    text_fingerprint,
)
from torchtheory.labs.engine.registry import Lab, Preset, find_lab, listed_labs
from torchtheory.labs.engine.run import Run, plain_parameters
from torchtheory.report.files import INDEX, RUN
from torchtheory.report.html import index_page, run_page

# What reading a run that was written by something else can end in.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class RunStore:
    """A directory of finished runs.

    Each run is a directory `lab/preset-seed` that appears in one rename when it is complete, so
    that a killed run leaves nothing that looks finished. It holds `config.json`,
    `claims.json`, `figures/` and `report.html`.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if kind_of(self.root) not in ("directory", "nothing"):
            raise FileProblem(f"{self.root} is a file; --out needs a directory")

    def directory(self, lab: Lab, preset: Preset, seed: int, settings: Mapping[str, Any] | None = None) -> Path:
        """Where that run is or would be."""
        values = lab.configure(preset, settings or {})
        name = f"{preset}-{seed}"
        if values != lab.configure(preset, {}):
            name += "-" + _digest(json.dumps(plain_parameters(values), sort_keys=True))[:8]
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

        With `same_code=False`, also one by other code.
        """
        path = self.directory(lab, preset, seed, settings)
        try:
            config = read_json(path / "config.json")
            wanted = plain_parameters(lab.configure(preset, settings or {}))
            if config["parameters"] != wanted or (same_code and config["code"] != code_fingerprint(lab)):
                return None
            return _read(path, lab, config)
        except _DAMAGED:
            return None

    def claims(self, lab: str) -> list[Claim] | None:
        """The claims of a lab's quick run at seed 0 by this version, if there is one.

        Neither the lab is imported nor are figures read, so that a list can ask for every lab.
        """
        path = self.root / lab / "quick-0"
        try:
            config = read_json(path / "config.json")
            if config["torchtheory"] != __version__:
                return None
            data = read_json(path / "claims.json")
            return [Claim.from_json(c) for c in data["claims"]]
        except _DAMAGED:
            return None

    def save(self, run: Run) -> Path:
        """Write a run; it replaces an earlier one of the same configuration in one step."""
        target = self.directory(run.lab, run.preset, run.seed, run.parameters)
        contents: dict[str, str | bytes] = {}
        for figure in run.figures:
            contents[f"figures/{figure.name}.png"] = figure.png
            if figure.svg is not None:
                contents[f"figures/{figure.name}.svg"] = figure.svg
        contents["claims.json"] = record_text("claims", run.to_json())
        contents["config.json"] = record_text("config", self._config(run))
        contents["report.html"] = run_page(run)
        return write_outputs(target, contents)

    def refuse_places(
        self, runs: Iterable[tuple[Lab, int]], preset: Preset, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse runs that could not be kept, and the page over them, before they are made."""
        places = [Place(self.root, INDEX)]
        for lab, seed in runs:
            inside = self.directory(lab, preset, seed, settings).relative_to(self.root)
            places.append(Place(self.root, {f"{inside}/{name}": form for name, form in RUN.items()}))
        refuse_places(places)

    def finished(self) -> list[tuple[Run, str]]:
        """Every run in the directory whose lab still exists, with its place relative to it."""
        known = listed_labs()
        found = []
        for path in sorted(self.root.glob("*/*/config.json")):
            if path.parent.name.startswith("."):  # left by a run that was killed
                continue
            try:
                config = read_json(path)
                run = _read(path.parent, find_lab(known[config["lab"]].name), config)
            except _DAMAGED:
                continue
            found.append((run, path.parent.relative_to(self.root).as_posix()))
        return found

    def write_index(self) -> Path:
        """Write `index.html`, the page over all runs in the directory."""
        runs = self.finished()
        text = index_page([r for r, _ in runs], links=[f"{p}/report.html" for _, p in runs])
        return write_outputs(self.root, {"index.html": text}) / "index.html"

    def sweep(self) -> None:
        """Remove what killed runs left half-written and no later one of the same lab has removed.

        Writing takes well under a second, so what is ten minutes old belongs to nobody.
        """
        for left in (*self.root.glob(".partial-*"), *self.root.glob("*/.partial-*")):
            with suppress(OSError):  # another process may be sweeping as well
                if is_leftover(left) and time.time() - left.lstat().st_mtime > 600:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    @staticmethod
    def _config(run: Run) -> dict[str, Any]:
        return {
            "lab": run.lab.name,
            "preset": run.preset,
            "seed": run.seed,
            "parameters": plain_parameters(run.parameters),
            "torchtheory": __version__,
            "torch": torch.__version__,
            "code": code_fingerprint(run.lab),
        }


def code_fingerprint(lab: Lab) -> str:
    """A digest of whatever a lab's numbers follow from: only the code that made a run takes it up.

    For a lab that ships with torchtheory this is its module and what that imports; for a user's
    also the file it stands in. Of a notebook only the lab's own cell is known, so that any change
    of the package counts.
    """
    module = lab.function.__module__
    if module.startswith("torchtheory."):
        return module_fingerprint(module)
    with suppress(OSError, TypeError):
        place = inspect.getmodule(lab.function)
        if place is not None:
            return text_fingerprint(inspect.getsource(place))
    with suppress(OSError, TypeError):
        return package_fingerprint() + "-" + _digest(inspect.getsource(lab.function))[:8]
    return package_fingerprint()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, lab: Lab, config: dict[str, Any]) -> Run:
    data = read_json(path / "claims.json")
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
