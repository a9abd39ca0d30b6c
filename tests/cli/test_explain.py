"""`torchtheory explain`: pages of a user's model, and what is refused in a sentence."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .calls import Call, refused, write_problem

MODEL = ["explain", "--model", "zz_cli_models:make", "--data", "data.npz"]
FAST = ["--method", "gradient-times-input", "--method", "sensitivity"]


def test_a_page_of_a_users_model(call: Call) -> None:
    write_problem()
    outcome = call(
        *MODEL, *FAST, "--weights", "weights.safetensors", "--index", "3", "7", "--json", "--out",
        "o",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert {p.name for p in Path("o").iterdir()} == {
        "explanation.html", "explanation.json", "explanation.npz", "figures",
    }  # fmt: skip
    data = outcome.json
    kept = json.loads(Path("o/explanation.json").read_text("utf-8"))
    assert kept == {"made_by": "torchtheory explanation", **data}
    assert data["title"] == "zz_cli_models:make"
    assert data["samples"] == [3, 7]
    assert list(data["methods"]) == ["gradient-times-input", "sensitivity"]
    with np.load("o/explanation.npz") as arrays:
        assert arrays["sensitivity/relevance"].shape == (2, 3)
    text = call(*MODEL, *FAST, "--samples", "2", "--out", "o")
    assert "report: o" in text.out
    assert "most relevant to gradient-times-input: feature" in text.out
    assert "agreement" in text.out


def test_the_same_seed_explains_the_same_samples(call: Call) -> None:
    write_problem()
    line = [*MODEL, "--method", "smooth-gradient", "--samples", "3", "--json"]
    one, two, other = (call(*line, "--seed", s).json for s in "115")
    for data in (one, two):
        data["methods"]["smooth-gradient"]["seconds"] = 0
    assert one == two
    assert one["samples"] != other["samples"] or one["methods"] != other["methods"]


def test_the_example_is_that_of_the_audit(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtheory.audit.example.EPOCHS", 1)
    data = call("explain", *FAST, "--samples", "1", "--target", "4", "--json").json
    assert data["title"] == "MLP 64-64-64-10 on scikit-learn's digits"
    assert data["methods"]["sensitivity"]["classes"] == [4]
    with np.load("torchtheory-explanation/explanation.npz") as arrays:
        assert arrays["sensitivity/relevance"].shape == (1, 1, 8, 8)


def test_lrp_has_a_ledger_whose_books_balance(call: Call) -> None:
    write_problem()
    data = call(*MODEL, "--method", "lrp", "--rules", "epsilon=0.01", "--json", "--out", "o").json
    found = data["methods"]["lrp"]
    for entry in found["ledger"]:
        left = np.array(entry["received"]) - entry["passed"] - entry["to_biases"]
        np.testing.assert_allclose(left - entry["to_epsilon"], 0, atol=1e-5)
    assert any(name.name.endswith("ledger.png") for name in Path("o/figures").iterdir())


def test_a_table_is_explained_by_the_names_of_its_columns(call: Call) -> None:
    write_problem()
    rng = np.random.default_rng(0)
    with Path("table.csv").open("w", newline="") as file:
        rows = [[*rng.normal(size=3).round(3), "cheap" if k % 2 else "dear"] for k in range(20)]
        csv.writer(file).writerows([["age", "size <b>", "rooms", "price"], *rows])
    line = ["explain", "--model", "zz_cli_models:make", "--data", "table.csv", "--column", "price"]
    outcome = call(*line, *FAST, "--samples", "2", "--out", "o")
    assert outcome.code == 0, outcome.err
    assert "size <b>" in outcome.out
    assert "class cheap" in outcome.out or "class dear" in outcome.out
    assert "<b>" not in Path("o/explanation.html").read_text("utf-8")
    found = call(*line, *FAST, "--index", "19", "0", "--json", "--out", "o").json
    assert found["samples"] == [19, 0]  # rows of the file
    assert found["labels"] == [0, 1]
    Path("names.txt").write_text("one\ntwo\nthree\n")
    assert "three" in call(*line, *FAST, "--names", "names.txt", "--out", "o").out


def write_words() -> None:
    Path("zz_cli_words.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 2)\n"
        "    def forward(self, words):\n"
        "        return self.out(torch.relu(self.embed(words)).sum(1))\n"
    )
    sys.modules.pop("zz_cli_words", None)
    x = np.random.default_rng(0).integers(0, 6, (12, 5))
    np.savez("words.npz", x_train=x, y_train=x[:, 0] % 2)
    Path("vocab.json").write_text(json.dumps({"good": 0, "bad": 1, "<i>": 2, "a": 3, "film": 4}))


def test_words_of_a_vocabulary(call: Call) -> None:
    write_words()
    line = ["explain", "--model", "zz_cli_words:Net", "--data", "words.npz", *FAST]
    outcome = call(*line, "--words", "vocab.json", "--out", "o")
    assert outcome.code == 0, outcome.err
    page = Path("o/explanation.html").read_text("utf-8")
    assert ">film</span>" in page
    assert "<i>" not in page


def test_several_inputs_go_in_the_order_of_the_model(call: Call) -> None:
    Path("zz_cli_two.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)\n"
        "    def forward(self, first, second):\n"
        "        return self.a(first) + self.b(second)\n"
    )
    sys.modules.pop("zz_cli_two", None)
    rng = np.random.default_rng(0)
    arrays = {
        "x_train.second": rng.normal(size=(6, 4)), "x_train.first": rng.normal(size=(6, 3)),
        "y_train": np.arange(6) % 2,
    }  # fmt: skip
    np.savez("two.npz", **arrays)
    outcome = call("explain", "--model", "zz_cli_two:Net", "--data", "two.npz", *FAST, "--out", "o")
    assert outcome.code == 0, outcome.err
    with np.load("o/explanation.npz") as found:
        assert found["sensitivity/relevance-0"].shape == (6, 3)


@pytest.mark.parametrize(
    ("arguments", "arrays", "sentence"),
    [
        (["--data", "none.npz"], {}, "there is no file none.npz"),
        (["--data", "corrupted.npz"], {}, "not a readable .npz file"),
        (["--method", "lrpp"], {}, "did you mean 'lrp'"),
        (["--method", "lrp", "--rules", "epsilom=1"], {}, "did you mean 'epsilon'"),
        (["--rules", "nothing"], {}, "no preset"),
        (["--target", "2"], {}, "the model has the classes 0 to 1"),
        (["--target", "-1"], {}, "--target"),
        (["--target", "99999999999999999999"], {}, "the model has the classes 0 to 1"),
        (["--method", "lrp", "--rules", "alpha-beta=1e308,1e308"], {}, "alpha - beta must be 1"),
        (["--method", "lrp", "--rules", "alpha-beta=1e9,1e9"], {}, "alpha - beta must be 1"),
        (["--method", "lrp", "--rules", "gamma=1e308"], {}, "NaN or infinite in float32"),
        (["--method", "shapley", "--permutations", str(10**12)], {}, "from 4 to 1000000"),
        (["--index", "9"], {}, "there is no sample 9: they are numbered 0 to 8"),
        (["--index", "-1"], {}, "there is no sample -1"),
        (["--index", "1", "--samples", "2"], {}, "--samples can be left out"),
        (["7"], {}, "follow --index"),
        (["--samples", "0"], {}, "--samples"),
        (["--blur", "-1"], {}, "--blur"),
        (["--blur", "nan"], {}, "--blur"),
        (["--names", "none.txt"], {}, "there is no file none.txt"),
        (["--names", "short.txt"], {}, "1 names for 3 features"),
        (["--names", "file"], {}, "has no names in it"),
        (["--words", "short.txt"], {}, "a vocabulary is for whole numbers"),
        (["--words", "vocab.json"], {}, "number of each word"),
        (["--words", "empty.json"], {}, "empty.json has no words in it"),
        (["--patch", "2"], {}, "patch is an option of occlusion"),
        (["--permutations", "2"], {}, "--permutations"),
        (["--column", "y"], {}, "a target column goes with a .csv"),
        (["--output", "scores"], {}, "no output 'scores'"),
        (["--out", "file"], {}, "cannot write to file"),
        (["--weights", "other.safetensors"], {}, "there is no file other.safetensors"),
        (["--model", "zz_cli_models:raises"], {}, "raised RuntimeError: no model"),
        ([], {"x_test": np.full((9, 3), np.nan)}, "the test inputs contain NaN or infinity"),
        ([], {"x_test": np.zeros((9, 7))}, "the model raised RuntimeError on inputs [8, 7]"),
        ([], {"x_test": np.zeros((9, 3), np.int64)}, "same dtype, but got Long"),
        (["--seed", "99999999999999999999"], {}, "seed"),
    ],
)
def test_explain_refuses(
    call: Call, arguments: list[str], arrays: dict[str, Any], sentence: str
) -> None:
    write_problem(**arrays)
    Path("file").write_text("")
    Path("short.txt").write_text("a")
    Path("vocab.json").write_text('{"a": "b"}')
    Path("empty.json").write_text("{}")
    Path("corrupted.npz").write_bytes(b"corrupted")
    methods = [] if "--method" in arguments else FAST
    assert sentence in refused(call(*MODEL, *methods, *arguments))
    assert not Path("torchtheory-explanation").exists()


def test_explain_options_that_do_not_go_together(call: Call) -> None:
    assert "--model needs --data" in refused(call("explain", "--model", "a:b"))
    assert "--data goes with --model" in refused(call("explain", "--data", "b"))
    assert "--weights and --names go with" in refused(
        call("explain", "--weights", "a", "--names", "b")
    )
