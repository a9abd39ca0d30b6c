"""A user's model from the outside: code they name, weights as data, never a pickle."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtheory.core.checks import as_module
from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.core.files import existing_file, read_json
from torchtheory.core.foreign_code import ForeignCode, said
from torchtheory.core.memory import refuse_too_large
from torchtheory.core.naming import several
from torchtheory.core.random import as_generator, seed_torch
from torchtheory.models.exported import load_exported
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.plain_files import load_plain


def load_network(name: str, weights: str | Path | None = None, seed: int = 0) -> nn.Module:
    """The model of a name with the weights of a file; see `load_model` and `load_weights`.

    What a factory draws for its first weights follows from the seed; the global generators stay
    where they are.
    """
    with global_randomness_kept():
        seed_torch(as_generator(seed).initial_seed())
        network = load_model(name)
    if weights is not None:
        load_weights(network, weights)
    return network


def load_model(name: str) -> nn.Module:
    """The model that `package.module:factory` makes, or a `.pt2` archive of `torch.export`.

    `factory` is a function or class that is called without arguments, whose model is put into
    evaluation mode, or a module that exists already and is taken as it is. The current directory
    is searched first, as Python does for a script. An archive is read as data
    (`torchtheory.models.exported.load_exported`); files which hold programs (pickled modules,
    TorchScript) are refused.

    >>> type(load_model("torch.nn:ReLU")).__name__
    'ReLU'
    """
    if name.lower().endswith(".pt2"):
        return load_exported(existing_file(name))
    if (ending := Path(name).suffix.lower()) in _NO_MODELS and not is_named(name):
        reason, instead = _NO_MODELS[ending]
        if ending in _PICKLES and _is_torchscript(existing_file(name)):
            reason, instead = _TORCHSCRIPT
        raise FileProblem(f"{name} {reason}: {instead}")
    factory = named_object(name, "model", "factory")
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InvalidType(f"{name} is a {type(factory).__name__}, not a function or an nn.Module")
    model = call_without_arguments(factory, name)
    if not isinstance(model, nn.Module):
        raise InvalidType(f"{name}() returned a {type(model).__name__}, not an nn.Module")
    return as_module(model).eval()  # nobody else could have done so


# Longer than the names of any network, and still a line of a table.
_LONGEST_NAME = 500
# Bytes of entries that are nowhere in a file; a mask that was expanded has fewer.
_MOST_UNWRITTEN = 2**28

_PICKLES = (".pt", ".pth", ".bin", ".ckpt")
_EXPORT = "save it with torch.export.save(torch.export.export(model, ...), 'model.pt2') instead"
_BY_NAME = "give the model as package.module:factory and this file as its weights"
_TORCHSCRIPT = (
    "is a TorchScript archive, a program rather than weights, and is refused",
    "save torch.save(model.state_dict(), ...) as weights, or the model with torch.export.save",
)
_NO_MODELS = {
    **dict.fromkeys(_PICKLES, ("holds weights, or a pickle that can run code", _BY_NAME)),
    **dict.fromkeys((".safetensors", ".json"), ("holds weights, not a model", _BY_NAME)),
    **dict.fromkeys(
        (".pkl", ".pickle", ".joblib"), ("is a pickle, which can run code and is refused", _EXPORT)
    ),
    ".onnx": ("holds operators of ONNX, which PyTorch cannot differentiate", _EXPORT),
    ".py": ("is a file", "give the model as module:factory, such as nets:make for nets.py"),
    **dict.fromkeys((".h5", ".keras", ".tflite", ".pb"), ("is not a PyTorch model", _EXPORT)),
}


def is_named(text: str) -> bool:
    """Whether a text has the form `package.module:attribute`.

    >>> is_named("mypackage.nets:make"), is_named("data/train.csv")
    (True, False)
    """
    return re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def named_object(name: str, what: str, last: str) -> object:
    """What `package.module:attribute` names; the module is imported, which runs its code.

    Args:
        name: the name as the user gave it.
        what: what it should be, for messages.
        last: what to call the attribute in messages.

    >>> named_object("math:tau", "number", "constant")
    6.283185307179586
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise InvalidInput(f"name the {what} as package.module:{last}, not {name!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    with ForeignCode(f"importing {module_name}", FileProblem):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise FileProblem(f"cannot import {module_name}: {error}") from None
    found: object = module
    with ForeignCode(name):  # an attribute may be computed
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise InvalidInput(f"{module_name} has no {attribute!r}")
            found = getattr(found, part)
    return found


def call_without_arguments(function: Callable[[], object], name: str) -> object:
    """What a user's function returns; what it raises becomes a sentence."""
    with ForeignCode(f"{name}()"):
        return function()


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a file of weights.

    A `.safetensors` file; the `.safetensors.index.json` of a model saved in several such files,
    which lie beside it; or a `.pt`, `.pth`, `.bin` or `.ckpt` file with a state dict, alone
    or in a checkpoint (`{"state_dict": ..., "epoch": ...}`). The latter are read with
    `weights_only=True`: they may hold tensors, not code.
    """
    file = existing_file(path)
    if file.suffix == ".safetensors":
        state = _read_safetensors(file)
    elif file.name.endswith(".safetensors.index.json"):
        state = _read_shards(file)
    elif file.suffix in _PICKLES:
        state = _read_state_dict(file)
        refuse_odd_tensors(state, file)
    else:
        raise FileProblem(
            f"{file} must be a .safetensors, .pt or .pth file, or a .bin, .ckpt or "
            ".safetensors.index.json file"
        )
    refuse_long_names(state, str(file))
    return state


def refuse_long_names(names: Iterable[str], what: str) -> None:
    """Refuse names that no network has, and that no table, figure or page could show."""
    longest = max(map(len, names), default=0)
    if longest > _LONGEST_NAME:
        raise FileProblem(
            f"{what} has a tensor whose name is {longest:,} characters long, and at most "
            f"{_LONGEST_NAME:,} are read: rename it"
        )


def refuse_odd_tensors(state: Mapping[str, Tensor], file: Path) -> None:
    """Refuse what is no array of numbers, and a few bytes that are said to be a large tensor.

    A stride of 0 and a sparse tensor make one number stand for any number of entries; whatever is
    computed from them would have them all.
    """
    unwritten = 0
    for name, tensor in state.items():
        if tensor.is_nested:
            raise FileProblem(
                f"{name} in {file} is a nested tensor, and weights are arrays: save its parts"
            )
        if not tensor.is_meta:
            unwritten += max(0, tensor.numel() * tensor.element_size() - _bytes_of(tensor))
    if unwritten > _MOST_UNWRITTEN:
        raise FileProblem(
            f"{file} holds tensors that share memory with themselves or are sparse, and would take "
            f"{unwritten / 2**30:,.1f} GiB more than the file says: save them with .contiguous() "
            "or leave them out"
        )


def _bytes_of(tensor: Tensor) -> int:
    """Bytes that the numbers of a tensor take in its file."""
    if tensor.layout is torch.strided:
        return tensor.untyped_storage().nbytes()
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.untyped_storage().nbytes()


def weights_for(model: nn.Module, path: str | Path) -> dict[str, Tensor]:
    """Weights from a file under the names that the model gives them.

    Wrappers leave prefixes (`module.` of DataParallel, `_orig_mod.` of `torch.compile`,
    `model.` of Lightning). They are taken off only where that makes all names fit.

    Raises:
        InvalidInput: if names or shapes are not those of the model.
    """
    file, own = Path(path), model.state_dict()
    given = read_weights(path)
    state = _without_prefixes(given, own.keys())
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        parts = [
            f"{what} {several(keys, 3)}"
            for what, keys in (("lacks", missing), ("also has", extra))
            if keys
        ]
        raise InvalidInput(f"{file} does not fit the model: it {' and '.join(parts)}")
    for key, tensor in state.items():
        if tensor.is_complex() and not own[key].is_complex():
            raise InvalidInput(
                f"{file} does not fit the model: {key} is complex, and the model's is real"
            )
        if not is_lazy(own[key]) and tensor.shape != own[key].shape:
            raise InvalidInput(
                f"{file} does not fit the model: {key} has shape {list(tensor.shape)}, the model "
                f"needs {list(own[key].shape)}"
            )
    return state


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy weights from a file that `read_weights` reads into a model."""
    state = weights_for(model, path)
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise InvalidInput(f"{path} does not fit the model: {said(error)}") from error


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    refuse_too_large(file.stat().st_size, str(file), FileProblem)
    try:
        return dict(load_file(file))
    except Exception as error:
        raise FileProblem(f"{file} is not a readable safetensors file: {error}") from None


def shard_places(file: Path) -> dict[str, Path]:
    """The file that holds each tensor, by an index that distributes them over its directory."""
    try:
        names = read_json(file)["weight_map"]
        places: dict[str, str] = {str(k): v for k, v in names.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileProblem(f"{file} is not an index of safetensors files") from None
    if not places:
        raise FileProblem(f"{file} names no weights")
    for shard in places.values():
        # a name alone: an index from elsewhere must not choose files outside of its directory
        if not (isinstance(shard, str) and re.fullmatch(r"[\w\-. ]+\.safetensors", shard)):
            raise FileProblem(f"{file} names {shard!r}, which is not a .safetensors file beside it")
    return {name: file.parent / shard for name, shard in places.items()}


def _read_shards(file: Path) -> dict[str, Tensor]:
    places = shard_places(file)
    shards: dict[Path, dict[str, Tensor]] = {}
    for name, shard in places.items():
        if shard not in shards:
            shards[shard] = _read_safetensors(existing_file(shard))
        if name not in shards[shard]:
            raise FileProblem(f"{shard} lacks {name}, which {file.name} says it has")
    return {name: shards[shard][name] for name, shard in places.items()}


def _read_state_dict(file: Path) -> dict[str, Tensor]:
    if _is_torchscript(file):
        reason, instead = _TORCHSCRIPT
        raise FileProblem(f"{file} {reason}: {instead}")
    refuse_bomb(file)
    try:
        content = load_plain(file)
    except Exception as error:
        found = re.search(r"Unsupported (?:global|class|operand)\S*:? GLOBAL (\S+)", str(error))
        holds = f" (it holds {found[1]})" if found else ""
        raise FileProblem(
            f"{file} is not a plain state dict{holds}; pickled models can run code and are "
            "refused: save with safetensors.torch.save_file(model.state_dict(), ...) instead"
        ) from None
    if _is_state(content):
        return dict(content)
    if isinstance(content, dict):
        inside = {k: v for k, v in content.items() if isinstance(k, str) and _is_state(v)}
        usual = [k for k in ("state_dict", "model_state_dict", "model") if k in inside]
        if len(inside) == 1 or usual:
            return dict(inside[usual[0] if usual else next(iter(inside))])
        if inside:
            raise FileProblem(
                f"{file} holds several state dicts ({several(sorted(inside), 3)}): save the one "
                "that is meant"
            )
    raise FileProblem(f"{file} must hold a state dict: names and tensors")


def refuse_bomb(file: Path) -> None:
    """Refuse a file that is larger than memory, or would be once it is unpacked."""
    size = max(file.stat().st_size, sum(part.file_size for part in _parts(file)))
    refuse_too_large(size, str(file), FileProblem)


def _parts(file: Path) -> list[zipfile.ZipInfo]:
    """The parts of a zip archive; none of another file, such as one that an old torch wrote.

    Raises:
        FileProblem: if it is an archive that cannot be read: what it unpacks to is unknown.
    """
    try:
        if not zipfile.is_zipfile(file):
            return []
        with zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except Exception as error:  # every kind of packing has errors of its own
        raise FileProblem(f"{file} is not a readable archive: {said(error)}") from None


def _is_state(content: object) -> bool:
    return (
        isinstance(content, dict)
        and len(content) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    )


def _is_torchscript(file: Path) -> bool:
    return any(part.filename.endswith("/constants.pkl") for part in _parts(file))


def _without_prefixes(state: dict[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """The same tensors under names without wrappers' prefixes, if those are the wanted names."""
    wanted, names = set(wanted), {key: key for key in state}
    while set(names.values()) != wanted:
        shorter = (
            {key: name.removeprefix(prefix) for key, name in names.items()}
            for prefix in ("module.", "_orig_mod.", "model.")
            if all(name.startswith(prefix) for name in names.values())
        )
        found = next(shorter, None)
        if not found:
            inner = {k: n.replace("._orig_mod.", ".") for k, n in names.items()}
            fits = len(set(inner.values())) == len(inner) and set(inner.values()) == wanted
            return {inner[k]: tensor for k, tensor in state.items()} if fits else state
        names = found
    return {names[key]: tensor for key, tensor in state.items()}
