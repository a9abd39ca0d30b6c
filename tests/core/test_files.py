"""Files of a user: what is none is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.core.files import (
    existing_file,
    existing_folder,
    kind_of,
    read_json,
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
        for error in (FileProblem, InvalidInput):
            with pytest.raises(error, match=r"x would take .*, more than this machine has"):
                refuse_too_large(count, "x", error)
