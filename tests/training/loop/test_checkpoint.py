"""Killing a training at any step must not change a single bit of what it ends with."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from torch.utils.data import Dataset, IterableDataset

from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.training.loop.checkpoint import load_checkpoint, save_checkpoint
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.distillation import Distillation

# Everything with a state at once: dropout, batch normalization, augmentation with a generator and
# with the global ones, momentum, a schedule, early stopping, a teacher.
# The program reads "path pause init" lines and forks a process for each, so that torch is imported
# once; it answers with the process's id, and later with how it ended.
PROGRAM = """
import os, random, sys, time
import numpy as np, torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchtheory.training.losses.distillation import Distillation
from torchtheory.training.loop.trainer import fit

torch.optim.Adam([nn.Parameter(torch.zeros(1))])    # loads what torch loads late
torch.set_num_threads(1)
for line in sys.stdin:
    path, pause, init_seed = line.split()
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
else:
    sys.exit()

pause = float(pause)
torch.manual_seed(int(init_seed))     # the initial weights of a resumed run do not matter
g = torch.Generator().manual_seed(5)
x, y = torch.randn(150, 6, generator=g), torch.randint(0, 3, (150,), generator=g)
init = torch.Generator().manual_seed(9)
teacher = nn.Linear(6, 3)
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
with torch.no_grad():
    for p in [*teacher.parameters(), *([*net.parameters()] if init_seed == "0" else [])]:
        p.copy_(torch.randn(p.shape, generator=init) * 0.3)

def augment(x, generator):
    time.sleep(pause)
    noise = torch.randn(x.shape, generator=generator)
    return x + 0.1 * noise + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(1)

history = fit(
    net, (x, y), validation=0.2, epochs=6, batch_size=16, augment=augment, seed=3,
    optimizer=lambda p: torch.optim.Adam(p, lr=0.01), schedule=lambda o: CosineAnnealingLR(o, 50),
    schedule_each="step", distillation=Distillation(teacher, 2.0, 0.5), label_smoothing=0.1,
    patience=3, max_gradient_norm=1.0, checkpoint=path, checkpoint_every=0,
)
torch.save({"model": net.state_dict(), "history": history.to_json()}, path + ".result")
"""


class Launcher:
    """The program, waiting for lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, path: Path, pause: float, init: int = 0) -> int:
        """Start a training; its process id."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path} {pause} {init}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait()


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in ("seconds", "elapsed")}
    return [without_seconds(v) for v in value] if isinstance(value, list | tuple) else value


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, whatever is nested."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def test_killed_several_times_gives_the_same_bits(launcher: Launcher, tmp_path: Path) -> None:
    whole = tmp_path / "whole" / "run.pt"
    launcher.start(whole, 0.0)
    assert launcher.answer() == 0

    killed = tmp_path / "killed" / "run.pt"
    positions = []
    for attempt, steps in enumerate((3, 11, 8)):  # 8 steps an epoch: twice mid-epoch, once across
        process = launcher.start(killed, 0.03, init=attempt)
        seen: set[tuple[int, int]] = set()
        deadline = time.monotonic() + 60
        while len(seen) < steps and time.monotonic() < deadline:
            if killed.exists():
                state = torch.load(killed, weights_only=True)
                seen.add((state["epoch"], state["step"]))
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
        assert launcher.answer() == signal.SIGKILL, "the training ended before it could be killed"
        state = torch.load(killed, weights_only=True)
        positions.append((state["epoch"], state["step"]))
        assert not Path(f"{killed}.result").exists()
    assert positions == sorted(set(positions)), "each attempt must have got further"
    launcher.start(killed, 0.0, init=7)
    assert launcher.answer() == 0

    for suffix in ("", ".result"):
        one = torch.load(f"{whole}{suffix}", weights_only=True)
        other = torch.load(f"{killed}{suffix}", weights_only=True)
        assert same(without_seconds(one), without_seconds(other)), suffix


class Interrupted(Exception):
    pass


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def sample(n: int = 90) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """A data set with random transforms that use every global generator."""

    def __init__(self) -> None:
        self.x, self.y = sample()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = random.random() + float(np.random.rand()) + torch.randn(4)  # noqa: NPY002
        return self.x[i] + 0.1 * noise, self.y[i]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        x, y = sample()
        for row, label in zip(x, y, strict=True):
            yield row + 0.1 * torch.randn(4), label


@pytest.mark.parametrize("kind", ["pair", "dataset", "workers", "stream"])
def test_interrupted_at_every_step(kind: str, tmp_path: Path) -> None:
    data: Any = {
        "pair": sample(),
        "dataset": Noisy(),
        "workers": torch.utils.data.DataLoader(Noisy(), num_workers=1),
        "stream": Stream(),
    }[kind]
    calls = 0
    limit = 10**9

    def augment(x: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise Interrupted
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    def go(path: Path, seed: int) -> tuple[nn.Sequential, Any]:
        net = network(seed)
        history = fit(
            net,
            data,
            epochs=2,
            batch_size=32,
            optimizer="momentum",
            augment=augment,
            checkpoint=path,
            checkpoint_every=0,
            memory=1,
        )
        return net, history

    net, history = go(tmp_path / "whole.pt", 0)
    total, stops = calls, 0
    for length in (1, 2, 4) if kind == "pair" else (2,):
        path = tmp_path / f"{length}.pt"
        for attempt in range(total):
            calls, limit = 0, length
            try:
                resumed, again = go(path, attempt)
                break
            except Interrupted:
                stops += 1
        assert all(
            torch.equal(a, b) for a, b in zip(net.parameters(), resumed.parameters(), strict=True)
        )
        assert again == history
        assert same(
            without_seconds(torch.load(tmp_path / "whole.pt")), without_seconds(torch.load(path))
        )
    assert stops > 0


@pytest.mark.parametrize("place", ["validation", "callback"])
@pytest.mark.parametrize("kind", ["pair", "dataset", "workers", "stream"])
def test_interrupted_after_the_last_step_of_an_epoch(kind: str, place: str, tmp_path: Path) -> None:
    data: Any = {
        "pair": sample(),
        "dataset": Noisy(),
        "workers": torch.utils.data.DataLoader(Noisy(), num_workers=1),
        "stream": Stream(),
    }[kind]
    ends, limit = 0, 10**9

    def interrupt() -> None:
        nonlocal ends
        ends += 1
        if ends == limit:
            raise Interrupted

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        if place == "validation" and not torch.is_grad_enabled():
            interrupt()
        return nn.functional.cross_entropy(outputs, y)

    def callback(model: nn.Module, history: Any) -> None:
        if place == "callback":
            interrupt()

    def go(path: Path, seed: int) -> tuple[nn.Sequential, Any]:
        net = network(seed)
        history = fit(
            net,
            data,
            validation=sample(40),
            epochs=3,
            batch_size=30,
            loss=loss,
            optimizer="momentum",
            checkpoint=path,
            checkpoint_every=0,
            callbacks=[callback],
            memory=1,
        )
        return net, history

    net, history = go(tmp_path / "whole.pt", 0)
    for stop in (1, 2, 3):
        path = tmp_path / f"{stop}.pt"
        ends, limit = 0, stop
        with pytest.raises(Interrupted):
            go(path, 0)
        state = torch.load(path, weights_only=True)
        assert (state["epoch"], state["step"]) == (stop, 3), "all steps of the epoch are done"
        resumed, again = go(path, 5)
        assert again == history
        assert all(map(torch.equal, net.parameters(), resumed.parameters()))


def test_two_processes_on_one_checkpoint(launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    process = launcher.start(path, 0.05)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(FileProblem, match=r"run.pt is being written by another run; wait"):
        fit(network(), sample(), epochs=1, checkpoint=path)
    os.kill(process, signal.SIGKILL)
    assert launcher.answer() == signal.SIGKILL
    # the lock of a killed process holds nobody up: what is refused now is the other training
    with pytest.raises(FileProblem, match="belongs to another training"):
        fit(network(), sample(), epochs=1, checkpoint=path)
    path.unlink()
    fit(network(), sample(), epochs=1, checkpoint=path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.pt"], "no lock is left behind"


def test_more_epochs_continue_a_finished_training(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    short, long, straight = network(), network(3), network()
    fit(short, sample(), epochs=2, checkpoint=path)
    history = fit(long, sample(), epochs=5, checkpoint=path)
    assert history == fit(straight, sample(), epochs=5)
    assert all(
        torch.equal(a, b) for a, b in zip(long.parameters(), straight.parameters(), strict=True)
    )
    with pytest.raises(InvalidInput, match="has done 5 epochs already"):
        fit(network(), sample(), epochs=4, checkpoint=path)
    same_again = network(9)
    assert fit(same_again, sample(), epochs=5, checkpoint=path) == history
    assert all(
        torch.equal(a, b) for a, b in zip(long.parameters(), same_again.parameters(), strict=True)
    )


CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "batch_size": {"batch_size": 30},
    "the training data": {"train": sample(80)},
    "the validation data": {"validation": sample(20)},
    "the model": {"model": nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))},
    "the optimizer": {"optimizer": "sgd"},
    "lr of the optimizer": {"learning_rate": 0.5},
    "augment": {"augment": lambda x, generator: x},
    "label smoothing": {"label_smoothing": 0.1},
    "loss": {"loss": nn.CrossEntropyLoss()},
    "max_gradient_norm": {"max_gradient_norm": 1.0},
    "distillation": {"distillation": Distillation(nn.Linear(4, 3))},
    "schedule": {"schedule": lambda o: LinearLR(o)},
    "the task": {"task": "multiclass"},
}


@pytest.mark.parametrize("what", [w for w in CHANGES if w != "the task"])
def test_a_checkpoint_of_another_training_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    fit(network(), sample(), epochs=1, batch_size=45, checkpoint=path)
    arguments: dict[str, Any] = {
        "model": network(),
        "train": sample(),
        "epochs": 1,
        "batch_size": 45,
        "checkpoint": path,
    }
    with pytest.raises(FileProblem, match=f"another training: {what} was"):
        fit(**{**arguments, **CHANGES[what]})
    fit(**{**arguments, **CHANGES["the task"]})  # the task that was inferred anyway


def test_other_values_of_the_same_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    x, y = sample()
    fit(network(), (x, y), epochs=1, checkpoint=path)
    x[50, 1] += 1e-3
    with pytest.raises(FileProblem, match="the training data was 90 samples"):
        fit(network(), (x, y), epochs=1, checkpoint=path)


def test_a_schedule_fixes_the_number_of_epochs(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    fit(network(), sample(), epochs=2, schedule=lambda o: CosineAnnealingLR(o, 2), checkpoint=path)
    with pytest.raises(FileProblem, match="epochs was 2 and is now 3"):
        fit(
            network(),
            sample(),
            epochs=3,
            schedule=lambda o: CosineAnnealingLR(o, 3),
            checkpoint=path,
        )


def test_a_damaged_checkpoint_is_refused_and_not_used(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    fit(network(), sample(), epochs=1, checkpoint=path)
    good = path.read_bytes()
    trained = network(4)
    before = [p.clone() for p in trained.parameters()]
    for damage in (good[: len(good) // 2], good[:-1], good[:10], b"", b"not a checkpoint"):
        path.write_bytes(damage)
        with pytest.raises(FileProblem, match="is a damaged checkpoint or no checkpoint"):
            fit(trained, sample(), epochs=1, checkpoint=path)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))

    expected = torch.load(io.BytesIO(good), weights_only=True)
    generator = random.Random(0)
    refused = 0
    for _ in range(60):
        flipped = bytearray(good)
        flipped[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        try:
            content = load_checkpoint(path, expected["configuration"])
        except FileProblem:
            refused += 1
        else:  # a byte of padding between the parts of the archive: nothing was read from there
            assert same(content, expected)
    assert refused > 10


def test_a_file_of_the_users_is_not_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    with pytest.raises(FileProblem, match="give another path, or move the file away") as refused:
        fit(network(), sample(), epochs=1, checkpoint=path)
    assert "delete" not in str(refused.value)
    assert path.read_text() == "dear diary"


def test_a_checkpoint_is_read_as_carefully_as_weights(tmp_path: Path) -> None:
    """Tensors that a few bytes stand for, and sparse ones whose entries lie outside of them."""
    path = tmp_path / "run.pt"
    fit(network(), sample(), epochs=1, checkpoint=path)
    good = torch.load(path, weights_only=True)
    small = torch.zeros(2, 1, dtype=torch.long)
    outside = torch.sparse_coo_tensor(small + 5, torch.ones(1), (2, 2), check_invariants=False)
    for tensor, why in (
        (torch.zeros(1).expand(30000, 30000), r"would take [\d,.]+ GiB more than the file says"),
        (outside, "is a damaged checkpoint or no checkpoint"),
    ):
        torch.save({**good, "more": [{"deep": tensor}]}, path)
        with pytest.raises(FileProblem, match=why):
            load_checkpoint(path, good["configuration"])


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(network().state_dict(), path)
    with pytest.raises(FileProblem, match="is not a checkpoint of torchtheory"):
        fit(network(), sample(), epochs=1, checkpoint=path)
    torch.save(network(), path)  # a pickled module is code: never loaded
    with pytest.raises(FileProblem, match="is a damaged checkpoint or no checkpoint"):
        fit(network(), sample(), epochs=1, checkpoint=path)
    with pytest.raises(InvalidInput, match="is a directory"):
        fit(network(), sample(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(InvalidType, match="holds only tensors and plain data"):
        save_checkpoint(path, {}, {"model": object()})


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot be written"):
        fit(network(), sample(), epochs=1, checkpoint=tmp_path / "file" / "run.pt")


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_a_checkpoint_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    """No link is followed, no pipe waited for, neither at its place nor beside it."""
    mine = tmp_path / "thesis.tex"
    mine.write_text("mine")
    (tmp_path / "link.pt").symlink_to(mine)
    (tmp_path / "gone.pt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / ".a.pt.lock").symlink_to(mine)
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    for name in ("link.pt", "gone.pt", "pipe.pt", "a.pt"):
        with pytest.raises(FileProblem, match="give another place"):
            fit(nn.Linear(2, 2), (x, y), epochs=1, checkpoint=tmp_path / name)
    (tmp_path / "other.pt").write_text("mine")
    with pytest.raises(FileProblem, match="no checkpoint"):
        fit(nn.Linear(2, 2), (x, y), epochs=1, checkpoint=tmp_path / "other.pt")
    (tmp_path / ".b.pt.partial").symlink_to(mine)
    fit(nn.Linear(2, 2), (x, y), epochs=1, checkpoint=tmp_path / "b.pt")
    assert mine.read_text() == (tmp_path / "other.pt").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
