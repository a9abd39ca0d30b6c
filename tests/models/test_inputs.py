"""Models with several inputs or outputs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.inputs import Rows
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator


class Named(nn.Module):
    """Tokens and a weight for each, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, weight: Tensor) -> Any:
        mean = (self.table(ids) * weight[..., None]).sum(1)
        return {"logits": self.head(mean), "hidden": mean}


class OneMapping(Named):
    def forward(self, batch: dict[str, Tensor]) -> Any:  # type: ignore[override]
        return super().forward(batch["ids"], batch["weight"])


class ByPosition(Named):
    def forward(self, one: Tensor, two: Tensor) -> Any:  # type: ignore[override]
        return super().forward(one, two)["logits"], None


def parts(n: int = 12) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 7, (n, 5), generator=g)
    return {"ids": ids, "weight": torch.rand(n, 5, generator=g)}, torch.arange(n) % 3


class Dictionaries(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> Any:
        x, y = parts()
        return {"ids": x["ids"][k], "weight": x["weight"][k], "labels": y[k]}


@pytest.mark.parametrize("kind", [Named, OneMapping, ByPosition])
def test_outputs_are_those_of_the_model_itself(kind: type[Named]) -> None:
    x, y = parts()
    model = kind()
    given: Any = tuple(x.values()) if kind is ByPosition else x
    problem = Problem(model, (given, y), ({k: v[:4] for k, v in x.items()}, y[:4]) if kind is not
                      ByPosition else (tuple(v[:4] for v in x.values()), y[:4]))  # fmt: skip
    expected = Named.forward(model, x["ids"], x["weight"])["logits"]
    assert problem.task == "multiclass"
    assert torch.equal(problem.outputs(problem.train), expected)
    assert problem.test is not None
    assert torch.equal(problem.outputs(problem.test), expected[:4])
    double = problem.in_double_if_possible()
    assert torch.allclose(double.outputs(double.train), expected.double(), atol=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(Dictionaries(), batch_size=5),
        Dictionaries(),
        TensorDataset(*parts()[0].values(), parts()[1]),
    ],
)
def test_data_sets_of_several_inputs(data: Any) -> None:
    x, _ = parts()
    model = Named()
    problem = Problem(model, data)
    assert torch.equal(problem.outputs(problem.train), model(**x)["logits"])


def test_derivatives_and_the_kernel_see_the_rows() -> None:
    x, y = parts()
    model = Named()
    problem = Problem(model, (x, y)).in_double_if_possible()
    dense = hessian_operator(problem).to_dense()
    assert torch.allclose(dense, dense.T, atol=1e-10)
    kernel = empirical_ntk(problem.function, problem.train.x, parameters=problem.parameters)
    one, two = problem.train.x[:1], problem.train.x[1:2]

    def jacobian(index: Tensor) -> Tensor:
        found = torch.func.jacrev(problem.function)(problem.parameters, index)
        return torch.cat([j.flatten(2)[0] for j in found.values()], 1)

    assert torch.allclose(kernel[0, 1], jacobian(one) @ jacobian(two).T, atol=1e-10)


def test_sub_sampling_keeps_rows_and_targets_together() -> None:
    x, y = parts()
    problem = Problem(Named(), (x, y), limit=5, seed=3)
    assert len(problem.train) == 5
    rows = problem.function.rows
    assert rows is not None
    for index, target in zip(problem.train.x, problem.train.y, strict=True):
        match = (x["ids"] == rows.take(index[None]).tensors()[0]).all(1).nonzero()
        assert int(target) in [int(y[k]) for k in match.flatten()]


def test_refusals() -> None:
    x, y = parts()
    with pytest.raises(ShapeMismatch, match="different numbers of rows: a 2, b 3"):
        Rows({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(ShapeMismatch, match="different inputs"):
        Problem(Named(), (x, y), ({"ids": x["ids"]}, y))
    with pytest.raises(UnsupportedModel, match="no output 'scores'; it returns 'logits', 'hidden'"):
        Problem(Named(), (x, y), output="scores")
    with pytest.raises(UnsupportedModel, match="raised TypeError on inputs of ids 5 a sample"):
        Problem(Named(), ({"ids": x["ids"]}, y))


def test_dictionaries_without_targets_are_inputs() -> None:
    x, _ = parts()
    rows = [{k: v[i] for k, v in x.items()} for i in range(len(x["ids"]))]
    for data in (x, rows, DataLoader(rows, batch_size=5)):  # type: ignore[arg-type]
        p = Problem(Named(), data)
        assert (p.task, p.several_inputs, len(p.train)) == ("unlabeled", True, 12)


def test_the_input_of_another_type_is_named() -> None:
    x, y = parts()
    wrong = {**x, "ids": x["ids"].float()}
    with pytest.raises(InvalidType, match=r"the input 'ids' is float32 .*: pass ids\.long\(\)"):
        Problem(Named(), (wrong, y))

    class Masked(nn.Module):
        def forward(self, values: Tensor, mask: Tensor) -> Tensor:
            return values.masked_fill(mask, 0.0)

    given = {"values": torch.randn(6, 3), "mask": torch.ones(6, 3, dtype=torch.long)}
    with pytest.raises(InvalidType, match=r"the input 'mask' is int64 and .*: pass mask\.bool\(\)"):
        Problem(Masked(), given)


def test_the_output_that_is_meant() -> None:
    x, y = parts()
    hidden = Problem(Named(), (x, torch.zeros(12, 4)), output="hidden")
    assert hidden.outputs(hidden.train).shape == (12, 4)
    assert Problem(Named(), (x, y)).function.output == "logits"


class Encoder(nn.Module):
    """A look-alike of a model of the transformers library."""

    main_input_name = "input_ids"

    def __init__(self, classes: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed = nn.Embedding(9, 6)
            self.states = nn.GRU(6, 6, batch_first=True)
            self.head = nn.Linear(6, classes)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        h = self.states(self.embed(input_ids))[0]
        if attention_mask is not None:
            h = h * attention_mask.unsqueeze(-1)
        logits = self.head(h if self.head.out_features == 9 else h.mean(1))
        found = OrderedDict(logits=logits, hidden_states=(h,))
        if labels is not None:
            found["loss"] = logits.mean()
        return found


def test_columns_that_the_model_does_not_take_are_left_out() -> None:
    ids = torch.arange(24).reshape(8, 3) % 9
    mask = torch.ones_like(ids)
    mask[:, 2] = 0
    table = {
        "input_ids": ids,
        "attention_mask": mask,
        "idx": torch.arange(8),
        "labels": ids[:, 0] % 3,
    }
    net = Encoder(3)
    p = Problem(net, table)
    assert p.function.output == "logits"
    assert p.input_shapes == "input_ids 3, attention_mask 3"
    expected = net(ids, mask)["logits"].detach()
    assert torch.allclose(p.outputs(p.train), expected)
    # another model, that says nothing of the kind, gets all or the dictionary
    assert Rows({"x": ids, "idx": ids}).taken_by(nn.Linear(2, 1)).shapes() == "x 3, idx 3"


def test_labels_that_are_the_tokens_themselves_are_shifted() -> None:
    ids = torch.randint(9, (8, 5), generator=torch.Generator().manual_seed(0))
    net = Encoder(9)
    p = Problem(net, {"input_ids": ids, "labels": ids})
    logits = net(ids)["logits"].detach()
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert p.task == "labeling"
    assert p.risk(p.train) == pytest.approx(float(expected), rel=1e-5)
    assert "shifted by one" in p.remarks["labels"]
    # of a masked language model, and of pairs, nothing is shifted
    masked = ids.clone()
    masked[:, 2] = (ids[:, 2] + 1) % 9
    for data in ({"input_ids": masked, "labels": ids}, ({"words": ids}, ids)):
        model = net if "input_ids" in data else Words(net)
        q = Problem(model, data)
        assert "shifted" not in q.remarks["labels"]
    with pytest.raises(InvalidInput, match="shift both by one, or neither"):
        Problem(net, {"input_ids": ids, "labels": ids}, {"input_ids": masked, "labels": ids})


class Words(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, words: Tensor) -> Any:
        return self.inner(words)
