"""Audits in a team's routine: bare weights, checkpoints, levels of failure, SARIF, JUnit."""

from __future__ import annotations

import json
import math
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchtheory.audit import checkpoints
from torchtheory.audit.checkpoints import Request
from torchtheory.audit.comparison.series import curve_figures, series
from torchtheory.audit.routine import fails, junit, sarif
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.quantity import Quantity
from torchtheory.models.model import global_randomness_kept

from .calls import MODEL, Call, refused, write_problem

STRANGE = "a\x1b[31m\u202e<b>&\ufffe</div><script>alert(1)</script>]]> | `x` $y"


class Page(HTMLParser):
    """Tags, attributes and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def drawn(seed: int, scale: float = 1.2) -> dict[str, torch.Tensor]:
    """Weights that no initializer draws."""
    with global_randomness_kept():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 10))
    return {k: scale * v.detach() for k, v in net.state_dict().items()}


def broken() -> dict[str, torch.Tensor]:
    state = drawn(0)
    state["2.weight"][3, 4] = math.nan
    return state


def finding(*said: Assessment, name: str = "curvature", **parts: Any) -> dict[str, Any]:
    defects = [a.sentence for a in said if a.state is State.DEFECT]
    lists: dict[str, Any] = {"claims": [], "tables": [], "quantities": []}
    words = {"name": name, "title": "Curvature", "section": "Curvature", "complete": True}
    made = {**words, **lists, "warnings": defects, "assessments": [a.to_json() for a in said]}
    return {**made, **parts}


def recorded(*findings: dict[str, Any], diagnosis: tuple[Assessment, ...] = ()) -> dict[str, Any]:
    plain = [a.to_json() for a in diagnosis]
    return {"title": "net", "facts": {}, "findings": list(findings), "diagnosis": plain,
            "seconds": 1.5}  # fmt: skip


DEFECT = Assessment(Area.TRAINING, State.DEFECT, "It diverges.", action="Halve the step.")
LOOK = Assessment(Area.FIT, State.LOOK, "It is slow.", action="Wait.")
FINE = Assessment(Area.DATA, State.FINE, "Good.")
REFUTED = Claim(("N-08",), r"x \le 1", 1.0, "<=", 3.0)


# ------------------------------------------------------------------------- weights alone


def test_weights_alone(call: Call) -> None:
    save_file(drawn(0), "good.safetensors")
    outcome = call("audit", "--weights", "good.safetensors", "--json", "--out", "o")
    assert outcome.code == 0, outcome.err
    assert outcome.json["title"] == "good.safetensors"
    assert {p.name for p in Path("o").iterdir()} == {
        "report.html", "report.md", "audit.json", "figures",
    }  # fmt: skip
    torch.save(drawn(0), "good.pt")
    shown = call("audit", "good.pt", "--out", "p", "--details")
    assert shown.code == 0, shown.err
    assert "weights" in shown.out
    names = {f["name"] for f in call("audit", "good.pt", "--only", "weight-values", "--json").json[
        "findings"]}  # fmt: skip
    assert names == {"weight-values"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.safetensors"], "there is no file none.safetensors"),
        (["good.safetensors", "none.pt"], "there is no file none.pt"),
        (["bad.safetensors"], "not a readable safetensors file"),
        (["good.safetensors", "--data", "x"], "--data goes with --model"),
        (["good.safetensors", "--data", "x", "--task", "binary"], "--data and --task go with"),
        (["good.safetensors", "--only", "risk"], "no finding about weights alone is named 'risk'"),
        (["good.safetensors", "--budget", "soon"], "a time must be positive"),
        (["good.safetensors", "--fail-on", "warning"], "--fail-on"),
        (["good.safetensors", "--sarif", "."], "it is a directory"),
        (["good.safetensors", "--junit", "bad.safetensors/x.xml"], "is not a directory"),
        (["good.safetensors", "--jobs", "0"], "--jobs"),
    ],
)
def test_refusals(call: Call, arguments: list[str], sentence: str) -> None:
    save_file(drawn(0), "good.safetensors")
    Path("bad.safetensors").write_bytes(b"bad")
    assert sentence in refused(call("audit", *arguments))
    assert not Path("torchtheory-audit").exists()


# ------------------------------------------------------------------------- levels of failure


@pytest.mark.parametrize(
    ("record", "fail_on"),
    [
        (recorded(finding(FINE)), None),
        (recorded(finding(LOOK)), "look"),
        (recorded(finding(DEFECT)), "defect"),
        (recorded(finding(claims=[REFUTED.to_json()])), "violated"),
    ],
)
def test_levels_of_failure(record: dict[str, Any], fail_on: str | None) -> None:
    levels = ("never", "violated", "defect", "look")
    first = len(levels) if fail_on is None else levels.index(fail_on)
    assert [fails(record, level) for level in levels] == [k >= first for k in range(4)]


def test_a_level_that_does_not_exist() -> None:
    with pytest.raises(InvalidInput, match="no level of failure is named 'warning'"):
        fails(recorded(), "warning")  # type: ignore[arg-type]


def test_exit_codes(call: Call) -> None:
    save_file(broken(), "broken.safetensors")
    for level, code in (("never", 0), ("violated", 0), ("defect", 1), ("look", 1)):
        line = ["audit", "broken.safetensors", "--only", "weight-values", "--fail-on", level]
        assert call(*line).code == code


# ------------------------------------------------------------------------- logs for programs


def check_sarif(text: str) -> dict[str, Any]:
    """What SARIF 2.1.0 requires of the parts used, and code hosts of locations."""
    log: dict[str, Any] = json.loads(text)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "torchtheory"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        for part in ("shortDescription", "fullDescription", "help"):
            assert rule[part]["text"]
    for result in run["results"]:
        assert result["level"] in ("error", "warning")
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"].replace("\ufffe", "").isprintable()
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert place["artifactLocation"]["uri"].isascii()
            assert " " not in place["artifactLocation"]["uri"]
            assert place["region"]["startLine"] >= 1
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
    assert isinstance(run["invocations"][0]["executionSuccessful"], bool)
    return run  # type: ignore[no-any-return]


def test_sarif() -> None:
    record = recorded(finding(DEFECT, LOOK, FINE), finding(name="risk", claims=[REFUTED.to_json()]))
    run = check_sarif(sarif([(record, "models/best one.pt")]))
    results = run["results"]
    assert [(r["ruleId"], r["level"]) for r in results] == [
        ("curvature", "error"),
        ("curvature", "warning"),
        ("risk", "error"),
    ]
    assert results[0]["message"]["text"] == "It diverges. Halve the step."
    assert "measured 3, promised 1" in results[2]["message"]["text"]
    assert run["tool"]["driver"]["rules"][0]["help"]["text"] == "Curvature. Halve the step. Wait."
    place = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == "models/best%20one.pt"
    assert check_sarif(sarif([(recorded(), "x")]))["results"] == []


def test_the_same_defect_has_the_same_fingerprint() -> None:
    def prints(sentence: str) -> Any:
        said = Assessment(Area.FIT, State.DEFECT, sentence)
        return check_sarif(sarif([(recorded(finding(said)), "x")]))["results"][0][
            "partialFingerprints"
        ]

    assert prints("3 of 64 units are dead.") == prints("17 of 64 units are dead.")
    assert prints("3 of 64 units are dead.") != prints("3 of 64 units are copies.")


def test_junit() -> None:
    silent = Assessment(Area.ROBUSTNESS, State.UNMEASURED, "There was no time.")
    record = recorded(
        finding(DEFECT, LOOK, FINE, claims=[REFUTED.to_json()]),
        diagnosis=(DEFECT, LOOK, FINE, silent),
    )
    root = ElementTree.fromstring(junit([record, recorded()]))
    assert root.tag == "testsuites"
    suite, empty = root.findall("testsuite")
    cases = {c.get("name"): c for c in suite.findall("testcase")}
    assert set(cases) == {*(a.question for a in Area), "Theory holds"}
    assert {n for n, c in cases.items() if c.find("failure") is not None} == {
        Area.TRAINING.question, "Theory holds",
    }  # fmt: skip
    failure = cases[Area.TRAINING.question].find("failure")
    assert failure is not None
    assert failure.get("message") == "It diverges. Halve the step."
    assert [n for n, c in cases.items() if c.find("skipped") is not None] == [silent.area.question]
    looked = cases[Area.FIT.question].find("system-out")
    assert looked is not None
    assert looked.text == "It is slow. Wait."
    counts = {k: suite.get(k) for k in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "9", "failures": "2", "skipped": "1", "errors": "0"}
    assert root.get("failures") == "2"
    assert empty.get("failures") == "0"
    strict = ElementTree.fromstring(junit([record], on="look"))
    assert strict.get("failures") == "3"


def test_no_text_breaks_a_log() -> None:
    bad = Assessment(Area.FIT, State.DEFECT, STRANGE, action=STRANGE)
    record = {**recorded(finding(bad, title=STRANGE), diagnosis=(bad,)), "title": STRANGE}
    check_sarif(sarif([(record, STRANGE)]))
    root = ElementTree.fromstring(junit([record]).encode("utf-8"))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert "<b>&" in str(failure.get("message"))
    assert str(failure.get("message")).isprintable()


def test_logs_of_a_command(call: Call) -> None:
    save_file(broken(), "broken.safetensors")
    line = ["audit", "broken.safetensors", "--only", "weight-values"]
    assert call(*line, "--sarif", "logs/a.sarif", "--junit", "logs/b.xml").code == 0
    (result,) = check_sarif(Path("logs/a.sarif").read_text("utf-8"))["results"]
    assert result["ruleId"] == "weight-values"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == (
        "broken.safetensors"
    )
    root = ElementTree.parse("logs/b.xml").getroot()
    assert root.get("failures") == "1"
    write_problem()
    assert call(*MODEL, "--only", "layers", "--sarif", "c.sarif").code == 0
    check_sarif(Path("c.sarif").read_text("utf-8"))


# ------------------------------------------------------------------------- several checkpoints


def write_checkpoints() -> list[str]:
    for k, state in enumerate((drawn(0), drawn(0, 2.9), broken())):
        save_file(state, f"epoch{k}.safetensors")
    return [f"epoch{k}.safetensors" for k in range(3)]


def test_several_checkpoints_in_one_page(call: Call) -> None:
    files = write_checkpoints()
    line = [
        "audit",
        "--weights",
        *files,
        "--out",
        "o",
        "--junit",
        "o/j.xml",
        "--sarif",
        "o/s.sarif",
    ]
    shown = call(*line, "--fail-on", "defect")
    assert shown.code == 1, shown.err
    assert "epoch1" in shown.out
    assert "report: o/index.html" in shown.out
    assert {p.name for p in Path("o").iterdir()} == {
        "index.html", "series.md", "series.json", "epoch0", "epoch1", "epoch2", "j.xml", "s.sarif",
    }  # fmt: skip
    page = Page(Path("o/index.html").read_text("utf-8"))
    assert "script" not in page.tags
    assert [v for v in page.values("href") if "report" in v] == [
        f"epoch{k}/report.html" for k in range(3)
    ]
    assert "3 audits; there are defects in 1: epoch2." in page.words
    data = json.loads(Path("o/series.json").read_text("utf-8"))
    norms = next(c for c in data["curves"] if c["name"] == "norm")["values"]
    assert norms[1]["value"] == pytest.approx(norms[0]["value"] * 2.9 / 1.2)
    assert ElementTree.parse("o/j.xml").getroot().get("failures") == "1"
    (result,) = check_sarif(Path("o/s.sarif").read_text("utf-8"))["results"]
    assert result["message"]["text"].startswith("epoch2.safetensors: 1 number in 2.weight is NaN")
    # the order of the options does not matter, and --weights may be repeated
    again = call("audit", files[0], files[1], "--weights", files[2], "--out", "p", "--json").json
    assert [a["name"] for a in again["audits"]] == ["epoch2", "epoch0", "epoch1"]


def test_a_finished_checkpoint_is_not_audited_again(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, made = write_checkpoints(), []
    whole = checkpoints.run_request

    def counting(request: Request) -> Any:
        made.append(str(request.weights))
        return whole(request)

    monkeypatch.setattr(checkpoints, "run_request", counting)
    line = ["audit", "--weights", *files, "--out", "o", "--only", "weight-values"]
    first = call(*line, "--json").json
    assert made == files
    made.clear()
    assert call(*line, "--json").json == first
    assert made == []
    save_file(drawn(5), files[1])  # another file under the same name
    call(*line)
    assert made == files[1:2]
    made.clear()
    call(*line, "--seed", "3")  # other options
    assert made == files
    made.clear()
    call(*line, "--seed", "3", "--again")
    assert made == files
    made.clear()
    Path("o/epoch0/audit.json").unlink()
    call(*line, "--seed", "3")
    assert made == files[:1]


def test_one_bad_file_costs_no_other(call: Call) -> None:
    files = write_checkpoints()
    Path(files[1]).write_bytes(b"bad")
    outcome = call("audit", "--weights", *files, "--out", "o", "--only", "weight-values")
    assert outcome.code == 2
    assert outcome.err.startswith("torchtheory: epoch1.safetensors: ")
    assert outcome.err.count("\n") == 1
    names = [a["name"] for a in json.loads(Path("o/series.json").read_text("utf-8"))["audits"]]
    assert names == ["epoch0", "epoch2"]


def test_an_interrupt_keeps_what_is_finished(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_checkpoints()
    whole = checkpoints.run_request

    def interrupted(request: Request) -> Any:
        if str(request.weights) == files[1]:
            raise KeyboardInterrupt
        return whole(request)

    monkeypatch.setattr(checkpoints, "run_request", interrupted)
    outcome = call("audit", "--weights", *files, "--out", "o", "--only", "weight-values")
    assert outcome.code == 130
    names = [a["name"] for a in json.loads(Path("o/series.json").read_text("utf-8"))["audits"]]
    assert names == ["epoch0"]


@pytest.mark.slow
def test_checkpoints_of_a_model_side_by_side(call: Call) -> None:
    write_problem()
    for k in (1, 2):
        torch.manual_seed(k)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        torch.save(net.state_dict(), f"w{k}.pt")
    line = [*MODEL, "--weights", "w1.pt", "w2.pt", "--only", "risk", "--only", "layers"]
    one = call(*line, "--out", "a", "--jobs", "2", "--json")
    assert one.code in (0, 1), one.err
    two = call(*line, "--out", "b", "--json")
    for left, right in zip(one.json["audits"], two.json["audits"], strict=True):
        assert left["diagnosis"] == right["diagnosis"]
    assert [a["title"] for a in one.json["audits"]] == [
        "zz_cli_models:make, w1.pt", "zz_cli_models:make, w2.pt",
    ]  # fmt: skip


# ------------------------------------------------------------------------- series in Python


def measured(value: float, half: float = 0.0, label: str = "sharpness") -> dict[str, Any]:
    number = Quantity("sharpness", label, value, value - half, value + half, "by hand")
    still = Quantity("layers", "layers", 3.0, 3.0, 3.0, "exact")
    said = Assessment(Area.FIT, State.FINE, "Good.", number, finding="curvature")
    one = finding(said, quantities=[number.to_json(), still.to_json()])
    return {**recorded(one, diagnosis=(said,)), "verdict": "Nothing wrong was found."}


@pytest.mark.draws
def test_what_varies_is_drawn_with_its_range(tmp_path: Path) -> None:
    made = series([measured(1.0, 0.1), measured(2.0, 0.2), measured(1.0)], names=["a", "b", "c"])
    (curve,) = made.curves
    assert curve.label == "sharpness"
    assert curve.spread == pytest.approx(1 / 3)
    (figure,) = curve_figures(made)
    assert figure.svg is not None
    assert "sharpness" in figure.svg
    page = made.save(tmp_path / "o")
    text = page.read_text("utf-8")
    assert "2 [1.8, 2.2]" in Page(text).words
    assert "://" not in text
    assert curve_figures(series([measured(1.0), measured(1.0)])) == []


@pytest.mark.draws
def test_nothing_in_a_series_is_markup(tmp_path: Path) -> None:
    bad = {**measured(1.0, label=STRANGE), "title": STRANGE, "verdict": STRANGE}
    worse = {**measured(2.0, label=STRANGE), "title": STRANGE, "verdict": STRANGE}
    page = Page(series([bad, worse]).save(tmp_path / "o").read_text("utf-8"))
    assert not {"script", "iframe", "object", "form", "b"} & set(page.tags)
    assert all(v.startswith("data:image/") for v in page.values("src"))


def test_what_is_no_series() -> None:
    with pytest.raises(InvalidInput, match="at least one audit"):
        series([])
    with pytest.raises(ShapeMismatch, match="2 audits and 1 names"):
        series([measured(1.0), measured(2.0)], names=["a"])


# ------------------------------------------------------------------------- compare


def test_a_table_for_a_pull_request(call: Call) -> None:
    files = write_checkpoints()
    call("audit", "--weights", *files, "--out", "o")
    shown = call("compare", "o/epoch0", "o/epoch2", "--markdown")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("<!-- torchtheory compare -->\n\n### Audit: epoch0.safetensors →")
    assert "1 new defect" in shown.out
    assert "report:" not in shown.out
    assert call("compare", "o/epoch0", "o/epoch2", "--markdown", "--fail-on-worse").code == 1
    both = call("compare", "o/epoch0", "o/epoch2", "--markdown", "--json")
    assert "give one of them" in refused(both)


# ------------------------------------------------------------------------- the example


def test_the_example_names_options_that_exist(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    workflow = Path(__file__).parents[2] / "examples/ci/github-actions.yml"
    lines = [line.strip() for line in workflow.read_text("utf-8").splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("torchtheory ")]
    assert {words[1] for words in commands} == {"audit", "compare"}
    for _, command, *words in commands:
        shown = call(command, "--help").out
        for option in (w for w in words if w.startswith("--")):
            assert f"{option} " in shown, option
