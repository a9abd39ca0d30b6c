"""Files of a user: opened only if they are files, read within bounds, written in one step."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from torchtheory.core.errors import FileProblem
from torchtheory.core.memory import refuse_too_large

#: Largest JSON document that is read; parsed, it takes some ten times as much.
LARGEST_JSON = 2**28

#: What unpacks a stream is asked for so many bytes at a time.
_PIECE = 2**20


class Readable(Protocol):
    """Something that bytes are read from, packed or not."""

    def read(self, size: int, /) -> bytes: ...


def existing_file(path: str | Path) -> Path:
    """The path, or one sentence on why there is no such file.

    A pipe or a device is none: it may never end.
    """
    file = Path(path)
    if (kind := kind_of(file)) == "nothing":
        raise FileProblem(f"there is no file {_short(file)}")
    if kind != "file":
        raise FileProblem(f"{_short(file)} is not a file")
    return file


def existing_folder(path: str | Path) -> Path:
    """The path, or one sentence on why there is no such directory."""
    folder = Path(path)
    if (kind := kind_of(folder)) == "nothing":
        raise FileProblem(f"there is no directory {_short(folder)}")
    if kind != "directory":
        raise FileProblem(f"{_short(folder)} is not a directory")
    try:
        next(folder.iterdir(), None)  # may it be read?
    except OSError as error:
        raise FileProblem(f"cannot read {_short(folder)}: {reason(error)}") from None
    return folder


def kind_of(path: Path) -> Literal["file", "directory", "other", "nothing"]:
    """What a path leads to; pipes and devices are something other.

    >>> kind_of(Path("."))
    'directory'
    """
    try:
        if not path.exists():
            return "nothing"
        return "directory" if path.is_dir() else "file" if path.is_file() else "other"
    except (OSError, ValueError) as error:  # no permission, a name no file system takes
        raise FileProblem(f"cannot read {_short(path)}: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """Why something went wrong, in the system's words.

    >>> reason(OSError(28, "No space left on device")), reason(ValueError("embedded null byte"))
    ('No space left on device', 'embedded null byte')
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_whole(stream: Readable, what: str, *, copies: int) -> bytes:
    """All bytes of a stream that may be unpacked while it is read, as far as memory allows.

    The size a packed file states is not the one it has; it is refused as soon as it is too large.

    Args:
        stream: opened for reading bytes.
        what: what to call it in messages.
        copies: how many times its size what is made of it will take.
    """
    parts, count = [], 0
    while part := stream.read(_PIECE):
        count += len(part)
        refuse_too_large(copies * count, what)
        parts.append(part)
    return b"".join(parts)


def read_json(path: str | Path) -> Any:
    """A JSON document whose texts are Unicode; whatever is wrong with it becomes one sentence.

    Numbers may be of any size, and objects of any shape: what is expected of them is the caller's
    to check.
    """
    file = existing_file(path)
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_JSON + 1)
    except OSError as error:
        raise FileProblem(f"cannot read {file}: {reason(error)}") from None
    if len(content) > LARGEST_JSON:
        raise FileProblem(f"{file} has more than {LARGEST_JSON >> 20} MiB, too much for a record")
    return parse_json(content, str(file))


def parse_json(content: bytes, name: str) -> Any:
    """What a JSON document says; `name` is what to call it in messages.

    >>> parse_json(b'{"a": [1, 2]}', "x.json")
    {'a': [1, 2]}
    >>> parse_json(b'"\\\\ud800"', "x.json")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.FileProblem: x.json is not JSON that can be read: it holds half a ...
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise FileProblem(f"{name} is not a text file") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileProblem(f"{name} is not JSON: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FileProblem(f"{name} is not JSON that can be read: {why}") from None
    if "\\ud" in text.lower():  # only an escape can smuggle in what is no character
        try:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise FileProblem(
                f"{name} is not JSON that can be read: it holds half a character (a lone surrogate)"
            ) from None
    return data


def write_together(directory: str | Path, contents: Mapping[str, str | bytes]) -> Path:
    """Write files so that those in the directory always belong together; others are left alone.

    All are complete beside their places before the first old one goes, and all old ones are gone
    before the first new one comes: whoever is killed leaves files of one report, and whoever is
    stopped by an exception leaves the old one.

    Args:
        directory: made if needed.
        contents: texts or bytes, by their names relative to the directory.
    """
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=target) as made:
            new, old = Path(made) / "new", Path(made) / "old"
            for name, content in contents.items():
                for place in (new / name, old / name):
                    place.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, str):  # half a character becomes a question mark
                    content = content.encode("utf-8", "replace")
                (new / name).write_bytes(content)
            with _undone_unless_finished() as moved:
                for name in contents:
                    if (target / name).exists():
                        _move(target / name, old / name, moved)
                for name in contents:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    _move(new / name, target / name, moved)
    except (OSError, ValueError) as error:
        raise FileProblem(f"cannot write to {_short(target)}: {reason(error)}") from None
    return target


def _move(source: Path, target: Path, moved: list[tuple[Path, Path]]) -> None:
    moved.append((source, target))
    source.replace(target)


@contextmanager
def _undone_unless_finished() -> Iterator[list[tuple[Path, Path]]]:
    """Moves that are taken back, the last first, where something stops them halfway."""
    moved: list[tuple[Path, Path]] = []
    try:
        yield moved
    except BaseException:
        for source, target in reversed(moved):
            with suppress(OSError):
                target.replace(source)
        raise


def replace_directory(new: Path, target: Path) -> None:
    """Put a finished directory in the place of another, in one step where the system has one.

    Two processes may do so at once: one of the two directories is there in the end.
    """
    if _exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
        return
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
        # another process was faster
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where that is impossible."""
    if not sys.platform.startswith("linux") or not other.exists():
        return False
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an old C library
        return False
    failed: int = rename(here, os.fsencode(one), here, os.fsencode(other), swap)
    return failed == 0


def _short(path: Path) -> str:
    """A path for a message: its end, where it is longer than any real one."""
    text = str(path)
    return text if len(text) <= 200 else f"...{text[-200:]}"
