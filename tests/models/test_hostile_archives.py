"""Archives made to do harm: read in a process of their own, which must come to its end."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from torchtheory.models import exported_operators
from torchtheory.models.exported import ExportedNetwork, load_exported

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
#: Bytes the process may have in use; what torch needs to start is below a third of it.
MOST = 1_500_000_000

READER = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.memory import resident_memory
from torchtheory.models.exported import load_exported
torch.set_num_threads(1)
for file in sys.argv[1:]:
    print(os.path.basename(file), end=" ", flush=True)
    try:
        network = load_exported(file)
    except TorchTheoryError as error:
        print(json.dumps(["refused", str(error)]), flush=True)
        continue
    x = torch.linspace(-1, 1, 12).reshape(2, 6)
    try:
        y = network(x)
    except Exception as error:  # what an audit says of any model that cannot be evaluated
        print(json.dumps(["fails", str(error)[:300]]), flush=True)
        continue
    print(json.dumps(["runs", y.tolist() if isinstance(y, torch.Tensor) else None]), flush=True)
# not ru_maxrss, which begins with that of the process it was started from
print("peak", resident_memory(peak=True))
"""

Parts = dict[str, Any]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: Any) -> Parts:
    """The parts of an honest archive: documents as data, the rest as bytes."""
    file = tmp_path_factory.mktemp("honest") / "net.pt2"
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    batch = ({0: Dim("batch")},)
    torch.export.save(torch.export.export(net, (torch.ones(3, 6),), dynamic_shapes=batch), file)
    with zipfile.ZipFile(file) as archive:
        found = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    return {n: json.loads(c) if n.endswith(".json") else c for n, c in found.items()}


def write(parts: Parts, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            plain = content if isinstance(content, bytes) else json.dumps(content).encode()
            archive.writestr(f"net/{name}", plain)
    return file


def outcomes(files: list[Path]) -> dict[str, tuple[str, Any]]:
    """What became of each; the process dies of no signal, shows no traceback, stays small."""
    run = [sys.executable, "-c", READER, *map(str, files)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    *lines, last = ended.stdout.splitlines()
    assert ended.returncode == 0, (ended.returncode, last, ended.stderr[-2000:])
    assert ended.stderr == ""
    assert int(last.split()[1]) < MOST
    found = (line.partition(" ") for line in lines)
    return {name: tuple(json.loads(said)) for name, _, said in found}


def tensor(name: str) -> Any:
    return {"as_tensor": {"name": name}}


def node(target: str, output: str, **arguments: Any) -> dict[str, Any]:
    inputs = [{"name": k, "arg": v, "kind": 1} for k, v in arguments.items()]
    made = {"as_sym_int": {"as_name": output}} if target.startswith("_op") else tensor(output)
    return {"target": target, "inputs": inputs, "outputs": [made], "metadata": {}}


def aten(name: str, output: str = "out", **arguments: Any) -> dict[str, Any]:
    return node(f"torch.ops.aten.{name}", output, **arguments)


def graph(parts: Parts, *nodes: dict[str, Any], output: str = "out") -> Parts:
    """The honest archive with another graph; `x`, `w` and `b` are its input, weight and bias."""
    made = copy.deepcopy(parts)
    inner = made[MODEL]["graph_module"]["graph"]
    names = {"x": "input", "w": "p_0_weight", "b": "p_0_bias"}
    for each in nodes:
        each["inputs"] = json.loads(
            json.dumps(each["inputs"])
            .replace('"x"', f'"{names["x"]}"')
            .replace('"w"', f'"{names["w"]}"')
            .replace('"b"', f'"{names["b"]}"')
        )
    inner["nodes"] = list(nodes)
    for each in nodes:  # what is said of them is not believed
        name = next(iter(each["outputs"][0].values()))
        inner["tensor_values"][str(name.get("name"))] = inner["tensor_values"]["input"]
    signature = made[MODEL]["graph_module"]["signature"]
    signature["output_specs"] = [{"user_output": {"arg": tensor(output)}}]
    return made


X, W, B = tensor("x"), tensor("w"), tensor("b")


def ints(*values: int) -> Any:
    return {"as_ints": list(values)}


def number(value: int) -> Any:
    return {"as_int": value}


def flag(value: bool) -> Any:
    return {"as_bool": value}


#: Operators that read as far as a number tells them to, or reach for something else.
UNLISTED = {
    "_reshape_alias.default": {"self": X, "size": ints(10**6), "stride": ints(1)},
    "_convert_indices_from_csr_to_coo.default": {"crow_indices": X, "col_indices": X},
    "_convert_indices_from_coo_to_csr.default": {"self": X, "size": number(10**6)},
    "_ctc_loss.default": {"log_probs": X, "targets": X},
    "ctc_loss.IntList": {"log_probs": X, "targets": X},
    "_embedding_bag.default": {"weight": W, "indices": X, "offsets": X},
    "_embedding_bag_dense_backward.default": {"grad": X},
    "_pack_padded_sequence.default": {"input": X, "lengths": X},
    "_trilinear.default": {"i1": X, "i2": X, "i3": X},
    "mkldnn_rnn_layer.default": {"input": X},
    "_thnn_fused_lstm_cell.default": {"input_gates": X},
    "set_.source_Tensor": {"self": X, "source": W},
    "resize_.default": {"self": X, "size": ints(10**6)},
    "empty_strided.default": {"size": ints(100), "stride": ints(1)},
    "view.dtype": {"self": X, "dtype": {"as_scalar_type": 12}},
    "max_unpool2d.default": {"self": X, "indices": X, "output_size": ints(9, 9)},
    "sparse_coo_tensor.indices": {"indices": X, "values": X},
    "from_file.default": {"filename": {"as_string": "/etc/passwd"}},
    "embedding_renorm_.default": {"self": W, "indices": X},
    "item.default": {"self": X},
    "nonzero.default": {"self": X},
    "add.out": {"self": X, "other": X, "out": W},
    "quantize_per_tensor.default": {"self": X},
    # functions of TorchScript under names of ATen
    "remainder.int": {"a": number(1), "b": number(0)},
    "to.prim_dtype": {"self": X, "dtype": number(120)},
    "eq.str": {"a": {"as_string": "a"}, "b": {"as_string": "a"}},
    "copy_.int": {"self": X, "other": number(1)},
}


def test_operators_that_are_not_listed_are_named_and_refused(parts: Parts, tmp_path: Path) -> None:
    files = [
        write(graph(parts, aten(name, **arguments)), tmp_path / f"{name}.pt2")
        for name, arguments in UNLISTED.items()
    ]
    for name, (said, sentence) in outcomes(files).items():
        assert said == "refused", name
        assert f"calls torch.ops.aten.{name[:-4]}, which is not among the operators" in sentence


def test_every_listed_operator_exists() -> None:
    for name in exported_operators._NAMES | exported_operators._CHECKED.keys():
        base, _, only = name.partition(".")
        packet = getattr(torch.ops.aten, base)
        found = [
            overload
            for overload in packet.overloads()
            if exported_operators.find_operator(f"torch.ops.aten.{base}.{overload}") is not None
        ]
        assert only in found if only else found, name


def test_listed_operators_with_arguments_that_do_harm(parts: Parts, tmp_path: Path) -> None:
    wide = {"as_float": 1e-12}
    cases: dict[str, list[dict[str, Any]]] = {
        "strided": [aten("as_strided.default", self=X, size=ints(10**6), stride=ints(1))],
        "negative": [
            aten(
                "as_strided.default",
                self=X,
                size=ints(2),
                stride=ints(1),
                storage_offset=number(-9),
            )
        ],
        "view": [aten("view.default", self=X, size=ints(10**6))],
        "norm": [
            aten(
                "_native_batch_norm_legit_no_training.default",
                input=X,
                weight=B,
                bias=B,
                running_mean=B,
                running_var=B,
                momentum={"as_float": 0.1},
                eps={"as_float": 1e-5},
            )
        ],
        "groups": [
            aten("view.default", "v", self=X, size=ints(-1, 6, 1)),
            aten(
                "native_group_norm.default",
                input=tensor("v"),
                weight=B,
                bias=B,
                N=number(2),
                C=number(6),
                HxW=number(10**6),
                group=number(1),
                eps={"as_float": 1e-5},
            ),
        ],
        "recurrent": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 6)),
            aten("zeros.default", "h", size=ints(1, 2, 4096)),
            aten(
                "lstm.input",
                input=tensor("v"),
                hx={"as_tensors": [{"name": "h"}, {"name": "h"}]},
                params={"as_tensors": [{"name": n} for n in ("w", "w", "b", "b")]},
                has_biases=flag(True),
                num_layers=number(1),
                dropout=wide,
                train=flag(False),
                bidirectional=flag(False),
                batch_first=flag(True),
            ),
        ],
        "attention": [
            aten("expand.default", "k", self=X, size=ints(1, 1, 2, 6)),
            aten("zeros.default", "q", size=ints(1, 1, 4000, 6)),
            aten(
                "_scaled_dot_product_flash_attention_for_cpu.default",
                query=tensor("q"),
                key=tensor("q"),
                value=tensor("k"),
            ),
        ],
        "scale": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 2, 3)),
            aten(
                "upsample_nearest2d.default",
                self=tensor("v"),
                output_size=ints(4, 4),
                scales_h={"as_float": 1e-320},
                scales_w={"as_float": 1e-320},
            ),
        ],
        "mode": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 2, 3)),
            aten("zeros.default", "g", size=ints(2, 5, 5, 2)),
            aten(
                "grid_sampler_2d.default",
                input=tensor("v"),
                grid=tensor("g"),
                interpolation_mode=number(9),
                padding_mode=number(0),
                align_corners=flag(False),
            ),
        ],
        "fourier": [
            aten("view_as_complex.default", "c", self=tensor("v")),
            aten(
                "_fft_c2r.default",
                self=tensor("c"),
                dim=ints(1),
                normalization=number(0),
                last_dim_size=number(10**5),
            ),
        ],
        "large": [aten("zeros.default", size=ints(10**6, 10**6))],
        "expanded": [
            aten("expand.default", "e", self=X, size=ints(10**6, 10**6, 2, 6)),
            aten("clone.default", self=tensor("e")),
        ],
        "product": [
            aten("expand.default", "l", self=B, size=ints(10**6, 1)),
            aten("matmul.default", self=tensor("l"), other=tensor("l")),
        ],
        "broadcast": [
            aten("arange.default", "a", end=number(10**6)),
            aten("view.default", "r", self=tensor("a"), size=ints(10**6, 1)),
            aten("add.Tensor", self=tensor("a"), other=tensor("r")),
        ],
        "hidden": [
            aten("full.default", "a", size=ints(10**5, 1, 6), fill_value={"as_float": 1.0}),
            aten("full.default", "r", size=ints(1, 10**5, 6), fill_value={"as_float": 1.0}),
            aten("cosine_similarity.default", x1=tensor("a"), x2=tensor("r"), dim=number(2)),
        ],
        "padding": [
            aten("constant_pad_nd.default", self=X, pad=ints(10**9, 10**9), value=number(0))
        ],
        "overflow": [
            aten("constant_pad_nd.default", self=X, pad=ints(2**62, 2**62), value=number(0))
        ],
        "pooled": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 2, 3)),
            aten("adaptive_avg_pool2d.default", self=tensor("v"), output_size=ints(10**6, 10**6)),
        ],
        "parts": [
            aten("zeros.default", "z", size=ints(10**8)),
            aten("unbind.int", self=tensor("z")),
        ],
        "dimensions": [aten("view.default", self=X, size=ints(*[1] * 100, -1))],
        "power": [
            node("_operator.pow", "p", a=number(10), b=number(10**9)),
            aten("add.Tensor", self=X, other={"as_sym_int": {"as_name": "p"}}),
        ],
        "repeated": [
            node("_operator.mul", "p", a={"as_string": "ab"}, b=number(10**12)),
            aten("add.Tensor", self=X, other={"as_sym_int": {"as_name": "p"}}),
        ],
        # numbers for types and formats, nothing for what is needed, too much, too often
        "type": [aten("_to_copy.default", self=X, dtype=number(120))],
        "no-type": [aten("_to_copy.default", self=X, dtype={"as_scalar_type": -1})],
        "format": [aten("clone.default", self=X, memory_format=number(-1))],
        "layout": [aten("zeros_like.default", self=X, layout=number(99))],
        "sum-in-a-type": [aten("sum.default", self=X, dtype=number(-1))],
        "computed-type": [
            node("_operator.mul", "p", a=number(12), b=number(10)),
            aten("_to_copy.default", self=X, dtype={"as_sym_int": {"as_name": "p"}}),
        ],
        "nothing": [aten("mm.default", self=X, mat2={"as_none": True})],
        "no-tensor": [aten("mm.default", self=X, mat2=number(3))],
        "missing-argument": [aten("mm.default", self=X)],
        "unknown-argument": [aten("relu.default", self=X, inplace=flag(True))],
        "twice": [
            {**(twice := aten("relu.default", self=X)), "inputs": [*twice["inputs"]] * 2},
        ],
        "truth": [aten("sum.dim_IntList", self=X, dim=ints(1), keepdim=number(1))],
        "a-size-of-text": [aten("view.default", self=X, size={"as_string": "ab"})],
        "lengths": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 2, 3)),
            aten("avg_pool2d.default", self=tensor("v"), kernel_size=ints(1, 1, 1)),
        ],
        "stride": [
            aten("view.default", "v", self=X, size=ints(-1, 1, 6)),
            aten("ones.default", "k", size=ints(1, 4, 2)),
            aten(
                "conv_transpose1d.default",
                input=tensor("v"),
                weight=tensor("k"),
                stride=ints(2**16),
            ),
        ],
        "division": [
            node("_operator.floordiv", "p", a=number(1), b=number(0)),
            aten("add.Tensor", self=X, other={"as_sym_int": {"as_name": "p"}}),
        ],
        "classes": [
            aten("to.dtype", "i", self=X, dtype={"as_scalar_type": 5}),
            aten("one_hot.default", self=tensor("i"), num_classes=number(10**12)),
        ],
        "mask": [
            aten("gt.Scalar", "m", self=X, other=number(0)),
            aten("index.Tensor", self=X, indices={"as_optional_tensors": [tensor("m")]}),
        ],
        "outside": [
            aten("full_like.default", "i", self=X, fill_value=number(10**9)),
            aten("to.dtype", "j", self=tensor("i"), dtype={"as_scalar_type": 5}),
            aten("embedding.default", weight=W, indices=tensor("j")),
        ],
        "gathered": [
            aten("full_like.default", "i", self=X, fill_value=number(-(10**9))),
            aten("to.dtype", "j", self=tensor("i"), dtype={"as_scalar_type": 5}),
            aten("gather.default", self=X, dim=number(0), index=tensor("j")),
        ],
        "bags": [
            aten("zeros.default", "i", size=ints(5), dtype={"as_scalar_type": 5}),
            aten(
                "full.default",
                "s",
                size=ints(3),
                fill_value=number(10**9),
                dtype={"as_scalar_type": 5},
            ),
            aten(
                "embedding_bag.padding_idx",
                weight=W,
                indices=tensor("i"),
                offsets=tensor("s"),
                scale_grad_by_freq=flag(False),
                mode=number(0),
                sparse=flag(False),
                per_sample_weights={"as_none": True},
                include_last_offset=flag(False),
                padding_idx={"as_none": True},
            ),
        ],
        "missing": [aten("relu.default", self=tensor("nobody"))],
        "words": [aten("relu.default", self={"as_string": "x"})],
        "nested": [aten("relu.default", self={"as_nested_tensors": [[{"name": "x"}]]})],
    }
    many = [
        aten("full.default", f"z{k}", size=ints(10**8), fill_value=number(k)) for k in range(500)
    ]
    kept = {"as_tensors": [{"name": f"z{k}"} for k in range(500)]}
    cases["many"] = [*many, aten("cat.default", tensors=kept)]
    squares = [node("_operator.mul", "p0", a=number(9), b=number(9))]
    for k in range(60):
        square = {"as_sym_int": {"as_name": f"p{k}"}}
        squares.append(node("_operator.mul", f"p{k + 1}", a=square, b=square))
    cases["squares"] = [*squares, aten("add.Tensor", self=X, other=square)]
    files = [write(graph(parts, *n), tmp_path / f"{k}.pt2") for k, n in cases.items()]
    found = outcomes(files)
    assert len(found) == len(cases)
    assert {k: said for k, (said, _) in found.items() if said == "runs"} == {}


def test_memory_nobody_wrote_is_zero(parts: Parts, tmp_path: Path) -> None:
    made = {
        "empty": aten("empty.memory_format", size=ints(2, 500)),
        "like": aten("empty_like.default", self=X),
        "new": aten("new_empty.default", self=X, size=ints(2, 500)),
        "permuted": aten("empty_permuted.default", size=ints(2, 500), physical_layout=ints(1, 0)),
    }
    files = [write(graph(parts, n), tmp_path / f"{k}.pt2") for k, n in made.items()]
    for said, values in outcomes(files).values():
        assert said == "runs", values
        assert not torch.tensor(values).any()


def test_expanded_tensors_are_written_out_for_kernels_that_trust_their_strides(
    parts: Parts, tmp_path: Path
) -> None:
    """Of an expanded tensor one number lies in memory, and these would read what lies behind it."""
    view = aten("view.default", "v", self=W, size=ints(4, 6, 1))
    one = aten("full.default", "s", size=ints(1), fill_value={"as_float": 3.0})
    wide = aten("expand.default", "e", self=tensor("s"), size=ints(6))
    copy_ = aten("clone.default", "c", self=tensor("e"))

    def normalized(scale: str) -> dict[str, Any]:
        made = aten("native_group_norm.default", input=tensor("v"), weight=tensor(scale),
            bias=tensor(scale), N=number(4), C=number(6), HxW=number(1), group=number(2),
            eps={"as_float": 1e-5})  # fmt: skip
        made["outputs"] = [tensor("out"), tensor("mean"), tensor("deviation")]
        return made

    files = [
        write(graph(parts, view, one, wide, copy_, normalized(name)), tmp_path / f"{name}.pt2")
        for name in ("e", "c")
    ]
    expanded, copied = outcomes(files).values()
    assert expanded[0] == copied[0] == "runs"
    torch.testing.assert_close(torch.tensor(expanded[1]), torch.tensor(copied[1]))


def test_a_network_whose_inputs_are_not_told_runs(parts: Parts, tmp_path: Path) -> None:
    """Sizes are then computed when it runs."""
    told = load_exported(write(parts, tmp_path / "told.pt2"))
    made = copy.deepcopy(parts)
    values = made[MODEL]["graph_module"]["graph"]["tensor_values"]["input"]
    del values["sizes"][0]["as_expr"]["hint"]
    untold = load_exported(write(made, tmp_path / "untold.pt2"))
    assert isinstance(told, ExportedNetwork)
    assert isinstance(untold, ExportedNetwork)
    assert told.examples
    assert untold.examples is None
    x = torch.linspace(-1, 1, 12).reshape(2, 6)
    torch.testing.assert_close(told(x), untold(x))


def weight(parts: Parts) -> Any:
    return parts[WEIGHTS]["config"]["0.weight"]["tensor_meta"]


def test_weights_names_and_bombs(parts: Parts, tmp_path: Path) -> None:
    files = {}

    def changed(name: str) -> Parts:
        files[name] = tmp_path / f"{name}.pt2"
        return copy.deepcopy(parts)

    for name, sizes, strides in (
        ("stretched", (10**6, 10**6), (0, 0)),
        ("outside", (10**4, 6), (6, 1)),
        ("backwards", (4, 6), (-6, 1)),
        ("negative", (-4, 6), (6, 1)),
        ("huge", (2**62, 2**62), (0, 0)),
    ):
        bad = changed(name)
        weight(bad)["sizes"] = [{"as_int": n} for n in sizes]
        weight(bad)["strides"] = [{"as_int": n} for n in strides]
        write(bad, files[name])
    bad = changed("surrogate")
    config = bad[WEIGHTS]["config"]
    config["\ud800"] = config.pop("0.weight")
    write(bad, files["surrogate"])
    bad = changed("deep")
    specs = bad[MODEL]["graph_module"]["signature"]["input_specs"]
    long = ".".join("a" * 5000)
    specs[0]["parameter"]["parameter_name"] = long
    bad[WEIGHTS]["config"][long] = bad[WEIGHTS]["config"]["0.weight"]
    write(bad, files["deep"])
    files["bomb"] = tmp_path / "bomb.pt2"
    with (
        zipfile.ZipFile(files["bomb"], "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("net/models/model.json", "w", force_zip64=True) as part,
    ):
        for _ in range(600):
            part.write(b" " * 2**20)
    files["latin"] = tmp_path / "latin.pt2"
    with zipfile.ZipFile(files["latin"], "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("net/models/model.json", b'{"\xff": 1}')
    for name, (said, _) in outcomes(list(files.values())).items():
        assert said == "refused", name


HOSTILE = (
    *(None, True, -1, 0, 10**9, 10**30, 10**400, -(2**63), 1e308, float("inf"), float("nan")),
    *("", "x", "\u0000", "self", "torch.ops.aten.relu_.default", [], {}, [[]], {"as_int": 10**12}),
)


def mutated(data: Any, draw: random.Random) -> Any:
    """The same document with one value or key replaced, dropped or doubled, anywhere."""
    place, key, node = None, None, data
    while isinstance(node, dict | list) and node and (place is None or draw.random() < 0.93):
        place, key = node, draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node = node[key]
    how = draw.randrange(4)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, list):
        place.insert(key, copy.deepcopy(node))
    elif how == 2 and isinstance(place, dict):
        place[draw.choice(["", "as_int", "name", "as_none"])] = place.pop(key)
    else:
        place[key] = copy.deepcopy(draw.choice(HOSTILE))
    return data


def test_changed_documents_and_bytes(parts: Parts, tmp_path: Path) -> None:
    draw = random.Random(0)
    files = []
    for k in range(160):
        made = copy.deepcopy(parts)
        for _ in range(draw.choice((1, 1, 2, 5))):
            mutated(made[draw.choice((MODEL, MODEL, WEIGHTS))], draw)
        files.append(write(made, tmp_path / f"document-{k}.pt2"))
    content = write(parts, tmp_path / "honest.pt2").read_bytes()
    for k in range(80):
        raw = bytearray(content)
        for _ in range(draw.choice((1, 3, 30))):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        files.append(tmp_path / f"bytes-{k}.pt2")
        files[-1].write_bytes(raw[: draw.choice((len(raw), len(raw), draw.randrange(len(raw))))])
    found = outcomes([*files, tmp_path / "honest.pt2"])
    assert len(found) == 241
    assert found["honest.pt2"][0] == "runs"
    assert {said for said, _ in found.values()} >= {"refused", "runs"}
