import numpy as np
import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.explanation.composites import Composite
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.pages.marked_numbers import (
    SequenceReader,
    marked_numbers,
    relevance_correlations,
)
from torchtheory.explanation.rules import Epsilon, Product


@pytest.mark.parametrize(("task", "sign"), [("sum", 1), ("difference", -1)])
def test_marked_numbers_make_the_target(task, sign):
    x, y, contribution = marked_numbers(200, 7, task, generator=0, dtype=torch.float64)
    assert x.shape == (200, 7, 2)
    marked = x[..., 1] != 0
    assert marked.sum(1).eq(2).all()
    assert x[..., 0][marked].eq(0).all()
    numbers = x.sum(2)
    assert numbers.abs().max() <= 1
    assert numbers[marked].abs().min() >= 0.5
    first, second = numbers[marked].reshape(200, 2).unbind(1)
    torch.testing.assert_close(y[:, 0], first + sign * second)
    torch.testing.assert_close(contribution.sum(1), y[:, 0])
    assert torch.equal(contribution != 0, marked)
    assert marked.any(0).all(), "every place is marked somewhere"


def test_sequences_follow_the_seed_and_nothing_else():
    before = torch.get_rng_state()
    one, other = marked_numbers(5, generator=3), marked_numbers(5, generator=3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.x, other.x)
    assert one.x.dtype == torch.float32


def test_correlations_are_those_of_each_group():
    source = torch.Generator().manual_seed(0)
    relevance = torch.randn(11, 4, 2, generator=source)
    truth = torch.randn(11, 4, generator=source)
    found = relevance_correlations(relevance, truth, 2)
    words = relevance.sum(2).double()
    for k in range(2):
        pair = [t[5 * k : 5 * k + 5].reshape(-1).numpy() for t in (words, truth.double())]
        assert float(found[k]) == pytest.approx(np.corrcoef(*pair)[0, 1])
    with pytest.raises(ShapeMismatch, match="is not that of words"):
        relevance_correlations(relevance[:, :3], truth)
    with pytest.raises(InvalidInput, match="too few"):
        relevance_correlations(relevance, truth, 6)


def test_bad_tasks_are_refused():
    with pytest.raises(InvalidInput, match="task"):
        marked_numbers(3, task="product")
    with pytest.raises(InvalidInput, match="length"):
        marked_numbers(3, 1)


def handed_back(net, x, share):
    """Relevance by the rules of the chapter, written out: no biases, no epsilon."""
    w, u = net.lstm.weight_ih_l0, net.lstm.weight_hh_l0
    y = c = x.new_zeros(len(x), u.shape[1])
    steps = []
    for x_t in x.unbind(1):
        parts = x_t @ w.T, y @ u.T
        i, f, z, o = (parts[0] + parts[1]).chunk(4, 1)
        i, f, z, o = i.sigmoid(), f.sigmoid(), z.tanh(), o.sigmoid()
        before, after = (y, c), i * z + f * c
        steps.append((x_t, before, parts[0] + parts[1], (i, f, z, o), after))
        c, y = after, o * after.tanh()
    score = y @ net.output.weight.T
    of_y = y * net.output.weight
    of_c = torch.zeros_like(c)
    relevance = torch.zeros_like(x)
    for t, (x_t, (y_before, c_before), sums, (i, f, z, _), after) in reversed([*enumerate(steps)]):
        of_c = of_c + of_y * (1 - share)
        of_iz, of_fc = i * z / after * of_c, f * c_before / after * of_c
        gates = of_iz * share, of_fc * share, of_iz * (1 - share), of_y * share
        per_sum = torch.cat(gates, 1) / sums
        relevance[:, t] = x_t * (per_sum @ w)
        of_y, of_c = y_before * (per_sum @ u), of_fc * (1 - share)
    return relevance, score


@pytest.mark.parametrize(("rule", "share"), [("all", 0.0), ("half", 0.5)])
def test_lrp_through_an_lstm_is_what_the_rules_say(rule, share):
    torch.manual_seed(0)
    net = SequenceReader(2, 5).double()
    net.lstm = nn.LSTM(2, 5, batch_first=True, bias=False).double()
    x = marked_numbers(6, 5, generator=1, dtype=torch.float64).x
    rules = Composite(otherwise=Epsilon(1e-14), product=Product(rule))
    with torch.no_grad():
        expected, score = handed_back(net, x, share)
    found = lrp(net, x, rules=rules)
    torch.testing.assert_close(found.relevance, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.score, score[:, 0])
    torch.testing.assert_close(expected.sum((1, 2)), score[:, 0])
