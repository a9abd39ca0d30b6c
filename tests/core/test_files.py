"""Files of a user: what is none is refused, what is written belongs together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import (
    existing_file,
    existing_folder,
    kind_of,
    read_json,
    replace_directory,
    write_together,
)
from torchtheory.core.memory import refuse_too_large, spare_memory


def test_pipes_devices_and_directories_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(FileProblem, match="is not a file"):
            existing_file(path)
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert kind_of(path) == "other"
        with pytest.raises(FileProblem, match="is not a directory"):
            existing_folder(path)


@pytest.mark.parametrize("name", ["x" * 256, "x" * 5000, "a/" * 3000 + "b", "null\0character"])
def test_names_that_no_file_system_takes(name: str) -> None:
    for find in (existing_file, existing_folder, read_json):
        with pytest.raises(FileProblem) as caught:
            find(name)
        assert len(str(caught.value)) < 300


def test_places_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everybody but the administrator meets them."""

    def forbidden(self: Path, *_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", forbidden)
    with pytest.raises(FileProblem, match=r"cannot read .*: Permission denied"):
        existing_file(tmp_path / "inner" / "data.npz")
    monkeypatch.undo()
    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(FileProblem, match=r"cannot read .*: Permission denied"):
        existing_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe", "is not a text file"),
        (b"{", "is not JSON: .* in line 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "is not JSON that can be read"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b'{"\\uDFFF": 1}', "half a character"),
    ],
)
def test_json_that_is_none(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileProblem, match=sentence):
        read_json(tmp_path / "a.json")


def test_json_of_any_numbers_and_characters(tmp_path: Path) -> None:
    data = {"huge": 10**400, "smile": "\U0001f600", "text": "\\ud800 in words"}
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert read_json(tmp_path / "a.json") == data


def test_a_long_record_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtheory.core.files.LARGEST_JSON", 10)
    (tmp_path / "a.json").write_text('"' + 20 * "a" + '"')
    with pytest.raises(FileProblem, match="too much for a record"):
        read_json(tmp_path / "a.json")


def test_memory_to_spare() -> None:
    refuse_too_large(spare_memory(), "x")
    for count in (spare_memory() + 1, 10**400):
        with pytest.raises(FileProblem, match=r"x would take .*, more than this machine has"):
            refuse_too_large(count, "x")


NAMES = ("figures/a.png", "audit.json", "report.md", "report.html")


def contents(directory: Path) -> dict[str, str]:
    return {n: (directory / n).read_text() for n in NAMES if (directory / n).exists()}


def test_files_are_written_and_others_left_alone(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_text("mine")
    for version in ("old", "new"):
        write_together(tmp_path, dict.fromkeys(NAMES, version))
        assert contents(tmp_path) == dict.fromkeys(NAMES, version)
    assert (tmp_path / "figures" / "mine.png").read_text() == "mine"
    assert not list(tmp_path.glob(".partial*"))
    write_together(tmp_path, {"audit.json": "half \ud800"})
    assert (tmp_path / "audit.json").read_bytes() == b"half ?"


KILLED = """
import os, pathlib, sys
from torchtheory.core.files import write_together
left, move = int(sys.argv[2]), pathlib.Path.replace
def replace(self, target):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    return move(self, target)
pathlib.Path.replace = replace
write_together(sys.argv[1], dict.fromkeys({names!r}, "new"))
"""


def test_a_killed_save_never_mixes_two_reports(tmp_path: Path) -> None:
    code = KILLED.replace("{names!r}", repr(NAMES))
    seen = set()
    for moves in range(2 * len(NAMES) + 1):
        place = tmp_path / str(moves)
        write_together(place, dict.fromkeys(NAMES, "old"))
        ended = subprocess.run([sys.executable, "-c", code, str(place), str(moves)], check=False)
        found = contents(place)
        assert len(set(found.values())) <= 1
        assert ended.returncode == (0 if moves == 2 * len(NAMES) else 9)
        seen |= set(found.values())
        write_together(place, dict.fromkeys(NAMES, "next"))
        assert contents(place) == dict.fromkeys(NAMES, "next")
    assert seen == {"old", "new"}


@pytest.mark.parametrize("moves", range(2 * len(NAMES)))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_is_stopped_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, error: BaseException
) -> None:
    write_together(tmp_path, dict.fromkeys(NAMES, "old"))
    move, made = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        made.append(target)
        if len(made) == moves + 1:
            raise error
        return move(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises((FileProblem, KeyboardInterrupt)):
        write_together(tmp_path, dict.fromkeys(NAMES, "new"))
    assert contents(tmp_path) == dict.fromkeys(NAMES, "old")
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize("system", ["this", "without an exchange"])
def test_a_directory_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if system != "this":
        monkeypatch.setattr("torchtheory.core.files._exchange", lambda one, other: False)
    for version in ("first", "second", "third"):
        write_together(tmp_path / "new", dict.fromkeys(NAMES, version))
        replace_directory(tmp_path / "new", tmp_path / "place")
        assert contents(tmp_path / "place") == dict.fromkeys(NAMES, version)
        assert [p.name for p in tmp_path.iterdir()] == ["place"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems need two steps")
def test_there_is_always_a_directory(tmp_path: Path) -> None:
    """Killed after any call to the system, one of the two is whole."""
    for version, name in (("old", "place"), ("new", "new")):
        write_together(tmp_path / name, dict.fromkeys(NAMES, version))
    code = (
        "import os, shutil, sys, pathlib\n"
        "from torchtheory.core.files import replace_directory\n"
        "shutil.rmtree = pathlib.Path.rename = lambda *a, **k: os._exit(9)\n"
        "replace_directory(*map(pathlib.Path, sys.argv[1:]))"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "new"), str(tmp_path / "place")]
    assert subprocess.run(run, check=False).returncode == 9
    assert contents(tmp_path / "place") == dict.fromkeys(NAMES, "new")
