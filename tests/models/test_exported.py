"""Networks from `torch.export` archives: the same function, and no way to run code."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, grad, jacrev, jvp, vmap

from torchtheory.core.errors import FileProblem, InvalidType, UnsupportedModel
from torchtheory.models.exported import load_exported
from torchtheory.models.exported_archive import TYPES
from torchtheory.models.loading import load_model, load_weights
from torchtheory.models.model import PureFunction, evaluation_mode
from torchtheory.tracing.chain import as_chain, as_steps

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.block(self.embedding(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)[0][:, -1])


class Odd(nn.Module):
    """Tied weights, constants, sizes in the computation, infinities, several outputs of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        self.register_buffer("hidden", torch.ones(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        h = F.gelu(self.first(x) * self.hidden, approximate="tanh")
        a, b = (self.second(h).view(n, 2, 3) * self.constant).chunk(2, 1)
        whole = torch.cat([a, b, torch.zeros(n, 1, 3)], 1).reshape(n * 3, 3)
        return whole.clamp(min=-float("inf")).view(n, -1) + torch.tensor(2.0)


class Vision(nn.Module):
    """Layers of image networks, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.InstanceNorm2d(4)),
            *(nn.Hardswish(), nn.PReLU(), nn.Mish(), nn.ReLU6(), nn.Hardsigmoid(), nn.CELU()),
            *(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.LocalResponseNorm(2), nn.PixelUnshuffle(2)),
            *(nn.PixelShuffle(2), nn.ZeroPad2d(1), nn.ReplicationPad2d(1), nn.MaxPool2d(3, 2)),
            *(nn.AvgPool2d(2), nn.ChannelShuffle(2), nn.Dropout2d(), nn.Upsample(scale_factor=2)),
            *(nn.UpsamplingBilinear2d((5, 6)), nn.LPPool2d(2, 2), nn.AdaptiveMaxPool2d(2)),
        )
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(16, 6))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h = F.interpolate(h, size=(2, 2), mode="bicubic") + F.adaptive_avg_pool2d(h, 2)
        patches = F.fold(F.unfold(h, 2), (2, 2), 2)
        grid = F.affine_grid(torch.eye(2, 3).expand(x.shape[0], 2, 3), h.shape)
        h = F.grid_sample(patches, grid, align_corners=False)
        return F.log_softmax(F.glu(self.spectral(F.normalize(self.norm(h.flatten(1))))), 1)


class Text(nn.Module):
    """Layers of sequence networks, and tensors taken apart and put together."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru, self.rnn = nn.GRU(8, 8, batch_first=True), nn.RNN(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.cell, self.mix = nn.RMSNorm(8), nn.GRUCell(8, 8), nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = x == 0
        h = self.embedding(x) + F.one_hot(x.clamp(max=7), 8)
        for layer in (self.lstm, self.gru, self.rnn):
            h = self.norm(h + layer(h)[0])
        h = h + self.attention(h, h, h, key_padding_mask=mask, need_weights=False)[0]
        q = h.unflatten(2, (2, 4)).transpose(1, 2)
        causal = torch.ones(5, 5).tril().bool()
        h = h + F.scaled_dot_product_attention(q, q, q, causal).transpose(1, 2).flatten(2)
        h = h + torch.einsum("bij,bkj->bik", h, h).softmax(-1).masked_fill(~causal, 0.0) @ h
        turned = torch.view_as_complex(h.reshape(*h.shape[:-1], 4, 2)) * torch.polar(
            torch.ones(4), torch.arange(4.0)
        )
        h = h + torch.view_as_real(turned).flatten(2) + torch.fft.irfft(torch.fft.rfft(h), n=8)
        first, *_, last = h.unbind(1)
        best = h.topk(2, 1).values.sum(1) + h.gather(1, h.argsort(1)).cumsum(1)[:, -1]
        last = self.cell(last, torch.where(best > 0, best, first.roll(1, 1)))
        out = torch.zeros(x.shape[0], 8)
        out[:, 1:4] = last[:, :3]
        a, b = torch.cat([out, last.flip(1)], 1).split(8, 1)
        return self.mix(a.contiguous(), b.contiguous()) + torch.cdist(h, h).mean((1, 2))[:, None]


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(6, 3)),
    )


def exported(net: nn.Module, x: Tensor, file: Path, *, core: bool = False) -> Path:
    program = torch.export.export(net, (x,), dynamic_shapes=({0: Dim("batch")},))
    torch.export.save(program.run_decompositions() if core else program, file)
    return file


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], bool]] = {
    "convolutional": (convolutional, lambda: torch.randn(3, 1, 8, 8), False),
    "decomposed": (convolutional, lambda: torch.randn(3, 1, 8, 8), True),
    "attention": (Attention, lambda: torch.randint(0, 11, (3, 5)), False),
    "recurrent": (Recurrent, lambda: torch.randn(3, 6, 4), False),
    "odd": (Odd, lambda: torch.randn(3, 6), True),
}


@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize("kind", ["vision", "text"])
def test_layers_of_ordinary_networks_are_listed(kind: str, core: bool, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "vision":
            net, x = Vision().eval(), torch.randn(3, 2, 8, 8)
            if core:  # taken apart it cannot be told from a BatchNorm in training
                net.body[1] = nn.Identity()
        else:
            net, x = Text().eval(), torch.randint(0, 11, (3, 5))
            if core:  # Bilinear is taken apart into an operator that trusts its arguments
                net.mix.forward = lambda a, b: F.linear(a * b, net.mix.weight[:, 0])
    loaded = load_exported(exported(net, x, tmp_path / "net.pt2", core=core))
    for count in (1, 3):
        assert torch.allclose(loaded(x[:count]), net(x[:count]), rtol=1e-4, atol=1e-5)


def test_bags_of_words(tmp_path: Path) -> None:
    net, x = nn.EmbeddingBag(11, 4, mode="mean").eval(), torch.tensor([[1, 2, 3], [10, 0, 4]])
    loaded = load_exported(exported(net, x, tmp_path / "net.pt2"))
    assert torch.allclose(loaded(x.repeat(2, 1)), net(x.repeat(2, 1)))


@pytest.fixture(scope="module", params=CASES)
def case(request: Any, tmp_path_factory: Any) -> tuple[str, nn.Module, nn.Module, Tensor]:
    make, data, core = CASES[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x = make().eval(), data()
    file = exported(net, x, tmp_path_factory.mktemp("pt2") / "net.pt2", core=core)
    return request.param, net, load_model(str(file)), x


Case = tuple[str, nn.Module, nn.Module, Tensor]


def test_it_is_the_same_function_at_every_batch_size(case: Case) -> None:
    _, net, loaded, x = case
    assert not any(module.training for module in loaded.modules())
    for count in (1, 2, 3, 7):
        batch = x.repeat(3, *[1] * (x.ndim - 1))[:count]
        assert torch.allclose(loaded(batch), net(batch), atol=1e-6)


def test_names_and_shared_parameters_stay(case: Case) -> None:
    _, net, loaded, _ = case
    for found, expected in (
        (dict(loaded.named_parameters()), dict(net.named_parameters())),
        (loaded.state_dict(), net.state_dict()),
    ):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[k], expected[k]) for k in found)
    assert all(p.requires_grad for p in loaded.parameters())


def test_it_is_differentiated_like_the_original(case: Case) -> None:
    name, net, loaded, x = case
    start = {k: p.detach() for k, p in net.named_parameters()}
    along = {k: torch.ones_like(p) for k, p in start.items()}

    def per_sample(model: nn.Module) -> Any:
        def loss(p: Any, row: Tensor) -> Tensor:
            return functional_call(model, p, (row[None],)).square().sum()

        return vmap(grad(loss), (None, 0))(start, x)

    def curvature(model: nn.Module) -> Any:
        def loss(p: Any) -> Tensor:
            return functional_call(model, p, (x,)).square().sum()

        if name == "recurrent":  # torch has no forward derivative of its fused LSTM
            return grad(loss)(start)
        return jvp(grad(loss), (start,), (along,))[1]

    def jacobian(model: nn.Module) -> Any:
        return jacrev(lambda p: functional_call(model, p, (x,)))(start)

    for derivative in (per_sample, curvature, jacobian):
        with evaluation_mode(net), evaluation_mode(loaded):
            expected, found = derivative(net), derivative(loaded)
        for k in expected:
            assert torch.allclose(found[k], expected[k], rtol=1e-4, atol=1e-5)


def test_it_runs_in_double_precision(case: Case) -> None:
    _, net, loaded, x = case
    x = x.double() if x.is_floating_point() else x
    function = PureFunction(loaded).in_precision(torch.float64)
    outputs = function(function.parameters, x)
    assert outputs.dtype == torch.float64
    assert torch.allclose(outputs, copy.deepcopy(net).double()(x), atol=1e-6)


def test_a_copy_is_its_own(case: Case) -> None:
    _, net, loaded, x = case
    other = copy.deepcopy(loaded)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert torch.allclose(loaded(x), net(x), atol=1e-6)


class Methods(nn.Module):
    """A chain written with functions and sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Linear(8, 5), "norm": nn.LayerNorm(5)})
        self.last = nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body["norm"](torch.tanh(self.body["first"](x.view(x.size(0), -1))))
        return self.last(F.relu(self.last(x)))


def pooled() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False), nn.ELU(0.5), nn.SELU()),
        *(nn.AvgPool2d(2, padding=1), nn.Conv2d(4, 3, 3, padding="same"), nn.GELU("tanh")),
        *(nn.BatchNorm2d(3, affine=False), nn.Softplus(2.0), nn.MaxPool2d(2, stride=1)),
        *(nn.AdaptiveAvgPool2d((2, 1)), nn.Sigmoid(), nn.Flatten(2), nn.Flatten(), nn.Linear(6, 2)),
    )


@pytest.mark.parametrize(
    ("make", "shape", "names"),
    [
        (convolutional, (1, 8, 8), [str(k) for k in range(11)]),
        (pooled, (2, 9, 9), [str(k) for k in range(14)]),
        (Methods, (2, 4), ["", "body.first", "", "body.norm", "last", "", "last"]),
        (lambda: nn.Linear(3, 2), (3,), [""]),
    ],
)
def test_a_chain_of_layers_comes_back_as_one(
    make: Callable[[], nn.Module], shape: tuple[int, ...], names: list[str], tmp_path: Path
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net, x = make().eval(), torch.randn(4, *shape)
    loaded = load_exported(exported(net, x, tmp_path / "net.pt2"))
    before = torch.random.get_rng_state()
    load_exported(tmp_path / "net.pt2")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(loaded(x[:3]), net(x[:3]))
    assert loaded.state_dict().keys() == net.state_dict().keys()
    links, original = as_chain(loaded), as_chain(net)
    assert [link.name if list(link.module.parameters()) else "" for link in links] == [
        name if list(link.module.parameters()) else ""
        for name, link in zip(names, original, strict=True)
    ]
    for found, expected in zip(links, original, strict=True):
        if list(expected.module.parameters()):
            assert repr(found.module) == repr(expected.module)
        elif type(expected.module).__name__ != "Rearrangement":
            assert type(found.module) is type(expected.module)


def test_what_is_no_chain_has_steps(tmp_path: Path) -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layer(x)

    net, x = Skip(), torch.randn(2, 3)
    loaded = load_exported(exported(net, x, tmp_path / "net.pt2"))
    assert torch.equal(loaded(x), net(x))
    with pytest.raises(UnsupportedModel, match="not a chain of layers: add does not follow layer"):
        as_chain(loaded)
    found = [(type(step.link.module).__name__, step.inputs) for step in as_steps(loaded)]
    assert found == [("Linear", (-1,)), ("Sum", (-1, 0))]


@pytest.fixture(scope="module")
def small(tmp_path_factory: Any) -> tuple[nn.Module, Path]:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    return net, exported(net, torch.randn(2, 3), tmp_path_factory.mktemp("small") / "net.pt2")


def test_weights_are_loaded_into_it(small: tuple[nn.Module, Path], tmp_path: Path) -> None:
    loaded, other = load_exported(small[1]), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    torch.save({"state_dict": other.state_dict()}, tmp_path / "w.pt")
    load_weights(loaded, tmp_path / "w.pt")
    x = torch.randn(5, 3)
    assert torch.equal(loaded(x), other(x))


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.out(inputs["u"] - inputs["v"])


class Two(ByName):
    def forward(self, u: Tensor, v: Tensor) -> Any:
        return self.out(u - v), u


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    u, v, batch = torch.randn(2, 3), torch.randn(2, 3), {0: Dim("batch")}
    net: nn.Module = ByName()
    program = torch.export.export(
        net, ({"u": u, "v": v},), dynamic_shapes=({"u": batch, "v": batch},)
    )
    torch.export.save(program, tmp_path / "a.pt2")
    loaded = load_exported(tmp_path / "a.pt2")
    expected = net({"u": u, "v": v})
    for found in (loaded({"v": v, "u": u}), loaded(u=u, v=v)):
        assert torch.equal(found, expected)
    with pytest.raises(InvalidType, match="takes a dictionary of u, v"):
        loaded(u)
    net = Two()
    program = torch.export.export(net, (u, v), dynamic_shapes=(batch, batch))
    torch.export.save(program, tmp_path / "b.pt2")
    loaded = load_exported(tmp_path / "b.pt2")
    for outputs in (loaded(u, v), loaded(u, v=v), loaded(v=v, u=u)):
        assert torch.equal(outputs[0], net(u, v)[0])
    with pytest.raises(InvalidType, match="takes 2 inputs: u, v"):
        loaded(u)


def test_a_fixed_batch_is_refused_with_the_remedy(tmp_path: Path) -> None:
    net, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    with pytest.raises(UnsupportedModel, match="batches of exactly 4 samples") as caught:
        load_exported(tmp_path / "net.pt2")
    remedy = 'torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))'
    assert remedy in str(caught.value)
    program = eval(remedy, {"torch": torch, "model": net, "x": x})
    torch.export.save(program, tmp_path / "net.pt2")
    assert torch.equal(load_exported(tmp_path / "net.pt2")(x[:3]), net(x[:3]))


def test_training_mode_is_refused(tmp_path: Path) -> None:
    for layer in (nn.Dropout(), nn.BatchNorm1d(3)):
        file = exported(nn.Sequential(layer).train(), torch.randn(2, 3), tmp_path / "net.pt2")
        with pytest.raises(UnsupportedModel, match=r"call model\.eval\(\) before"):
            load_exported(file)


def rewritten(file: Path, to: Path, changes: dict[str, Any]) -> Path:
    """A copy of an archive with some parts replaced (by functions of JSON, or by bytes)."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            part = name.partition("/")[2]
            content = old.read(name)
            if callable(change := changes.get(part)):
                document = json.loads(content)
                change(document)
                content = json.dumps(document).encode()
            elif change is not None:
                content = change
            new.writestr(name, content)
        for part in changes.keys() - {n.partition("/")[2] for n in old.namelist()}:
            new.writestr(f"net/{part}", changes[part])
    return to


class Malicious:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def pickled(trace: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Malicious(trace), buffer)
    return buffer.getvalue()


def first_node(target: str, *arguments: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        node = document["graph_module"]["graph"]["nodes"][0]
        node["target"] = target
        node["inputs"] = [{"name": "a", "arg": a, "kind": 1} for a in arguments]

    return change


@pytest.mark.parametrize(
    "how", ["weight", "constant", "opaque", "script", "whole", "operator", "symbol", "samples"]
)
def test_nothing_in_an_archive_is_run(
    small: tuple[nn.Module, Path], tmp_path: Path, how: str
) -> None:
    trace = tmp_path / "was-run"
    bad = pickled(trace)
    plain = pickle.dumps(Malicious(trace))
    command = f"touch {trace}"

    def weight(document: Any) -> None:
        document["config"]["0.weight"] |= {"use_pickle": True}

    def constant(name: str) -> Callable[[Any], None]:
        payload = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
        return lambda document: document["config"].update(extra=payload)

    def symbol(document: Any) -> None:
        sizes = document["graph_module"]["graph"]["tensor_values"]["input"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = f"__import__('os').system('{command}')"

    changes: dict[str, dict[str, Any]] = {
        "weight": {WEIGHTS: weight, "data/weights/weight_0": bad},
        "constant": {CONSTANTS: constant("tensor_0"), "data/constants/tensor_0": bad},
        "opaque": {CONSTANTS: constant("opaque_obj_0"), "data/constants/opaque_obj_0": plain},
        "script": {CONSTANTS: constant("custom_obj_0"), "data/constants/custom_obj_0": plain},
        "whole": {"data/weights/model.pt": bad},
        "operator": {MODEL: first_node("torch.os.system", {"as_string": command})},
        "symbol": {MODEL: symbol},
        "samples": {"data/sample_inputs/model.pt": bad},
    }
    file = rewritten(small[1], tmp_path / "bad.pt2", changes[how])
    if how in ("symbol", "samples"):  # never looked at
        x = torch.randn(2, 3)
        assert torch.equal(load_exported(file)(x), small[0](x))
    else:
        refusals = (FileProblem, UnsupportedModel)
        with pytest.raises(refusals, match=r"refused|not among the operators"):
            load_exported(file)
    assert not trace.exists()
    os.system(command)
    assert trace.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "torch.hub.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.aten.__class__.__call__",
        "torch.ops.aten.relu.__init__",
        "torch.ops.load_library.default",
        "torch.ops.higher_order.cond",
        "torch.ops.mylib.op.default",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "os.system",
        "",
    ],
)
def test_only_operators_on_numbers_and_tensors(
    small: tuple[nn.Module, Path], tmp_path: Path, target: str
) -> None:
    changes = {MODEL: first_node(target, {"as_string": "/etc/passwd"})}
    file = rewritten(small[1], tmp_path / "bad.pt2", changes)
    with pytest.raises(UnsupportedModel, match="not among the operators of ATen"):
        load_exported(file)


def test_damaged_archives(small: tuple[nn.Module, Path], tmp_path: Path) -> None:
    def without(key: str) -> Callable[[Any], None]:
        return lambda document: document.pop(key)

    def large(document: Any) -> None:
        document["config"]["0.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 10**9

    def moved(document: Any) -> None:
        document["config"]["0.weight"]["path_name"] = "../../../../etc/passwd"

    def unknown(document: Any) -> None:
        document["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = "z"

    def other(document: Any) -> None:
        document["schema_version"]["major"] = 7

    for changes, sentence in (
        ({MODEL: without("graph_module")}, "not a readable"),
        ({MODEL: without("schema_version")}, "not a readable"),
        ({MODEL: other}, "has version 7"),
        ({MODEL: unknown}, "lacks the values of 'z'"),
        ({MODEL: b"[]"}, "not a readable"),
        ({MODEL: b"{"}, "not a readable"),
        ({WEIGHTS: without("config")}, "not a readable"),
        ({WEIGHTS: large}, "not a readable"),
        ({WEIGHTS: moved}, "has no part"),
        ({"models/other.json": b"{}"}, "2 exported programs"),
        ({"data/aotinductor/model/a.so": b""}, "compiled machine code"),
    ):
        file = rewritten(small[1], tmp_path / "bad.pt2", changes)
        with pytest.raises(FileProblem, match=sentence):
            load_exported(file)
    content = small[1].read_bytes()
    for damaged in (b"", b"corrupted", content[: len(content) // 2]):
        (tmp_path / "bad.pt2").write_bytes(damaged)
        with pytest.raises(FileProblem, match="not a readable"):
            load_model(str(tmp_path / "bad.pt2"))
    with pytest.raises(FileProblem, match="there is no file"):
        load_model(str(tmp_path / "none.pt2"))
    torch.save({}, tmp_path / "bad.pt2")
    with pytest.raises(FileProblem, match="no exported program"):
        load_exported(tmp_path / "bad.pt2")


@pytest.mark.parametrize("kind", ["sparse", "nested", "meta"])
def test_weights_are_dense_tensors(
    small: tuple[nn.Module, Path], tmp_path: Path, kind: str
) -> None:
    """Kernels for other ones believe what they are told about where entries lie."""
    buffer = io.BytesIO()
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
        "meta": torch.ones(3, device="meta"),
    }
    torch.save({"0.weight": odd[kind]}, buffer)
    changes = {"data/weights/model.pt": buffer.getvalue()}
    with pytest.raises((UnsupportedModel, FileProblem), match="is not a dense tensor"):
        load_exported(rewritten(small[1], tmp_path / "bad.pt2", changes))


def test_the_numbers_of_types_are_those_of_torch() -> None:
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    assert all(_SERIALIZE_TO_TORCH_DTYPE[k] == dtype for k, dtype in TYPES.items())
