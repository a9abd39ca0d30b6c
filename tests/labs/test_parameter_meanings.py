"""Every parameter of every lab says what it means."""

from __future__ import annotations

import pytest

from torchtheory.labs.engine.registry import Lab, find_lab, lab, labs
from torchtheory.labs.engine.run import Run


def unexplained(found: Lab) -> str:
    return " ".join(p.name for p in found.parameters.values() if not p.meaning.strip())


def test_every_parameter_of_a_lab_has_a_meaning() -> None:
    found = {name: unexplained(one) for name, one in labs().items()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.usefixtures("own_registry")
def test_a_parameter_without_a_meaning_is_seen() -> None:
    def function(run: Run, cases: int = 3, width: int = 2, depth: int = 1) -> None:
        """Networks are drawn, each with `depth` layers.

        Args:
            cases: random networks.
        """

    lab("zz-meanings", room="nets", covers=["N-08"], title="A test")(function)
    assert unexplained(find_lab("zz-meanings")) == "width"
