"""Where readings go: files, figures, notebooks, TensorBoard, callbacks."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchtheory.audit.tracking.tracker import Tracker, track
from torchtheory.core.errors import (
    FileProblem,
    InvalidInput,
    MissingPackage,
)
from torchtheory.training.loop.trainer import fit

pytestmark = pytest.mark.draws


def test_json_figure_table_and_notebook(
    tmp_path: Path, blobs: Any, small_net: Any, descend: Any
) -> None:
    names = ["loss", "sharpness", "normalized-margin"]
    found = descend(small_net(), 10, test=blobs(30, seed=2), quantities=names)
    where = found.save(tmp_path / "new" / "place")
    assert (where / "tracking.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in where.iterdir()) == ["tracking.json", "tracking.png"]
    data = json.loads((where / "tracking.json").read_text(encoding="utf-8"))
    by_name = {q["name"]: q for q in data["quantities"]}
    assert by_name["loss"]["series"]["test"]["steps"] == [0, 5, 10]
    low, value = (by_name["loss"]["series"]["test"][k][0] for k in ("low", "values"))
    assert low < value
    assert by_name["normalized-margin"]["reason"].startswith("not applicable")
    table = found.table()
    assert table.columns[0] == "step"
    assert [row[0] for row in table.rows] == [0, 5, 10]
    column = table.columns.index("sharpness: largest eigenvalue")
    assert [row[column] for row in table.rows] == found.values("sharpness")[1]
    cell = found._repr_html_()
    assert "data:image/png;base64," in cell
    assert "<script" not in cell
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot write"):
        found.save(tmp_path / "file")


def test_names_of_layers_are_escaped_in_a_notebook(blobs: Any) -> None:
    net = nn.Module()
    net.add_module("<b>", nn.Linear(4, 3))
    net.forward = lambda x: net._modules["<b>"](x)  # type: ignore[method-assign,misc]
    found = track(net, blobs(), quantities=["weight-norms"]).result()
    assert "<b>" not in found._repr_html_()


def test_a_deep_network_gives_a_figure_with_few_names(blobs: Any) -> None:
    layers = [layer for _ in range(12) for layer in (nn.Linear(4, 4), nn.Tanh())]
    found = track(
        nn.Sequential(*layers, nn.Linear(4, 3)), blobs(), quantities=["gradient-norms"]
    ).result()
    assert len(found["gradient-norms"]) == 14
    svg = found.plot().svg or ""
    assert [name for name in ("all", "0", "12", "24", "10") if f">{name}</text>" in svg] == [
        "all",
        "0",
        "12",
        "24",
    ]


def test_nothing_measured_is_no_figure(tmp_path: Path, blobs: Any) -> None:
    found = track(nn.Linear(4, 3), blobs(), quantities=["dead-units"]).result()
    with pytest.raises(InvalidInput, match="nothing to draw"):
        found.plot()
    assert [p.name for p in found.save(tmp_path).iterdir()] == ["tracking.json"]
    assert "no pointwise activation" in found._repr_html_()


def test_as_a_callback_of_fit_it_counts_epochs_and_changes_nothing(
    blobs: Any, small_net: Any
) -> None:
    x, y = blobs()
    nets = small_net(), small_net()
    options: dict[str, Any] = {"epochs": 6, "optimizer": "sgd", "learning_rate": 0.1}
    fit(nets[0], (x, y), **options)
    tracker = track(
        nets[1], (x, y), every=2, learning_rate=0.1, overhead=None, quantities=["loss", "sharpness"]
    )
    fit(nets[1], (x, y), callbacks=[tracker], **options)
    found = tracker.result()
    assert found.unit == "epoch"
    assert found.steps == (0, 2, 4, 6)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InvalidInput, match="another model"):
        tracker(small_net())


def test_tensorboard_gets_every_reading_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_net: Any, descend: Any
) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, directory: str) -> None:
            assert directory == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    found = descend(small_net(), 5, quantities=["loss"])
    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    assert found.to_tensorboard(tmp_path) == tmp_path
    steps, values = found.values("loss")
    expected = [("loss/train", v, s) for s, v in zip(steps, values, strict=True)]
    assert written == [*expected, ("closed", 0.0, 0)]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackage, match="pip install tensorboard"):
        found.to_tensorboard(tmp_path)


def test_lightning_is_asked_for_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, blobs: Any, small_net: Any
) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"tracker\.step"):
        track(small_net(), blobs(), quantities=["loss"]).lightning()


def test_the_callback_follows_steps_of_the_optimizer(
    monkeypatch: pytest.MonkeyPatch, blobs: Any, small_net: Any
) -> None:
    stand_in = types.ModuleType("lightning.pytorch")
    stand_in.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    net = small_net()
    tracker = track(net, blobs(), every=1, overhead=None, quantities=["sharpness"])
    callback = tracker.lightning()
    assert isinstance(callback, stand_in.Callback)
    trainer = types.SimpleNamespace(
        global_step=0, optimizers=[torch.optim.SGD(net.parameters(), lr=0.25)]
    )
    callback.on_train_start(trainer, net)
    for step in (0, 1, 1, 2):  # gradients are accumulated over two batches
        trainer.global_step = step
        callback.on_train_batch_end(trainer, net, None, None, 0)
    callback.on_train_end(trainer, net)
    found = tracker.result()
    assert found.steps == (0, 1, 2)
    assert found.values("sharpness", "stability limit") == ([1, 2], [8.0, 8.0])


@pytest.mark.skipif(
    not any(importlib.util.find_spec(p) for p in ("lightning", "pytorch_lightning")),
    reason="Lightning is not installed",
)
def test_a_real_lightning_trainer(blobs: Any, small_net: Any) -> None:
    try:
        pl: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        pl = importlib.import_module("pytorch_lightning")

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(callbacks: list[Any], module: Any) -> None:
        pl.seed_everything(0)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(*blobs()), batch_size=20, shuffle=True))

    plain, watched = Module(), Module()
    train([], plain)
    tracker = track(watched.net, blobs(), every=2, overhead=None)
    train([tracker.lightning()], watched)
    found = tracker.result()
    assert isinstance(tracker, Tracker)
    assert found.steps == (0, 2, 4, 6)
    assert found.values("sharpness", "stability limit")[1] == [20.0, 20.0, 20.0]
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
