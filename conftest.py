"""Shared by all tests and doctests."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from torchtheory.core.figure import figures_not_saved
from torchtheory.labs.engine import registry

# Properties must not flake: the same examples every time, and no deadline on a busy machine.
settings.register_profile("torchtheory", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("torchtheory")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

SOURCE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over modules without an example: asking them for doctests would import them."""
    if collection_path.suffix != ".py" or SOURCE not in collection_path.parents:
        return None
    return ">>>" not in collection_path.read_text("utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Plot figures but do not save them, except in doctests and in tests marked `draws`."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("draws"):
        return (yield)
    with figures_not_saved():
        return (yield)


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Labs that a test registers are gone after it; shipped ones that it imported stay."""
    before = dict(registry._LABS)
    yield
    shipped = {n: lab for n, lab in registry._LABS.items() if n in registry._shipped()}
    registry._LABS.clear()
    registry._LABS.update(before | shipped)
