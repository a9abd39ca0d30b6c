"""Tables: numbers exactly, words one-hot, and a line number for everything refused."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import FileProblem, InvalidInput, UnknownName
from torchtheory.data.tables import load_table
from torchtheory.models.samples import collect

FLOWERS = "length,color,kind\n1.5,red,setosa\n2.5,blue,virginica\n3,red,setosa\n-4e1,green,iris\n"


def write(folder: Path, text: str, name: str = "a.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_numbers_words_and_classes(tmp_path: Path) -> None:
    table = load_table(write(tmp_path, FLOWERS), "kind", test_fraction=0)
    assert table.features == ["length", "color=blue", "color=green", "color=red"]
    assert table.train.x.tolist() == [
        [1.5, 0, 0, 1],
        [2.5, 1, 0, 0],
        [3, 0, 0, 1],
        [-40, 0, 1, 0],
    ]
    assert table.classes == ["iris", "setosa", "virginica"]
    assert table.train.y.tolist() == [1, 2, 1, 0]
    assert (table.train.x.dtype, table.train.y.dtype) == (torch.float64, torch.int64)
    assert table.test is None
    assert table.train.note == (
        "color became 3 indicators; classes: 0 = iris, 1 = setosa, 2 = virginica"
    )
    assert collect(table.train, "train", limit=10).note == table.train.note


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("a.csv", ","), ("a.csv", ";"), ("a.csv", "|"), ("a.tsv", "\t"), ("a.csv.gz", ",")],
)
def test_delimiters_and_packing(tmp_path: Path, name: str, delimiter: str) -> None:
    text = "\ufeff" + FLOWERS.replace(",", delimiter)  # with the mark that spreadsheets write
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    table = load_table(tmp_path / name, "kind", test_fraction=0)
    assert table.features[0] == "length"
    assert table.train.y.tolist() == [1, 2, 1, 0]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from(['plain, "quoted"', "two\nlines", "ümlaut", "a;b"]),
            st.integers(-(10**9), 10**9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_the_csv_module_writes_comes_back(tmp_path_factory: Any, rows: list[Any]) -> None:
    file = tmp_path_factory.mktemp("csv") / "a.csv"
    with file.open("w", newline="", encoding="utf-8") as text:
        csv.writer(text).writerows([("number", "word", "target"), *rows])
    table = load_table(file, test_fraction=0)
    assert table.train.x[:, 0].tolist() == [row[0] for row in rows]
    assert table.train.y.tolist() == [row[2] for row in rows]
    indicated = [table.features[1 + int(k)] for k in table.train.x[:, 1:].argmax(1)]
    assert indicated == [f"word={row[1]}" for row in rows]
    assert bool((table.train.x[:, 1:].sum(1) == 1).all())


def test_targets(tmp_path: Path) -> None:
    file = write(tmp_path, "a,b,c\n1,2,0.5\n3,4,1\n")
    two = load_table(file, "b, c", test_fraction=0)
    assert (two.train.y.tolist(), two.features) == ([[2, 0.5], [4, 1]], ["a"])
    assert load_table(file, "c", test_fraction=0).train.y.dtype == torch.float64
    assert load_table(file, "b", test_fraction=0).train.y.dtype == torch.int64
    with pytest.raises(UnknownName, match=r"no column of .* is named 'd'; known: a, b, c"):
        load_table(file, "d")
    with pytest.raises(InvalidInput, match=r"say which column .* the columns are a, b, c"):
        load_table(file)
    with pytest.raises(InvalidInput, match="no column besides the target"):
        load_table(file, "a,b,c")
    for usual in ("target", "Label", "class", "y"):
        file = write(tmp_path, f"a,{usual}\n1,2\n3,4\n")
        assert load_table(file, test_fraction=0).train.y.tolist() == [2, 4]
    file = write(tmp_path, "a,b,c\n1,2,x\n3,4,y\n")
    with pytest.raises(InvalidInput, match=r"line 2 of .*: c \('x'\) is not a number, and several"):
        load_table(file, "b,c")


def test_a_table_without_header(tmp_path: Path) -> None:
    table = load_table(write(tmp_path, "5.1,red,0\n4.9,blue,1\n"), "3", test_fraction=0)
    assert table.features == ["1", "2=blue", "2=red"]
    assert table.train.y.tolist() == [0, 1]
    named = load_table(write(tmp_path, "2019,2020,y\n1,2,0\n3,4,1\n"), "y", test_fraction=0)
    assert named.features == ["2019", "2020"]  # the target's name says that this is a header


def test_a_random_split_is_stated_and_repeatable(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(100))
    file = write(tmp_path, text)
    first, again, other = (load_table(file, seed=seed) for seed in (0, 0, 1))
    assert first.test is not None
    assert again.test is not None
    assert other.test is not None
    assert (len(first.train), len(first.test)) == (80, 20)
    both = torch.cat([first.train.x, first.test.x]).flatten()
    assert both.sort().values.tolist() == list(range(100))
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)
    assert "20 of 100 rows were kept for the test, drawn at random with seed 0" in first.test.note
    half = load_table(file, test_fraction=0.5)
    assert len(half.train) == 50
    for fraction in (1.0, -0.1):
        with pytest.raises(InvalidInput, match="test_fraction"):
            load_table(file, test_fraction=fraction)


def test_a_split_column(tmp_path: Path) -> None:
    file = write(tmp_path, "a,split,y\n1,train,0\n2,TEST,1\n3,train,1\n")
    table = load_table(file)
    assert table.test is not None
    assert (table.train.x.tolist(), table.test.x.tolist()) == ([[1], [3]], [[2]])
    assert "as the column split says" in table.train.note
    file = write(tmp_path, "a,part,y\n1,train,0\n2,val,1\n")
    with pytest.raises(InvalidInput, match=r"line 3 of .*: part \('val'\) must be train or test"):
        load_table(file, split="part")
    file = write(tmp_path, "a,split,y\n1,test,0\n2,test,1\n")
    with pytest.raises(InvalidInput, match="no row to train on"):
        load_table(file)


def test_a_second_file(tmp_path: Path) -> None:
    train = write(tmp_path, "a,word,y\n1,red,no\n2,blue,yes\n", "train.csv")
    test = write(tmp_path, "a,word,y\n3,green,no\n", "test.csv")
    table = load_table(train, test=test)
    assert table.test is not None
    assert table.features == ["a", "word=blue", "word=green", "word=red"]
    assert (table.test.x.tolist(), table.test.y.tolist()) == ([[3, 0, 1, 0]], [0])
    assert len(table.train) == 2
    with pytest.raises(InvalidInput, match="does not have the columns"):
        load_table(train, test=write(tmp_path, "word,a,y\nred,1,no\n", "b.csv"))
    bad = write(tmp_path, "a,word,y\n3,,no\n", "c.csv")
    with pytest.raises(InvalidInput, match=r"line 2 of .*c\.csv: word is missing"):
        load_table(train, test=bad)


@pytest.mark.parametrize("cell", ["", " ", "NA", "nan", "NaN", "null", "?", "n/a"])
@pytest.mark.parametrize("column", ["number", "word", "y"])
def test_missing_values_are_named(tmp_path: Path, cell: str, column: str) -> None:
    rows = [{"number": "1", "word": "red", "y": "0"} for _ in range(4)]
    rows[2][column] = cell
    # a cell over two lines: the number is the line in the file, not the row
    rows[0]["word"] = '"two\nlines"'
    text = "number,word,y\n" + "".join(",".join(row.values()) + "\n" for row in rows)
    with pytest.raises(InvalidInput, match=rf"line 5 of .*: {column} .*is missing"):
        load_table(write(tmp_path, text))


def test_other_cells_that_are_refused(tmp_path: Path) -> None:
    many = "word,y\n" + "".join(f"w{k},0\n" for k in range(51))
    with pytest.raises(InvalidInput, match="column word has 51 different words, more than 50"):
        load_table(write(tmp_path, many))
    assert len(load_table(write(tmp_path, many), most_levels=51).features) == 51
    odd = "a,y\n" + "".join(f"{k if k != 70 else '12kg'},0\n" for k in range(100))
    with pytest.raises(InvalidInput, match=r"line 72 of .*: a \('12kg'\) is not a number, unlike"):
        load_table(write(tmp_path, odd))
    with pytest.raises(InvalidInput, match=r"line 3 of .*: a \('inf'\) is not finite"):
        load_table(write(tmp_path, "a,y\n1,0\ninf,1\n"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,y\n", "no row below its header"),
        ("a,y\n1,2\n1,2,3\n", "line 3 of .* has 3 cells, and there are 2 columns"),
        ("a,a,y\n1,2,3\n", "two columns named 'a'"),
        (",a,y\n0,1,2\n", r"column 1 of .* has no name; .*index=False"),
        ('a,y\n"1,2\n', "line 2 of .* is not CSV"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FileProblem, match=sentence):
        load_table(write(tmp_path, text))


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="there is no file"):
        load_table(tmp_path / "none.csv")
    with pytest.raises(FileProblem, match=r"must be a \.csv or \.tsv file"):
        load_table(write(tmp_path, "a,y\n1,2\n", "a.txt"))
    for name, content in (
        ("a.csv", np.random.default_rng(0).bytes(500)),
        ("a.csv.gz", b"not packed"),
        ("a.csv.gz", gzip.compress(b"a,y\n1,2\n" * 50)[:-9]),
        ("a.csv", "a,y\n1,ü\n".encode("latin-1")),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileProblem, match=r"not readable as text|not CSV"):
            load_table(tmp_path / name)


@pytest.mark.parametrize("cell", ["1_0", "1_000.5", "\uff11\uff12", "\u0661", "-nan", "\xa03"])
@pytest.mark.parametrize("column", ["a", "y"])
def test_what_only_some_programs_take_for_a_number(tmp_path: Path, cell: str, column: str) -> None:
    rows = [{"a": str(k), "y": str(k % 2)} for k in range(6)]
    rows[3][column] = cell
    text = "a,y\n" + "".join(f"{row['a']},{row['y']}\n" for row in rows)
    with pytest.raises(InvalidInput, match=rf"line 5 of .*: {column} .*(write it in digits|miss)"):
        load_table(write(tmp_path, text))


def test_numbers_as_programs_write_them(tmp_path: Path) -> None:
    cells = ["1", "-2.", "+.5", "1e3", "2.5E-3", " 7 ", "007"]
    text = "a,y\n" + "".join(f"{cell},0\n" for cell in cells)
    x = load_table(write(tmp_path, text), test_fraction=0).train.x
    assert x.ravel().tolist() == [float(cell) for cell in cells]


def test_a_packed_table_beyond_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b"a,y\n" + b"1,0\n" * 500_000))
    assert file.stat().st_size < 10_000
    monkeypatch.setattr("torchtheory.core.memory.spare_memory", lambda: 10**7)
    with pytest.raises(FileProblem, match="more than this machine has to spare"):
        load_table(file)


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(FileProblem, match="is not a file"):
        load_table(tmp_path / "a.csv")
