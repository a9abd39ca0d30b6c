"""The graph of a network and its drawing."""

from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.certificates import network_size
from torchtheory.core.errors import InvalidInput, UnsupportedModel
from torchtheory.nets.drawings import architecture_graph, draw_architecture
from torchtheory.nets.feedforward import Architecture, mlp


@given(st.lists(st.integers(1, 7), min_size=2, max_size=5), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_graph_counts_what_the_counters_count(widths, seed):
    net = mlp(widths, generator=seed)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(torch.rand(p.shape, generator=torch.Generator().manual_seed(seed)) < 0.6)
    graph = architecture_graph(net)
    size = network_size(net)
    assert graph.neurons == sum(widths)
    assert graph.weights == size.parameters
    assert graph.layers == size.depth == Architecture.of(net).depth
    assert graph.width == size.width
    root = ElementTree.fromstring(draw_architecture(net))
    tags = [element.tag.split("}")[1] for element in root]
    assert tags.count("circle") == sum(widths)
    assert tags.count("line") == sum(
        int(m.weight.count_nonzero()) for m in net if isinstance(m, nn.Linear)
    )


def test_by_hand():
    net = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.0, -2.0]]))
        net[2].weight.fill_(1.0)
        net[0].bias.zero_()
        net[2].bias.fill_(3.0)
    graph = architecture_graph(net)
    assert graph.edges == (((0, 1), (1, 0), -2.0), ((1, 0), (2, 0), 1.0))
    assert graph.weights_per_layer == (1, 2)
    assert graph.activations == ("ReLU",)
    assert graph.positions()[0, 0] == (0.0, 0.5)
    assert draw_architecture(net).count("<line") == 2


def test_positions_inside_the_drawing_and_distinct():
    root = ElementTree.fromstring(draw_architecture(mlp([3, 9, 2]), height=200))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    circles = [e for e in root if e.tag.endswith("circle")]
    places = {(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles}
    assert len(places) == 14
    r = float(circles[0].attrib["r"])
    assert all(r <= x <= width - r and r <= y <= height - r for x, y in places)


def test_refusals():
    with pytest.raises(UnsupportedModel):
        architecture_graph(nn.Sequential(nn.Conv1d(1, 1, 1)))
    with pytest.raises(InvalidInput):
        draw_architecture(mlp([200, 200, 1]))
    with pytest.raises(InvalidInput):
        draw_architecture(mlp([2, 2, 1]), height=0)
