"""Help, the version, and names that nothing has."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtheory import __version__

from .calls import Call, refused

COMMANDS = [
    ["audit"], ["explain"], ["compare"], ["lab", "list"], ["lab", "show"], ["lab", "run"],
    ["index"], ["errata"], ["size"], ["doctor"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_an_example(call: Call, command: list[str], flag: str) -> None:
    outcome = call(*command, flag)
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert f"torchtheory {' '.join(command)}" in outcome.out
    assert outcome.err == ""


def test_help_lists_every_command(call: Call) -> None:
    outcome = call("--help")
    assert all(command[0] in outcome.out for command in COMMANDS)
    assert all(name in call("lab", "--help").out for name in ("list", "show", "run"))
    assert "Usage" in call().out + call().err
    assert call("--version").out == f"torchtheory {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lab", "list", "--room", "netz"], "did you mean 'nets'"),
        (["lab", "list", "--covers", "n-08"], "did you mean 'N-08'"),
        (["lab", "show", "nothing"], "no lab is named 'nothing'"),
        (["index", "--source", "note"], "did you mean 'notes'"),
        (["index", "--room", "attic"], "no room is named 'attic'"),
        (["nonsense"], "No such command"),
        (["lab", "nonsense"], "No such command"),
        (["errata", "--out", "file"], "is a file"),
    ],
)
def test_unknown_names(call: Call, arguments: list[str], sentence: str) -> None:
    Path("file").write_text("")
    assert sentence in refused(call(*arguments))


def test_a_mistake_shows_no_control_characters(call: Call) -> None:
    message = refused(call("lab", "list", "--nets\x1b[31m\x07\nred"))
    assert message.rstrip("\n").isprintable()
