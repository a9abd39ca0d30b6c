r"""Which rule for which layer: by type, by name, by depth, and the choices that work in practice.

A `Composite` is a list of conditions with rules; the first condition that an operation meets
decides. Source: Mathematical Aspects of Deep Learning, "Choosing LRP Rules in Practice".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor, nn

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName
from torchtheory.explanation.rules import (
    AlphaBeta,
    Epsilon,
    Flat,
    Gamma,
    Product,
    Rule,
    WSquare,
    ZBox,
    Zero,
)

#: Operations that are what a layer of this type does, wherever they are called.
_SAME_AS: dict[type[nn.Module], set[str]] = {
    nn.Linear: {"linear", "matmul", "einsum"},
    nn.Conv1d: {"conv1d"},
    nn.Conv2d: {"conv2d"},
    nn.Conv3d: {"conv3d"},
    nn.ConvTranspose1d: {"conv_transpose1d"},
    nn.ConvTranspose2d: {"conv_transpose2d"},
    nn.ConvTranspose3d: {"conv_transpose3d"},
    nn.BatchNorm1d: {"batch_norm"},
    nn.BatchNorm2d: {"batch_norm"},
    nn.BatchNorm3d: {"batch_norm"},
}


@dataclass(frozen=True, slots=True)
class Place:
    """An operation in a network.

    Attributes:
        layer: name of the module whose forward calls it; empty at the top.
        kind: class of that module.
        operation: such as `conv2d`.
        depth: operations with weights between it and the input, at most.
        depth_of_output: the same of the output of the network, which counts itself.
        weighted: whether it has weights; sums, averages and normalizations have none.
    """

    layer: str
    kind: type[nn.Module]
    operation: str
    depth: int
    depth_of_output: int
    weighted: bool


Condition = type[nn.Module] | tuple[type[nn.Module], ...] | str | Callable[[Place], bool]


def first_layer(place: Place) -> bool:
    """Weights that meet the input itself."""
    return place.weighted and place.depth == 0


def last_layers(count: int) -> Callable[[Place], bool]:
    """The `count` last operations with weights on the way to the output."""

    def among_the_last(place: Place) -> bool:
        return place.weighted and place.depth >= place.depth_of_output - count

    return among_the_last


def lower_part(fraction: float) -> Callable[[Place], bool]:
    """Operations with weights in the lowest part of the network, by depth."""

    def among_the_lower(place: Place) -> bool:
        return place.weighted and place.depth < fraction * place.depth_of_output

    return among_the_lower


@dataclass(frozen=True)
class Composite:
    r"""Rules by condition, the first that is met.

    Args:
        choices: pairs of a condition and a rule. A condition is a type of module such as
            `nn.Conv2d` (which also means `F.conv2d` in a user's forward), several in a tuple, a
            name of a layer with `*` for any letters, or a function of a `Place`, such as
            `first_layer` and `last_layers(2)`.
        otherwise: rule of all other operations, sums of branches and averages among them.
        product: rule of products of two signals.
        because: why these rules were chosen, where they were chosen for somebody.

    >>> rules = Composite([(first_layer, ZBox(0, 1)), (nn.Conv2d, Gamma(0.25))], Epsilon(1e-6))
    >>> rules.rule(Place("features.3", nn.Conv2d, "conv2d", 1, 5, True)).name
    'gamma 0.25'
    """

    choices: Sequence[tuple[Condition, Rule]] = ()
    otherwise: Rule = field(default_factory=Epsilon)
    product: Product = field(default_factory=Product)
    because: str = ""

    def __post_init__(self) -> None:
        for choice in self.choices:
            if not isinstance(choice, tuple) or len(choice) != 2:
                raise InvalidType(f"a choice is a pair of condition and rule: {described(choice)}")
            condition, rule = choice
            kinds = condition if isinstance(condition, tuple) else (condition,)
            for kind in kinds:
                if isinstance(kind, type) and not issubclass(kind, nn.Module):
                    raise InvalidType(f"a type of layer is a subclass of nn.Module, not {kind}")
                if not (isinstance(kind, str) or callable(kind)):
                    raise InvalidType(
                        "a condition is a type of module, a name or a function of a place: "
                        f"{described(condition)}"
                    )
            _is_rule(rule)
        _is_rule(self.otherwise)
        if not isinstance(self.product, Product):
            raise InvalidType(f"the rule of products is a Product: {described(self.product)}")

    def rule(self, place: Place) -> Rule:
        """The rule of an operation."""
        for condition, rule in self.choices:
            if _meets(place, condition):
                return rule
        return self.otherwise


Rules = Rule | Product | Composite | Mapping[Condition, Rule] | str | None


def as_composite(rules: Rules, model: nn.Module | None = None) -> Composite:
    """What was given as rules: one for all, a preset's name, a mapping, or nothing for epsilon.

    With a model, names without `*` must be names of its layers.
    """
    if rules is None:
        made = Composite()
    elif isinstance(rules, Composite):
        made = rules
    elif isinstance(rules, Rule):
        made = Composite(otherwise=rules)
    elif isinstance(rules, Product):
        made = Composite(product=rules)
    elif isinstance(rules, str):
        made = preset(rules)
    elif isinstance(rules, Mapping):
        made = Composite(tuple(rules.items()))
    else:
        raise InvalidType(f"rules are a rule, a composite or the name of one: {described(rules)}")
    if model is not None:
        names = [name for name, _ in model.named_modules()]
        for condition, _ in made.choices:
            for c in condition if isinstance(condition, tuple) else (condition,):
                if isinstance(c, str) and not any(fnmatchcase(n, c) for n in names):
                    raise UnknownName("layer", c, [n for n in names if n])
    return made


def _is_rule(rule: object) -> None:
    if not isinstance(rule, Rule):
        raise InvalidType(f"a rule is an object such as Epsilon(1e-6), not {described(rule)}")


def _meets(place: Place, condition: Condition) -> bool:
    if isinstance(condition, tuple):
        return any(_meets(place, c) for c in condition)
    if isinstance(condition, str):
        return fnmatchcase(place.layer, condition) or fnmatchcase(place.layer, condition + ".*")
    if isinstance(condition, type):
        same = {o for kind, os in _SAME_AS.items() if issubclass(kind, condition) for o in os}
        return issubclass(place.kind, condition) or place.operation in same
    return condition(place)


#: Convolutions of a network in which gradients are noisy.
_DEEP = 5


class DoubtfulRules(UserWarning):
    """A choice of rules that is known to work badly."""


def doubts(met: Sequence[tuple[Place, Rule, bool]], product: Product) -> list[str]:
    """What is doubtful about rules, in sentences.

    Args:
        met: operations with weights, their rules, and whether inputs were negative that the rule
            does not expect.
        product: rule of products.
    """
    found: dict[str, None] = {}
    for place, rule, negative in met:
        if negative:
            where = f"layer {place.layer!r}" if place.layer else place.operation
            found[
                f"{where} receives negative inputs, and the rule {rule.name} is made for layers "
                "that receive none: use epsilon there, or in the first layer the box of the pixels "
                "or squared weights"
            ] = None
    images = [(p, r) for p, r, _ in met if p.operation in ("conv2d", "conv3d")]
    if len(images) >= _DEEP and all(r.parts is None for _, r in images):
        found[
            "all convolutions of an image network have the rule zero or epsilon, which makes noisy "
            "heatmaps: use gamma, or alpha 1 and beta 0, in the lower ones (the preset image_cnn)"
        ] = None
    recurrent = any(issubclass(p.kind, nn.RNNBase | nn.RNNCellBase) for p, _, _ in met)
    if product.share == "prop" and recurrent:
        found[
            "products of a recurrent network share their relevance in proportion to gate and "
            "signal, which has poles where they cancel: let the signal have all of it"
        ] = None
    return list(found)


# -- presets ---------------------------------------------------------------------------------------

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def preset(
    name: str, *, low: float | Tensor | None = None, high: float | Tensor | None = None
) -> Composite:
    r"""A choice of rules that works in practice.

    | name | for | rules |
    |---|---|---|
    | `image_cnn` | images | epsilon in dense layers and the two topmost layers, gamma in convolutions, in the first layer the box of the pixels, or squared weights if no box is given |
    | `text_cnn` | words by their embeddings | epsilon in all layers |
    | `relu_default` | an unknown network of ReLUs | alpha 1, beta 0 in all layers |
    | `vqa` | a relation network | alpha 1, beta 0, but epsilon 0.001 in recurrent layers; gates get nothing |
    | `lstm` | recurrent networks | epsilon 0.001; gates get nothing |
    | `transformer` | attention | epsilon; attention weights get nothing |
    | `field_of_view` | where a network looks at all | flat in all layers |
    | `gradient_times_input` | ReLUs, to compare | zero in all layers |

    Args:
        name: of the preset.
        low, high: bounds of the pixels as the first layer sees them, for `image_cnn`.
    """  # noqa: E501
    if name not in PRESETS:
        raise UnknownName("preset of rules", name, PRESETS)
    if (low is None) != (high is None):
        raise InvalidInput("a box of pixels has a low and a high")
    if name != "image_cnn" and low is not None:
        raise InvalidInput("only image_cnn has a box of pixels")
    if name == "image_cnn":
        assert low is None or high is not None
        first = WSquare() if low is None else ZBox(low, high)  # type: ignore[arg-type]
        return Composite(
            (
                (first_layer, first),
                (last_layers(2), Epsilon(1e-6)),
                (_CONVOLUTIONS, Gamma(0.25)),
            ),
            Epsilon(1e-6),
        )
    return PRESETS[name]


PRESETS: dict[str, Composite] = {
    "image_cnn": Composite(),  # made by `preset`, which knows the box
    "text_cnn": Composite(otherwise=Epsilon(1e-6)),
    "relu_default": Composite(otherwise=AlphaBeta(1, 0)),
    "vqa": Composite(((nn.RNNBase, Epsilon(1e-3)),), AlphaBeta(1, 0)),
    "lstm": Composite(otherwise=Epsilon(1e-3)),
    "transformer": Composite(otherwise=Epsilon(1e-6)),
    "field_of_view": Composite(otherwise=Flat()),
    "gradient_times_input": Composite(otherwise=Zero()),
}
