"""Distillation: a small network learns from a large one's probabilities."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.distillation import distillation_gradient, distillation_loss, teacher_outputs
from torchtheory.training.regularizers.distillation import agreement, distill


@lab(
    "distillation",
    room="training",
    covers=["N-136", "N-137", "N-138"],
    title="A student that hears the teacher's doubts learns more than from labels",
    errata=["distillation-loss-without-minus", "distillation-gradient-of-logits"],
    full={
        "repeats": 6,
        "points": 8000,
        "epochs": 25,
        "temperatures": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    },
    least={"repeats": 6, "points": 640, "epochs": 16, "temperatures": 0.5},
    most={"temperatures": 100},
)
def distillation(
    run: Run,
    repeats: int = 6,
    labeled: int = 50,
    points: int = 640,
    epochs: int = 16,
    temperatures: tuple[float, ...] = (1.0, 4.0, 16.0),
) -> None:
    """The cross-entropy of tempered probabilities, its gradient, its limits, and what it is for.

    Random logits check that the loss is least, and equal to the teacher's entropy, exactly when
    the student's logits are the teacher's plus a constant; that the gradient is (q - p)/T; and
    that T² times it tends to the difference of centered logits at rate 1/T. Then a teacher is
    trained on digits, and the same small student three times: on a few labels, on the
    teacher's most likely classes for many inputs made by mixing unlabeled digits, and on its
    tempered probabilities for them. Look at the curves: the soft student follows the teacher.

    Args:
        repeats: trainings of each kind.
        labeled: digits with labels.
        points: made inputs that the teacher labels.
        epochs: of a training.
        temperatures: of the teacher's answers.
    """
    loss_and_gradient(run)
    high_temperature(run)
    rows, curves = experiment(run, repeats, labeled, points, epochs, temperatures)
    names = ["a few labels", "hard answers", *[f"T = {t:g}" for t in temperatures]]
    error, agree = rows[..., 0], rows[..., 1]
    run.table(
        "students",
        ["student trained on", "test error", "agreement with the teacher"],
        [("the teacher itself", rows[:, 0, 0].mean(), 1.0)]
        + [(n, error[:, i + 1].mean(), agree[:, i + 1].mean()) for i, n in enumerate(names)],
        caption=f"Means of {repeats} trainings on digits: {labeled} labels, {points} made inputs",
    )
    run.figure(
        "students",
        lambda axes: plot_students(axes, curves, names, error[:, 1:], agree[:, 1:], error[:, 0]),
        caption="Left: test error of one student while it trains. Right: error and agreement with "
        "the teacher, one dot a training; the line is the teacher's own error.",
        grid=(1, 2),
        size=(10, 3.4),
    )


def loss_and_gradient(run: Run) -> None:
    teacher, student = 2 * run.randn(40, 6), 2 * run.randn(40, 6)
    scales = (0.3, 1.0, 2.5, 20.0)

    def entropy(logits: Tensor, t: float) -> Tensor:
        p = (logits / t).softmax(1)
        return -(p * p.log()).sum(1)

    def each(f: Tensor, g: Tensor, t: float) -> Tensor:
        """The expanded form of the loss, sample by sample."""
        p = (f / t).softmax(1)
        return -(p * (g / t - torch.logsumexp(g / t, 1, keepdim=True))).sum(1)

    says = run.states("N-136", r"-\sum_y p_y\log q_y = -\sum_y p_y\big(\tfrac{G_y}{T} - \log\sum_{y'}e^{G_{y'}/T}\big)")
    says.equal(
        [float(distillation_loss(teacher, student, t)) for t in scales],
        [float(each(teacher, student, t).mean()) for t in scales],
        1e-12,
    )
    says.fails(
        "the temperature is left out of the first term",
        [float(distillation_loss(teacher, student * t, t)) for t in scales],
    )
    excess = torch.cat([each(teacher, student, t) - entropy(teacher, t) for t in scales])
    apart = torch.cat([((teacher / t).softmax(1) - (student / t).softmax(1)).abs().sum(1) for t in scales])
    run.states(
        "N-136", r"\ell-H(p)\ge\tfrac12\|p-q\|_1^2, \text{ which is positive unless } G-F \text{ is constant}"
    ).at_least(excess, apart.square() / 2, where="Pinsker's inequality, sample by sample")
    says = run.states("N-136", r"G = F + c\mathbf 1: \quad \ell = H(p)")
    says.equal(
        [float(distillation_loss(teacher, teacher - 7, t)) for t in scales],
        torch.stack([entropy(teacher, t).mean() for t in scales]),
        1e-12,
    )
    says.fails(
        "one logit is moved",
        [float(distillation_loss(teacher, teacher + torch.eye(6, dtype=teacher.dtype)[0], t)) for t in scales],
    )
    says = run.states("N-136", r"T\to\infty: \ p, q \to \tfrac1k \text{ and } \ell \to \log k")
    says.equal(
        float(distillation_loss(teacher, student, 1e5)), float(torch.tensor(6.0, dtype=torch.float64).log()), 1e-6
    )
    says.fails("T = 1", float(distillation_loss(teacher, student, 1.0)))
    run.refutes(
        "distillation-loss-without-minus",
        r"\sum_y p_y\log q_y \text{ is least when the student agrees with the teacher}",
    ).at_least(
        float(-each(teacher, student, 1.0).mean()),
        float(-each(teacher, teacher, 1.0).mean()),
        where="without the minus sign, students that disagree have a smaller value",
    )

    moved = student.clone().requires_grad_()
    by_autograd = []
    for t in scales:
        (g,) = torch.autograd.grad(distillation_loss(teacher, moved, t) * len(moved), moved)
        by_autograd.append(g)
    formula = torch.cat([distillation_gradient(teacher, student, t) for t in scales])
    says = run.states("N-137", r"\partial\ell/\partial G_y = \tfrac1T(q_y - p_y)")
    says.equal(formula, torch.cat(by_autograd), 1e-12)
    says.fails("the printed sign", -formula)
    h, differences = 1e-5, []
    for j in range(6):
        step = h * torch.eye(6, dtype=torch.float64)[j]
        differences.append((each(teacher, student + step, 2.5) - each(teacher, student - step, 2.5)) / (2 * h))
    says = run.states("N-137", r"\text{the same by central differences, } T = 2.5")
    says.equal(distillation_gradient(teacher, student, 2.5), torch.stack(differences, 1), 1e-8)
    says.fails("the temperature is that of ordinary training, T = 1", distillation_gradient(teacher, student, 1.0))
    certain = torch.full((40, 6), -1e9, dtype=torch.float64)
    certain[:, 2] = 0
    hard = student.softmax(1)
    hard[:, 2] -= 1
    says = run.states("N-137", r"\text{a certain teacher and } T = 1: \quad \partial\ell/\partial G = q - e_y")
    says.equal(distillation_gradient(certain, student, 1.0), hard, 1e-12)
    says.fails("a teacher with doubts", distillation_gradient(teacher, student, 1.0))
    run.refutes(
        "distillation-gradient-of-logits", r"\partial\ell/\partial G = \text{difference of tempered logits } (F - G)/T"
    ).equal(
        distillation_gradient(teacher, student, 2.5),
        (teacher - student) / 2.5,
        1e-6,
        where="it is a difference of probabilities, with the other sign",
    )


def high_temperature(run: Run) -> None:
    teacher, student = run.randn(20, 5), run.randn(20, 5)

    def centered(logits: Tensor) -> Tensor:
        return logits - logits.mean(1, keepdim=True)

    limit = (centered(student) - centered(teacher)) / 5
    heats = [10.0 * 2**j for j in range(8)]

    def distances(target: Tensor) -> list[float]:
        return [float((t**2 * distillation_gradient(teacher, student, t) - target).norm()) for t in heats]

    says = run.states(
        "N-137", r"\big\|T^2\,\partial\ell/\partial G - \tfrac1k[(G-\bar G)-(F-\bar F)]\big\| \propto T^{-1}"
    )
    says.slope(heats, distances(limit), -1, 0.02, against=(-2.0, -0.5, 0.0))
    says.fails("logits that are not centered", heats, distances((student - teacher) / 5))


def experiment(
    run: Run,
    repeats: int,
    labeled: int,
    points: int,
    epochs: int,
    temperatures: tuple[float, ...],
) -> tuple[Tensor, dict[str, list[float]]]:
    """Error and agreement `[repeats, 1 + students, 2]`, and the error curves of the first."""
    (x, y), (test_x, test_y) = split(*digits(torch.float64), 0.3, 0)
    teacher = network((64, 100, 100, 10), 0)
    fit(teacher, (x, y), epochs=20, batch_size=64, learning_rate=3e-3)
    clueless = network((64, 100, 100, 10), 1)

    def judged(net: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            wrong = (net(test_x).argmax(1) != test_y).double().mean()
        return float(wrong), agreement(net, teacher, test_x)

    class Watch:
        """Test errors after each epoch."""

        def __init__(self) -> None:
            self.errors: list[float] = []

        def __call__(self, model: nn.Module, _: object) -> None:
            self.errors.append(judged(model)[0])

    rows, curves, baseless = [], {}, []
    for seed in run.track(range(repeats), "students"):
        chosen = torch.randperm(len(x), generator=run.generator)[:labeled]
        made = mixtures(x, points, run.generator)
        names = ["a few labels", "hard answers", *[f"T = {t:g}" for t in temperatures]]
        students = {name: network((64, 16, 10), seed) for name in names}
        watches = {name: Watch() for name in names}

        def settings(name: str, seed: int = seed, watches: dict[str, Watch] = watches) -> dict[str, Any]:
            return {
                "epochs": epochs,
                "batch_size": 64,
                "learning_rate": 0.02,
                "seed": seed,
                "callbacks": [watches[name]] if seed == 0 else [],
            }

        few, hard, *_ = names
        # many copies of the few samples: as many steps as the other students take
        copies = chosen.repeat(-(-points // labeled))[:points]
        fit(students[few], (x[copies], y[copies]), **settings(few))
        answers = teacher_outputs(teacher, made).argmax(1)
        fit(students[hard], (made, answers), **settings(hard))
        for t in temperatures:
            name = f"T = {t:g}"
            distill(teacher, students[name], made, temperature=t, **settings(name))
        rows.append([judged(teacher), *map(judged, students.values())])
        if seed == 0:
            curves = {name: watch.errors for name, watch in watches.items()}
        lost = network((64, 16, 10), seed)
        distill(clueless, lost, made, temperature=temperatures[-1], epochs=2, seed=seed)
        baseless.append(judged(lost))
    table, lost_table = (torch.tensor(t, dtype=torch.float64) for t in (rows, baseless))
    from_labels, distilled = table[:, 1], table[:, 3:].mean(1)
    gain = mean_interval(from_labels[:, 0] - distilled[:, 0], 0.99)
    without = mean_interval(from_labels[:, 0] - lost_table[:, 0], 0.99)
    says = run.states("N-138", r"\text{error of the student of a few labels minus that of the distilled one} > 0")
    says.above(gain.low, 0, where=f"the lower end of a 99% interval over {repeats} students")
    says.fails("the teacher is untrained", without.low)
    says = run.states("N-138", r"\text{agreement with the teacher: distilled student minus student of a few labels}")
    says.above(distilled[:, 1] - from_labels[:, 1], 0)
    says.fails("distilled from an untrained teacher", lost_table[:, 1] - from_labels[:, 1])
    return table, curves


def mixtures(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Inputs made from unlabeled ones: a digit with a little of another, and noise."""
    first, second = (torch.randint(0, len(x), (count,), generator=generator) for _ in range(2))
    share = 0.35 * torch.rand(count, 1, generator=generator, dtype=x.dtype)
    noise = 0.1 * torch.randn(count, x.shape[1], generator=generator, dtype=x.dtype)
    return ((1 - share) * x[first] + share * x[second] + noise).clamp(0, 1)


def network(sizes: tuple[int, ...], seed: int) -> nn.Sequential:
    """A ReLU network with He's initial weights drawn with the seed."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layer = nn.Linear(before, after, dtype=torch.float64)
        nn.init.normal_(layer.weight, std=(2 / before) ** 0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def plot_students(
    axes: Any,
    curves: dict[str, list[float]],
    names: list[str],
    error: Tensor,
    agree: Tensor,
    teacher: Tensor,
) -> None:
    left, right = axes[0]
    for name, values in curves.items():
        left.plot(range(1, len(values) + 1), values, label=name)
    left.axhline(float(teacher[0]), color="black", linestyle="--", linewidth=1, label="teacher")
    left.set(xlabel="epoch", ylabel="test error", yscale="log")
    left.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.22))
    place = torch.arange(len(names))
    for row in range(len(error)):
        right.scatter(place - 0.1, error[row], s=14, color="C0", label="error" if row == 0 else None)
        right.scatter(
            place + 0.1, 1 - agree[row], s=14, color="C1", marker="^",
            label="disagreement with the teacher" if row == 0 else None,
        )  # fmt: skip
    right.axhline(float(teacher.mean()), color="black", linestyle="--", linewidth=1)
    right.set(ylabel="share of test digits", ylim=(0, None))
    right.set_xticks(
        place.tolist(),
        [n if n[0] == "T" else n.replace(" l", "\nl").replace(" a", "\na") for n in names],
    )
    right.legend()
