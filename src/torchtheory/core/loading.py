"""A user's model from the outside: code they name, weights as data, never a pickle."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType


def load_model(name: str) -> nn.Module:
    """The model that ``package.module:factory`` makes.

    ``factory`` is a function or class that is called without arguments, or a module that exists
    already. The current directory is searched first, as Python does for a script.

    >>> type(load_model("torch.nn:ReLU")).__name__
    'ReLU'
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise InvalidInput(f"name the model as package.module:factory, not {name!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise FileProblem(f"cannot import {module_name}: {error}") from None
    except (Exception, SystemExit) as error:  # a script may end itself when it is imported
        raise FileProblem(f"importing {module_name} raised {_sentence(error)}") from error
    factory: object = module
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise InvalidInput(f"{module_name} has no {attribute!r}")
        factory = getattr(factory, part)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InvalidType(f"{name} is a {type(factory).__name__}, not a function or an nn.Module")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{name}() raised {_sentence(error)}") from error
    if not isinstance(model, nn.Module):
        raise InvalidType(f"{name}() returned a {type(model).__name__}, not an nn.Module")
    return model


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a ``.safetensors`` file, or a ``.pt``/``.pth`` state dict.

    A ``.pt`` file is read with ``weights_only=True``: it may hold tensors, not code.
    """
    file = existing_file(path)
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    if file.suffix in (".pt", ".pth"):
        return _read_state_dict(file)
    raise FileProblem(f"{file} must be a .safetensors, .pt or .pth file")


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy weights from a ``.safetensors`` file, or a ``.pt``/``.pth`` state dict, into a model."""
    file, state = Path(path), read_weights(path)
    own = model.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        parts = [
            f"{what} {_few(keys)}"
            for what, keys in (("lacks", missing), ("also has", extra))
            if keys
        ]
        raise InvalidInput(f"{file} does not fit the model: it {' and '.join(parts)}")
    for key, tensor in state.items():
        if not is_lazy(own[key]) and tensor.shape != own[key].shape:
            raise InvalidInput(
                f"{file} does not fit the model: {key} has shape {list(tensor.shape)}, the model "
                f"needs {list(own[key].shape)}"
            )
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise InvalidInput(f"{file} does not fit the model: {_sentence(error)}") from error


def existing_file(path: str | Path) -> Path:
    """The path, or one sentence on why there is no such file."""
    file = Path(path)
    try:
        if not file.exists():
            raise FileProblem(f"there is no file {file}")
        if not file.is_file():
            raise FileProblem(f"{file} is not a file")
    except OSError as error:  # a directory without permission, a name that is too long
        raise FileProblem(f"cannot read {file}: {error.strerror}") from None
    return file


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return dict(load_file(file))
    except Exception as error:
        raise FileProblem(f"{file} is not a readable safetensors file: {error}") from None


def _read_state_dict(file: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():  # what is refused need not be warned of as well
            warnings.simplefilter("ignore")
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:
        raise FileProblem(
            f"{file} is not a plain state dict; pickled models can run code and are refused: save "
            "with safetensors.torch.save_file(model.state_dict(), ...) instead"
        ) from None
    if not (
        isinstance(state, dict)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    ):
        raise FileProblem(f"{file} must hold a state dict: names and tensors")
    return state


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
