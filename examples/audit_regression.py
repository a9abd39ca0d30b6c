"""What theory says about regressions: a network of torch, and an estimator of scikit-learn.

    python examples/audit_regression.py [--directory audit-regression] [--epochs 200]

Both predict the progress of diabetes from ten measurements. The estimator is a pipeline that
standardizes its inputs, and is audited as it is: the network inside it is found.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import torchtheory as tt


def main(arguments: list[str] | None = None) -> list[tt.audit.Audit]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-regression")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--budget", default="60s")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = torch.randperm(len(x)).numpy()
    x, y = x[order], (y[order] - y.mean()) / y.std()
    train, test = (x[:300], y[:300]), (x[300:], y[300:])

    estimator = make_pipeline(
        StandardScaler(),
        MLPRegressor(
            hidden_layer_sizes=(options.width,),
            alpha=10.0,
            solver="lbfgs",
            max_iter=20 * options.epochs,
            random_state=0,
        ),
    ).fit(*train)

    center, scale = train[0].mean(0), train[0].std(0)
    scaled = [
        (torch.tensor((a - center) / scale).float(), torch.tensor(b).float()[:, None])
        for a, b in (train, test)
    ]
    net = nn.Sequential(
        nn.Linear(10, options.width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(options.width, 1)
    )
    start = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(options.epochs):
        optimizer.zero_grad()
        F.mse_loss(net(scaled[0][0]), scaled[0][1]).backward()
        optimizer.step()
    net.eval()

    reports = {
        "estimator": tt.audit(
            estimator, train, test, budget=options.budget, title="A pipeline of scikit-learn"
        ),
        "network": tt.audit(
            net, *scaled, initial=start, budget=options.budget, title="A network of torch"
        ),
    }
    for name, report in reports.items():
        print(f"\n{name}:", *report.summary, sep="\n")
        print("written to", report.save(f"{options.directory}/{name}"))
    return list(reports.values())


if __name__ == "__main__":
    main()
