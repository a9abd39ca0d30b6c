"""What cannot be measured is said in a sentence, and the training goes on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.audit.tracking.quantities import Snapshot, tracked
from torchtheory.audit.tracking.tracker import track
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    UnknownName,
)


def test_weights_that_become_nan_end_the_measuring_with_a_sentence(
    blobs: Any, small_net: Any
) -> None:
    net = small_net()
    tracker = track(net, blobs(), every=2, overhead=None)
    for step in range(6):
        if step == 3:
            net[2].weight.data.fill_(math.nan)
        tracker.step()
    found = tracker.result()
    assert found.steps == (0, 2)
    assert "2.weight" in found.stopped
    assert "between step 2 and step 4" in found.stopped
    assert found.stopped in str(found)
    json.dumps(found.to_json(), allow_nan=False)


def test_overflowing_outputs_are_reasons_not_exceptions(blobs: Any, small_net: Any) -> None:
    net = small_net()
    tracker = track(net, blobs(), every=1, overhead=None, quantities=["loss", "weight-norms"])
    net[0].weight.data.fill_(1e30)
    net[2].weight.data.fill_(1e30)
    tracker.step()
    found = tracker.result()
    assert "not measured at step 1" in found.reasons["loss"]
    assert found.values("weight-norms", "2")[0] == [0, 1]


def test_a_quantity_that_raises_is_reported_and_given_up_and_the_others_go_on(
    small_net: Any, descend: Any
) -> None:
    calls = 0

    @tracked("broken")
    def broken(at: Snapshot) -> float:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("no\nreason")

    @tracked("wrong")
    def wrong(at: Snapshot) -> Any:
        return "seven"

    @tracked("sometimes")
    def sometimes(at: Snapshot) -> dict[str, float]:
        if at.step == 10:
            raise InvalidInput("not at ten")
        return {"a": at.step, "b": 0.0}

    found = descend(small_net(), 30, quantities=["broken", "wrong", "sometimes", "loss"])
    assert calls == 3
    assert found.reasons["broken"] == (
        "not applicable: could not be computed: ZeroDivisionError: no reason"
    )
    assert "'wrong' returned str" in found.reasons["wrong"]
    assert found.values("sometimes")[0] == [0, 5, 15, 20, 25, 30]
    assert found.reasons["sometimes"] == "not measured at step 10: not at ten"
    assert len(found.values("loss")[0]) == 7
    with pytest.raises(InvalidInput, match="broken was not measured"):
        found.values("broken")


def test_what_does_not_apply_is_said_why() -> None:
    x = torch.randn(20, 4)
    found = track(nn.Linear(4, 1), (x, x.sum(1)), overhead=None).result()
    assert "regression" in found.reasons["margins"]
    assert "regression" in found.reasons["error"]
    assert "no pointwise activation" in found.reasons["dead-units"]
    assert set(found["loss"]) == {"train"}


def test_a_custom_loss_is_used_also_one_that_vmap_cannot_take(blobs: Any, small_net: Any) -> None:
    def stubborn(outputs: Tensor, y: Tensor) -> Tensor:
        weights = torch.tensor([1.0 + float(label) for label in y])  # .item() inside
        each = F.cross_entropy(outputs, y, reduction="none")
        return (weights * each).mean()

    x, y = blobs()
    net = small_net()
    found = track(net, (x, y), (x, y), loss=stubborn, quantities=["loss", "sharpness"]).result()
    exact = float(stubborn(net(x), y).detach())
    assert found.values("loss", "train")[1][0] == pytest.approx(exact, rel=1e-5)
    assert found.values("loss", "test")[1][0] == pytest.approx(exact, rel=1e-5)
    assert found.values("sharpness")[1][0] > 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"every": 0}, InvalidInput, "every"),
        ({"every": 2.5}, InvalidInput, "every"),
        ({"probe": 0}, InvalidInput, "probe"),
        ({"overhead": 0.0}, InvalidInput, "overhead"),
        ({"overhead": 1.5}, InvalidInput, "overhead"),
        ({"overhead": math.nan}, InvalidInput, "overhead"),
        ({"learning_rate": -1.0}, InvalidInput, "learning_rate"),
        ({"learning_rate": math.nan}, InvalidInput, "learning_rate"),
        ({"optimizer": "sgd"}, InvalidType, "Optimizer"),
        ({"confidence": 1.0}, InvalidInput, "confidence"),
        ({"seed": -1}, InvalidInput, "seed"),
        ({"quantities": ["sharpnes"]}, UnknownName, "did you mean 'sharpness'"),
        ({"quantities": []}, InvalidInput, "nothing to track"),
        ({"model": "net"}, InvalidType, r"torch\.nn\.Module"),
        ({"data": (torch.zeros(3, 4), torch.tensor([0, 1, 9]))}, LabelOutOfRange, "labels"),
        ({"data": (torch.full((3, 4), math.nan), torch.zeros(3).long())}, NonFinite, "NaN"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence(
    change: dict[str, Any], error: type[Exception], words: str, blobs: Any, small_net: Any
) -> None:
    given = {"model": small_net(), "data": blobs(), "quantities": ["loss"], **change}
    with pytest.raises(error, match=words):
        track(given.pop("model"), given.pop("data"), **given)


def test_learning_rate_and_optimizer_together_are_refused(blobs: Any, small_net: Any) -> None:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="not both"):
        track(net, blobs(), optimizer=optimizer, learning_rate=0.1)


def test_names_of_quantities() -> None:
    with pytest.raises(InvalidInput, match="hyphens"):
        tracked("Not a name")
    with pytest.raises(InvalidInput, match="two quantities"):
        tracked("loss")(lambda at: 0.0)
    with pytest.raises(InvalidInput, match="scale"):
        tracked("mine", scale="cubic")  # type: ignore[arg-type]
