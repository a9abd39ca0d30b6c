"""A sample of what `operator_fuzz` tries as a whole: no call of an archive ends its process."""

from __future__ import annotations

import os
from collections import Counter

from . import operator_fuzz

SEED = int(os.environ.get("TEST_SEED", "0"))


def test_no_call_of_an_archive_ends_the_process() -> None:
    names = operator_fuzz.overloads()
    deaths, ends = operator_fuzz.tried(SEED, len(names))
    assert deaths == []
    said = Counter[str]()
    for (_, what), count in ends.items():
        said[what] += count
    assert sum(said.values()) == len(names)
    # operators are reached, and what is bent is refused
    assert said["runs"] > len(names) / 4
    assert said["refused"] > len(names) / 10
