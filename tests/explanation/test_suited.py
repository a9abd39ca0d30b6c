"""Rules that are chosen by the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.explanation.composites import preset
from torchtheory.explanation.explain import explain
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.rules import Epsilon, WSquare, ZBox
from torchtheory.explanation.suited import suited_rules


def image_network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    return net.eval()


class Normalizes(nn.Module):
    """Images that are normalized inside the network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = image_network()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net((x - 0.5) / 0.2)
        return out


class OwnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys, self.read = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.keys(x) @ x.transpose(1, 2), -1)
        out: Tensor = self.read((weights @ x).mean(1))
        return out


class EndsInSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = image_network()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.net(x), 1)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.read = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(self.cells(x)[0][:, -1])
        return out


def test_images_have_gamma_and_the_box_of_their_pixels() -> None:
    x = torch.rand(6, 2, 8, 8) * torch.tensor([1.0, 5.0]).view(2, 1, 1) - 1
    rules = suited_rules(image_network(), x)
    box = rules.choices[0][1]
    assert isinstance(box, ZBox)
    assert torch.equal(torch.as_tensor(box.low).flatten(), x.amin((0, 2, 3)))
    assert torch.equal(torch.as_tensor(box.high).flatten(), x.amax((0, 2, 3)))
    assert "3 convolutions" in rules.because
    assert "box" in rules.because


def test_pixels_that_the_first_layer_does_not_see_have_no_box() -> None:
    rules = suited_rules(Normalizes(), torch.rand(3, 2, 8, 8))
    assert isinstance(rules.choices[0][1], WSquare)
    assert "does not see the inputs themselves" in rules.because


def test_softmax_at_the_end_is_no_attention() -> None:
    assert "convolutions" in suited_rules(EndsInSoftmax(), torch.rand(3, 2, 8, 8)).because


def test_other_networks() -> None:
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert "attends" in suited_rules(encoder, torch.randn(2, 3, 4)).because
    assert "attends" in suited_rules(OwnAttention(), torch.randn(2, 3, 4)).because
    recurrent = suited_rules(Reads(), torch.randn(2, 5, 3))
    assert "recurrent" in recurrent.because
    assert recurrent.otherwise == Epsilon(1e-3)
    dense = suited_rules(nn.Linear(3, 2), torch.randn(2, 3))
    assert dense.because == ""
    assert dense.choices == ()
    assert dense.otherwise == Epsilon()


def test_explanations_take_them_and_say_so() -> None:
    net, x = image_network(), torch.rand(4, 2, 8, 8)
    found = explain(net, x, ["lrp"])
    low, high = x.amin((0, 2, 3), keepdim=True)[0], x.amax((0, 2, 3), keepdim=True)[0]
    by_hand = lrp(net, x, rules=preset("image_cnn", low=low, high=high))
    assert torch.equal(found.first.flat, by_hand.flat)
    assert any("gamma 0.25 in convolutions" in remark for remark in found.remarks)
    assert "gamma 0.25 in convolutions" in found._repr_html_()
    chosen = explain(net, x, ["lrp"], rules=Epsilon())
    assert torch.equal(chosen.first.flat, lrp(net, x).flat)
    assert not any("since the network" in remark for remark in chosen.remarks)
