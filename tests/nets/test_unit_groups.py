"""Groups of units: what is permuted together leaves every network as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.tracing.architectures import NAMES, architecture, outputs_of
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.models.exported import load_exported
from torchtheory.nets.symmetries import hidden_layers
from torchtheory.nets.unit_groups import UnitGroup, permute_group, unit_groups

#: How many groups each architecture has; others have none.
COUNTS = {
    "mlp": 2, "functional": 1, "convolutional": 2, "resnet": 3, "squeeze-excite": 1,
    "layer-norm": 1, "encoder": 2, "deep-set": 2, "mixer": 1, "several-outputs": 1,
}  # fmt: skip


def change(model: nn.Module, x: Tensor, group: UnitGroup) -> float:
    """Largest change of the outputs when a group is permuted."""
    theta = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    permuted = permute_group(theta, group, torch.roll(torch.arange(group.units), 1))
    with torch.no_grad():
        after = outputs_of(torch.func.functional_call(model, permuted, (x,)))
        return float((after - outputs_of(model(x))).abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_permuting_a_group_leaves_the_function(name: str) -> None:
    given = architecture(name)
    found = unit_groups(given.model, given.x)
    assert len(found.groups) == COUNTS.get(name, 0)
    for group in found.groups:
        assert change(given.model, given.x, group) < 1e-12
        assert change(given.model, given.x, replace(group, outgoing=())) > 1e-4
        if len(group.incoming) > 1:  # a sum: one of the two alone is no symmetry
            assert change(given.model, given.x, replace(group, incoming=group.incoming[1:])) > 1e-4
    assert all(found.left_out.values())
    pairs = {(layer.incoming, layer.outgoing) for layer in hidden_layers(given.model, given.x)}
    assert pairs <= {(a, b) for g in found.groups for a in g.incoming for b in g.outgoing}


def test_the_archive_of_a_network_has_its_groups(tmp_path: Path) -> None:
    given = architecture("resnet")
    program = torch.export.export(
        given.model, (given.x,), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = load_exported(tmp_path / "net.pt2")
    found = unit_groups(loaded)
    assert found == unit_groups(given.model, given.x)
    assert all(change(loaded, given.x, group) < 1e-12 for group in found.groups)


def test_what_is_left_out_says_why() -> None:
    assert "Concatenation" in unit_groups(architecture("densenet").model).left_out["convs.0"]
    assert "computes its weights" in unit_groups(architecture("weight-norm").model).left_out["0"]
    assert "used twice" in unit_groups(architecture("loops").model).left_out["layer"]
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(2))
    assert "in groups" in unit_groups(net).left_out["0"]


def test_no_permutation_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    (group,) = unit_groups(net).groups
    theta = dict(net.named_parameters())
    with pytest.raises(InvalidInput, match=r"lists 0\.\.2 once"):
        permute_group(theta, group, torch.tensor([0, 0, 1]))
    with pytest.raises(InvalidInput, match="running statistics"):
        permute_group(theta, group, torch.tensor([2, 0, 1]))
