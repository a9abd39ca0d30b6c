"""Weights by name, one tensor in memory at a time wherever their file allows it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, FileProblem, InvalidType, UnsupportedModel
from torchtheory.core.files import existing_file, reason
from torchtheory.models.loading import read_weights, refuse_long_names, shard_places

#: What weights are read from: a state dict, a module, or a file of weights.
WeightSource = Mapping[str, Tensor] | nn.Module | str | Path

#: Ends of names under which networks keep tensors that nobody trains.
_BUFFERS = re.compile(
    r"(^|[._])(running_mean|running_var|num_batches_tracked|position_ids|token_type_ids|inv_freq|"
    r"masked_bias|causal_mask|attn_mask|relative_position_index|mask|anchors|anchor_grid|"
    r"zero_point|ema\w*)$"
)

# Bytes of a file that are hashed at a time.
_PIECE = 2**22


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors by name.

    Attributes:
        title: what to call it.
        names: of the tensors, in their order.
        read: the tensor of a name, on the CPU and without a gradient.
        buffers: names of tensors that are known not to be trained.
    """

    title: str
    names: Sequence[str]
    read: Callable[[str], Tensor]
    buffers: Collection[str] = ()

    def is_buffer(self, name: str) -> bool:
        """Whether nobody trains it, as far as its name tells."""
        return name in self.buffers or _BUFFERS.search(name) is not None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each name with its tensor; one at a time is held here."""
        for name in self.names:
            yield name, self.read(name)


def open_checkpoint(source: WeightSource, stack: ExitStack) -> Checkpoint:
    """Weights to be read one by one.

    Args:
        source: a state dict, a module, or a file that `torchtheory.models.loading.read_weights`
            reads. Of `.safetensors` files, alone or in shards, one tensor at a time is read; other
            formats come as a whole.
        stack: closes the files in the end.
    """
    if isinstance(source, nn.Module):
        state, buffers = dict(source.state_dict()), {n for n, _ in source.named_buffers()}
        if lazy := [n for n, t in state.items() if is_lazy(t)]:
            raise UnsupportedModel(f"{lazy[0]} has no values yet: call the model once on its input")
        return _held(type(source).__name__, state, buffers)
    if isinstance(source, Mapping):
        return _held("state dict", source, ())
    if not isinstance(source, str | Path):
        raise InvalidType(
            f"weights are a state dict, an nn.Module or the path of a file, not {described(source)}"
        )
    file = existing_file(source)
    if file.suffix == ".safetensors":
        return _streamed(file, dict.fromkeys(_names(file, stack), file), stack)
    if file.name.endswith(".safetensors.index.json"):
        return _streamed(file, shard_places(file), stack)
    return _held(file.name, read_weights(file), ())


def _held(title: str, state: Mapping[str, Any], buffers: Collection[str]) -> Checkpoint:
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InvalidType(
                "a state dict has tensors by name, and this one has "
                f"{described(tensor)} under {name!r}; give what model.state_dict() returns"
            )
        if tensor.is_nested:
            raise UnsupportedModel(f"{name} is a nested tensor, and weights are arrays")
        if tensor.is_meta:
            raise UnsupportedModel(f"{name} is on the meta device and has no values")
    _refuse_empty(title, list(state))
    refuse_long_names(state, title)
    return Checkpoint(title, list(state), lambda name: _plain(state[name]), buffers)


def _streamed(file: Path, places: Mapping[str, Path], stack: ExitStack) -> Checkpoint:
    opened: dict[Path, Any] = {}

    def read(name: str) -> Tensor:
        place = places[name]
        if place not in opened:
            opened[place] = _opened(existing_file(place), stack)
        try:
            return _plain(opened[place].get_tensor(name))
        except Exception as error:
            raise FileProblem(f"cannot read {name} from {place}: {error}") from None

    _refuse_empty(file.name, list(places))
    refuse_long_names(places, str(file))
    return Checkpoint(file.name, list(places), read)


def _names(file: Path, stack: ExitStack) -> list[str]:
    return list(_opened(file, stack).keys())


def _opened(file: Path, stack: ExitStack) -> Any:
    from safetensors import safe_open

    try:
        return stack.enter_context(safe_open(file, framework="pt", device="cpu"))
    except Exception as error:
        raise FileProblem(f"{file} is not a readable safetensors file: {error}") from None


def _plain(tensor: Tensor) -> Tensor:
    plain = tensor.detach().cpu()
    if plain.is_quantized:
        plain = plain.dequantize()
    return plain if plain.layout is torch.strided else plain.to_dense()


def _refuse_empty(title: str, names: Sequence[str]) -> None:
    if not names:
        raise EmptyData(f"{title} holds no tensors")


def file_digest(path: str | Path) -> str:
    """A hash of what a file holds, and of the files that an index of shards names.

    Cost: one reading of the files.
    """
    file = existing_file(path)
    files = [file]
    if file.name.endswith(".safetensors.index.json"):
        files += sorted(set(shard_places(file).values()))
    digest = hashlib.blake2b(digest_size=16)
    for part in files:
        try:
            with existing_file(part).open("rb") as stream:
                while piece := stream.read(_PIECE):
                    digest.update(piece)
        except OSError as error:
            raise FileProblem(f"cannot read {part}: {reason(error)}") from None
    return digest.hexdigest()
