r"""Estimators of scikit-learn as networks: the same function, in float64, with logits as outputs.

| estimator | network |
|---|---|
| `LinearRegression`, `Ridge`, `Lasso`, `ElasticNet` | one linear layer |
| `LogisticRegression` | one linear layer; the logits whose softmax or sigmoid is `predict_proba` |
| `MLPRegressor`, `MLPClassifier` | linear layers and their activation; logits for the classifier |
| `Pipeline` of `StandardScaler`, `MinMaxScaler`, `PCA` and one of these | what scales comes first, as batch normalization with its statistics or as a frozen linear layer |
"""  # noqa: E501 - a table has its rows on one line

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, UnsupportedModel


class EstimatorNetwork(nn.Sequential):
    """An estimator as a chain of layers.

    Attributes:
        classes: the labels in the order of the logits; None for a regression.
    """

    classes: np.ndarray[Any, Any] | None = None


def as_network(model: Any) -> nn.Module:
    """The module itself, or the network that an estimator of scikit-learn is."""
    if isinstance(model, nn.Module) or not _is_estimator(model):
        return as_module(model)
    return network_of(model)


def network_of(estimator: Any) -> EstimatorNetwork:
    r"""The network that a fitted estimator is.

    Args:
        estimator: one of those in the table above.

    Returns:
        In float64, in evaluation mode. `predict_proba` is the softmax of its outputs, or their
        sigmoid for two classes; `predict` of a regression is its outputs.

    Raises:
        UnsupportedModel: for others, with a list of what works.

    >>> from sklearn.linear_model import LinearRegression
    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> net = network_of(LinearRegression().fit(x, [1.0, 3.0, 5.0]))
    >>> [round(v, 6) for v in net(torch.tensor([[3.0]]).double()).flatten().tolist()]
    [7.0]
    """
    steps = [estimator]
    if _kind(estimator) == "Pipeline":
        steps = [s for _, s in estimator.steps if s is not None and s != "passthrough"]
    last = steps[-1]
    if _kind(last) not in _LAYERS:
        raise _unsupported(last)
    if not (hasattr(last, "coef_") or hasattr(last, "coefs_")):
        raise InvalidInput(f"the {_kind(last)} is not fitted: call fit first")
    layers: list[nn.Module] = []
    for step in steps[:-1]:
        if _kind(step) not in _TRANSFORMS:
            raise _unsupported(step)
        layers.append(_TRANSFORMS[_kind(step)](step))
    layers += _LAYERS[_kind(last)](last)
    network = EstimatorNetwork(*layers)
    network.classes = getattr(last, "classes_", None)
    return network.double().eval()


def class_indices(model: nn.Module, data: Any) -> Any:
    """Data `(x, y)` with labels of an estimator's classes as their positions; others as they are.

    >>> net = EstimatorNetwork()
    >>> net.classes = np.array(["cat", "dog"])
    >>> class_indices(net, (np.zeros((2, 1)), ["dog", "cat"]))[1]
    array([1, 0])
    """
    classes = model.classes if isinstance(model, EstimatorNetwork) else None
    if classes is None or not (isinstance(data, tuple | list) and len(data) == 2):
        return data
    x, labels = data[0], np.asarray(data[1])
    unknown = labels[~np.isin(labels, classes)]
    if len(unknown):
        raise LabelOutOfRange(
            f"the label {unknown[0]!s} is none of the estimator's classes "
            f"({', '.join(str(c) for c in classes[:5])}{', …' if len(classes) > 5 else ''})"
        )
    return x, np.searchsorted(classes, labels)


def _is_estimator(model: Any) -> bool:
    """By where its classes come from: scikit-learn itself need not be imported."""
    return any(c.__module__.split(".")[0] == "sklearn" for c in type(model).__mro__)


def _kind(estimator: Any) -> str:
    """The estimator's class, or the one of scikit-learn that it derives from."""
    for c in type(estimator).__mro__:
        if c.__module__.split(".")[0] == "sklearn":
            return c.__name__
    return type(estimator).__name__


def _unsupported(estimator: Any) -> UnsupportedModel:
    return UnsupportedModel(
        f"{_kind(estimator)} of scikit-learn is not a network with weights that could be audited; "
        f"those that can are {', '.join(_LAYERS)}, also behind {', '.join(_TRANSFORMS)} in a "
        "Pipeline"
    )


# ------------------------------------------------------------------------------------- layers


def _linear(weight: Any, bias: Any, *, frozen: bool = False) -> nn.Linear:
    """The layer $x \\mapsto Wx + b$ of arrays `[out, in]` and `[out]`."""
    w = _tensor(np.atleast_2d(weight))
    # made without values, which would be drawn from the global generator
    layer = nn.Linear(w.shape[1], w.shape[0], device="meta")
    layer.weight = nn.Parameter(w, not frozen)
    layer.bias = nn.Parameter(_tensor(np.broadcast_to(bias, (len(w),))), not frozen)
    return layer


def _scaling(mean: Any, scale: Any) -> nn.BatchNorm1d:
    """The layer $x \\mapsto (x - m) / s$: batch normalization with fixed statistics."""
    # torch wants it positive; added to the square of a scale in float64 it changes nothing
    layer = nn.BatchNorm1d(len(scale), eps=1e-300, affine=False, dtype=torch.float64)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.copy_(_tensor(mean))
    layer.running_var.copy_(_tensor(scale).square())
    return layer


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _standard(step: Any) -> nn.Module:
    if not hasattr(step, "n_features_in_"):
        raise InvalidInput("the StandardScaler is not fitted: call fit first")
    size = step.n_features_in_
    mean = step.mean_ if step.with_mean else np.zeros(size)
    return _scaling(mean, step.scale_ if step.with_std else np.ones(size))


def _min_max(step: Any) -> nn.Module:
    if step.clip:
        raise UnsupportedModel("a MinMaxScaler with clip=True is not an affine map; set clip=False")
    return _linear(np.diag(step.scale_), step.min_, frozen=True)


def _principal(step: Any) -> nn.Module:
    directions = step.components_
    if step.whiten:
        directions = directions / np.sqrt(step.explained_variance_)[:, None]
    return _linear(directions, -directions @ step.mean_, frozen=True)


def _one_layer(estimator: Any) -> list[nn.Module]:
    return [_linear(_dense(estimator.coef_), estimator.intercept_)]


def _logistic(estimator: Any) -> list[nn.Module]:
    several = len(estimator.coef_) > 1
    if several and "ovr" in (getattr(estimator, "multi_class", ""),):
        raise UnsupportedModel(
            "a LogisticRegression with multi_class='ovr' is several networks, one for each class; "
            "fit it as a multinomial model"
        )
    return _one_layer(estimator)


def _dense(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values)


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}


def _perceptron(estimator: Any) -> list[nn.Module]:
    if estimator.out_activation_ not in ("identity", "logistic", "softmax"):
        raise UnsupportedModel(
            f"the outputs of this {_kind(estimator)} are those of its last layer after "
            f"{estimator.out_activation_!r}, which is not covered; fit it with the squared loss"
        )
    if estimator.out_activation_ == "logistic" and estimator.n_outputs_ > 1:
        raise UnsupportedModel(
            "an MLPClassifier of several labels per sample is several classifiers; audit it as "
            "a module with a loss of your own"
        )
    linear: Sequence[nn.Module] = [
        _linear(w.T, b) for w, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    layers = [linear[0]]
    for layer in linear[1:]:
        layers += [_ACTIVATIONS[estimator.activation](), layer]
    return layers


_TRANSFORMS: dict[str, Callable[[Any], nn.Module]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "PCA": _principal,
}

_LAYERS: dict[str, Callable[[Any], list[nn.Module]]] = {
    "LinearRegression": _one_layer,
    "Ridge": _one_layer,
    "Lasso": _one_layer,
    "ElasticNet": _one_layer,
    "LogisticRegression": _logistic,
    "MLPRegressor": _perceptron,
    "MLPClassifier": _perceptron,
}
