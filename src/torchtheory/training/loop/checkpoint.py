"""Checkpoints: everything a training needs to go on as if nothing had happened.

The file is a `torch.save` archive of tensors and plain data, read with `weights_only=True`.
It is written beside its place, synced, and moved there in one step, so that whoever is killed
leaves either the old checkpoint or the new one.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import FileProblem, InvalidType
from torchtheory.core.outputs import plain_file, replaced_file
from torchtheory.models.loading import refuse_bomb, refuse_odd_tensors
from torchtheory.models.plain_files import load_plain
from torchtheory.models.samples import Samples

FORMAT = 1
_PLAIN = (str, int, float, bool, bytes, Tensor, type(None))
_DIGEST_BYTES = 2**28


def save_checkpoint(path: Path, configuration: Mapping[str, str], state: dict[str, Any]) -> None:
    """Write `state` as the checkpoint of a training with this configuration."""
    refuse_code(state, "the checkpoint")
    content = {"torchtheory_checkpoint": FORMAT, "configuration": dict(configuration), **state}
    try:
        with replaced_file(path) as file:
            torch.save(content, file)
    except RuntimeError as error:  # what torch makes of a full disk
        raise FileProblem(f"the checkpoint {path} cannot be written: {error}") from None


def load_checkpoint(path: Path, configuration: Mapping[str, str]) -> dict[str, Any] | None:
    """The state in a checkpoint; None if there is no such file.

    Raises:
        FileProblem: if the file is damaged, is no checkpoint of a training, or is one of a
            training with another configuration; the sentence says which.
    """
    if plain_file(path) is None:
        return None
    refuse_bomb(path)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # compares every part with its checksum
        if broken is not None:
            raise zipfile.BadZipFile(f"{broken} does not match its checksum")
        content = load_plain(path)
    except Exception as error:  # whatever a damaged file makes the readers raise
        # it may be a file of the user's: no advice to delete it
        raise FileProblem(
            f"{path} is a damaged checkpoint or no checkpoint ({_first_line(error)}): give another "
            "path, or move the file away to start anew"
        ) from None
    if not isinstance(content, dict) or content.get("torchtheory_checkpoint") != FORMAT:
        raise FileProblem(
            f"{path} is not a checkpoint of torchtheory's fit (format {FORMAT}): give another path"
        )
    refuse_odd_tensors({f"tensor {k}": t for k, t in enumerate(_tensors(content))}, path)
    stored = content["configuration"]
    for key in [*configuration, *(k for k in stored if k not in configuration)]:
        then, now = stored.get(key, "not set"), configuration.get(key, "not set")
        if then != now:
            raise FileProblem(
                f"the checkpoint {path} belongs to another training: {key} was {then} and is now "
                f"{now}: give another path, or move the file away to start anew"
            )
    return content


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def refuse_code(value: Any, where: str) -> None:
    """Raise if a state holds anything that cannot be read back as plain data."""
    if isinstance(value, dict | OrderedDict | Counter):
        for key, item in value.items():
            refuse_code(key, where)
            refuse_code(item, f"{where}, {key}" if isinstance(key, str) else where)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_code(item, where)
    elif not isinstance(value, _PLAIN):
        raise InvalidType(
            f"{where} would hold a {type(value).__name__}, and a checkpoint holds only tensors "
            "and plain data"
        )


# ----------------------------------------------------------------------------- the model's state


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers (those not in `state_dict` too) by name, detached, not copied."""
    module_with_values(model)
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of `model_state`."""
    return {name: tensor.clone() for name, tensor in model_state(model).items()}


@torch.no_grad()
def restore_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write a state back into the model's own tensors."""
    for name, tensor in model_state(model).items():
        tensor.copy_(state[name])


# --------------------------------------------------------------------------- recognizing a training


def model_signature(model: nn.Module) -> str:
    """A digest of the architecture: module tree, names, shapes and types, not the values."""
    tensors = {k: (tuple(t.shape), str(t.dtype)) for k, t in model_state(model).items()}
    frozen = [k for k, p in model.named_parameters() if not p.requires_grad]
    return _digest(f"{_without_addresses(repr(model))} {tensors} {frozen}".encode())


def weights_signature(model: nn.Module) -> str:
    """A digest of the values of all parameters and buffers."""
    return _digest(*(_bytes(t) for t in model_state(model).values()))


def data_signature(samples: Samples) -> str:
    """Number of samples and a digest of their values.

    Beyond 256 MiB only evenly spaced rows enter the digest.
    """
    parts: list[bytes] = []
    for tensor in (samples.x, samples.y):
        rows = max(1, int(_DIGEST_BYTES / max(1, tensor.nbytes / len(tensor))))
        step = -(-len(tensor) // rows)
        parts += [f"{tuple(tensor.shape)} {tensor.dtype}".encode(), _bytes(tensor[::step])]
    return f"{len(samples)} samples {_digest(*parts)}"


def callable_name(function: object) -> str:
    """A name for a function or object that is the same in the next process."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", "")
    return f"{module}.{name}" if name else _without_addresses(repr(function))


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:120]
