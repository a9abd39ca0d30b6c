import copy
import math

import pytest
import torch
from torch import nn

import torchtheory as tt
from torchtheory.audit.findings.initial_radius import gradient_flips
from torchtheory.models.problem import Problem
from torchtheory.training.loop.trainer import fit


def test_a_linear_classifier_changes_its_class_at_the_mirror_image() -> None:
    torch.manual_seed(0)
    net = nn.Linear(5, 2, bias=False)
    x = torch.randn(40, 5)
    y = net(x).argmax(1)
    problem = Problem(net, (x, y))
    flipped, relative = gradient_flips(problem, problem.parameters, x)
    normal = (net.weight[1] - net.weight[0]).detach()
    distance = (x @ normal).abs() / normal.norm()
    assert bool(flipped.all())
    assert torch.allclose(relative, (2 * distance / x.norm(dim=1)).double(), rtol=1e-4)


def test_training_makes_the_step_longer_and_the_prediction_is_near() -> None:
    torch.manual_seed(0)
    d = 400
    x = torch.randn(300, d)
    x = x * (math.sqrt(d) / x.norm(dim=1, keepdim=True))
    y = (x[:, 0] > 0).float()
    net = nn.Sequential(nn.Linear(d, 400, bias=False), nn.ReLU(), nn.Linear(400, 1, bias=False))
    with torch.no_grad():
        net[0].weight.normal_(0, d**-0.5)
        net[2].weight.copy_(torch.randn(1, 400).sign() / 20)
    start = copy.deepcopy(net.state_dict())
    fit(net, (x, y), epochs=30, loss=nn.BCEWithLogitsLoss())
    made = tt.audit(net, (x, y), initial=start, only=["initial-radius"], budget="20s")
    found = {q.name: q for q in made.quantities}
    assert found["initial-flips"].value > 0.9
    # the median over random networks, and this is one of them
    assert found["initial-step"].value == pytest.approx(1.349 / math.sqrt(d), rel=0.5)
    assert found["trained-step"].low > 2 * found["initial-step"].high
