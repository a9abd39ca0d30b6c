"""A user's code that raises, exits or is not ready: one sentence, and Ctrl-C still ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .calls import Call, refused

CODE = """\
import sys
import torch
from torch import nn

class Own(BaseException):
    pass

def make():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

def raises():
    raise Own("mine")

def leaves():
    sys.exit(0)

def lazy():
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))

def meta():
    return make().to("meta")

class Bare(nn.Module):
    def __init__(self):
        self.scale = 2.0
    def forward(self, x):
        return self.scale * x[:, :2]

def holds_bare():
    return nn.Sequential(nn.Linear(3, 3), Bare())

class Raises(nn.Module):
    error = Own("forward")
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        raise self.error

class Leaves(Raises):
    error = SystemExit(0)

class Stops(Raises):
    error = StopIteration()

class Deep(Raises):
    def forward(self, x):
        return self.forward(x)

class Interrupted(Raises):
    error = KeyboardInterrupt()

class Lookup(type):
    def __getattr__(cls, name):
        sys.exit(4)

class Computed(metaclass=Lookup):
    pass

def data():
    return torch.rand(20, 3), torch.arange(20) % 2

class RaisingData(torch.utils.data.Dataset):
    error = Own("row 3")
    def __len__(self):
        return 20
    def __getitem__(self, i):
        if i == 3:
            raise self.error
        return torch.rand(3), i % 2

class LeavingData(RaisingData):
    error = SystemExit(0)

class InterruptedData(RaisingData):
    error = KeyboardInterrupt()

class NoLength(RaisingData):
    def __len__(self):
        sys.exit(0)

class RaisingStream(torch.utils.data.IterableDataset):
    def __iter__(self):
        raise Own("stream")
"""

MODELS = {
    "raises": "zz_user_code:raises() raised Own: mine",
    "leaves": "zz_user_code:leaves() raised SystemExit: 0",
    "Computed.x": "zz_user_code:Computed.x raised SystemExit: 4",
    "lazy": "0.weight is a lazy tensor without values",
    "meta": "0.weight is on the meta device",
    "Bare": "the model (Bare) was not initialized: its __init__ must call super().__init__()",
    "holds_bare": "1 of the model (Bare) was not initialized",
    "Raises": "the model raised Own on inputs",
    "Leaves": "the model raised SystemExit on inputs",
    "Stops": "the model raised StopIteration on inputs",
    "Deep": "the model raised RecursionError on inputs",
}

DATA = {
    "raises": "zz_user_code:raises() raised Own: mine",
    "RaisingData": "reading the train data raised Own: row 3",
    "LeavingData": "reading the train data raised SystemExit: 0",
    "NoLength": "len of the train data raised SystemExit: 0",
    "RaisingStream": "reading the train data raised Own: stream",
}


def written() -> None:
    Path("zz_user_code.py").write_text(CODE, "utf-8")
    sys.modules.pop("zz_user_code", None)


def command(name: str, model: str, data: str) -> list[str]:
    only = ["--only", "risk"] if name == "audit" else []
    return [name, "--model", f"zz_user_code:{model}", "--data", f"zz_user_code:{data}", *only]


@pytest.mark.parametrize("name", ["audit", "explain"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_raises_or_is_not_ready(call: Call, name: str, model: str) -> None:
    written()
    assert MODELS[model] in refused(call(*command(name, model, "data")))


@pytest.mark.parametrize("name", ["audit", "explain"])
@pytest.mark.parametrize("data", DATA)
def test_data_that_raises(call: Call, name: str, data: str) -> None:
    written()
    assert DATA[data] in refused(call(*command(name, "make", data)))


@pytest.mark.parametrize("name", ["audit", "explain"])
@pytest.mark.parametrize(("model", "data"), [("Interrupted", "data"), ("make", "InterruptedData")])
def test_an_interrupt_ends_the_program(call: Call, name: str, model: str, data: str) -> None:
    written()
    outcome = call(*command(name, model, data))
    assert outcome.code == 130
    assert outcome.err == "torchtheory: interrupted; what was finished before is kept\n"
