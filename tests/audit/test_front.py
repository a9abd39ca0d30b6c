"""`tt.audit` is a module that is called: it shows itself like the function it stands for."""

from __future__ import annotations

import inspect
import pydoc

import torchtheory as tt
from torchtheory.audit.engine.audit import audit


def test_the_signature_is_that_of_the_function() -> None:
    assert inspect.signature(tt.audit) == inspect.signature(audit)
    assert callable(tt.audit)


def test_help_shows_the_arguments() -> None:
    shown = pydoc.render_doc(tt.audit, renderer=pydoc.plaintext)
    for name in inspect.signature(audit).parameters:
        assert f"{name}: " in shown, name
    assert f"{tt.audit.__doc__}".startswith("audit(model: ")
    assert inspect.getdoc(tt.audit.__call__) == inspect.getdoc(audit)
