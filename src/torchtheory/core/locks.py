"""One process at a time for what is written to a file over minutes or hours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import reason
from torchtheory.core.outputs import plain_file


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold a file for this process, from here to the end of the block.

    The lock is a file `.<name>.lock` beside it, which goes away with the block; that of a killed
    process stays and locks nobody out, for the system forgets who held it.

    Raises:
        FileProblem: if another process (or another part of this one) holds the file, or its
            directory cannot be written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "run.pt"
    ...     with sole_writer(path), sole_writer(path):
    ...         pass
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.FileProblem: run.pt is being written by another run; wait until it \
has ended, or give another file
    """
    lock_path = path.with_name(f".{path.name}.lock")
    plain_file(lock_path)
    lock = FileLock(lock_path, blocking=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise FileProblem(
            f"{path.name} is being written by another run; wait until it has ended, or give "
            "another file"
        ) from None
    except OSError as error:
        raise FileProblem(f"{path} cannot be written: {reason(error)}") from None
    try:
        yield
    finally:
        # removed while it is held: whoever waits for this very file sees that it is gone
        with suppress(OSError):
            lock_path.unlink()
        lock.release()
