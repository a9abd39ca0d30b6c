"""Estimators of scikit-learn as networks: the same predictions, and refusals that help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler
from torch import nn

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, UnsupportedModel
from torchtheory.models.problem import Problem
from torchtheory.models.sklearn_estimators import as_network, network_of

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(80, 4)) * [1.0, 5.0, 0.1, 2.0] + [0.0, 3.0, -1.0, 10.0]
VALUES = X @ [1.0, -0.2, 3.0, 0.1] + 0.1 * DRAW.normal(size=80)
TWO = (X[:, 0] > 0).astype(int)
THREE = TWO + (X[:, 1] > 3)
SMALL = {"hidden_layer_sizes": (6, 5), "max_iter": 8, "random_state": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (LinearRegression(), VALUES),
        (Ridge(fit_intercept=False), VALUES),
        (Lasso(alpha=0.1), np.stack([VALUES, -VALUES], 1)),
        (MLPRegressor(activation="tanh", **SMALL), VALUES),
        (LogisticRegression(), TWO),
        (LogisticRegression(), THREE),
        (MLPClassifier(activation="relu", **SMALL), TWO),
        (MLPClassifier(activation="logistic", **SMALL), THREE),
        (MLPClassifier(activation="identity", **SMALL), THREE),
        (make_pipeline(StandardScaler(), MLPClassifier(**SMALL)), THREE),
        (make_pipeline(StandardScaler(with_mean=False), LogisticRegression()), TWO),
        (make_pipeline(MinMaxScaler((-1, 2)), "passthrough", Ridge()), VALUES),
        (make_pipeline(StandardScaler(), PCA(3, whiten=True), LogisticRegression()), THREE),
    ],
)
def test_the_same_predictions(estimator: Any, y: Any) -> None:
    estimator.fit(X, y)
    before = torch.get_rng_state()
    net = network_of(estimator)
    assert torch.equal(torch.get_rng_state(), before)
    x = DRAW.normal(size=(30, 4)) * 3
    with torch.no_grad():
        outputs = net(torch.from_numpy(x))
    assert outputs.dtype == torch.float64
    if not hasattr(estimator, "predict_proba"):
        assert np.allclose(outputs.squeeze(1), estimator.predict(x), rtol=1e-10, atol=1e-10)
    elif outputs.shape[1] == 1:
        found = torch.sigmoid(outputs).squeeze(1)
        assert np.allclose(found, estimator.predict_proba(x)[:, 1], rtol=1e-10, atol=1e-12)
    else:
        assert np.allclose(outputs.softmax(1), estimator.predict_proba(x), rtol=1e-10, atol=1e-12)
    problem = Problem(estimator, (X, y))
    assert (
        problem.task
        == {1: "regression", 2: "binary", 3: "multiclass"}[
            1 if not hasattr(estimator, "predict_proba") else len(np.unique(y))
        ]
    )
    if problem.is_classification:
        share = float((~problem.errors(problem.train)).double().mean())
        assert share == pytest.approx(estimator.score(X, y))


def test_labels_are_the_estimators_own() -> None:
    names = np.array(["cat", "dog", "eel"])[THREE]
    estimator = LogisticRegression().fit(X, names)
    problem = Problem(estimator, (X, names), (X[:9], list(names[:9])))
    assert torch.equal(problem.train.y, torch.from_numpy(THREE))
    with pytest.raises(LabelOutOfRange, match=r"the label fox is none of .*cat, dog, eel"):
        Problem(estimator, (X, np.where(THREE == 0, "fox", names)))
    shifted = LogisticRegression().fit(X, THREE + 4)
    assert torch.equal(Problem(shifted, (X, THREE + 4)).train.y, torch.from_numpy(THREE))


@pytest.mark.parametrize(
    ("estimator", "error", "sentence"),
    [
        (RandomForestClassifier(n_estimators=2), UnsupportedModel, "those that can are Linear"),
        (
            make_pipeline(PolynomialFeatures(), Ridge()),
            UnsupportedModel,
            "PolynomialFeatures of scikit-learn .* behind StandardScaler",
        ),
        (make_pipeline(MinMaxScaler(clip=True), Ridge()), UnsupportedModel, "clip=False"),
    ],
)
def test_refused(estimator: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        network_of(estimator.fit(X, TWO))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_output_that_is_no_logit_is_refused() -> None:
    """As of a regression that was fitted with the loss of Poisson, in versions that have it."""
    estimator = MLPRegressor(**SMALL).fit(X, VALUES)
    estimator.out_activation_ = "exp"
    with pytest.raises(UnsupportedModel, match="fit it with the squared loss"):
        network_of(estimator)


def test_an_estimator_that_is_not_fitted() -> None:
    with pytest.raises(InvalidInput, match="LogisticRegression is not fitted: call fit first"):
        network_of(LogisticRegression())
    with pytest.raises(InvalidInput, match="Ridge is not fitted"):
        network_of(make_pipeline(StandardScaler(), Ridge()))
    with pytest.raises(InvalidInput, match="Ridge is not fitted"):
        network_of(make_pipeline(MinMaxScaler(), Ridge()))


def test_other_objects_pass_or_are_refused_as_ever() -> None:
    net = nn.Linear(2, 1)
    assert as_network(net) is net
    with pytest.raises(TypeError):
        as_network("a model")
