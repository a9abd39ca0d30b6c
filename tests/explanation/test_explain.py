"""Several methods side by side: what is kept, told and refused."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.explanation.explain import Legend, explain
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.ledger import Entry, Ledger
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.explanation.methods.named import METHODS, method_named, parse_rules
from torchtheory.explanation.pages import page
from torchtheory.explanation.pages.page import most_relevant, sample_heading
from torchtheory.explanation.rules import Epsilon, Gamma

CHEAP = ("gradient-times-input", "sensitivity")


def network(inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 3))


class Sentences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.tanh(self.embed(words)).mean(1))
        return logits


class Rounds(nn.Module):
    """No gradient leads through it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x).detach()
        return logits


def fixed(values: Tensor) -> object:
    def method(model: nn.Module, x: object, target: object) -> Explanation:
        return Explanation(values, values.sum(1), "fixed")

    return method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_explains_a_small_table(name: str) -> None:
    x = torch.randn(3, 4)
    found = explain(network(), x, [name])
    assert found.first.flat.shape == (3, 4)
    assert torch.isfinite(found.first.flat).all()


def test_the_same_seed_draws_the_same_explanation() -> None:
    net, x = network(), torch.randn(2, 4)
    one, same, other = (
        explain(net, x, ["smooth-gradient"], generator=s).first.flat for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_options_go_to_the_methods_that_have_them() -> None:
    call = method_named("smooth-gradient", generator=3, rules=None, patch=2)
    assert call.keywords == {"generator": 3}  # type: ignore[attr-defined]
    assert method_named("sensitivity", generator=3).keywords == {}  # type: ignore[attr-defined]


def test_agreement_is_the_mean_rank_correlation() -> None:
    up = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    half = torch.tensor([[1.0, 2.0, 9.0], [3.0, 2.0, 1.0]])
    methods = {"up": fixed(up), "down": fixed(-up), "half": fixed(half)}
    found = explain(network(), up, methods).agreement()  # type: ignore[arg-type]
    means = {pair: i.estimate for pair, i in found.items()}
    assert means == pytest.approx({("up", "down"): -1, ("up", "half"): 0, ("down", "half"): 0})


def test_a_method_that_cannot_is_told_and_others_go_on() -> None:
    found = explain(Rounds(), torch.randn(2, 4), ["sensitivity", "occlusion"])
    assert list(found.explanations) == ["occlusion"]
    assert "no differentiable path" in found.refused["sensitivity"]
    assert "no differentiable path" in found._repr_html_()
    with pytest.raises(UnsupportedModel, match="no differentiable path"):
        explain(Rounds(), torch.randn(2, 4), CHEAP)


def test_doubts_about_rules_are_told_and_other_warnings_stay(
    recwarn: pytest.WarningsRecorder,
) -> None:
    def warns(model: nn.Module, x: Tensor, target: object) -> Explanation:
        warnings.warn("of a user", UserWarning, stacklevel=1)
        return lrp(model, x, rules=Gamma(0.5))

    found = explain(network(), -torch.ones(2, 4), {"mine": warns})  # type: ignore[dict-item]
    (remark,) = found.remarks
    assert "receives negative inputs" in remark
    assert "receives negative inputs" in found._repr_html_()
    assert found.to_json()["remarks"] == [remark]
    assert [str(w.message) for w in recwarn] == ["of a user"]


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"methods": []}, EmptyData, "no method"),
        ({"methods": ["lrpp"]}, UnknownName, "did you mean 'lrp'"),
        ({"legend": Legend(features=("a",))}, ShapeMismatch, "1 names for 4 features"),
        ({"legend": Legend(numbers=(1,))}, ShapeMismatch, "1 numbers for 2"),
        ({"legend": Legend(numbers=(1, 1))}, InvalidInput, "twice"),
        ({"legend": Legend(labels=torch.zeros(3))}, ShapeMismatch, "3 labels for 2"),
        ({"legend": Legend(vocabulary={0: "a"})}, InvalidInput, "vocabulary"),
        ({"methods": 3}, InvalidType, "methods are names"),
        ({"methods": {"mine": 3}}, InvalidType, "method 'mine'"),
        ({"methods": {"mine": lambda *_: 3}}, InvalidType, "mine must return an Explanation"),
        ({"methods": "shap"}, UnknownName, "did you mean 'shapley'"),
        ({"rules": Epsilon(0.1)}, InvalidInput, "rules is an option of lrp; ask for"),
        ({"patch": 2}, InvalidInput, "patch is an option of occlusion, shapley, lime"),
        ({"methods": ["lime"], "permutations": 8}, InvalidInput, "an option of shapley"),
        ({"blur": 2.0}, InvalidInput, "blur smooths heatmaps"),
    ],
)
def test_what_does_not_fit_is_refused(
    given: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        explain(network(), torch.randn(2, 4), **({"methods": CHEAP} | given))  # type: ignore[arg-type]


def test_names_of_features_are_refused_for_images() -> None:
    net = nn.Sequential(nn.Flatten(), network())
    with pytest.raises(InvalidInput, match="names of features are for tables"):
        explain(net, torch.randn(2, 1, 2, 2), CHEAP, legend=Legend(features=("a",) * 4))


@pytest.mark.draws
def test_what_is_saved_is_what_was_found(tmp_path: Path) -> None:
    legend = Legend("My <net>", (5, 7), torch.tensor([0, 1]), ("a", "b", "c$", "<d>"), ("x", "y"))
    found = explain(network(), torch.randn(2, 4), CHEAP, 1, legend=legend)
    html = found.save(tmp_path / "o").read_text("utf-8")
    assert "<net>" not in html
    assert "<d>" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    five, seven = html.split("Sample 7: class y")
    assert "not the class that was explained" in five
    assert "not the class that was explained" not in seven
    record = json.loads((tmp_path / "o/explanation.json").read_text("utf-8"))
    assert record == {"made_by": "torchtheory explanation", **found.to_json()}
    assert record["samples"] == [5, 7]
    with np.load(tmp_path / "o/explanation.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(
            arrays["sensitivity/relevance"], found.explanations["sensitivity"].flat
        )
        np.testing.assert_array_equal(arrays["samples"], [5, 7])
    assert {p.name for p in (tmp_path / "o/figures").iterdir()} == {"sample-5.png", "sample-7.png"}


@pytest.mark.draws
def test_words_stand_on_the_page_as_text() -> None:
    x = torch.tensor([[1, 2, 8], [4, 4, 3]])
    found = explain(Sentences(), x, CHEAP, legend=Legend(vocabulary={1: "good", 2: "<b>", 4: "x"}))
    html = found._repr_html_()
    assert html.count('class="words"') == 4
    assert ">good</span>" in html
    assert "<b>" not in html
    assert ">8</span>" in html  # no word of the vocabulary
    named = most_relevant(found, 0)
    words, numbers = zip(*(w.rsplit(" ", 1) for w in named.split(", ")), strict=True)
    assert set(words) == {"good", "<b>", "8"}
    assert words[0] == ("good", "<b>", "8")[int(found.first.flat[0].abs().argmax())]
    sizes = [abs(float(n)) for n in numbers]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.draws
def test_methods_have_the_names_their_user_gave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "torchtheory.explanation.pages.pictures.bars",
        lambda listed, *_, **__: seen.extend(e.method for e in listed),
    )
    page.sample_picture(explain(network(), torch.randn(1, 4), {"mine": gradient_times_input}), 0, 0)
    page.sample_picture(explain(network(), torch.randn(1, 4), ["gradient-times-input"]), 0, 0)
    assert seen == ["mine", "gradient × input"]


def test_several_inputs_have_a_picture_each() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            total: Tensor = self.one(x.flatten(1)) + self.two(y)
            return total

    found = explain(Two(), (torch.randn(2, 1, 2, 2), torch.randn(2, 3)), CHEAP)
    assert [f.name for f in found.figures().values()] == ["heatmaps", "bars"] * 2
    assert "sample-1-input-1" in found.figures()
    assert {"sensitivity/relevance-0", "sensitivity/relevance-1"} <= found.arrays().keys()


def test_a_ledger_is_drawn_and_kept() -> None:
    def method(model: nn.Module, x: Tensor, target: object) -> Explanation:
        made = gradient_times_input(model, x)
        entry = Entry("fc", "linear", "zero", made.score, made.total, made.gap, 0 * made.score)  # type: ignore[arg-type]
        books = Ledger(made.score, (entry,), made.total)
        return Explanation(
            made.relevance, made.score, "LRP", made.classes, made.reference, ledger=books
        )

    found = explain(network(), torch.randn(2, 4), {"mine": method})  # type: ignore[dict-item]
    assert list(found.figures()) == ["sample-0", "sample-0-ledger", "sample-1", "sample-1-ledger"]
    (entry,) = found.to_json()["methods"]["mine"]["ledger"]
    assert entry["received"] == pytest.approx(found.first.score.tolist())
    assert "Where the relevance went" in found._repr_html_()


def test_headings_tell_values_of_a_regression() -> None:
    net = nn.Linear(4, 1)
    found = explain(net, torch.ones(1, 4), CHEAP, legend=Legend(labels=torch.tensor([2.5])))
    assert sample_heading(found, 0).endswith("; true value 2.5")
    assert "class" not in sample_heading(found, 0)


def test_rules_in_words() -> None:
    from torchtheory.explanation import composites, rules

    assert parse_rules("epsilon=0.01") == rules.Epsilon(0.01)
    assert parse_rules("alpha-beta=2,1") == rules.AlphaBeta(2.0, 1.0)
    assert parse_rules("flat") == rules.Flat()
    assert isinstance(parse_rules("image_cnn"), composites.Composite)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epsilom=1", "did you mean 'epsilon'"),
        ("nothing", "no preset"),
        ("epsilon=much", "is no rule"),
        ("epsilon=1,2,3", "is no rule"),
        ("gamma=-1", "gamma"),
        ("", "no preset"),
    ],
)
def test_rules_that_are_none(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_rules(text)


def test_a_range_that_says_little_is_told_all_the_same() -> None:
    class Weighing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.tensor([1.0, 2.0, 3.0])

    # the order of the weights and its opposite, so an interval of [-13, 13]
    net, x = Weighing(), torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    shown = page.agreement_table(explain(net, x, CHEAP))
    assert shown is not None
    assert shown.columns[-1] == "range"
    alone = page.agreement_table(explain(net, x[:1], CHEAP))
    assert alone is not None
    assert alone.columns[-1] == "agreement"


def test_one_method_may_be_named_alone() -> None:
    found = explain(network(), torch.randn(2, 4), "sensitivity")
    assert list(found.explanations) == ["sensitivity"]


def test_names_of_several_tables_stand_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum(1) + y.sum(1)

    seen: list[object] = []
    monkeypatch.setattr(page.pictures, "bars", lambda e, names, **_: seen.append(names))
    x = (torch.ones(1, 2), torch.ones(1, 3))
    found = explain(Two(), x, CHEAP, legend=Legend(features=tuple("abcde")))
    for part in (0, 1):
        page.sample_picture(found, 0, part)
    assert seen == [["a", "b"], ["c", "d", "e"]]
    with pytest.raises(ShapeMismatch, match="2 names for 5 features"):
        explain(Two(), x, CHEAP, legend=Legend(features=("a", "b")))


def test_short_numbers_are_written_as_longer_ones(tmp_path: Path) -> None:
    found = explain(network().bfloat16(), torch.randn(2, 4), ["sensitivity", "shapley"])
    assert found.first.flat.dtype == torch.bfloat16
    found.save(tmp_path)
    with np.load(tmp_path / "explanation.npz") as packed:
        assert packed["sensitivity/relevance"].tolist() == found.first.flat.tolist()


def test_arrays_can_be_packed() -> None:
    found = explain(network(), torch.randn(2, 4), ["smooth-gradient"])
    packed = io.BytesIO()
    np.savez(packed, **found.arrays())  # type: ignore[arg-type]
    assert {"smooth-gradient/error", "smooth-gradient/classes"} <= found.arrays().keys()
