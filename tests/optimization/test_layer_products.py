"""Products of chains, layer by layer, against autograd's."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from torchtheory.core.budget import within
from torchtheory.core.errors import OutOfTime
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.activations.table import POINTWISE_LAYERS, Pointwise
from torchtheory.optimization.curvature import layer_products as products
from torchtheory.optimization.curvature import operators
from torchtheory.optimization.curvature.layer_products import layer_products
from torchtheory.optimization.curvature.operators import (
    fisher_operator,
    gauss_newton_operator,
    hessian_operator,
)
from torchtheory.optimization.stages.stage import Workspace
from torchtheory.optimization.stages.weighted import Convolution, DenseOfImages


class Written(nn.Module):
    """Functions in place of layers, and a reshape by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2)
        self.second = nn.Conv2d(4, 6, (2, 3), stride=(1, 2), padding=(1, 0), bias=False)
        self.out = nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = torch.tanh(self.second(x))
        out: Tensor = self.out(x.view(x.size(0), -1))
        return out


def network(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    match kind:
        case "dense":
            return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.Tanh(),
                                 nn.Dropout(0.5), nn.Linear(5, 3)), (4,)  # fmt: skip
        case "linear":
            return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), (4,)
        case "one layer":
            return nn.Linear(4, 3), (4,)
        case "sequences":
            return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Flatten(), nn.Linear(10, 3)), (2, 4)
        case "images":
            return nn.Sequential(
                nn.Unflatten(1, (1, 9, 9)), nn.Conv2d(1, 5, 3), nn.ReLU(),
                nn.Conv2d(5, 5, 3, stride=2, padding=1), nn.SiLU(),
                nn.Conv2d(5, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3),
            ), (81,)  # fmt: skip
        case "far apart":  # a stride longer than the kernel, and places that no patch has
            return nn.Sequential(
                nn.Conv2d(2, 3, 2, stride=3, padding=1), nn.Sigmoid(),
                nn.Conv2d(3, 3, 1, padding=1), nn.Tanh(),
                nn.Conv2d(3, 3, 2, stride=2), nn.Flatten(), nn.Dropout(), nn.Linear(12, 3),
            ), (2, 8, 8)  # fmt: skip
        case "images out":
            return nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten(),
                                 nn.Linear(27, 9), nn.Softplus(), nn.Unflatten(1, (3, 3)),
                                 nn.Flatten(), nn.Linear(9, 3)), (2, 7, 7)  # fmt: skip
        case "pools":
            return nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
                nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Tanh(),
                nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(6, 5, 2, dilation=2, padding=2),
                nn.GELU(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
            ), (2, 11, 10)  # fmt: skip
    return Written(), (2, 9, 9)


KINDS = [
    "dense",
    "linear",
    "one layer",
    "sequences",
    "images",
    "far apart",
    "images out",
    "pools",
    "own",
]


def problem(kind: str, count: int = 50, seed: int = 0, **more: object) -> Problem:
    torch.manual_seed(seed)
    net, shape = network(kind)
    y = torch.randint(0, 3, (count,))
    return Problem(net.double(), (torch.randn(count, *shape).double(), y), **more)  # type: ignore[arg-type]


@pytest.fixture
def by_autograd(monkeypatch):
    def make(build, given, **more):
        with monkeypatch.context() as patch:
            patch.setattr(operators, "layer_products", lambda *_: None)
            return build(given, **more)

    return make


def chained(given: Problem) -> bool:
    return layer_products(given.function, given.trainable, given.train.x[:1], 2**30) is not None


@pytest.mark.parametrize("build", [hessian_operator, gauss_newton_operator, fisher_operator])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_has_autograds_products(kind, build, by_autograd, monkeypatch):
    monkeypatch.setattr(products, "_MOST", 17)  # three pieces, one of which is shorter
    given = problem(kind)
    assert chained(given)
    expected = by_autograd(build, given).to_dense()
    found = build(given).to_dense()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize(
    "kind", sorted({*POINTWISE_LAYERS} - {nn.Threshold, nn.Hardsigmoid}, key=str)
)
def test_activations(kind, by_autograd):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 5), kind(), nn.Linear(5, 4), kind(), nn.Linear(4, 2))
    given = Problem(net.double(), (torch.randn(30, 3).double(), torch.randn(30, 2).double()))
    assert chained(given)
    expected = by_autograd(hessian_operator, given).to_dense()
    torch.testing.assert_close(hessian_operator(given).to_dense(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [
    nn.LeakyReLU, nn.ReLU6, nn.Hardtanh, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.Mish, nn.ReLU,
])  # fmt: skip
def test_activations_in_place(kind):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 5), kind(inplace=True), nn.Linear(5, 2)).double()
    data = torch.randn(30, 3).double(), torch.randn(30, 2).double()
    found = hessian_operator(Problem(net, data)).to_dense()
    net[1] = kind()
    assert chained(Problem(net, data))
    expected = hessian_operator(Problem(net, data)).to_dense()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_an_activation_of_which_torch_has_no_second_derivative():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 5), nn.Hardsigmoid(), nn.Linear(5, 2)).double()
    same = nn.Sequential(net[0], Pointwise(lambda x: (x / 6 + 0.5).clamp(0, 1)), net[2])
    data = (4 * torch.randn(30, 3).double(), torch.randn(30, 2).double())
    found, expected = (hessian_operator(Problem(n, data)).to_dense() for n in (net, same))
    # torch's own slope of it is one sixth to single precision only
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert float(expected.norm()) > 1e-2


@pytest.mark.parametrize("loss", [
    nn.CrossEntropyLoss(label_smoothing=0.2), lambda f, y: F.nll_loss(f.log_softmax(1), y),
    lambda f, y: (f.sum(1) * (y + 1)).mean(),
])  # fmt: skip
def test_losses_of_the_users_own(loss, by_autograd):
    given = problem("images", loss=loss)
    for build in (hessian_operator, gauss_newton_operator):
        expected = by_autograd(build, given).to_dense()
        torch.testing.assert_close(build(given).to_dense(), expected, rtol=1e-9, atol=1e-12)


def test_blocks_of_directions_and_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(products, "_MOST", 16)
    given = problem("images", count=130)
    operator = hessian_operator(given)
    V = torch.randn(operator.shape[0], 3, generator=torch.Generator().manual_seed(0)).double()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.stack([operator @ v for v in V.unbind(1)], 1)
        torch.testing.assert_close(operator @ V, alone, rtol=1e-12, atol=1e-13)
        torch.set_num_threads(3)
        shared = operator @ V
        assert torch.get_num_threads() == 3
        fresh: list[int] = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert fresh == [3]  # also in threads that are made later
        assert bool((operator @ V == shared).all())  # in the same order every time
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(shared, alone, rtol=1e-12, atol=1e-13)


def test_products_in_two_threads_of_the_user():
    given = problem("images", count=200)
    operator = hessian_operator(given)
    V = torch.randn(operator.shape[0], 4).double()
    expected = operator @ V
    found: dict[int, Tensor] = {}

    def work(k):
        for _ in range(5):
            found[k] = operator @ V[:, k]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        torch.testing.assert_close(found[k], expected[:, k], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_ends_with_the_time_and_the_next_one_is_right(threads, monkeypatch):
    monkeypatch.setattr(products, "_MOST", 16)
    operator = hessian_operator(problem("images", count=130))
    v = torch.randn(operator.shape[0]).double()
    expected = operator @ v
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with within(0.0, 0.0), pytest.raises(OutOfTime):
            operator @ v
        assert torch.get_num_threads() == threads
        torch.testing.assert_close(operator @ v, expected, rtol=1e-12, atol=1e-13)
    finally:
        torch.set_num_threads(before)


def test_an_interrupted_product_leaves_nothing_to_the_next_one(monkeypatch):
    monkeypatch.setattr(products, "_MOST", 16)
    operator = hessian_operator(problem("images", count=64))
    v = torch.randn(operator.shape[0]).double()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = operator @ v
        rows, made = Convolution.rows, []

        def interrupted(stage, x, workspace, use):
            patches = rows(stage, x, workspace, use)
            made.append(use)
            if made.count("still") == 3:  # the second layer's of the second piece
                raise KeyboardInterrupt
            return patches

        with monkeypatch.context() as patch:
            patch.setattr(Convolution, "rows", interrupted)
            with pytest.raises(KeyboardInterrupt):
                operator @ v
        torch.testing.assert_close(operator @ v, expected, rtol=1e-12, atol=1e-13)
    finally:
        torch.set_num_threads(before)


def test_a_product_in_inference_mode_before_others():
    operator = hessian_operator(problem("images"))
    v = torch.randn(operator.shape[0]).double()
    with torch.inference_mode():
        inside = operator @ v
    torch.testing.assert_close(operator @ v, inside.clone(), rtol=1e-12, atol=1e-13)


def test_mixed_precision_is_left_to_autograd():
    given = problem("dense").in_precision(torch.float32)
    exact = hessian_operator(given)
    with torch.autocast("cpu", torch.bfloat16):
        assert not chained(given)
        mixed = hessian_operator(given)
    v = torch.randn(exact.shape[0])
    assert float((mixed @ v - exact @ v).norm() / (exact @ v).norm()) < 0.1


def test_the_point_stays_when_the_user_goes_on_from_it():
    given = problem("images", count=20)
    point = {name: p.clone() for name, p in given.trainable.items()}
    operator = hessian_operator(given, parameters=point)
    expected = operator.to_dense()
    for p in point.values():
        p.mul_(2)
    assert bool((operator.to_dense() == expected).all())


def test_blocks_of_no_and_of_many_directions(monkeypatch):
    operator = hessian_operator(problem("dense"))
    size = operator.shape[0]
    assert (operator @ torch.zeros(size, 0).double()).shape == (size, 0)
    expected = operator.to_dense()
    monkeypatch.setattr(products, "_TOGETHER", 7 * size)  # blocks, and one that is smaller
    torch.testing.assert_close(operator.to_dense(), expected, rtol=1e-12, atol=1e-14)


def test_threads_stay_within_the_memory():
    given = problem("dense")
    size = 8 * given.function.count
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        for memory, threads in ((0, 1), (7 * size, 2), (2**30, 4)):
            chain = layer_products(given.function, given.trainable, given.train.x[:1], memory)
            assert chain is not None
            assert chain.threads() == threads
        assert hessian_operator(given).memory == given.memory - 14 * size
    finally:
        torch.set_num_threads(before)
    vector = torch.zeros(1000)
    assert Workspace(vector)._like.untyped_storage().nbytes() == 0  # it does not hold directions


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x))).squeeze()


def test_no_sample_is_left_over_by_itself(by_autograd):
    x = torch.randn(513, 4).double()  # of one sample there would be no dimension left
    given = Problem(Squeezed().double(), (x, (x[:, 0] > 0).long()))
    assert chained(given)
    expected = by_autograd(hessian_operator, given).to_dense()
    torch.testing.assert_close(hessian_operator(given).to_dense(), expected, rtol=1e-9, atol=1e-12)


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    net[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return net


def _shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))


def _frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    net[0].requires_grad_(False)
    return net


def _hooked_backward() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    net[1].register_full_backward_pre_hook(lambda module, outer: (2 * outer[0],))
    return net


def _with_a_buffer(name: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    values = 1e-4 * getattr(net[0], name).detach()  # so small that outputs hardly show it
    delattr(net[0], name)
    net[0].register_buffer(name, values)
    return net


def _replaced_forward() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].forward = lambda x: F.linear(x, 2 * net[0].weight)  # type: ignore[method-assign]
    nn.init.zeros_(net[2].weight)  # and outputs do not show it
    return net


class Straight(torch.autograd.Function):
    """Signs, with the derivative of something else."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, outer):
        return 2 * outer


class Signs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Straight.apply(x)


class Widened(nn.Module):
    """A power that is broadcast, which no activation is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sigmoid(self.first(x)) ** torch.tensor([1.0, 2.0, 3.0]))


def _frozen_in_between() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    net[2].requires_grad_(False)
    net[4].bias.requires_grad_(False)
    return net


class Arithmetic(nn.Module):
    """Sums, products and powers of values and of numbers, some of them broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(4, 1)
        self.register_buffer("shift", torch.linspace(-1, 1, 6))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x)) + self.shift
        gate, h = torch.sigmoid(self.c(x)), 2 - h
        h = gate * self.b(h) - 0.3 * h + h.sum(1, keepdim=True) / 6
        h = torch.sub(gate, h * h, alpha=0.5) ** 2
        return self.last(F.pad(h[:, 1:5], (1, 1), value=0.5))


class Forked(nn.Module):
    """Values that two ReLUs read, and a sum of what two of them make."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, g = self.a(x), self.b(x)
        return self.c(torch.relu(h) + torch.relu(g) - torch.tanh(h) * torch.relu(0.5 - g) + g)


@pytest.mark.parametrize("build", [
    Arithmetic, Forked, _shared, _frozen, _frozen_in_between, lambda: _with_a_buffer("weight"),
    lambda: _with_a_buffer("bias"),
    lambda: nn.Sequential(Twice(4, 5), nn.ReLU(), nn.Linear(5, 3)),
])  # fmt: skip
def test_what_is_no_plain_chain_of_layers_has_autograds_products(build, by_autograd):
    torch.manual_seed(0)
    x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    given = Problem(build().double(), (x, y))
    assert chained(given)
    for make in (hessian_operator, gauss_newton_operator):
        expected = by_autograd(make, given).to_dense()
        torch.testing.assert_close(make(given).to_dense(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("build", [
    _hooked, _hooked_backward, _replaced_forward,
    lambda: nn.Sequential(nn.Linear(4, 5), Signs(), nn.Linear(5, 3)), Widened,
    lambda: nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3)),
    lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
    lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)),
    lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2), nn.Flatten(),
                          nn.Linear(3, 3)),
])  # fmt: skip
def test_what_is_no_such_chain_is_left_to_autograd(build, by_autograd):
    torch.manual_seed(0)
    x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    given = Problem(build().double(), (x, y))
    assert not chained(given)
    expected = by_autograd(hessian_operator, given).to_dense()
    torch.testing.assert_close(hessian_operator(given).to_dense(), expected)


@pytest.mark.parametrize(("layer", "taken"), [
    (nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular"), True),
    (nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1), True),
    (nn.Conv2d(2, 4, 3, padding="same"), False),
])  # fmt: skip
def test_other_convolutions(layer, taken, by_autograd):
    net = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = torch.randn(20, 2, 5, 5).double(), torch.randint(0, 3, (20,))
    net(x)
    given = Problem(net, (x, y))
    assert chained(given) == taken
    expected = by_autograd(hessian_operator, given).to_dense()
    torch.testing.assert_close(hessian_operator(given).to_dense(), expected, rtol=1e-9, atol=1e-12)


def test_labels_that_the_loss_ignores(by_autograd):
    given = problem("dense")
    y = given.train.y.clone()
    y[::3] = -100
    samples = Samples(given.train.x, y)
    for build in (hessian_operator, gauss_newton_operator):
        expected = by_autograd(build, given, samples=samples).to_dense()
        found = build(given, samples).to_dense()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_what_does_not_fit_is_left_to_autograd(monkeypatch):
    small = problem("images", count=600, memory="4MiB")
    chain = layer_products(small.function, small.trainable, small.train.x[:1], 2**30)
    assert chain is not None
    assert 4 * chain.bytes * 600 > small.memory
    expected = hessian_operator(problem("images", count=600))
    monkeypatch.setattr(operators, "_in_pieces", lambda *_: pytest.fail("it would be kept"))
    operator = hessian_operator(small)
    v = torch.randn(operator.shape[0]).double()
    torch.testing.assert_close(operator @ v, expected @ v, rtol=1e-9, atol=1e-12)


def test_nothing_of_the_users_is_changed():
    given = problem("images", count=40)
    x, weights = given.train.x.clone(), {k: p.clone() for k, p in given.parameters.items()}
    operator = hessian_operator(given)
    v = torch.randn(operator.shape[0]).double()
    kept = v.clone()
    operator @ v
    assert bool((v == kept).all())
    assert bool((given.train.x == x).all())
    assert all(bool((p == weights[k]).all()) for k, p in given.parameters.items())


def test_images_are_not_copied_for_a_dense_layer():
    given = problem("images")
    chain = layer_products(given.function, given.trainable, given.train.x[:1], 2**30)
    assert chain is not None
    assert isinstance(chain.steps[-1].stage, DenseOfImages)
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert chain.steps[-1].stage.rows(x, None, "").data_ptr() == x.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_was_planned_for(kind):
    given = problem(kind)
    chain = layer_products(given.function, given.trainable, given.train.x[:1], 2**30)
    piece = chain.recorded(given.train.x, lambda y: (torch.ones_like(y), lambda u: u))
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for kept in piece.kept
        for t in kept.tensors()
    }
    assert sum(storages.values()) <= 1.1 * len(given.train) * chain.bytes
