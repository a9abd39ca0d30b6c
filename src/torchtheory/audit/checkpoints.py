"""Audits of files: one, or several checkpoints side by side, each finished once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchtheory import __version__
from torchtheory.audit.bare_weights.audit import weights as audit_weights
from torchtheory.audit.bare_weights.checkpoint import file_digest
from torchtheory.audit.engine.audit import Audit, audit
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.files import kind_of, read_json, write_together
from torchtheory.core.foreign_text import json_text
from torchtheory.core.parallel import Outcome, run_tasks
from torchtheory.data.sources import load_data
from torchtheory.models.loading import load_network, weights_for

#: Where it is kept what a finished audit is of.
RECORD = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class Request:
    """An audit to be made, of files and names alone, so that another process can make it.

    Attributes:
        weights: the file of weights; None for the model as it is made.
        model: `package.module:factory` or a `.pt2` file; None for weights alone.
        data, target, test_data: as `torchtheory.data.sources.load_data` takes them.
        initial_weights, prior_weights: files of weights, if there are any.
        budget: time it may take; the usual one of each kind of audit unless given.
        task, output, learning_rate, memory, confidence, only, limit, seed: as
            `torchtheory.audit.engine.audit.audit` takes them.
    """

    weights: Path | None = None
    model: str | None = None
    data: str | None = None
    target: str | None = None
    test_data: Path | None = None
    initial_weights: Path | None = None
    prior_weights: Path | None = None
    task: Any = None
    output: int | str | None = None
    learning_rate: float | None = None
    budget: str | None = None
    memory: str = "4GiB"
    confidence: float = 0.95
    only: tuple[str, ...] = ()
    limit: int = 20_000
    seed: int = 0

    def fingerprint(self) -> str:
        """A hash of everything the audit follows from: the files as far as they are files.

        Code that is named, and not given as a file, counts by its name.
        """
        parts = {k: str(v) for k, v in asdict(self).items()}
        for name in ("weights", "initial_weights", "prior_weights", "model", "data", "test_data"):
            given = getattr(self, name)
            if given is not None and kind_of(Path(given)) == "file":
                parts[name] = file_digest(given)
            elif given is not None and kind_of(Path(given)) == "directory":
                files = sorted(p for p in Path(given).iterdir() if p.is_file())
                parts[name] = " ".join(f"{p.name} {file_digest(p)}" for p in files)
        parts["version"] = __version__
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def run_request(request: Request) -> Audit:
    """Make the audit: of a model on its data, or of weights alone where no model is named."""
    if request.model is None:
        if request.weights is None:
            raise InvalidInput("an audit needs a model, or weights")
        return audit_weights(
            request.weights,
            only=list(request.only) or None,
            budget=request.budget or "30s",
            seed=request.seed,
        )
    if request.data is None:
        raise InvalidInput("--model needs --data, the data to audit it on")
    train, test = load_data(
        request.data, target=request.target, test=request.test_data, seed=request.seed
    )
    network = load_network(request.model, request.weights, request.seed)
    initial, prior = (
        None if file is None else weights_for(network, file)
        for file in (request.initial_weights, request.prior_weights)
    )
    return audit(
        network,
        train,
        test,
        task=request.task,
        initial=initial,
        confidence=request.confidence,
        seed=request.seed,
        only=list(request.only) or None,
        budget=request.budget or "60s",
        memory=request.memory,
        learning_rate=request.learning_rate,
        prior=prior,
        output=request.output,
        limit=request.limit,
        title=request.model,
    )


def run_checkpoints(
    request: Request,
    files: Sequence[Path],
    directory: Path,
    *,
    jobs: int = 1,
    again: bool = False,
) -> Iterator[Outcome[Path]]:
    """Audit several files of weights side by side, each into a directory of its own.

    One whose report is there, of the same files and options, is not audited again.

    Args:
        request: what to do with each; its weights are replaced.
        files: of weights, in their order.
        directory: the reports go into directories below it; see `directory_names`.
        jobs: how many at a time.
        again: audit also what is finished.

    Returns:
        The outcomes as they finish: each the directory of a report.
    """
    tasks = [
        (replace(request, weights=file), directory / name, again)
        for file, name in zip(files, directory_names(files), strict=True)
    ]
    return run_tasks(_run_one, tasks, jobs=jobs, description="checkpoints")


def _run_one(task: tuple[Request, Path, bool]) -> Path:
    request, directory, again = task
    of = request.fingerprint()
    if not again and _finished(directory, of):
        return directory
    (directory / RECORD).unlink(missing_ok=True)  # or it would vouch for half of a new report
    made = run_request(request)
    assert request.weights is not None
    made.title = (
        request.weights.name if request.model is None else f"{made.title}, {request.weights.name}"
    )
    made.save(directory)
    if made.interrupted:  # of all of them
        raise KeyboardInterrupt
    record = {"fingerprint": of, "weights": request.weights.name}
    write_together(directory, {RECORD: json_text(record)})
    return directory


def _finished(directory: Path, fingerprint: str) -> bool:
    try:
        record = read_json(directory / RECORD)
        read_json(directory / "audit.json")
    except TorchTheoryError:
        return False
    return isinstance(record, dict) and record.get("fingerprint") == fingerprint


def directory_names(files: Sequence[Path]) -> list[str]:
    """A short name for each file, no two the same, that any file system takes.

    >>> directory_names([Path("a/best.pt"), Path("b/best.pt"), Path("b/best.pth")])
    ['a-best', 'b-best', 'b-best-2']
    >>> directory_names([Path("épo que.safetensors")])
    ['épo-que']
    """
    names = [_short(f.name) for f in files]
    if len(set(names)) < len(names):
        names = [_short(f"{f.parent.name}-{f.name}") for f in files]
    found: list[str] = []
    for name in names:
        others = (f"{name}-{k}" for k in range(2, len(files) + 2))
        found.append(next(n for n in (name, *others) if n not in found))
    return found


def _short(name: str) -> str:
    for ending in (".index.json", ".safetensors", ".pt", ".pth", ".bin", ".ckpt"):
        name = name.removesuffix(ending)
    return re.sub(r"[^\w.]+", "-", name).strip("-.")[:80] or "weights"
