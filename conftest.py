"""Shared by all tests and doctests."""

import os
import random
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from torchtheory.core.figure import figures_not_saved
from torchtheory.labs.engine import registry

# Properties must not flake: the same examples every time, and no deadline on a busy machine.
settings.register_profile("torchtheory", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("torchtheory")

if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Ask no module without an example for doctests: that would import it, or search it in vain."""
    found = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text("utf-8"):
        return [one for one in found if type(one) is pytest.Module]
    return found


#: A layer made without a generator draws from the global one: the same for every test, in any
#: order. What passes must pass at other seeds as well (`TEST_SEED=5 make test`). A seed that no
#: test gives by itself: two draws that must differ would be equal.
TEST_SEED = int(os.environ.get("TEST_SEED", "271828"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Seed the global generators.

    Figures are plotted but not saved, except in doctests and in tests marked `draws`.
    """
    torch.manual_seed(TEST_SEED)
    np.random.seed(TEST_SEED)  # noqa: NPY002 - what uses the global one is what we seed
    random.seed(TEST_SEED)
    if not isinstance(item, pytest.Function) or item.get_closest_marker("draws"):
        return (yield)
    with figures_not_saved():
        return (yield)


@pytest.fixture(autouse=True)
def gradients_taken() -> Iterator[None]:
    """A test that leaves gradients turned off is red itself, and not the hundreds after it."""
    yield
    left_off = not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert not left_off


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Labs that a test registers are gone after it; shipped ones that it imported stay."""
    before = dict(registry._LABS)
    yield
    shipped = {n: lab for n, lab in registry._LABS.items() if n in registry._shipped()}
    registry._LABS.clear()
    registry._LABS.update(before | shipped)
