"""Path norms and kernels of every piecewise linear architecture."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import ALL_NAMES, NAMES, Architecture, architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.kernels.paths.angles import feature_norms
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.graph import every_path
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms

LINEAR = [n for n in ALL_NAMES if architecture(n).piecewise_linear]


def _inputs(a: Architecture) -> Tensor:
    return a.x if a.rows_are_samples else torch.stack([a.x, a.x.flip(0)])


def _outputs(a: Architecture, x: Tensor) -> Tensor:
    with torch.no_grad():
        if a.rows_are_samples:
            return a.model(x).flatten(1)
        return torch.stack([a.model(t).flatten() for t in x])


@pytest.mark.parametrize("name", LINEAR)
def test_norms_bound_the_outputs_and_the_kernel_has_their_features(name: str) -> None:
    a = architecture(name)
    x = _inputs(a)
    bound = path_norms(a.model, x.shape[1:], order=1) * x.abs().max().clamp(min=1)
    assert bool((_outputs(a, x).abs() <= bound).all())
    kernel = deep_path_kernel(a.model, x)
    torch.testing.assert_close(kernel, deep_path_kernel(a.model, x, x.clone()), rtol=1e-12, atol=0)
    torch.testing.assert_close(kernel.diagonal().sqrt(), feature_norms(a.model, x))
    assert torch.linalg.eigvalsh(kernel)[0] > -1e-9 * kernel.max()


@pytest.mark.parametrize("name", [n for n in LINEAR if n not in ("resnet", "densenet")])
def test_against_listed_paths(name: str) -> None:
    a = architecture(name)
    x = _inputs(a)
    count = number_of_paths(a.model, x.shape[1:], output=1)
    table = every_path(a.model, x, output=1)
    assert len(table.weights) == count
    torch.testing.assert_close(table.outputs, _outputs(a, x)[:, 1])
    for order in (1, 2):
        norm = path_norms(a.model, x.shape[1:], order=order)[1]
        torch.testing.assert_close(table.weights.norm(order), norm)
    kernel = deep_path_kernel(a.model, x, output=1)
    torch.testing.assert_close(table.features @ table.features.mT, kernel, rtol=1e-10, atol=1e-10)


def _absolute(model: nn.Module) -> nn.Module:
    """With the sizes of all weights: on inputs of ones it adds up all paths."""
    made = copy.deepcopy(model)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None
            assert module.running_mean is not None
            scale = module.weight / (module.running_var + module.eps).sqrt()
            module.bias.data = module.bias - module.running_mean * scale
            module.running_mean.zero_()
    for p in made.parameters():
        p.data = p.data.abs()
    return made


@pytest.mark.parametrize(
    "name",
    ["mlp", "functional", "resnet", "densenet", "gcn", "message-passing", "deep-set", "tied",
     "loops", "weight-norm"],
)  # fmt: skip
def test_against_the_network_of_absolute_weights(name: str) -> None:
    a = architecture(name)
    shape = a.x.shape[1:] if a.rows_are_samples else a.x.shape
    ones = torch.ones(1, *shape).double() if a.rows_are_samples else torch.ones(shape).double()
    with torch.no_grad():
        wanted = _absolute(a.model)(ones).flatten()
    torch.testing.assert_close(path_norms(a.model, shape, order=1), wanted)


@pytest.mark.parametrize("name", [n for n in NAMES if n in LINEAR])
def test_an_archive_has_the_paths_of_its_module(name: str) -> None:
    a = architecture(name)
    if not a.rows_are_samples:
        pytest.skip("an archive has a batch of any size")
    for order in (1, 2):
        torch.testing.assert_close(
            path_norms(archived(name), a.x.shape[1:], order=order),
            path_norms(a.model, a.x.shape[1:], order=order),
        )
    torch.testing.assert_close(
        deep_path_kernel(archived(name), a.x), deep_path_kernel(a.model, a.x)
    )


class Of(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.function(self.first(x)))  # type: ignore[operator]
        return made


@pytest.mark.parametrize(
    "choose",
    [
        lambda h: torch.where(h > 0.2, h, 0.5 * h),
        lambda h: h * (h > 0),
        lambda h: h * (~(h > 0)).double() + h.clamp(0.1, 0.7),
        lambda h: F.relu6(5 * h) - F.hardtanh(h),
        lambda h: h.masked_fill(h < 0, 0.3),
        lambda h: torch.minimum(h, h.flip(1)),
        lambda h: torch.sort(h, 1).values,
        lambda h: h + h.median(1, keepdim=True).values,
        lambda h: h.abs() - h.amax(1, keepdim=True),
        lambda h: torch.cat([h.topk(2, 1).values, torch.ones_like(h[:, :2])], 1) / 3,
        lambda h: F.interpolate(h[:, None], 5, mode="linear").flatten(1)[:, :4],
    ],
)
def test_other_choices(choose: object) -> None:
    torch.manual_seed(0)
    model, x = Of(choose).double(), torch.randn(5, 3).double()
    found = path_features(model, x)
    torch.testing.assert_close(found.outputs, model(x).detach())
    torch.testing.assert_close(path_norms(model, (3,)), found.weights.norm(dim=1))
    torch.testing.assert_close(deep_path_kernel(model, x), found.features @ found.features.mT)


def test_outputs_with_different_paths_have_no_common_features() -> None:
    model, x = architecture("u-net").model, architecture("u-net").x
    with pytest.raises(UnsupportedModel, match="different paths"):
        path_features(model, x)


def test_what_has_no_paths_is_named() -> None:
    for name in NAMES:
        a = architecture(name)
        if not a.piecewise_linear and a.x.is_floating_point():
            with pytest.raises(UnsupportedModel, match=r"no paths: .* \(in "):
                path_norms(a.model, a.x.shape[1:])
