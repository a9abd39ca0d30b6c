"""`torchtheory network`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchtheory.cli.entry import main


def _run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["network", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))\n"
        "def plain():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    return "mynets:plain"


@pytest.mark.draws
def test_prints_the_table_and_draws(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["--model", factory, "--shape", "3,4,4", "--figure", "net.png"]) == 0
    said = capsys.readouterr().out
    assert "Conv2d" in said
    assert "432 multiplications" not in said
    assert "464 multiplications" in said  # 4·4·27 + 16·2
    assert Path("net.png").read_bytes().startswith(b"\x89PNG")
    assert _run(["--model", factory, "--shape", "3,4,4", "--figure", "net.svg"]) == 0
    assert Path("net.svg").read_text().startswith("<svg")


def test_json_and_operations(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["--model", factory, "--shape", "3,4,4", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["title"] == "Sequential"
    assert _run(["--model", factory, "--shape", "3,4,4", "--operations"]) == 0
    assert "conv2d(%x, %0.weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shape", "3"], "--shape goes with --model"),
        (["--model", "mynets:plain"], "--model needs inputs"),
        (["--model", "mynets:plain", "--shape", "3x4"], "such as 3,32,32, not '3x4'"),
        (["--model", "mynets:plain", "--shape", "5,4,4"], "RuntimeError"),
        (["--model", "mynets:plain", "--shape", "3,4,4", "--figure", "a.txt"], "not 'a.txt'"),
        (["--model", "mynets:plain", "--shape", "3,4,4", "--figure", "mynets.svg"], "mynets.svg"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], sentence: str, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mynets.svg").write_text("mine")
    assert _run(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert Path("mynets.svg").read_text() == "mine"
