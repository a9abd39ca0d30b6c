"""Files of a user: opened only if they are files, read within bounds.

`torchtheory.core.outputs` writes.
"""

from __future__ import annotations

import json
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
        raise FileProblem(f"there is no file {short_path(file)}")
    if kind != "file":
        raise FileProblem(f"{short_path(file)} is not a file")
    return file


def existing_folder(path: str | Path) -> Path:
    """The path, or one sentence on why there is no such directory."""
    folder = Path(path)
    if (kind := kind_of(folder)) == "nothing":
        raise FileProblem(f"there is no directory {short_path(folder)}")
    if kind != "directory":
        raise FileProblem(f"{short_path(folder)} is not a directory")
    try:
        next(folder.iterdir(), None)  # may it be read?
    except OSError as error:
        raise FileProblem(f"cannot read {short_path(folder)}: {reason(error)}") from None
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
        raise FileProblem(f"cannot read {short_path(path)}: {reason(error)}") from None


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
        refuse_too_large(copies * count, what, FileProblem)
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


def short_path(path: Path) -> str:
    """A path for a message: its end, where it is longer than any real one."""
    text = str(path)
    return text if len(text) <= 200 else f"...{text[-200:]}"
