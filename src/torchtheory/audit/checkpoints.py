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
from torchtheory.audit.user_code import source_files
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.files import kind_of, read_json
from torchtheory.core.foreign_text import one_line
from torchtheory.core.marks import record_text
from torchtheory.core.outputs import write_outputs
from torchtheory.core.parallel import Outcome, run_tasks
from torchtheory.data.sources import load_data
from torchtheory.kernels.tangent.tiles import fingerprint as digest_of
from torchtheory.models.known_losses import named_loss
from torchtheory.models.loading import is_named, load_network, weights_for
from torchtheory.models.samples import collect

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
        loss: its name, as `torchtheory.models.known_losses.named_loss` takes it.
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
    loss: str | None = None
    output: int | str | None = None
    learning_rate: float | None = None
    budget: str | None = None
    memory: str = "4GiB"
    confidence: float = 0.95
    only: tuple[str, ...] = ()
    limit: int = 20_000
    seed: int = 0

    def fingerprint(self) -> str:
        """A hash of everything the audit follows from.

        Files count by what they hold, folders of data by the arrays in them and below, a named
        model by the source files that it and its imports stand in, named data by the samples that
        are read, whatever code or files they come from.
        """
        parts: dict[str, Any] = {k: str(v) for k, v in asdict(self).items()}
        for name in (
            "weights", "initial_weights", "prior_weights", "model", "data", "test_data", "loss"
        ):  # fmt: skip
            given = getattr(self, name)
            if given is not None:
                parts[name] = _content(str(given))
        if self.data is not None and is_named(self.data) and kind_of(Path(self.data)) == "nothing":
            parts["samples"] = self._samples()
        parts["version"] = __version__
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def _samples(self) -> list[str]:
        assert self.data is not None
        found = []
        for name, part in zip(("train", "test"), load_data(self.data), strict=True):
            if part is not None:
                read = collect(part, name, limit=self.limit, seed=self.seed)
                inputs = [] if read.rows is None else read.rows.tensors()
                found.append(digest_of(read.x, read.y, *inputs, read.note))
        return found


def _content(given: str) -> list[str]:
    """What a name stands for, with the digests of the files behind it."""
    path = Path(given)
    if (kind := kind_of(path)) == "file":
        return [file_digest(path)]
    if kind == "directory":
        inside = sorted(p for below in ("*", "*/*", "*/*/*") for p in path.glob(below))
        files = [p for p in inside if re.search(r"\.npy$|ubyte(\.gz)?$", p.name) and p.is_file()]
        return [f"{p.relative_to(path)} {file_digest(p)}" for p in files]
    code = source_files(given) if is_named(given) else []
    return [given, *(f"{p} {file_digest(p)}" for p in code)]


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
        loss=None if request.loss is None else named_loss(request.loss),
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

    One whose report is there, of the same files, code and options, is not audited again.

    Args:
        request: what to do with each; its weights are replaced.
        files: of weights, in their order.
        directory: the reports go into directories below it; see `directory_names`.
        jobs: how many at a time.
        again: audit also what is finished.

    Returns:
        The outcomes as they finish: each the directory of a report.
    """
    same = _without_weights(request, jobs)
    tasks = [
        (replace(request, weights=file), same, directory / name, again)
        for file, name in zip(files, directory_names(files), strict=True)
    ]
    return run_tasks(_run_one, tasks, jobs=jobs, description="checkpoints")


def _without_weights(request: Request, jobs: int) -> str:
    """The fingerprint of what all checkpoints share; the data may be read by code of the user's."""
    [found] = run_tasks(Request.fingerprint, [replace(request, weights=None)], jobs=jobs)
    if found.error is not None and not isinstance(found.error, TorchTheoryError):
        raise InvalidInput(f"{request.data} cannot be read: {found.complaint}")
    return found.get()


def _run_one(task: tuple[Request, str, Path, bool]) -> Path:
    request, same, directory, again = task
    assert request.weights is not None
    of = f"{same}-{file_digest(request.weights)}"
    if not again and _finished(directory, of):
        return directory
    made = run_request(request)
    name = one_line(request.weights.name)
    made.title = name if request.model is None else f"{made.title}, {name}"
    made.save(directory)
    if made.interrupted:  # of all of them
        raise KeyboardInterrupt
    # with the digest of the report that it vouches for, and of no other that may come to lie there
    report = file_digest(directory / "audit.json")
    record = {"fingerprint": of, "report": report, "weights": request.weights.name}
    write_outputs(directory, {RECORD: record_text("checkpoint", record)})
    return directory


def _finished(directory: Path, fingerprint: str) -> bool:
    try:
        record = read_json(directory / RECORD)
        report = file_digest(directory / "audit.json")
    except TorchTheoryError:
        return False
    wanted = {"fingerprint": fingerprint, "report": report}
    return isinstance(record, dict) and {k: record.get(k) for k in wanted} == wanted


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
