"""What is written: marked, whole at any moment, and never over anything of the user's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from torchtheory.core import outputs
from torchtheory.core.errors import FileProblem
from torchtheory.core.figure import draw
from torchtheory.core.marks import form_of, marked_archive, marked_markdown, record_text
from torchtheory.core.outputs import Place, file_place, refuse_places, replaced_file, write_outputs

NAMES = ("figures/a.svg", "audit.json", "report.md", "report.html")
FORMS = {
    "figures/a.svg": "drawing",
    "audit.json": "audit record",
    "report.md": "audit text",
    "report.html": "audit page",
}
posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes, links and signals")


def report(version: str) -> dict[str, str]:
    """A report whose files all say which one it is."""
    head = '<meta charset="utf-8">\n<meta name="generator" content="torchtheory audit">'
    return {
        "figures/a.svg": f"<svg a=''>\n <metadata><dc:title>torchtheory</dc:title>{version}",
        "audit.json": record_text("audit", {"version": version}),
        "report.md": marked_markdown("audit", version),
        "report.html": f"<!DOCTYPE html>\n<html>\n<head>\n{head}\n{version}",
    }


def versions(directory: Path) -> list[str]:
    """Which report each file is of; `none` where there is none."""
    found = []
    for name in NAMES:
        text = (directory / name).read_text() if (directory / name).exists() else ""
        found.append(next((v for v in ("old", "new", "next") if v in text), "none"))
    return found


def leftovers(directory: Path) -> list[Path]:
    return [p for p in directory.rglob(".partial*") if p.exists()]


# ----------------------------------------------------------------------------- what is ours


@pytest.mark.draws
def test_forms() -> None:
    for name, text in report("new").items():
        assert form_of(text.encode()) == FORMS[name]
    figure = draw("line", lambda axes: axes.plot([0, 1]))
    assert form_of(figure.png) == "picture"
    assert figure.svg is not None
    assert form_of(figure.svg.encode()) == "drawing"
    for content in (
        b"{}", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b'{"title": "torchtheory audit"}', b"\0" * 9000,
        b"# torchtheory audit", b"<!DOCTYPE html><title>torchtheory audit</title>",
        b'<?xml version="1.0"?><testsuites name="pytest tests">', b"<svg ><metadata>mine",
        b'{"$schema": "sarif", "version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"',
    ):  # fmt: skip
        assert form_of(content) is None, content


def test_an_archive_with_its_mark_is_read_as_before(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(3000.0))
    packed = marked_archive("explanation", (tmp_path / "a.npz").read_bytes())
    assert form_of(packed) == "explanation arrays"
    write_outputs(tmp_path / "o", {"b.npz": packed})
    with np.load(tmp_path / "o/b.npz", allow_pickle=False) as arrays:
        assert arrays["x"].sum() == 4498500
    refuse_places([Place(tmp_path / "o", {"b.npz": "explanation arrays"})])


def test_a_picture_that_somebody_else_drew_gets_the_mark(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (90, 60), "white").save(tmp_path / "a.png")
    drawn = {"a.png": (tmp_path / "a.png").read_bytes(), "b.svg": "<svg width='9'><path/></svg>"}
    for _ in range(2):
        write_outputs(tmp_path / "o", drawn)
    assert form_of((tmp_path / "o/a.png").read_bytes()) == "picture"
    assert form_of((tmp_path / "o/b.svg").read_bytes()) == "drawing"
    ElementTree.parse(tmp_path / "o/b.svg")
    with image.open(tmp_path / "o/a.png") as read:
        read.load()
        assert read.getpixel((3, 3)) == (255, 255, 255)


def test_what_does_not_say_what_it_is_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="does not say that it is ours"):
        write_outputs(tmp_path, {"a.txt": "words"})


# ----------------------------------------------------------------------------- what is refused


def strangers(place: Path) -> dict[str, str]:
    """What may stand at the place of a report, and what the refusal says."""
    place.mkdir(parents=True)
    (place / "file").write_text("mine")
    (place / "folder").mkdir()
    (place / "folder/inside").write_text("mine")
    os.mkfifo(place / "pipe")
    (place / "link").symlink_to(place / "file")
    (place / "dangling").symlink_to(place / "nowhere")
    (place / "device").symlink_to("/dev/null")
    (place / "other").write_text(record_text("series", {}))
    return {
        "file": "is not replaced", "folder": "it is a directory", "pipe": "it is no file",
        "link": "not followed", "dangling": "not followed", "device": "not followed",
        "other": "is not replaced",
    }  # fmt: skip


def state(place: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in place.rglob("*"):
        there = path.lstat()
        found[str(path.relative_to(place))] = (there.st_mode, there.st_ino, there.st_mtime_ns)
    return found


@posix
@pytest.mark.parametrize("name", [*NAMES, "figures"])
def test_nothing_of_the_users_is_replaced(tmp_path: Path, name: str) -> None:
    for kind, sentence in strangers(tmp_path / "kinds").items():
        if name == "figures" and kind == "folder":
            continue
        out = tmp_path / f"out-{kind}"
        (out / name).parent.mkdir(parents=True)
        (tmp_path / "kinds" / kind).rename(out / name)
        before = state(out)
        folder = name == "figures"
        with pytest.raises(FileProblem, match="give another place" if folder else sentence):
            refuse_places([Place(out, FORMS)])
        with pytest.raises(FileProblem, match="give another place" if folder else sentence):
            write_outputs(out, report("new"))
        assert state(out) == before


@posix
def test_devices_and_links_to_them() -> None:
    with pytest.raises(FileProblem, match="cannot write"):
        write_outputs("/dev", {"null": report("new")["audit.json"]})
    with pytest.raises(FileProblem, match="cannot write"):
        refuse_places([file_place(Path("/dev/null"), "audit record", "--sarif")])


@posix
def test_an_input_is_no_output_under_any_of_its_names(tmp_path: Path) -> None:
    write_outputs(tmp_path, report("old"))
    (tmp_path / "data").mkdir()
    os.link(tmp_path / "report.md", tmp_path / "data/hard")
    (tmp_path / "data/soft").symlink_to(tmp_path / "report.md")
    for name in ("report.md", "data/hard", "data/soft", "data/../report.md"):
        with pytest.raises(FileProblem, match="it is an input of this command"):
            refuse_places([Place(tmp_path, FORMS)], [None, tmp_path / name])
    refuse_places([Place(tmp_path, FORMS)], ["package.module:factory", tmp_path / "absent", "\0"])


@pytest.mark.parametrize("below", ["", "/b.xml"])
def test_two_outputs_need_two_places(tmp_path: Path, below: str) -> None:
    one, two = tmp_path / "a.sarif", Path(f"{tmp_path}/x/../a.sarif{below}")
    (tmp_path / "x").mkdir()
    log = file_place(two, "JUnit log", "--junit")
    places = [file_place(one, "SARIF log", "--sarif"), log]
    for order in (places, places[::-1]):
        with pytest.raises(FileProblem, match=r"--\w+ and --\w+ would both write to"):
            refuse_places(order)
    for name in ("report.html", "figures"):
        report_file = file_place(tmp_path / "o" / name, "JUnit log", "--junit")
        with pytest.raises(FileProblem, match="--out and --junit would both write to"):
            refuse_places([Place(tmp_path / "o", FORMS), report_file])


@posix
def test_a_directory_may_be_reached_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for version in ("old", "new"):
        refuse_places([Place(tmp_path / "link/o", FORMS), Place(tmp_path / "link", FORMS)])
        assert write_outputs(tmp_path / "link/o", report(version)) == tmp_path / "link/o"
        write_outputs(tmp_path / "link", report(version))
        assert versions(tmp_path / "real/o") == versions(tmp_path / "real") == [version] * 4
    assert (tmp_path / "link").is_symlink()


def test_an_empty_file_has_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "report.md").touch()
    refuse_places([Place(tmp_path, FORMS)])
    write_outputs(tmp_path, report("new"))
    assert versions(tmp_path) == ["new"] * 4


@posix
@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("x" * 300, "File name too long"),
        ("new/" + "x" * 300, "File name too long"),
        ("deep/" * 820, "File name too long"),
        ("file/below", "is not a directory"),
        ("loop", "is not a directory"),
        ("dangling/below", "is not a directory"),
        ("null\0character", "embedded null"),
    ],
)
def test_places_that_cannot_be(tmp_path: Path, out: str, sentence: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = state(tmp_path)
    with pytest.raises(FileProblem, match=sentence) as caught:
        refuse_places([Place(tmp_path / out, FORMS)])
    assert len(str(caught.value)) < 600
    with pytest.raises(FileProblem, match="cannot write to"):
        write_outputs(tmp_path / out, report("new"))
    assert out == "deep/" * 820 or state(tmp_path) == before


@posix
@pytest.mark.parametrize("number", [28, 30, 13])
def test_a_disk_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Full, read only or forbidden: met before the work."""

    def refused(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(outputs.tempfile, "TemporaryFile", refused)
    with pytest.raises(FileProblem, match=f"cannot write to .*o/p: {os.strerror(number)}"):
        refuse_places([Place(tmp_path / "o/p", FORMS)])
    assert list(tmp_path.iterdir()) == []


def test_checking_leaves_no_trace(tmp_path: Path) -> None:
    refuse_places([Place(tmp_path / "a/b", FORMS), file_place(tmp_path / "c/d", "x", "--sarif")])
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------- whole at any moment


def fill(directory: Path, ours: bool) -> None:
    """An old report, alone or among things of the user's."""
    write_outputs(directory, report("old"))
    if not ours:
        (directory / "notes.txt").write_text("mine")
        (directory / "figures/mine.png").write_text("mine")
        (directory / "weights").mkdir()
        (directory / "weights/w.pt").write_text("mine")


def kept(directory: Path, ours: bool) -> bool:
    names = () if ours else ("notes.txt", "figures/mine.png", "weights/w.pt")
    return all((directory / n).read_text() == "mine" for n in names)


@pytest.mark.parametrize("ours", [True, False])
def test_files_are_written_and_others_left_alone(tmp_path: Path, ours: bool) -> None:
    fill(tmp_path / "o", ours)
    (tmp_path / "o/report.md").chmod(0o600)
    mode = (tmp_path / "o").stat().st_mode
    write_outputs(tmp_path / "o", report("new"))
    assert versions(tmp_path / "o") == ["new"] * 4
    assert kept(tmp_path / "o", ours)
    assert (tmp_path / "o/report.md").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "o").stat().st_mode == mode
    assert (tmp_path / "o/audit.json").stat().st_mode & 0o777 == 0o666 & ~umask()
    write_outputs(tmp_path / "o", {"audit.json": record_text("audit", {"version": "next"})})
    assert versions(tmp_path / "o") == ["new", "next", "new", "new"]
    write_outputs(tmp_path / "o", {"report.md": marked_markdown("audit", "half \ud800")})
    assert (tmp_path / "o/report.md").read_bytes().endswith(b"half ?")
    assert leftovers(tmp_path) == []


def umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


def test_the_current_directory_stays_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "o").mkdir()
    monkeypatch.chdir(tmp_path / "o")
    for version in ("old", "new"):
        write_outputs(".", report(version))
        assert versions(Path.cwd()) == [version] * 4
        assert os.path.samestat(os.stat("."), (tmp_path / "o").stat())


@posix
@pytest.mark.parametrize("ours", [True, False])
def test_killed_before_any_step(tmp_path: Path, ours: bool) -> None:
    in_a_small_process("killed_before_any_step", tmp_path, ours)


def killed_before_any_step(place: Path, ours: bool) -> None:
    """Every file is whole at any moment; a directory that is wholly ours is of one report."""
    seen: set[str] = set()
    fill(place / "o", ours)
    for steps in range(99):
        code = in_a_fork(lambda: _killed_after(steps, place / "o"))  # noqa: B023 - called at once
        found = versions(place / "o")
        assert "none" not in found, (steps, found)
        assert kept(place / "o", ours)
        if ours and sys.platform.startswith("linux"):
            assert len(set(found)) == 1, (steps, found)
        if found[-1] == "new":  # the page comes last
            assert set(found) == {"new"}
        seen |= set(found)
        write_outputs(place / "o", report("old"))
        assert leftovers(place) == []
        if code == 0:
            break
        assert code == 9
    assert code == 0
    assert steps > 15
    assert seen == {"old", "new"}


def in_a_small_process(name: str, *arguments: object) -> None:
    """Call a function of this module where nothing large is imported, so that forks are cheap."""
    given = ", ".join(repr(str(a) if isinstance(a, Path) else a) for a in arguments)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import test_outputs as t; t.{name}(t.Path({given.replace(', ', '), ', 1)})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def in_a_fork(function: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _killed_after(steps: int, place: Path) -> None:
    """Write in this process, which ends before a step; it is a fork of the one that tests."""
    left = steps

    def counted(function: object) -> object:
        def call(*arguments: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return function(*arguments, **options)  # type: ignore[operator]

        return call

    for owner, names in (
        (os, ("replace", "link", "unlink", "mkdir", "rmdir")),
        (Path, ("write_bytes", "mkdir")),
        (outputs, ("_exchange",)),
        (outputs.shutil, ("rmtree",)),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))
    write_outputs(place, report("new"))


SAVER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_outputs import report
from torchtheory.core.outputs import write_outputs
made = {v: report(v) | {f"figures/{k}.svg": report(v)["figures/a.svg"] for k in range(40)}
        for v in ("old", "new")}
print("ready", flush=True)
while True:
    for version in ("new", "old"):
        write_outputs(sys.argv[2], made[version])
"""


def saver(place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SAVER, str(Path(__file__).parent), str(place)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    return started


@posix
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A process that saves all the time, stopped and killed; nobody cleans up in between."""
    write_outputs(tmp_path / "o", report("old"))
    drawn = random.Random(0)
    made = saver(tmp_path / "o")
    # a process takes a second to start, and a fork of it nothing: it is looked at where it stands
    for _ in range(40):
        time.sleep(0.002 + 0.01 * drawn.random())
        made.send_signal(signal.SIGSTOP)
        os.waitpid(made.pid, os.WUNTRACED)
        found = versions(tmp_path / "o")
        assert "none" not in found
        if sys.platform.startswith("linux"):
            assert len(set(found)) == 1, found
        made.send_signal(signal.SIGCONT)
    made.kill()
    made.wait()
    assert made.stdout is not None
    made.stdout.close()
    assert len(set(versions(tmp_path / "o"))) == 1
    write_outputs(tmp_path / "o", report("next"))
    assert versions(tmp_path / "o") == ["next"] * 4
    assert leftovers(tmp_path) == []


@posix
@pytest.mark.parametrize("ours", [True, False])
def test_two_who_write_at_once_take_turns(tmp_path: Path, ours: bool) -> None:
    in_a_small_process("two_who_write_at_once", tmp_path, ours)


def two_who_write_at_once(place: Path, ours: bool) -> None:
    fill(place / "o", ours)

    def write() -> None:
        for version in ("old", "new") * (40 if ours else 6):
            write_outputs(place / "o", report(version))

    other = os.fork()
    if other == 0:
        os._exit(in_a_fork(write))
    write()
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
    assert versions(place / "o") == ["new"] * 4
    assert kept(place / "o", ours)
    assert leftovers(place) == []


@posix
def test_a_save_that_goes_on_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers go when the directory is held; whoever cannot have it waits, and leaves them."""
    fcntl = pytest.importorskip("fcntl")
    write_outputs(tmp_path / "o", report("old"))
    made = tmp_path / f"{outputs._beside(tmp_path / 'o')}abcd0123"
    inside = tmp_path / "o" / made.name
    for place in (made, inside):
        (place / "new").mkdir(parents=True)
    holder = os.open(tmp_path / "o", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr(outputs, "_PATIENCE", 0.05)
    write_outputs(tmp_path / "o", report("new"))
    assert versions(tmp_path / "o") == ["new"] * 4
    assert made.exists()
    assert inside.exists()
    os.close(holder)
    somebodys = {tmp_path / ".partial-of somebody", tmp_path / "o/.partial-download"}
    for place in somebodys:
        place.mkdir()
    write_outputs(tmp_path / "o", report("next"))
    assert not made.exists()
    assert not inside.exists()
    assert all(place.is_dir() for place in somebodys)


@pytest.mark.parametrize("moves", range(4))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_is_stopped_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, error: BaseException
) -> None:
    fill(tmp_path, ours=False)
    (tmp_path / "audit.json").unlink()  # what was not there is not there afterwards
    move, made = os.replace, []

    def replace(source: Path, target: Path) -> None:
        made.append(target)
        if len(made) == moves + 1:
            raise error
        move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises((FileProblem, KeyboardInterrupt)):
        write_outputs(tmp_path, report("new"))
    assert versions(tmp_path) == ["old", "none", "old", "old"]
    assert kept(tmp_path, ours=False)
    assert leftovers(tmp_path) == []


def test_an_empty_folder_of_the_users_stays(tmp_path: Path) -> None:
    write_outputs(tmp_path / "o", report("old"))
    (tmp_path / "o/empty").mkdir()
    (tmp_path / "o/.gitkeep").touch()
    write_outputs(tmp_path / "o", report("new"))
    assert (tmp_path / "o/empty").is_dir()
    assert (tmp_path / "o/.gitkeep").is_file()
    assert versions(tmp_path / "o") == ["new"] * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems write one by one")
def test_what_comes_into_a_directory_while_it_is_exchanged_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_outputs(tmp_path / "o", report("old"))
    exchange = outputs._exchange

    def meanwhile(one: Path, other: Path) -> bool:
        (other / "notes.txt").write_text("mine")
        return exchange(one, other)

    monkeypatch.setattr(outputs, "_exchange", meanwhile)
    write_outputs(tmp_path / "o", report("new"))
    assert (tmp_path / "o/notes.txt").read_text() == "mine"
    assert versions(tmp_path / "o") == ["new"] * 4
    assert leftovers(tmp_path) == []


def test_systems_without_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_exchange", lambda one, other: False)
    monkeypatch.setattr(outputs, "fcntl", None)
    for version in ("old", "new"):
        write_outputs(tmp_path / "o", report(version))
        assert versions(tmp_path / "o") == [version] * 4
    assert leftovers(tmp_path) == []


# ----------------------------------------------------------------------------- a single file


@posix
def test_a_stream_becomes_a_file_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a/run.pt"
    for content in (b"first", b"second"):
        with replaced_file(path) as stream:
            stream.write(content)
            assert not path.exists() or path.read_bytes() == b"first"
        assert path.read_bytes() == content
    with pytest.raises(TypeError), replaced_file(path) as stream:
        stream.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["run.pt"]
    (path.parent / f"{outputs._beside(path)}0123abcd").write_text("killed")
    with replaced_file(path) as one, replaced_file(path) as two:  # each leaves the other alone
        one.write(b"third")
        two.write(b"second")
    assert path.read_bytes() == b"third"
    (path.parent / "link.pt").symlink_to("run.pt")
    with pytest.raises(FileProblem, match="not followed"), replaced_file(path.parent / "link.pt"):
        pass
    with replaced_file(path) as stream:
        stream.write(b"fourth")
    assert leftovers(tmp_path) == []
