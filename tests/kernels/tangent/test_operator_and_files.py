"""The kernel as an operator, and on the disk."""

from __future__ import annotations

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
from torchtheory.kernels import tangent
from torchtheory.kernels.tangent import empirical_ntk
from torchtheory.kernels.tangent_operator import jacobian_operator, ntk_operator
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
    assert lines[1:] == ["0 0", "0 1", "0 2", "1 2", "1 1", "2 2"]
    assert "computation" in json.loads(lines[0])

    # finished tiles are not computed again: a mark in the file survives, an unfinished tile not
    array = np.load(path, mmap_mode="r+")
    array[0, 0], array[10, 10] = 7.0, 7.0
    array.flush()
    note.write_text("\n".join(lines[:-1]) + "\n2 ")  # killed while it noted the last tile
    again = empirical_ntk(model, x, file=path)
    assert bool((again[0, 0] == 7).all())
    assert torch.equal(again[10, 10], mapped.clone()[10, 10] * 0 + empirical_ntk(model, x)[10, 10])
    assert note.read_text().splitlines() == lines


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


def test_killed_and_resumed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        import torch
        from torch import nn
        from torchtheory.kernels import tangent, tiles
        from torchtheory.kernels.tangent_features import Factors

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
    path = tmp_path / "kernel.npy"
    note = tmp_path / "kernel.npy.tiles"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([sys.executable, "-c", script, str(path), "slow"], env=environment)
    end = time.monotonic() + 60
    while time.monotonic() < end and not (note.exists() and note.read_text().count("\n") > 4):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = note.read_text().splitlines()
    assert 4 <= len(before) < 22  # 21 tiles and the first line
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), "fast"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == 0.0
    after = note.read_text().splitlines()
    assert len(after) == 22
    assert len(set(after)) == 22
