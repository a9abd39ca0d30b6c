"""Findings about sizes: how small a network could fit the data, and how wide it must be."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.approximation.depth.narrow import level_path, minimal_width
from torchtheory.approximation.memorization.networks import line_memorizer, memorizer_parameters
from torchtheory.approximation.network_calculus import chain
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, floating_inputs, has_targets
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.models.model import PureFunction
from torchtheory.models.problem import Problem
from torchtheory.tracing.chain import Rearrangement, as_chain

#: Samples that the smallest network is really built for; it is solved in cubic time.
BUILT = 300

#: A fit is exact when its residual is rounding times the condition of what was solved.
ROUNDING = 1e-14


@finding(
    "memorizer",
    area="capacity",
    title="A small network that fits any labels of these training data",
    cost="parameters",
    covers=["A-30"],
    needs=[has_targets, floating_inputs],
)
def memorizer(problem: Problem, record: FindingRecord) -> None:
    """A network with one unit, then one per sample, fits any labels: so fitting says little."""
    x = problem.train.x.flatten(1)
    d, k = x.shape[1], _labels(problem, problem.train.y[:1]).shape[1]
    n = problem.train.population
    needed, own = memorizer_parameters(n, d, k, line=True), problem.function.count
    record.table(
        "sizes",
        ("network", "parameters", "for each sample"),
        [
            ("this one", own, own / n),
            ("one hidden layer with a unit a sample", memorizer_parameters(n, d, k), None),
            (f"{d}-1-{n}-{k}, ReLU", needed, needed / n),
        ],
        caption=f"Networks that fit any labels of {n} different inputs, beside this one.",
    )
    record.quantity("memorizer-parameters", "parameters that are enough to fit any labels", needed)
    _build(problem, record)
    if own >= needed:
        record.headline(
            f"{needed:,} parameters are enough to fit any labels of these {n:,} samples; this "
            f"network has {own:,}. That it fits its training data says nothing by itself.",
        )


def _build(problem: Problem, record: FindingRecord) -> None:
    """The network itself, for some of the samples and the labels they have."""
    statement = r"\Phi(x_i) = y_i \text{ for all } i,\ d+1+2n+k(n+1) \text{ parameters}"
    samples = problem.train.some(BUILT, record.generator)
    x, y = samples.x.flatten(1).double(), _labels(problem, samples.y)
    try:
        made = line_memorizer(x, y, generator=record.generator)
    except InvalidInput as error:
        record.not_applicable("A-30", statement, str(error))
        return
    size = float(y.abs().max()) or 1.0
    other = y[:1].roll(1, dims=1)
    if bool((other == y[:1]).all()):  # one number, or the same ones
        other = y[:1] + size
    with torch.no_grad():
        contradiction = float((made.network(x[:1]) - other).abs().max()) / size
    says = record.checks("A-30", statement)
    says.equal(
        made.residual / size,
        within=ROUNDING * max(1.0, made.condition),
        where=f"largest residual of the network built for {len(x)} of the samples; the tolerance "
        "is rounding times the condition of the matrix that was solved",
    )
    says.fails("one input with two labels", contradiction)


def _labels(problem: Problem, y: Tensor) -> Tensor:
    """What the outputs should be, `[n, k]`: a one for the class, or the targets."""
    if problem.task == "multiclass":
        assert problem.classes is not None
        return F.one_hot(y, problem.classes).double()
    return y.reshape(len(y), -1).double()


@finding(
    "width",
    area="capacity",
    title="Whether the network is wide enough for its inputs",
    cost="parameters",
    covers=["X-24", "X-25"],
    needs=[floating_inputs, deterministic],
)
def width(problem: Problem, record: FindingRecord) -> None:
    """A ReLU network no wider than its input has no bounded peak: some way out never rises."""
    hidden = relu_widths(problem.function, problem.train.x)
    d = problem.train.x[0].numel()
    outputs = problem.outputs(problem.train.first(1)).numel()
    enough = minimal_width("continuous on a cube", d, outputs)
    statement = r"\text{a ReLU network of width } \le d \text{ never rises on some way to infinity}"
    if not hidden:
        record.not_applicable("X-24", statement, _other_than_dense(problem))
        return
    record.table(
        "width",
        ("inputs", "outputs", "widest hidden layer", "necessary for every target", "enough"),
        [(d, outputs, max(hidden), enough.lower, enough.upper)],
        caption="Width that ReLU networks need to come near every continuous function of so many "
        "inputs, at any depth.",
    )
    record.quantity("widest-layer", "units of the widest hidden layer", max(hidden))
    if max(hidden) > d:
        record.not_applicable(
            "X-24", statement, f"the network is wider than its number of inputs, {d}"
        )
        return
    network = _one_output(problem)
    if network is None:
        record.not_applicable("X-24", statement, "the activations are not plain ReLUs")
        return
    start = problem.train.x.double().flatten(1).mean(0)
    corners, ray = level_path(network, start)
    far = float((problem.train.x.double().flatten(1) - start).norm(dim=1).max())
    steps = torch.linspace(0, 1, 65, dtype=torch.float64, device=start.device)[:, None]
    way = torch.cat([corners, corners[-1] + far * steps * ray])
    slope = torch.func.grad(lambda z: network(z[None])[0, 0])(start)
    uphill = start + far * steps * slope / slope.norm().clamp_min(1e-300)
    with torch.no_grad():
        values, climbing = network(way)[:, 0], network(uphill)[:, 0]
    size = float(torch.cat([values, climbing]).abs().max()) or 1.0
    rounding = 1e3 * torch.finfo(torch.float64).eps * max(hidden)
    rises = [float((v - v[0]).max()) / size for v in (values, climbing)]
    says = record.states("X-24", statement)
    says.at_most(
        rises[0],
        0.0,
        rounding,
        where="largest rise of the first output, relative to its size, on a way from the mean of "
        f"the inputs to {far:.3g} beyond its last corner",
    )
    if rises[1] > rounding:
        says.fails("straight on along the gradient", rises[1])
    record.note(
        f"No hidden layer is wider than the {d} inputs: no output can have a bounded region where "
        "it is large."
    )


def _other_than_dense(problem: Problem) -> str:
    """What makes a network none of dense layers and ReLUs, in words."""
    known = "this is known of networks of dense layers and ReLUs in a row, and "
    try:
        links = as_chain(problem.function, problem.train.x)
    except TorchTheoryError as error:
        return known + str(error)
    for link in links:
        if isinstance(link.module, Rearrangement):
            return f"{known}this one rearranges its values ({link.module.method})"
        if not isinstance(link.module, nn.Linear | nn.ReLU | nn.Flatten | nn.Dropout | nn.Identity):
            kind = type(link.module).__name__
            return known + (f"layer {link.name!r} is a {kind}" if link.name else f"one is a {kind}")
    if at_positions(problem.function, problem.train.x):
        return known + "these are applied at every position of a sample"
    return known + "here they do not take turns"


def relu_widths(model: nn.Module | PureFunction, x: Tensor | None = None) -> list[int]:
    """The widths of the hidden layers of a chain of dense layers and ReLUs, else nothing.

    >>> relu_widths(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU()))
    [5, 3]
    """
    links = _links(model, x)
    dense, between = links[::2], links[1::2]
    if not all(isinstance(m, nn.ReLU | nn.LeakyReLU | nn.PReLU) for m in between):
        return []
    if at_positions(model, x):  # the units of a layer are many times as many
        return []
    widths = [m.out_features for m in dense if isinstance(m, nn.Linear)]
    return widths[: len(between)] if len(widths) == len(dense) else []


def at_positions(model: nn.Module | PureFunction, x: Tensor | None) -> bool:
    """Whether layers take the rows of a sample `[n, positions, d]` one by one."""
    if x is None or x.ndim < 3:
        return False
    try:
        links = as_chain(model, x)
    except TorchTheoryError:
        return False
    return not any(isinstance(link.module, nn.Flatten | Rearrangement) for link in links[:1])


def _one_output(problem: Problem) -> nn.Sequential | None:
    """The first output of a chain of dense layers and ReLUs, in double precision."""
    links = _links(problem.function, problem.train.x)
    dense = [m for m in links[::2] if isinstance(m, nn.Linear)]
    if len(links) % 2 == 0 or not all(type(m) is nn.ReLU for m in links[1::2]):
        return None
    maps = []
    for layer in dense:
        weight = layer.weight.detach().double()
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()
        maps.append((weight, bias))
    maps[-1] = (maps[-1][0][:1], maps[-1][1][:1])
    return chain(maps, [nn.ReLU() for _ in links[1::2]])


def _links(model: nn.Module | PureFunction, x: Tensor | None) -> list[nn.Module]:
    try:
        links = [link.module for link in as_chain(model, x)]
    except TorchTheoryError:
        return []
    return [m for m in links if not isinstance(m, nn.Flatten | nn.Dropout | nn.Identity)]
