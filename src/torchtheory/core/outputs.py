"""What is written for a user: marked as ours, whole at any moment, never over anything else.

Only a regular file of the same form (`torchtheory.core.marks`) is ever replaced: a file of the
user's, a directory, a link, a pipe or a device at its place is refused, and left as it is.
`refuse_places` says so before the work is done, `write_outputs` before the first file is touched.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import reason, short_path
from torchtheory.core.marks import HEAD, PICTURES, TAIL, form_of, marked_picture

#: Locks of the system; Windows has others.
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

# ----------------------------------------------------------------------------- before the work

#: Bytes of the longest path to a directory that something can be made in; of the systems' 4096,
#: some are for what that is.
_LONGEST_PATH = 3800


@dataclass(frozen=True, slots=True)
class Place:
    """Where something will be written.

    Attributes:
        directory: made if needed; it may be reached through links.
        forms: what will stand there, by names relative to the directory. Where a name is not known
            yet, a pattern such as `figures/*.png`.
        option: what the user calls it, for messages.
    """

    directory: Path
    forms: Mapping[str, str]
    option: str = "--out"

    def paths(self) -> list[Path]:
        """All files, as far as their names are known."""
        root = Path(os.path.realpath(self.directory))
        return [root / name for name in self.forms]


def file_place(file: Path, form: str, option: str) -> Place:
    """The place of a single file."""
    if not file.name or file.name == "..":
        raise FileProblem(f"cannot write {short_path(file)}: it is a directory")
    return Place(file.parent, {file.name: form}, option)


def refuse_places(places: Sequence[Place], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse what could not be written, in one sentence, before the work for it is done.

    Nothing is made: a command that is refused leaves no trace.

    Args:
        places: everything that will be written. No two may be the same file, or one of them a
            directory for the other.
        inputs: what is read, as far as these are files: none of them is replaced, under whatever
            name.

    Raises:
        FileProblem: the first reason found.
    """
    read = {_identity(Path(i)) for i in inputs if i is not None} - {None}
    given = dict.fromkeys(place.directory for place in places)
    known = {directory: refuse_directory(directory) for directory in given}
    for place in places:
        with _told(place.directory):
            root = Path(os.path.realpath(place.directory))
            for name, form in place.forms.items():
                _refuse_long(PurePath(name).parts, known[place.directory])
                for one in _matching(root, name) if "*" in name else [name]:
                    _refuse(root, one, form, read)
    _refuse_shared(places)


def _refuse_shared(places: Sequence[Place]) -> None:
    """Refuse two outputs at one place, or one that the other would need as a directory."""
    files: dict[Path, str] = {}
    folders: dict[Path, str] = {}
    for place in places:
        paths = place.paths()
        for path in paths:
            above = (files[p] for p in path.parents if p in files)
            other = files.get(path) or folders.get(path) or next(above, None)
            if other is not None:
                raise FileProblem(
                    f"{other} and {place.option} would both write to {short_path(path)}; give "
                    "another place for one of them"
                )
        files |= dict.fromkeys(paths, place.option)
        folders |= {parent: place.option for path in paths for parent in path.parents}


def refuse_directory(directory: Path) -> Path:
    """Refuse a directory that could not be written to; where there is none yet, none is made.

    Returns the nearest one that exists. A file without a name is written to it: permission, a file
    system that is read only and a full disk are met here.
    """
    with _told(directory):
        place = next(p for p in (directory, *directory.parents) if os.path.lexists(p))
        if not place.is_dir():
            raise FileProblem(
                f"cannot write to {short_path(directory)}: {short_path(place)} is not a directory"
            )
        # what is made in it takes more than its own name
        if len(os.fsencode(os.path.realpath(directory))) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        _refuse_long(directory.parts[len(place.parts) :], place)
        if not os.access(place, os.W_OK | os.X_OK):
            raise FileProblem(
                f"cannot write to {short_path(directory)}: {short_path(place)} does not allow it"
            )
        with tempfile.TemporaryFile(dir=place) as tried:
            tried.write(bytes(2**16))
    return place


def _refuse_long(names: Iterable[str], place: Path) -> None:
    """The system looks at the length of a name only when it comes to its directory."""
    longest = os.pathconf(place, "PC_NAME_MAX") if hasattr(os, "pathconf") else -1
    if any(len(os.fsencode(name)) > longest > 0 for name in names):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _matching(root: Path, pattern: str) -> list[str]:
    folder = root / PurePath(pattern).parent
    if folder.is_symlink() or not folder.is_dir():
        return [str(PurePath(pattern).with_name("any"))]  # the folder is what is looked at
    return [str(p.relative_to(root)) for p in root.glob(pattern)]


def _refuse(root: Path, name: str, form: str, read: Iterable[object] = ()) -> None:
    """Refuse a file that would not be replaced by one of this form."""
    *folders, _ = (root / name).relative_to(root).parts
    place = root
    for folder in folders:
        place /= folder
        if (there := _state(place)) is None:
            return
        if not stat.S_ISDIR(there.st_mode):
            link = (
                "a link, which is not followed" if stat.S_ISLNK(there.st_mode) else "no directory"
            )
            raise FileProblem(
                f"cannot write to {short_path(place)}: it is {link}; give another place"
            )
    path = root / name
    if (there := plain_file(path)) is None:
        return
    if (there.st_dev, there.st_ino) in read:
        raise FileProblem(
            f"cannot write {short_path(path)}: it is an input of this command; give another place"
        )
    found = _form_at(path)
    # an empty file has nothing to lose, and may have been made to be written to (mktemp)
    if found not in (form, "nothing") and not (form == "nothing" and found in PICTURES):
        raise FileProblem(
            f"cannot write {short_path(path)}: the file that is there is no {form} of torchtheory, "
            "and is not replaced; move it, or give another place"
        )


def plain_file(path: Path) -> os.stat_result | None:
    """The state of a regular file, None if there is nothing; anything else is refused.

    A link is refused rather than followed: what it leads to is not what was named. It is refused
    rather than replaced: whoever made it wants to find something behind it.
    """
    with _told(path):
        there = _state(path)
        if there is None or stat.S_ISREG(there.st_mode):
            return there
    kind = "a link, which is not followed" if stat.S_ISLNK(there.st_mode) else "no file"
    kind = "a directory" if stat.S_ISDIR(there.st_mode) else kind
    raise FileProblem(f"cannot write {short_path(path)}: it is {kind}; give another place")


def _state(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    """What a file is under all its names; None if there is none."""
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return None
    return there.st_dev, there.st_ino


def _form_at(path: Path) -> str | None:
    # a pipe that has come to stand here since is not waited for, a link not followed
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as stream:
        content = stream.read(HEAD)
        length = os.fstat(stream.fileno()).st_size
        if length > HEAD:
            stream.seek(max(HEAD, length - TAIL))
            content += stream.read(TAIL)
    return form_of(content)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says about a path, in one sentence."""
    try:
        yield
    except FileProblem:
        raise
    except (OSError, ValueError) as error:  # a null character is a ValueError
        raise FileProblem(f"cannot write to {short_path(path)}: {reason(error)}") from None


# ----------------------------------------------------------------------------- writing


def write_outputs(directory: str | Path, contents: Mapping[str, str | bytes]) -> Path:
    """Write the files of a report; others are left alone.

    A directory that holds nothing but outputs of ours is exchanged for a new one in a single step,
    where the system has one (Linux): whoever is killed leaves the old report or the new one. Other
    directories get their files one after the other, each whole at any moment and the page last;
    whoever is stopped by an exception leaves the old report. Two processes that write to one
    directory take turns. What a killed one left half-written, `.partial-*`, goes away with the
    next report.

    Args:
        directory: made if needed.
        contents: texts or bytes, by their names relative to the directory.

    Raises:
        FileProblem: if a file that is there is not of the same form, and so none of ours; nothing
            is written then.
    """
    given = Path(directory)
    new = {
        # half a character becomes a question mark
        name: marked_picture(c.encode("utf-8", "replace") if isinstance(c, str) else c)
        for name, c in contents.items()
    }
    refuse_directory(given)
    with _told(given):
        given.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(given))
        with _alone(target) as alone:
            for name, content in new.items():
                if (form := form_of(content)) is None:
                    raise TypeError(f"{name} does not say that it is ours")
                _refuse(target, name, form)
            if alone:
                _sweep(target)
            if not _exchanged(target, new):
                _one_by_one(target, new)
    return given


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes take the place of a file in one step, when they are complete.

    What a killed process left half-written is removed. Whether the file that is there may go is the
    caller's to know; anything but a file is refused.
    """
    plain_file(path)
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent, _beside(path))
        made = path.with_name(f"{_beside(path)}{secrets.token_hex(4)}")
        try:
            with made.open("xb") as stream:
                _lock(stream.fileno(), end=0.0)  # says that it is not left over
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(made, path)
        finally:
            made.unlink(missing_ok=True)


def _exchanged(target: Path, new: Mapping[str, bytes]) -> bool:
    """Put a new directory into the place of one that is wholly ours; False where that cannot be."""
    if not sys.platform.startswith("linux") or _holds(target, Path.cwd()):
        return False  # who stands in a directory would stand in the old one
    old = _only_ours(target)
    if old is None:
        return False
    try:
        made = Path(tempfile.mkdtemp(prefix=_beside(target), dir=target.parent))
    except OSError:  # only the directory itself may be written to
        return False
    with _alone(made):  # after the exchange this is what others hold to write here
        try:
            for name in old - set(new):
                (made / name).parent.mkdir(exist_ok=True)
                os.link(target / name, made / name)
            _write(made, new, target)
            for folder in {PurePath(name).parent for name in old} | {PurePath()}:
                shutil.copystat(target / folder, made / folder)
            return _belong_alike(target, made) and _exchange(made, target)
        except OSError:  # a file system without links: the other way works, or says why not
            return False
        finally:
            _give_back(made, target, old | set(new))
            shutil.rmtree(made, ignore_errors=True)


def _belong_alike(one: Path, other: Path) -> bool:
    a, b = os.stat(one), os.stat(other)
    return (a.st_uid, a.st_gid, a.st_mode) == (b.st_uid, b.st_gid, b.st_mode)


def _give_back(old: Path, target: Path, ours: Iterable[str]) -> None:
    """What came into the old directory while the new one was made belongs to somebody."""
    known = set(ours)
    for path in [p for p in old.rglob("*") if not p.is_dir() or p.is_symlink()]:
        name = str(path.relative_to(old))
        if name not in known:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target / name)


def _one_by_one(target: Path, new: Mapping[str, bytes]) -> None:
    """Replace files one after the other; all are complete beside their places before the first."""
    with tempfile.TemporaryDirectory(prefix=_beside(target), dir=target) as made:
        fresh, old = Path(made) / "new", Path(made) / "old"
        _write(fresh, new, target)
        for name in new:
            for place in (target / name, old / name):
                place.parent.mkdir(parents=True, exist_ok=True)
            if (target / name).exists():
                _link(target / name, old / name)
        moves = [(str(fresh / n), str(target / n)) for n in sorted(new, key=_is_page)]
        try:
            for move in moves:  # nothing else in between: it takes microseconds
                os.replace(*move)
        except BaseException:
            for name in new:
                _restore(old / name, fresh / name, target / name)
            raise


def _is_page(name: str) -> bool:
    return name.endswith(".html")


def _restore(old: Path, fresh: Path, place: Path) -> None:
    with suppress(OSError):
        if old.exists():
            os.replace(old, place)
        elif not fresh.exists():  # it was moved, and nothing had been there
            place.unlink()


def _write(folder: Path, new: Mapping[str, bytes], target: Path) -> None:
    for name, content in new.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        with suppress(OSError):  # who may read the old one may read the new one
            shutil.copymode(target / name, place)


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # a file system without
        shutil.copy2(source, place)


def _only_ours(directory: Path) -> set[str] | None:
    """The files of a directory with nothing but outputs of ours, pictures in folders among them."""
    found = set()
    try:
        for path in directory.iterdir():
            inside = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else None
            if inside == []:
                return None
            for file in [path] if inside is None else inside:
                form = _form_at(file) if _is_plain(file) else None
                if form is None or (inside is not None and form not in PICTURES):
                    return None
                found.add(str(file.relative_to(directory)))
    except OSError:  # what may not be read is not known to be ours
        return None
    return found


def _is_plain(path: Path) -> bool:
    there = _state(path)
    return there is not None and stat.S_ISREG(there.st_mode)


def _holds(directory: Path, place: Path) -> bool:
    """Whether a place is the directory or lies below it."""
    return any(_identity(p) == _identity(directory) for p in (place, *place.parents))


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where that is impossible."""
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an old C library
        return False
    failed: int = rename(here, os.fsencode(one), here, os.fsencode(other), swap)
    return failed == 0


# ----------------------------------------------------------------------------- turns, leftovers

#: Who waits longer for another process to finish its report does without its turn: the lock may be
#: somebody's who holds the directory for a purpose of his own.
_PATIENCE = 10.0


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Hold a directory for this process; whether that was possible.

    The system's lock on the directory itself: no file has to be made for it, and that of a killed
    process is gone with it.
    """
    if fcntl is None:  # and a directory cannot be opened
        yield False
        return
    end, held = time.monotonic() + _PATIENCE, False
    while True:
        handle = os.open(directory, os.O_RDONLY)
        try:
            held = _lock(handle, end)
            now = os.stat(directory)
            # whoever had it before may have put another directory into its place
            if not held or os.path.samestat(os.fstat(handle), now):
                yield held
                return
        finally:
            os.close(handle)


def _lock(handle: int, end: float) -> bool:
    """Hold an open file or directory, once nobody else does; whether that was so in time."""
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


def _beside(path: Path) -> str:
    """How the names begin of what is made beside a path to become it."""
    name = hashlib.blake2b(os.fsencode(path.name), digest_size=8).hexdigest()
    return f".partial-{name}-"


def _sweep(target: Path) -> None:
    """Remove what killed processes left of a directory that this one holds."""
    for place in (target, target.parent):
        _remove_leftovers(place, _beside(target))


def is_leftover(path: Path) -> bool:
    """Whether a name is one that only what is half-written here has; `.partial-data` is a user's.

    >>> is_leftover(Path("runs/.partial-0123456789abcdef-abcd_123"))
    True
    >>> is_leftover(Path(".partial-download"))
    False
    """
    return re.fullmatch(r"\.partial-[0-9a-f]{16}-[a-z0-9_]{8}", path.name) is not None


def _remove_leftovers(directory: Path, start: str) -> None:
    for left in directory.glob(f"{start}*"):
        if is_leftover(left):
            with suppress(OSError):
                if not _is_plain(left):
                    shutil.rmtree(left)
                elif not _in_use(left):
                    left.unlink()


def _in_use(file: Path) -> bool:
    """Whether a process that is alive holds a file."""
    with file.open("rb") as stream:
        return fcntl is not None and not _lock(stream.fileno(), end=0.0)
