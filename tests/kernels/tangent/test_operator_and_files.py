"""The kernel as an operator, and on the disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchtheory.core.errors import (
    FileProblem,
    InvalidType,
)
from torchtheory.kernels.tangent import kernel as tangent
from torchtheory.kernels.tangent import tiles
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.operator import jacobian_operator, ntk_operator
from torchtheory.linalg.conjugate_gradients import conjugate_gradients
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.operators import LinearOperator


@pytest.mark.parametrize("name", ["mlp", "convolutions", "lstm", "language model", "weight norm"])
@pytest.mark.parametrize("memory", ["1GiB", 5000])
def test_operator_equals_the_kernel(name: str, memory: str | int, made: Any, jacobian: Any) -> None:
    model, x = made(name)
    written = jacobian(model, x).flatten(0, 1)
    generator = torch.Generator().manual_seed(0)
    u, v = (
        torch.randn(size, 2, dtype=torch.float64, generator=generator) for size in written.shape
    )
    j = jacobian_operator(model, x, memory=memory)
    assert j.shape == written.shape
    assert torch.allclose(j @ v, written @ v, atol=1e-11)
    assert torch.allclose(j.T @ u, written.T @ u, atol=1e-11)
    kernel = ntk_operator(model, x, memory=memory)
    assert torch.allclose(kernel @ u, written @ (written.T @ u), atol=1e-10)
    some = len(written) // len(x) * 2
    cross = ntk_operator(model, x, x[:2], memory=memory)
    expected = written @ (written[:some].T @ u[:some])
    assert torch.allclose(cross @ u[:some], expected, atol=1e-10)
    blocks = empirical_ntk(model, x).permute(0, 2, 1, 3).reshape(len(written), -1)
    assert torch.allclose(blocks @ u, kernel @ u, atol=1e-10)


def test_operator_serves_the_solvers(made: Any) -> None:
    model, x = made("mlp")
    operator = ntk_operator(model, x)
    size = operator.shape[0]
    matrix = operator.to_dense()
    ridge = operator + 0.1 * LinearOperator.identity(size, dtype=torch.float64)
    y = torch.randn(size, dtype=torch.float64)
    solved = conjugate_gradients(ridge, y, tolerance=1e-10)
    exact = torch.linalg.solve(matrix + 0.1 * torch.eye(size, dtype=torch.float64), y)
    assert torch.allclose(solved.x, exact, atol=1e-7)
    top = top_eigenpairs(operator, 2)
    assert torch.allclose(top.values, torch.linalg.eigvalsh(matrix).flip(0)[:2], rtol=1e-6)


def test_file_holds_the_kernel_and_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    monkeypatch.setattr(tangent, "BLOCK", 4)
    model, _ = made("mlp")
    x = torch.randn(11, 4, dtype=torch.float64)
    path = tmp_path / "kernel.npy"
    mapped = empirical_ntk(model, x, file=path)
    assert torch.equal(mapped, empirical_ntk(model, x))
    assert np.array_equal(np.load(path, allow_pickle=False), mapped.numpy())
    note = path.with_name("kernel.npy.tiles")
    lines = note.read_text().splitlines()
    names = [line.rpartition(" ")[0] for line in lines[1:]]
    assert names == ["0 0", "0 1", "0 2", "1 2", "1 1", "2 2"]
    assert "computation" in json.loads(lines[0])

    # finished tiles are not computed again, an unfinished one is
    array = np.load(path, mmap_mode="r+")
    array[10, 10] = 7.0
    array.flush()
    note.write_text("\n".join(lines[:-1]) + "\n2 ")  # killed while it noted the last tile
    filled = []
    monkeypatch.setattr(
        tangent, "_fill_block", lambda *a, made=tangent._fill_block: (filled.append(1), made(*a))
    )
    again = empirical_ntk(model, x, file=path)
    assert len(filled) == 1
    assert torch.equal(again, empirical_ntk(model, x))
    assert note.read_text().splitlines() == lines
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernel.npy", "kernel.npy.tiles"]


def test_a_changed_file_is_not_taken_for_the_result(tmp_path: Path, made: Any) -> None:
    model, x = made("mlp")
    path, note = tmp_path / "kernel.npy", tmp_path / "kernel.npy.tiles"
    empirical_ntk(model, x, file=path)
    good, noted = path.read_bytes(), note.read_bytes()
    replaced = tmp_path / "other.npy"
    np.save(replaced, np.zeros((len(x), len(x), 3, 3)))
    moved = bytearray(good)
    moved[-1] ^= 1
    damaged = {
        "cut off": good[:-100],
        "empty": b"",
        "no array": b"something else entirely",
        "zeros of its shape": replaced.read_bytes(),
        "another type": good.replace(b"<f8", b"<f4"),
        "a bit": bytes(moved),
    }
    for kind, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(FileProblem, match="is not as this computation left it; delete it"):
            empirical_ntk(model, x, file=path)
        assert path.read_bytes() == content, kind
    path.write_bytes(good)
    for line in (b"7 7 00000000\n", b"00 0 00000000\n", b"-1 0 00000000\n", b"9" * 9999 + b"\n"):
        note.write_bytes(noted + line)
        with pytest.raises(FileProblem, match=r"kernel\.npy\.tiles is damaged; delete it"):
            empirical_ntk(model, x, file=path)
    note.write_bytes(noted)
    path.unlink()
    with pytest.raises(FileProblem, match=r"cannot write .*kernel\.npy"):
        empirical_ntk(model, x, file=path)
    path.write_bytes(good)
    for content in (b"\xff\xfe\x00", b"\x80" + noted, noted[:5]):
        note.write_bytes(content)
        with pytest.raises(FileProblem, match="not the same computation"):
            empirical_ntk(model, x, file=path)
    for line in (b"\xff\xfe\n", b"0 0\n", b"0 zero 12345678\n"):
        note.write_bytes(noted + line)
        with pytest.raises(FileProblem, match=r"the note .* is damaged"):
            empirical_ntk(model, x, file=path)
    note.write_bytes(noted)
    assert torch.equal(empirical_ntk(model, x, file=path), empirical_ntk(model, x))


def test_a_full_disk_is_met_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    model, x = made("mlp")
    path = tmp_path / "kernel.npy"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tiles, "_reserve", full)
        with pytest.raises(FileProblem, match=r"cannot write .*: No space left on device"):
            empirical_ntk(model, x, file=path)
    assert not list(tmp_path.iterdir())
    # where the system cannot reserve, zeros are written
    with monkeypatch.context() as patch:
        patch.delattr(os, "posix_fallocate", raising=False)
        expected = empirical_ntk(model, x)
        assert torch.equal(empirical_ntk(model, x, file=path), expected)
    assert path.stat().st_blocks * 512 >= expected.nbytes


def test_a_second_process_on_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.npy"
    first = subprocess.Popen(
        [sys.executable, "-c", SLOW_OR_FAST, str(path), "slow"], env=ONE_THREAD
    )
    note = tmp_path / "kernel.npy.tiles"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (note.exists() and note.read_text().count("\n") > 1):
        time.sleep(0.02)
    net, x = nn.Linear(2, 1), torch.ones(2, 2)
    with pytest.raises(FileProblem, match=r"kernel\.npy is being written by another run"):
        empirical_ntk(net, x, file=path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(net, x, file=path)


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
@pytest.mark.parametrize("ending", ["", ".tiles"])
def test_links_are_not_followed_and_pipes_not_waited_for(
    tmp_path: Path, made: Any, ending: str
) -> None:
    model, x = made("mlp")
    for name, target in (("link.npy", "mine"), ("gone.npy", "nowhere")):
        (tmp_path / f"{name}{ending}").symlink_to(tmp_path / target)
    os.mkfifo(tmp_path / f"pipe.npy{ending}")
    (tmp_path / "mine").write_text("mine")
    for name in ("link.npy", "gone.npy", "pipe.npy"):
        with pytest.raises(FileProblem, match="give another place"):
            empirical_ntk(model, x, file=tmp_path / name)
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_something_else_is_refused(tmp_path: Path, made: Any) -> None:
    model, x = made("mlp")
    path = tmp_path / "kernel.npy"
    empirical_ntk(model, x, file=path)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, outputs="trace", file=path)
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    model, x = made("convolutions")
    path = tmp_path / "images.npy"
    empirical_ntk(model, x, file=path)
    model[1].running_var.mul_(2)
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    model[1].running_var.div_(2)
    model[2] = nn.Tanh()
    with pytest.raises(FileProblem, match="not the same computation"):
        empirical_ntk(model, x, file=path)
    other = tmp_path / "mine.npy"
    other.write_bytes(b"my own file")
    with pytest.raises(FileProblem, match="choose another"):
        empirical_ntk(model, x, file=other)
    assert other.read_bytes() == b"my own file"
    with pytest.raises(FileProblem, match="cannot write"):
        empirical_ntk(model, x, file=tmp_path / "no such folder" / "kernel.npy")
    half, ones = nn.Linear(2, 1).bfloat16(), torch.ones(2, 2).bfloat16()
    with pytest.raises(InvalidType, match=r"\.npy file cannot hold torch.bfloat16"):
        empirical_ntk(half, ones, file=tmp_path / "half.npy")


SLOW_OR_FAST = textwrap.dedent(
    """
    import sys, time
    import torch
    from torch import nn
    from torchtheory.kernels.tangent import kernel as tangent
    from torchtheory.kernels.tangent import tiles
    from torchtheory.kernels.tangent.features import Factors

    tangent.BLOCK, tiles.SECONDS_BETWEEN_MARKS = 10, 0.0
    if sys.argv[2] == "slow":
        add = Factors.add_to
        Factors.add_to = lambda *a: (time.sleep(0.05), add(*a))[1]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(60, 4)
    made = tangent.empirical_ntk(net, x, outputs="trace", file=sys.argv[1])
    print(float((made - tangent.empirical_ntk(net, x, outputs="trace")).abs().max()))
    """
)
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_killed_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "kernel.npy"
    note = tmp_path / "kernel.npy.tiles"
    first = subprocess.Popen(
        [sys.executable, "-c", SLOW_OR_FAST, str(path), "slow"], env=ONE_THREAD
    )
    end = time.monotonic() + 60
    while time.monotonic() < end and not (note.exists() and note.read_text().count("\n") > 4):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = note.read_text().splitlines()
    assert 4 <= len(before) < 22  # 21 tiles and the first line
    done = subprocess.run(
        [sys.executable, "-c", SLOW_OR_FAST, str(path), "fast"],
        env=ONE_THREAD, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == 0.0
    after = note.read_text().splitlines()
    assert len(after) == 22
    assert len(set(after)) == 22
