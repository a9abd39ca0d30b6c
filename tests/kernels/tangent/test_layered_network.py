"""Tangent kernels of convolutional networks, layer by layer: equal to Jacobians written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.budget import OutOfTime
from torchtheory.core.threads import one_thread
from torchtheory.kernels.tangent import kernel as tangent
from torchtheory.kernels.tangent import layered_network
from torchtheory.kernels.tangent.derivatives import Derivatives
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.exported import load_exported
from torchtheory.optimization.stages.plain import Rectified


def _normalization(kind: type[nn.Module], width: int) -> nn.Module:
    layer = kind(width)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer


class Residual(nn.Module):
    """Shortcuts that end in a sum, with a value that is read three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 16, 3, padding=1, bias=False)
        self.norm = _normalization(nn.BatchNorm2d, 16)
        self.other = _normalization(nn.BatchNorm2d, 16)
        self.one = nn.Conv2d(16, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.beside = nn.Conv2d(16, 16, 1)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        y = self.two(torch.relu(self.other(self.one(x)))) + x
        y = torch.relu(y + self.beside(x))
        return self.last(y.mean((2, 3)))


class Dense(nn.Module):
    """Values of 16 and of 2 channels side by side, and one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.three = nn.Conv2d(18, 16, 3)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        given, x = x, torch.tanh(self.one(x))
        y = torch.cat([torch.tanh(self.two(x)), given], 1)
        y = torch.relu(self.two(torch.relu(self.three(y))))
        return self.last(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1))


def _chain(*layers: nn.Module, size: int, features: int) -> tuple[nn.Module, Tensor]:
    return (
        nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), *layers, nn.Flatten(),
            nn.Linear(features, 3),
        ),
        torch.randn(4, 2, size, size),
    )  # fmt: skip


def _partly_frozen() -> tuple[nn.Module, Tensor]:
    net, x = _chain(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
                    nn.ReLU(), size=16, features=4096)  # fmt: skip
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    net[4].weight.requires_grad_(False)
    return net, x


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "chain": lambda: _chain(nn.Conv2d(16, 20, 3, padding=1), nn.ReLU(), size=16, features=5120),
    "odd sizes": lambda: _chain(
        nn.Conv2d(16, 16, 3, padding=2), nn.GELU(), nn.Conv2d(16, 18, 3), nn.ELU(inplace=True),
        size=17, features=18 * 17 * 17,
    ),
    "poolings": lambda: _chain(
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Dropout(),
        nn.Conv2d(16, 16, 5, stride=2, padding=1, bias=False), nn.Sigmoid(), nn.AvgPool2d(2),
        size=16, features=16,
    ),
    "other poolings": lambda: _chain(
        nn.Conv2d(16, 32, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2, 2, 0, 2, ceil_mode=True),
        nn.Conv2d(32, 16, 3, padding=2, dilation=2, groups=4), nn.PixelShuffle(2), nn.Hardtanh(),
        nn.Upsample(scale_factor=2), nn.ZeroPad2d((1, 0, 0, 2)), nn.LPPool2d(2, 4),
        size=16, features=4 * 8 * 8,
    ),
    "pooling at the end": lambda: _chain(
        nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(8), size=16, features=64,
    ),
    "linear": lambda: _chain(nn.Conv2d(16, 16, 3, padding=1), size=16, features=4096),
    "two dense layers": lambda: _chain(
        nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4096, 5),
        _normalization(nn.BatchNorm1d, 5), nn.ReLU(), size=16, features=5,
    ),
    "partly frozen": _partly_frozen,
    "shortcuts": lambda: (Residual(), torch.randn(4, 2, 16, 17)),
    "side by side": lambda: (Dense(), torch.randn(4, 2, 18, 18)),
}  # fmt: skip


def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net, x = NETWORKS[name]()
    return net.to(dtype).eval(), x.to(dtype)


def _layered(net: nn.Module, x: Tensor) -> object:
    derivatives = Derivatives(net, x)
    derivatives.find_layers(x[:1])
    return derivatives.layered


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-11 * expected.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_the_jacobian_contraction(name: str, jacobian: Any) -> None:
    net, x = make(name)
    assert _layered(net, x) is not None
    full = jacobian(net, x)
    assert _close(empirical_ntk(net, x), torch.einsum("ncp,mdp->nmcd", full, full))
    for outputs, pattern in (("diagonal", "ncp,mcp->nmc"), ("trace", "ncp,mcp->nm")):
        expected = torch.einsum(pattern, full, full[1:3])
        assert _close(empirical_ntk(net, x, x[1:3], outputs=outputs), expected)


@pytest.mark.parametrize("name", ["odd sizes", "side by side", "poolings"])
@pytest.mark.parametrize("memory", [1000, 2**21, 2**23])
@pytest.mark.parametrize("outputs", ["full", "diagonal"])
def test_little_memory_changes_nothing(name: str, memory: int, outputs: str) -> None:
    net, x = make(name)
    cut = empirical_ntk(net, x, outputs=outputs, memory=memory)
    assert _close(cut, empirical_ntk(net, x, outputs=outputs))


def test_pieces_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make("shortcuts")
    x = torch.cat([x, x.flip(2), x.flip(3)])
    with one_thread():
        whole = empirical_ntk(net, x)
        monkeypatch.setattr(layered_network, "_CACHED", 3 * 2**17)  # a sample or two
        alone = empirical_ntk(net, x)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shared = empirical_ntk(net, x)
        monkeypatch.setattr(tangent, "BLOCK", 5)
        blocks = empirical_ntk(net, x)
    finally:
        torch.set_num_threads(before)
    for found in (alone, shared, blocks):
        assert _close(found, whole)


@pytest.mark.parametrize("only", [["2.weight"], ["2.bias"], ["0", "2.weight"], ["5"], ["0.bias"]])
def test_some_of_the_parameters(only: list[str], jacobian: Any) -> None:
    net, x = make("chain")
    names = [k for k, _ in net.named_parameters() if any(k.startswith(w) for w in only)]
    found = jacobian(net, x, names)
    assert _close(empirical_ntk(net, x, only=only), torch.einsum("ncp,mdp->nmcd", found, found))


def test_at_another_point(jacobian: Any) -> None:
    net, x = make("shortcuts")
    point = {k: p.detach() + 0.1 for k, p in net.named_parameters()}
    found = empirical_ntk(net, x, parameters=point)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(point[name])
    full = jacobian(net, x)
    assert _close(found, torch.einsum("ncp,mdp->nmcd", full, full))


def test_inputs_of_two_sizes(jacobian: Any) -> None:
    net, x = make("shortcuts")
    small = x[:, :, :8, :8].contiguous()  # too few tiles to be worked out layer by layer
    large = torch.cat([x, x], 3)
    one = jacobian(net, x)
    for other in (small, large):
        expected = torch.einsum("ncp,mdp->nmcd", one, jacobian(net, other))
        assert _close(empirical_ntk(net, x, other), expected)


def test_single_precision_is_as_good_as_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make("odd sizes")
    exact = empirical_ntk(net, x)
    net, x = make("odd sizes", torch.float32)
    errors = [float((empirical_ntk(net, x) - exact).norm() / exact.norm())]
    monkeypatch.setattr("torchtheory.kernels.tangent.derivatives.layered_network", lambda *_: None)
    errors.append(float((empirical_ntk(net, x) - exact).norm() / exact.norm()))
    assert errors[0] < 1e-5
    assert errors[0] < 10 * errors[1]


class Twisted(nn.Conv2d):
    """A convolution of the user's that is none."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _with_hook(net: nn.Module) -> nn.Module:
    net[2].register_forward_hook(lambda module, given, out: 2 * out)
    return net


def _with_own_layer(net: nn.Module) -> nn.Module:
    other = Twisted(16, 20, 3, padding=1).to(torch.float64)
    other.load_state_dict(net[2].state_dict())
    net[2] = other
    return net


def _circular(net: nn.Module) -> nn.Module:
    net[2].padding_mode = "circular"
    net[2]._reversed_padding_repeated_twice = [1, 1, 1, 1]
    return net


@pytest.mark.parametrize(
    ("change", "layered"), [(_with_hook, False), (_with_own_layer, True), (_circular, True)]
)
def test_what_is_no_chain_of_torchs_layers(
    change: Callable[[nn.Module], nn.Module], layered: bool, jacobian: Any
) -> None:
    net, x = make("chain")
    net = change(net)
    assert (_layered(net, x) is not None) == layered
    full = jacobian(net, x)
    assert _close(empirical_ntk(net, x), torch.einsum("ncp,mdp->nmcd", full, full))


def test_layers_that_compute_something_else_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make("chain")
    pulled = Rectified.pulled_many
    monkeypatch.setattr(Rectified, "pulled_many", lambda *given: (1.01 * pulled(*given)[0],))
    assert _layered(net, x) is None


def test_the_model_is_left_as_it_was() -> None:
    net, x = make("shortcuts")
    before = {k: v.clone() for k, v in net.state_dict().items()}
    given = x.clone()
    empirical_ntk(net.train(False), x)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(x, given)


# ------------------------------------------------------------------- what one sample does not show


def _agree_with_autograd(net: nn.Module, x: Tensor, jacobian: Any) -> None:
    full = jacobian(net, x)
    assert _close(empirical_ntk(net, x), torch.einsum("ncp,mdp->nmcd", full, full))


def _functional(forward: Callable[[nn.Module, Tensor], Tensor], **layers: nn.Module) -> nn.Module:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Own().double().eval()


def _conv(inputs: int = 16, outputs: int = 16) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def _head(h: Tensor, layer: nn.Module) -> Tensor:
    return layer(h.mean((2, 3)))


def _images(count: int = 3, size: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 16, size, size, generator=generator, dtype=torch.float64)


def test_an_input_that_is_written_to_and_read_again(jacobian: Any) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.a(x)
        r = net.act(h)
        return _head(torch.tanh(net.b(h) + r), net.l)

    torch.manual_seed(0)
    net = _functional(
        forward, a=_conv(), b=_conv(), act=nn.Hardtanh(-1, 1, inplace=True), l=nn.Linear(16, 2)
    )
    x = _images()
    x[0] *= 0.1  # nothing is cut off here
    assert _layered(net, x) is not None
    _agree_with_autograd(net, x, jacobian)


def test_averages_that_do_not_count_the_padding(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = _functional(
        lambda net, x: _head(
            torch.relu(net.a(nn.functional.avg_pool2d(x, 3, 1, 1, False, False))), net.l
        ),
        a=_conv(),
        l=nn.Linear(16, 2),
    )
    x = _images(size=20)
    frame = [0, 1, -1, -2]
    x[0, :, frame] = 0
    x[0, :, :, frame] = 0
    _agree_with_autograd(net, x, jacobian)


def test_hooks_of_all_modules(jacobian: Any) -> None:
    net, x = make("chain")
    x[0] *= 0.01

    def cut(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:
        return out.clamp(max=0.5) if isinstance(module, nn.Conv2d) else None

    handle = nn.modules.module.register_module_forward_hook(cut)
    try:
        assert _layered(net, x) is None
        _agree_with_autograd(net, x, jacobian)
    finally:
        handle.remove()


class CutOff(nn.ReLU):
    """A layer of the user's that is as torch's for small inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).clamp(max=3.0)


@pytest.mark.parametrize("kind", ["hook", "layer"])
def test_what_is_different_for_large_inputs_only(kind: str, jacobian: Any) -> None:
    net, x = make("chain")
    x[0] *= 0.01
    if kind == "hook":
        net[1].register_forward_hook(lambda module, given, out: out.clamp(max=3.0))
    else:
        net[1] = CutOff()
    x[1:] *= 10
    assert (_layered(net, x) is None) == (kind == "hook")
    _agree_with_autograd(net, x, jacobian)


def test_buffers_in_place_of_parameters(jacobian: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    del layer.bias
    layer.register_buffer("bias", 1e-4 * torch.randn(16))
    fixed = nn.Linear(16, 2)
    weight = fixed.weight.data
    del fixed.weight
    fixed.register_buffer("weight", weight)
    for last in (nn.Linear(16, 2), fixed):
        net = nn.Sequential(
            _conv(), nn.ReLU(), _conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer, nn.Tanh(),
            last,
        ).double().eval()  # fmt: skip
        assert _layered(net, _images()) is not None
        _agree_with_autograd(net, _images(), jacobian)


def test_a_bias_that_two_layers_share(jacobian: Any) -> None:
    net = nn.Sequential(
        _conv(), nn.ReLU(), _conv(), nn.ReLU(), _conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 2),
    ).double().eval()  # fmt: skip
    net[4].bias = net[2].bias
    assert _layered(net, _images()) is not None
    _agree_with_autograd(net, _images(), jacobian)


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: _head(net.a(x) + x.shape[1], net.l),
        lambda net, x: _head(torch.cat(tensors=[net.a(x)], dim=1), net.l),
        lambda net, x: net.l(net.a(x).mean((2, 3)).view(-1, 16)),
        lambda net, x: _head(net.a(x) + net.a(x).mean((2, 3), keepdim=True), net.l),
        lambda net, x: _head(torch.cat([net.a(x), net.a(x)], -1), net.l),
    ],
)
def test_other_ways_to_write_a_network(
    forward: Callable[[nn.Module, Tensor], Tensor], jacobian: Any
) -> None:
    torch.manual_seed(0)
    net = _functional(forward, a=_conv(), l=nn.Linear(16, 2))
    _agree_with_autograd(net, _images(), jacobian)


def test_a_convolution_that_is_in_tiles_for_one_side_only(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        _conv(2), nn.ReLU(), _conv(), nn.ReLU(), nn.MaxPool2d(2), _conv(), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
    ).double().eval()  # fmt: skip
    one, two = torch.randn(2, 2, 32, 32).double(), torch.randn(2, 2, 24, 24).double()
    assert _layered(net, one) is not None
    assert _layered(net, two) is not None
    expected = torch.einsum("ncp,mdp->nmcd", jacobian(net, one), jacobian(net, two))
    assert _close(empirical_ntk(net, one, two), expected)


def test_layouts_of_images(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = _functional(
        lambda net, x: net.l(torch.relu(net.a(x)).view(len(x), -1)), a=_conv(),
        l=nn.Linear(4096, 2),
    )  # fmt: skip
    x = _images()
    full = jacobian(net, x)
    expected = torch.einsum("ncp,mdp->nmcd", full, full)
    chain = nn.Sequential(net.a, nn.ReLU(), nn.Flatten(), net.l)
    assert _layered(chain, x) is not None
    for given in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        assert _close(empirical_ntk(chain, given), expected)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_in_inference_mode(activation: nn.Module) -> None:
    net = nn.Sequential(
        _conv(), activation, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)
    ).double().eval()  # fmt: skip
    expected = empirical_ntk(net, _images())
    with torch.inference_mode():
        assert _close(empirical_ntk(net, _images()), expected)


def test_single_precision_is_worked_out_layer_by_layer() -> None:
    assert _layered(*make("shortcuts", torch.float32)) is not None


def test_tiles_only_where_they_are_right(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        _conv(), nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(32, 16, 3, padding=1, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 2),
    ).double().eval()  # fmt: skip
    found: Any = _layered(net, _images())
    assert list(found.tiled) == [0]
    _agree_with_autograd(net, _images(), jacobian)


def test_time_that_is_up_is_noticed_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make("chain")
    monkeypatch.setattr(layered_network, "_CACHED", 1)

    def up() -> None:
        raise OutOfTime("now")

    derivatives = Derivatives(net, x)
    derivatives.find_layers(x[:1])
    monkeypatch.setattr(layered_network, "check_time", up)
    nothing = [False] * len(derivatives.groups)
    with pytest.raises(OutOfTime):
        derivatives.layered_features(
            x, derivatives.basis(slice(None)), nothing, nothing, "full", 2**30
        )


def test_memory_decides_how_many_samples_and_threads() -> None:
    network: Any = _layered(*make("chain"))
    each = network.bytes_by_sample + 3 * network.bytes_by_output
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert network.shares(3, 0) == (1, 1)
        assert network.shares(3, 2 * each) == (2, 1)
        threads, most = network.shares(3, 100 * each)
        assert threads == 2
        assert 1 < most <= 50
    finally:
        torch.set_num_threads(before)


def test_a_shared_layer_whose_first_output_nothing_reads(jacobian: Any) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.a(x)
        net.b(h)
        return _head(net.b(torch.relu(h)), net.l)

    torch.manual_seed(0)
    net = _functional(forward, a=_conv(), b=_conv(), l=nn.Linear(16, 2))
    _agree_with_autograd(net, _images(), jacobian)


def test_samples_that_are_cut_into_several_rows(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = _functional(
        lambda net, x: net.l(torch.relu(net.a(x)).mean((2, 3)).view(-1, 8)).view(-1, 4),
        a=_conv(),
        l=nn.Linear(8, 2),
    )
    assert _layered(net, _images()) is None
    _agree_with_autograd(net, _images(), jacobian)


class Gated(nn.Module):
    """Functions in place of layers, and a value that channels are multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.gate = _conv(), _conv(), nn.Linear(16, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.a(x))
        gate = torch.sigmoid(self.gate(x.mean((2, 3))))
        x = torch.tanh(self.b(x * gate[:, :, None, None]) - 0.5 * x)
        return self.last(nn.functional.avg_pool2d(x, 4).mean((2, 3)))


def test_functions_in_place_of_layers(jacobian: Any) -> None:
    torch.manual_seed(0)
    net = Gated().double().eval()
    assert _layered(net, _images()) is not None
    _agree_with_autograd(net, _images(), jacobian)


def test_an_archive_is_worked_out_like_its_module(tmp_path: Any, jacobian: Any) -> None:
    net, x = make("shortcuts")
    batch = {0: torch.export.Dim("n", min=2, max=64)}
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=(batch,)), tmp_path / "net.pt2")
    archive = load_exported(tmp_path / "net.pt2")
    assert _layered(archive, x) is not None
    assert _close(empirical_ntk(archive, x), empirical_ntk(net, x))
