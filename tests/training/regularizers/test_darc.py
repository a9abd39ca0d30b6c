"""DARC, its optimum, the recipes and the files they read."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    FileProblem,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.data.cifar10 import PIXELS, load_cifar10, read_pickled_batch, read_records
from torchtheory.data.real import digits
from torchtheory.generalization.complexity.rademacher import exact_rademacher, finite_class
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.nets.image_networks import (
    CenterCrop,
    lenet,
    preactivation_resnet18,
    resnext29,
)
from torchtheory.training.loop.image_recipes import (
    RECIPES,
    FlipAndCrop,
    RandomAffineCrop,
    Recipe,
    recipe,
)
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many, mlp_family
from torchtheory.training.regularizers.darc import (
    WithDARC1,
    darc1,
    darc_with_signs,
    free_optimum,
    largest_size,
    output_size,
)


def test_by_hand() -> None:
    z = torch.tensor([[1.0, -2.0, 0.0], [3.0, -3.0, 1.0]])
    assert darc1(z, 2.0).item() == 5.0  # 2 / 2 · (2 + 3)
    signs = torch.tensor([1.0, -1.0])  # sums -2, 1, -1
    assert darc_with_signs(z, signs, 2.0).item() == 1.0
    assert darc_with_signs(z, signs, 2.0, absolute="inside").item() == 2.0
    assert darc_with_signs(z, -signs, 2.0, absolute="none").item() == 2.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_properties(samples: int, classes: int, seed: int) -> None:
    z = torch.randn(samples, classes, dtype=torch.float64,
                    generator=torch.Generator().manual_seed(seed))  # fmt: skip
    signs = all_labelings(samples)
    for absolute in ("outside", "inside", "none"):
        values = torch.stack([darc_with_signs(z, s, 1.0, absolute=absolute) for s in signs])
        assert values.max() <= darc1(z, 1.0) + 1e-12
        if absolute == "none":
            exact = exact_rademacher(finite_class(z.mT), samples)
            assert values.mean().item() == pytest.approx(exact, abs=1e-12)
    other = torch.randn_like(z)
    assert darc1((z + other) / 2) <= (darc1(z) + darc1(other)) / 2 + 1e-12
    assert darc1(3 * z).item() == pytest.approx(3 * darc1(z).item())
    assert torch.equal(darc_with_signs(z, seed), darc_with_signs(z, seed))


def test_gradient_and_transforms() -> None:
    z = torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 3, (5, 7), generator=torch.Generator().manual_seed(1))
    together = torch.vmap(WithDARC1(0.3))(z, y)
    alone = torch.stack([F.cross_entropy(a, b) + darc1(a, 0.3) for a, b in zip(z, y, strict=True)])
    torch.testing.assert_close(together, alone)
    slope = torch.func.grad(darc1)(z[0])
    largest = int(z[0].abs().sum(0).argmax())
    assert bool((slope[:, [k for k in range(3) if k != largest]] == 0).all())
    torch.testing.assert_close(slope[:, largest], 0.064 / 7 * z[0, :, largest].sign())


@pytest.mark.parametrize(("classes", "strength"), [(2, 0.3), (4, 0.064), (10, 1.0), (3, 2.5)])
def test_free_optimum(classes: int, strength: float) -> None:
    best = free_optimum(classes, strength)
    labels = torch.arange(classes)
    at_best = best.margin * F.one_hot(labels, classes).double()
    value = WithDARC1(strength)
    assert value(at_best, labels).item() == pytest.approx(best.objective)
    assert darc1(at_best, 1.0).item() == pytest.approx(best.size)
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(50):
            step = torch.randn(classes, classes, dtype=torch.float64, generator=generator)
            assert value(at_best + scale * step, labels) >= best.objective - 1e-12
    assert free_optimum(classes, 0.0).objective == 0.0


@given(st.integers(2, 6), st.integers(0, 10_000), st.sampled_from([0.01, 0.3, 1.0]))
def test_size_and_objective(classes: int, seed: int, strength: float) -> None:
    """No logits, whatever their labels, are larger than their objective allows."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (7,), generator=generator)
    spread = 10 ** (2 * torch.rand(1, generator=generator).item() - 1)
    z = spread * torch.randn(7, classes, dtype=torch.float64, generator=generator)
    z = z + 5 * torch.rand(1, generator=generator).double() * F.one_hot(labels, classes)
    objective = WithDARC1(strength)(z, labels).item()
    assert objective >= free_optimum(classes, strength).objective
    assert darc1(z, 1.0).item() <= largest_size(objective, classes, strength) + 1e-9


def test_largest_size_by_hand() -> None:
    labels = torch.arange(4)
    z = 6.0 * F.one_hot(labels, 4).double()  # right logits 6, others 0: size 3/2
    objective = WithDARC1(0.3)(z, labels).item()
    assert objective == pytest.approx(math.log(1 + 3 * math.exp(-6)) + 0.3 * 1.5)
    assert largest_size(objective, 4, 0.3) == pytest.approx(1.5)
    with pytest.raises(InvalidInput, match="least is"):
        largest_size(0.0, 4, 0.3)
    with pytest.raises(InvalidInput, match="any size"):
        largest_size(1.0, 4, 0.0)


def test_in_training() -> None:
    x, y = digits()
    x, y = x[:128], y[:128]
    net = mlp_family(64, widths=[16], outputs=10, seeds=[0])[0]
    by_fit, by_hand = copy.deepcopy(net), copy.deepcopy(net)
    loss = WithDARC1(0.5)
    alone = torch.stack([loss(net(x[i : i + 1]), y[i : i + 1]) for i in range(8)])
    assert not torch.allclose(alone.mean(), loss(net(x[:8]), y[:8]))  # no mean of samples
    history = fit(
        by_fit, (x, y), epochs=5, batch_size=128, optimizer="sgd", learning_rate=0.5, loss=loss
    )
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        last = loss(by_hand(x), y)
        last.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert history.train_losses[-1] == pytest.approx(last.item(), rel=1e-4)
    torch.testing.assert_close(by_fit(x), by_hand(x), rtol=1e-4, atol=1e-5)
    assert output_size(net, x, chunk=50) == pytest.approx(
        net(x).abs().mean(0).max().item(), rel=1e-5
    )


def test_many_at_once() -> None:
    """`fit_many` with DARC1 takes every network where DARC1 in a loop of one's own would."""
    x, y = digits()
    x, y = x[:64], y[:64]
    nets = mlp_family(64, widths=[8], outputs=10, seeds=[0, 1])
    many = fit_many(nets, (x, y), epochs=3, batch_size=64, optimizer="sgd", learning_rate=0.5,
                    loss=WithDARC1(0.5))  # fmt: skip
    for net, outputs in zip(nets, many.outputs(x), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            WithDARC1(0.5)(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        torch.testing.assert_close(outputs, net(x).detach(), rtol=1e-4, atol=1e-4)


def test_networks() -> None:
    x = torch.rand(2, 1, 28, 28)
    assert lenet(24)(x).shape == lenet(28)(x).shape == lenet(24, padded=True)(x).shape == (2, 10)
    assert CenterCrop(28)(x) is not None
    images = torch.rand(2, 3, 32, 32)
    with torch.device("meta"):
        small, large = preactivation_resnet18(), resnext29()
    assert small(images.to("meta")).shape == large(images.to("meta")).shape == (2, 10)
    # stem, blocks of each stage (3x3 convolutions, shortcuts, norms), last norm and dense layer
    convolutions, norms, before = 3 * 64 * 9, 0, 64
    for width in (64, 128, 256, 512):
        convolutions += 9 * (before * width + 3 * width * width)
        convolutions += before * width if before != width else 0
        norms += 2 * (before + 3 * width)
        before = width
    expected = convolutions + norms + 2 * 512 + 513 * 10
    assert sum(p.numel() for p in small.parameters()) == expected
    with pytest.raises(InvalidInput, match="leave nothing"):
        lenet(12)
    with pytest.raises(ShapeMismatch, match="no 24 x 24"):
        CenterCrop(24)(torch.zeros(1, 1, 20, 20))


def test_augmentation() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(64, 1, 28, 28)
    moved = RandomAffineCrop()(x, generator)
    assert moved.shape == (64, 1, 24, 24)
    assert bool(((moved >= 0) & (moved <= 1 + 1e-6)).all())
    crops = RandomAffineCrop(24, 0.0, 0.0)(x[:1].expand(400, -1, -1, -1), generator)
    corners = {
        (i, j)
        for c in crops
        for i in range(5)
        for j in range(5)
        if torch.allclose(c, x[0, :, i : i + 24, j : j + 24], atol=1e-4)
    }
    assert len(corners) == 25
    bright = torch.zeros(1, 1, 29, 29)
    bright[0, 0, 14, 22] = 1.0  # 8 to the right of the center
    turned = RandomAffineCrop(29, 15.0, 0.0)(bright.expand(500, -1, -1, -1), generator)
    place = turned.flatten(1).argmax(1)
    height = (place // 29 - 14).double()
    assert -3 < height.min() < -1 < 1 < height.max() < 3  # 8 sin 15° = 2.07
    images = torch.arange(2 * 3 * 32 * 32.0).reshape(2, 3, 32, 32)
    same = FlipAndCrop(0, 0.0)(images, generator)
    assert torch.equal(same, images)
    assert torch.equal(FlipAndCrop(0, 1.0)(images, generator), images.flip(-1))
    with pytest.raises(ShapeMismatch):
        FlipAndCrop()(torch.zeros(3, 32, 32), generator)
    with pytest.raises(InvalidInput):
        RandomAffineCrop(24)(torch.zeros(1, 1, 20, 20), generator)


def test_recipes() -> None:
    x, y = digits()
    images = F.interpolate(x[:96].reshape(-1, 1, 8, 8), size=28, mode="bilinear")
    model, history = recipe("mnist").train((images, y[:96]), epochs=1, darc1_strength=0.064)
    again, _ = recipe("mnist").train((images, y[:96]), epochs=1, darc1_strength=0.064)
    assert len(history.train_losses) == 1
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    steps = Recipe(lambda: nn.Linear(4, 2), 20, 1.0, 0.0, milestones=(10, 15))
    _, history = steps.train((torch.randn(8, 4), torch.arange(8) % 2), epochs=4)
    assert [e.learning_rate for e in history.epochs] == pytest.approx([1.0, 1.0, 0.1, 0.01])
    large = RECIPES["cifar10-resnext"]
    assert (large.epochs, large.learning_rate, large.momentum) == (300, 0.05, 0.9)
    assert (large.weight_decay, large.nesterov) == (5e-4, True)
    with pytest.raises(UnknownName, match="mnist"):
        recipe("mnits")


def test_cifar10_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    monkeypatch.setenv("TORCHTHEORY_DATA", str(tmp_path))
    with pytest.raises(FileProblem, match="not on this machine"):
        load_cifar10()
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for version in ("py", "bin"):
        place = tmp_path / f"cifar-10-batches-{version}"
        place.mkdir()
        kept = {}
        for name in names:
            pixels = random.integers(0, 256, (2300, PIXELS), dtype=np.uint8)[:12]
            labels = random.integers(0, 10, 12).tolist()
            kept[name] = pixels, labels
            if version == "py":
                batch = {"batch_label": "one", "labels": labels, "data": pixels,
                         "filenames": ["a.png"] * 12}  # fmt: skip
                (place / name).write_bytes(pickle.dumps(batch, protocol=2))
            else:
                rows = np.hstack([np.array(labels, np.uint8)[:, None], pixels])
                (place / f"{name}.bin").write_bytes(rows.tobytes())
        (x, y), (tx, ty) = load_cifar10()
        assert x.shape == (60, 3, 32, 32)
        assert ty.tolist() == kept["test_batch"][1]
        assert torch.equal(tx.reshape(12, -1), torch.from_numpy(kept["test_batch"][0]))
        assert y[12:24].tolist() == kept["data_batch_2"][1]
    assert (
        read_pickled_batch(tmp_path / "cifar-10-batches-py" / "test_batch")[0].dtype == torch.uint8
    )
    old = tmp_path / "of-python-2"
    image = bytes(random.integers(0, 256, PIXELS, dtype=np.uint8))
    old.write_bytes(
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03K\x07aU\x04dataT"
        + PIXELS.to_bytes(4, "little") + image + b"u."
    )  # fmt: skip
    x, y = read_pickled_batch(old)
    assert y.tolist() == [7]
    assert bytes(x.flatten().tolist()) == image
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x80\x02nonsense")
    for read in (read_records, read_pickled_batch):
        with pytest.raises(FileProblem):
            read(bad)
    with pytest.raises(FileProblem, match="cannot read"):
        read_records(tmp_path / "none")


def test_refused() -> None:
    z = torch.zeros(4, 3)
    with pytest.raises(ShapeMismatch):
        darc1(torch.zeros(4))
    with pytest.raises(EmptyData):
        darc1(torch.zeros(0, 3))
    with pytest.raises(InvalidType):
        darc1(torch.zeros(4, 3, dtype=torch.long))
    with pytest.raises(InvalidInput, match="strength"):
        darc1(z, -1.0)
    with pytest.raises(ShapeMismatch, match="as many signs"):
        darc_with_signs(z, torch.ones(3))
    with pytest.raises(InvalidInput, match="absolute"):
        darc_with_signs(z, 0, absolute="maybe")
    with pytest.raises(InvalidInput, match="classes"):
        free_optimum(1)
    with pytest.raises(EmptyData):
        output_size(nn.Linear(2, 2), torch.zeros(0, 2))
