"""What a type checker says of a user's script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

import torchtheory

# What is not torchtheory's need not be analyzed, which takes most of the time.
CONFIG = """\
[mypy]
strict = true
[mypy-torch.*,numpy.*,scipy.*,sklearn.*,matplotlib.*,networkx.*,rich.*,joblib.*,latex2mathml.*]
follow_imports = skip
ignore_missing_imports = true
"""

SCRIPT = """\
from torch import nn
import torchtheory as tt
from torchtheory import audit
from torchtheory.audit import Audit
report: Audit = tt.audit(nn.ReLU(), None, budget="5s", only=["layers"])
again: Audit = audit(nn.ReLU(), None)
sentences: list[str] = tt.audit.compare(report, again).summary
passed: bool = tt.run_lab("perceptron-novikoff", seed=3).passed
version: str = tt.__version__
@tt.finding("a", area="capacity", title="c", cost="forward")
def a(problem: tt.Problem, record: tt.audit.FindingRecord) -> None:
    record.states((), "x").at_most(1, 2)
def worst(reports: list[tt.audit.Audit]) -> float:
    return max(r.seconds for r in reports)
worst([report, tt.audit(nn.ReLU(), None)])
tt.adit(nn.ReLU(), None)  # bad
tt.audit(nn.ReLU(), None, memry="4GiB")  # bad
tt.audit.trak  # bad
tt.run_lab("perceptron-novikoff", sed=3)  # bad
number: int = tt.audit(nn.ReLU(), None)  # bad
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_front(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "script.py").write_text(SCRIPT)
    cache = tmp_path / "cache"
    if pytestconfig.cache is not None:
        cache = pytestconfig.cache.mkdir("mypy")
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(cache)]
    out, err, _ = api.run([*options, str(tmp_path / "script.py")])
    bad = {k for k, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# bad")}
    assert err == ""
    assert {int(k) for k in re.findall(r"script\.py:(\d+): error", out)} == bad, out
    # and nothing of the package itself is wrong for a user
    assert len(re.findall(r": error:", out)) == len(bad), out


def test_the_stub_declares_what_there_is() -> None:
    stub = Path(torchtheory.__file__).with_suffix(".pyi").read_text("utf-8")
    declared = set(re.findall(r"^from \S+ import \w+ as ([a-zA-Z]\w*)$", stub, re.MULTILINE))
    assert declared | {"audit"} == set(torchtheory.__all__)
    package = set(re.findall(r"^    ([a-zA-Z]\w*)(?:: TypeAlias)? =", stub, re.MULTILINE))
    assert package == set(torchtheory.audit.__all__)
