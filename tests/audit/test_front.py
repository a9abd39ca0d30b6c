"""`tt.audit` is a module that is called: it shows itself like the function it stands for."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

import torchtheory as tt
from torchtheory.audit.engine.audit import audit
from torchtheory.core.errors import TorchTheoryError


def test_the_signature_is_that_of_the_function() -> None:
    assert inspect.signature(tt.audit) == inspect.signature(audit)
    assert callable(tt.audit)


def test_help_shows_the_arguments() -> None:
    shown = pydoc.render_doc(tt.audit, renderer=pydoc.plaintext)
    for name in inspect.signature(audit).parameters:
        assert f"{name}: " in shown, name
    assert f"{tt.audit.__doc__}".startswith("audit(model: ")
    assert inspect.getdoc(tt.audit.__call__) == inspect.getdoc(audit)


@pytest.mark.parametrize(
    ("more", "function", "sentence"),
    [
        ({}, 3, "finding zz-refused must be a function, not 3"),
        ({}, None, "finding zz-refused must be a function, not None"),
        ({"needs": [3]}, print, "what finding zz-refused needs must be a function, not 3"),
        ({"covers": "N-08"}, print, "covers must list catalogue ids"),
    ],
)
def test_what_is_no_finding(more: Any, function: Any, sentence: str) -> None:
    with pytest.raises(TorchTheoryError, match=sentence):
        tt.finding("zz-refused", area="capacity", title="t", cost="parameters", **more)(function)
