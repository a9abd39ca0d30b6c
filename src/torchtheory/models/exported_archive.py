"""The parts of a `torch.export` archive: JSON documents and the bytes of tensors."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import FileProblem, TorchTheoryError, UnsupportedModel
from torchtheory.core.files import LARGEST_JSON, parse_json
from torchtheory.core.memory import refuse_too_large
from torchtheory.models.plain_files import load_plain

#: The archive's numbers for the types of tensors.
TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
#: ... and for dense ones.
STRIDED = 7


class Archive:
    """The parts of a `.pt2` file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            with zipfile.ZipFile(file) as archive:
                found = {part.filename.partition("/")[2]: part for part in archive.infolist()}
                wanted = ("models/", "data/weights/", "data/constants/")
                parts = {n: part for n, part in found.items() if n.startswith(wanted)}
                # no part unpacks to more than it says; once as bytes and once as tensors
                size = 2 * sum(part.file_size for part in parts.values())
                refuse_too_large(size, str(file), FileProblem)
                self._parts = {name: archive.read(part) for name, part in parts.items()}
        except TorchTheoryError:
            raise
        except Exception as error:  # every kind of packing has errors of its own
            raise self.damaged(error) from None
        if any(name.startswith("data/aotinductor/") for name in found):
            raise FileProblem(
                f"{file} holds compiled machine code (AOTInductor), which is refused: save the "
                "exported program itself, torch.export.save(torch.export.export(...), ...)"
            )
        models = [n[7:-5] for n in self._parts if re.fullmatch(r"models/[^/]+\.json", n)]
        if len(models) != 1:
            what = "no exported program" if not models else f"{len(models)} exported programs"
            raise FileProblem(
                f"{file} holds {what}; save one with torch.export.save of torch 2.8 or newer"
            )
        self.model = models[0]

    def document(self, name: str) -> dict[str, Any]:
        """A JSON part; `{}` in its name stands for the model's."""
        name = name.format(self.model)
        if name not in self._parts:
            raise FileProblem(f"{self.file} has no part {name}")
        if len(self._parts[name]) > LARGEST_JSON:
            raise self.damaged(ValueError(f"{name} is too long for a description"))
        try:
            document = parse_json(self._parts[name], name)
        except FileProblem as error:
            raise self.damaged(error) from None
        if not isinstance(document, dict):
            raise self.damaged(TypeError(f"{name} is not a JSON object"))
        return document

    def field(self, document: Any, *keys: str) -> Any:
        """A value deep inside a document."""
        for key in keys:
            if not isinstance(document, dict) or key not in document:
                raise self.damaged(KeyError(key))
            document = document[key]
        return document

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants by name; what shares memory still does.

        A few bytes can be said to be a tensor of any size, all of whose entries are the same
        (strides of 0); it is refused, as whatever is computed from it would not fit.
        """
        result = self._tensors()
        entries = sum(t.numel() * t.element_size() for t in result.values())
        refuse_too_large(entries, f"the weights of {self.file}", FileProblem)
        return result

    def _tensors(self) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        for folder in ("weights", "constants"):
            whole = f"data/{folder}/{self.model}.pt"
            if whole in self._parts:  # torch 2.8
                state = self._plain(self._parts[whole], whole) if self._parts[whole] else {}
                if not isinstance(state, dict):
                    raise self._refused(whole)
                for name, tensor in state.items():
                    result[name] = self._tensor_or_refuse(tensor, whole)
                continue
            config = self.document(f"data/{folder}/{{}}_{folder}_config.json")
            payloads = self.field(config, "config")
            made: dict[str, Tensor] = {}
            for name, payload in payloads.items():
                key = json.dumps(payload, sort_keys=True)
                if key not in made:
                    made[key] = self._payload(folder, payload)
                result[name] = made[key]
        return result

    def _payload(self, folder: str, payload: dict[str, Any]) -> Tensor:
        path = f"data/{folder}/{payload['path_name']}"
        if path not in self._parts:
            raise FileProblem(f"{self.file} has no part {path}")
        if not re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"]):
            raise FileProblem(
                f"{self.file} holds a pickled object ({path}), which can run code and is refused: "
                "export a model whose state is tensors"
            )
        if payload["use_pickle"]:
            return self._tensor_or_refuse(self._plain(self._parts[path], path), path)
        meta = payload["tensor_meta"]
        if meta["layout"] != STRIDED:
            raise UnsupportedModel(f"{path} of {self.file} is not a dense tensor")
        raw = self._parts[path]
        dtype = TYPES[meta["dtype"]]
        flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        if dtype is torch.bool:  # a byte that is neither 0 nor 1 is not a truth value
            flat = flat.view(torch.uint8) != 0
        sizes, strides = ([s["as_int"] for s in meta[k]] for k in ("sizes", "strides"))
        if 0 in sizes:
            return torch.empty(sizes, dtype=dtype)
        tensor = flat.as_strided(sizes, strides, meta["storage_offset"]["as_int"])
        grad = meta["requires_grad"] and tensor.is_floating_point()
        return nn.Parameter(tensor, requires_grad=bool(grad)) if payload["is_param"] else tensor

    def _plain(self, content: bytes, path: str) -> Any:
        try:
            return load_plain(io.BytesIO(content))
        except Exception:
            raise self._refused(path) from None

    def _tensor_or_refuse(self, value: object, path: str) -> Tensor:
        if not isinstance(value, Tensor):
            raise self._refused(path)
        odd = value.is_nested or value.is_quantized or value.is_meta
        if odd or value.layout is not torch.strided:
            raise UnsupportedModel(f"{path} of {self.file} is not a dense tensor")
        return value

    def _refused(self, path: str) -> FileProblem:
        return FileProblem(
            f"{path} of {self.file} is a pickle of more than tensors, which can run code and is "
            "refused: export a model whose state is tensors"
        )

    def damaged(self, error: BaseException) -> FileProblem:
        """One sentence for a file whose parts do not fit together."""
        kind = "" if isinstance(error, TorchTheoryError) else f"{type(error).__name__}: "
        sentence = " ".join(f"{kind}{error}".split())[:200]
        return FileProblem(f"{self.file} is not a readable .pt2 archive: {sentence}")
