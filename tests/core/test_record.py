"""Records: controls take over the claim's check, tables and names are checked."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from torchtheory.core import catalogue
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnknownName
from torchtheory.core.intervals import Interval
from torchtheory.core.record import Record, Table

KEY = next(iter(catalogue.errata()))


def test_a_control_is_the_same_check() -> None:
    record = Record()
    says = record.states(["N-06", "N-08"], "x")
    says.at_most(1.0, 2.0, 0.25, trivial=10.0)
    made = says.fails("the margin is zero", 2.6)
    control = made.control
    assert control is not None
    same = ("ids", "statement", "relation", "tolerance", "promised")
    assert all(getattr(control, f) == getattr(made, f) for f in same)
    assert (control.measured, control.reason) == (2.6, "the margin is zero")
    assert control.verdict is Verdict.VIOLATED
    assert record.claims == [made]


def test_a_control_within_the_tolerance_holds() -> None:
    says = Record().states("N-08", "x")
    says.at_most(1.0, 2.0, 0.25)
    made = says.fails("nothing is broken", 2.4)
    assert made.control is not None
    assert made.control.verdict is Verdict.HOLDS


def test_a_control_may_have_its_own_promise_and_interval() -> None:
    near, far = Interval(0.5, 0.4, 0.6, 0.9, 9, "t"), Interval(0.9, 0.8, 1.0, 0.9, 9, "t")
    says = Record().states("N-08", "x")
    says.mean(near, 0.5, against=[0.7])
    made = says.fails("broken", far, promised=0.7)
    assert made.control is not None
    assert made.control.promised == 0.7
    assert made.control.verdict is Verdict.VIOLATED
    says.mean(near, 0.5, against=[0.7])
    with pytest.raises(EmptyData, match="two observations"):
        says.fails("one number has no interval", 0.9)


def test_a_refused_control_changes_nothing() -> None:
    record = Record()
    says = record.states("N-08", "x")
    kept = says.at_most(0, 1)
    with pytest.raises(InvalidInput):
        says.fails("broken", [])
    assert record.claims == [kept]


def test_errata_take_their_id_from_the_catalogue() -> None:
    record = Record()
    made = record.refutes(KEY, "x").at_most(2, 1)
    assert made.ids == (catalogue.errata()[KEY].id,)
    data = record.content_json()["errata"][0]
    assert (data["key"], data["printed"]) == (KEY, catalogue.errata()[KEY].printed)
    with pytest.raises(UnknownName, match="erratum"):
        record.refutes("no-such-key", "x").at_most(2, 1)


def test_tables_hold_plain_cells() -> None:
    record = Record()
    cells = [torch.tensor(1.5), np.int64(3), np.float32(0.5), True, None, "text", 2 + 0j]
    record.table("all-kinds", [str(k) for k in range(7)], [cells])
    assert record.tables[0].rows == ((1.5, 3, 0.5, True, None, "text", "(2+0j)"),)
    assert [type(c) for c in record.tables[0].rows[0][:4]] == [float, int, float, bool]


def test_table_json_round_trip() -> None:
    table = Table("t", ("a", "b"), ((math.inf, "x"), (-math.inf, None), (1, 2.5)), "caption")
    text = json.dumps(table.to_json(), allow_nan=False)
    assert Table.from_json(json.loads(text)) == table
    nan = Table("t", ("a",), ((math.nan,),))
    back = Table.from_json(json.loads(json.dumps(nan.to_json(), allow_nan=False)))
    assert math.isnan(float(back.rows[0][0] or 0))


def test_names_and_shapes_are_checked() -> None:
    record = Record()
    with pytest.raises(ShapeMismatch, match="2 columns but a row of 1"):
        record.table("t", ["a", "b"], [(1, 2), (3,)])
    for name in ("", "Upper", "a b", "../x", "a--b", "a/b"):
        with pytest.raises(InvalidInput, match="lower-case words"):
            record.table(name, ["a"], [(1,)])
        with pytest.raises(InvalidInput, match="lower-case words"):
            record.figure(name, lambda ax: None)
    record.table("t", ["a"], [])
    with pytest.raises(InvalidInput, match="already a table named 't'"):
        record.table("t", ["a"], [])
    assert [t.name for t in record.tables] == ["t"]
    record.figure("f", lambda ax: ax.plot([0, 1]))
    with pytest.raises(InvalidInput, match="already a figure named 'f'"):
        record.figure("f", lambda ax: None)


def test_verdicts_and_notes() -> None:
    record = Record()
    record.states("N-08", "x").at_most(0, 1)
    record.states("N-08", "x").at_most(2, 1)
    record.not_applicable("N-08", "x", "no data")
    record.note("a sentence")
    assert [c.verdict for c in record.claims] == [
        Verdict.HOLDS,
        Verdict.VIOLATED,
        Verdict.NOT_APPLICABLE,
    ]
    assert record.content_json()["notes"] == ["a sentence"]
