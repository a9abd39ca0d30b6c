r"""A network whose weights are drawn from $Q=N(\theta,\operatorname{diag}s)$.

Source: Foundations of Deep Learning, section 9.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, module_with_values, positive_number
from torchtheory.core.errors import InvalidInput, ModelRaised, UnsupportedModel
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.generalization.pac_bayes.gaussian_layers import GaussianLayer, has_local_form
from torchtheory.models.model import Parameters, PureFunction, global_randomness_kept
from torchtheory.models.untouched import copied
from torchtheory.nets.fresh_weights import drawn_anew

Noise = Literal["local", "mixed", "weights", "none"]
NOISES: tuple[Noise, ...] = ("local", "mixed", "weights", "none")
NARROW = 16


@dataclass(slots=True)
class _Skeleton:
    """A copy of the model with some layers replaced by noisy ones.

    Attributes:
        model: the copy.
        layers: the noisy layers in it.
        rest: the parameters that must be drawn.
        works: whether it runs; None before it has been tried.
        exact: whether every row of a batch gets a draw of its own.
    """

    model: nn.Module
    layers: list[GaussianLayer]
    rest: list[str]
    works: bool | None = None
    exact: bool = False


class StochasticNetwork(nn.Module):
    r"""Any network with independent Gaussian weights $\theta_i+\sqrt{s_i}\,\xi_i$.

    The model given is copied, never changed, and always run in evaluation mode. The trainable
    parameters are the means and the logarithms of the variances.

    Args:
        model: any `nn.Module` without batch normalization. Frozen parameters are random as
            well: a bound covers every weight, since nothing tells what a frozen one has seen.
        spread: standard deviation to start with, $\sqrt{s_i}$; one number, or one a
            parameter (by name).
        generator: generator or seed of the noise.

    Attributes:
        means, log_variances: by the parameter's name.

    >>> network = StochasticNetwork(nn.Linear(3, 1), spread=0.1)
    >>> tuple(network(torch.ones(5, 3)).shape), round(network.variances()["bias"].item(), 4)
    ((5, 1), 0.01)
    """

    def __init__(
        self, model: nn.Module, *, spread: float | Parameters = 0.03, generator: RandomSource = None
    ) -> None:
        super().__init__()
        start = PureFunction(model)  # refuses what is no module, lazy or on the meta device
        start.refuse_non_finite_parameters()
        refuse_learned_buffers(model)
        if not start.parameters:
            raise InvalidInput("the model has no parameters: there is nothing to draw")
        reference = start.reference()
        self.generator = as_generator(generator, reference.device)
        self.names = list(start.parameters)
        self._means, self._log_variances = nn.ParameterList(), nn.ParameterList()
        for name, value in start.parameters.items():
            if not value.is_floating_point():
                raise UnsupportedModel(f"{name} is {value.dtype}: only real weights can be random")
            own = torch.as_tensor(spread[name] if isinstance(spread, dict) else spread).to(value)
            if not bool((torch.isfinite(own) & (own > 0)).all()):
                raise InvalidInput(f"the spread must be a positive number, not {spread}")
            logarithm = (2 * own.log()).expand(value.shape).clone()
            self._means.append(nn.Parameter(value.clone()))
            self._log_variances.append(nn.Parameter(logarithm))
        # in a list: its weights are no parameters of this module
        self._plain = [copied(model).eval().requires_grad_(False)]
        self._skeletons = {
            "local": self._with_noisy_layers(lambda layer: True),
            "mixed": self._with_noisy_layers(
                lambda layer: isinstance(layer, nn.Linear) and layer.out_features <= NARROW
            ),
        }

    @property
    def means(self) -> Parameters:
        return dict(zip(self.names, self._means, strict=True))

    @property
    def log_variances(self) -> Parameters:
        return dict(zip(self.names, self._log_variances, strict=True))

    def variances(self) -> Parameters:
        r"""$s_i$ by the parameter's name."""
        return {name: v.detach().exp() for name, v in self.log_variances.items()}

    @property
    def count(self) -> int:
        """Number of random weights."""
        return sum(m.numel() for m in self._means)

    def draw(self) -> Parameters:
        """One draw of all weights, differentiable in means and variances."""
        return {name: self._draw(name) for name in self.names}

    def forward(self, x: Tensor, noise: Noise = "local") -> Tensor:
        """Outputs under fresh noise.

        Args:
            x: a batch.
            noise: `local`, one draw per row where layers allow it, for twice the products;
                `weights`, one draw of all weights for the whole batch; `mixed`, local in dense
                layers of at most 16 outputs, where it is cheap, and drawn weights elsewhere;
                `none`, the network of the means.
        """
        if noise not in NOISES:
            raise InvalidInput(f"noise must be one of {', '.join(NOISES)}, not {noise!r}")
        skeleton = self._skeletons.get(noise)
        with global_randomness_kept(), ForeignCode("the model", ModelRaised):
            if skeleton is not None and self._usable(skeleton, x):
                return self._run(skeleton, x)
            weights = self.means if noise == "none" else self.draw()
            return _one_tensor(torch.func.functional_call(self._plain[0], weights, (x,)))

    def law_of(self, outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of outputs just computed, given the noise before the last layer.

        None where they are not those of a dense layer with local noise.
        """
        for skeleton in self._skeletons.values():
            for layer in skeleton.layers:
                if layer.dense and layer.last is not None and layer.last[2] is outputs:
                    return layer.last[0], layer.last[1]
        return None

    def independent_rows(self, x: Tensor) -> bool:
        """Whether `noise="local"` gives every row of a batch an exact draw of its own from Q.

        It does when every parameter belongs to a dense layer that is applied once, to one vector a
        row. Elsewhere (convolutions, layers used twice) local noise is an approximation for
        training, and a certificate draws whole weights.
        """
        skeleton = self._skeletons["local"]
        return self._usable(skeleton, x) and skeleton.exact

    @contextmanager
    def variances_held(self, variances: Parameters) -> Iterator[None]:
        """Let the layers use these for e^{log_variances}, which they then do not compute."""
        layers = [layer for s in self._skeletons.values() for layer in s.layers]
        for layer in layers:
            layer.variances = [variances[name] for name in layer.names]
        try:
            yield
        finally:
            for layer in layers:
                layer.variances = None

    @contextmanager
    def variances_frozen(self, frozen: bool = True) -> Iterator[None]:
        """No gradients for the variances: half of a step's work at the weights."""
        trained = [v for v in self._log_variances if v.requires_grad] if frozen else []
        for tensor in trained:
            tensor.requires_grad_(False)
        try:
            yield
        finally:
            for tensor in trained:
                tensor.requires_grad_(True)

    def _run(self, skeleton: _Skeleton, x: Tensor) -> Tensor:
        drawn = {name: self._draw(name) for name in skeleton.rest}
        return _one_tensor(torch.func.functional_call(skeleton.model, drawn, (x,)))

    def _usable(self, skeleton: _Skeleton, x: Tensor) -> bool:
        """Run batches of two sizes, once, and watch which layers are called with what."""
        if skeleton.works is not None:
            return skeleton.works
        layers = skeleton.layers
        works, exact = bool(layers), not skeleton.rest and len(x) >= 3
        state = self.generator.get_state()
        try:
            with torch.no_grad(), global_randomness_kept():
                # two sizes tell rows from anything else that is counted
                for size in sorted({min(len(x), 2), min(len(x), 3)}) if works else ():
                    for layer in layers:
                        layer.calls = []
                    self._run(skeleton, x[:size])
                    for layer in layers:
                        calls = layer.calls or []
                        works &= bool(calls)
                        exact &= layer.dense and [tuple(c[:-1]) for c in calls] == [(size,)]
        except Exception:
            # what is wrong with the model itself will be said by the run with drawn weights
            works = False
        finally:
            self.generator.set_state(state)
            for layer in layers:
                layer.calls = None
        skeleton.works, skeleton.exact = works, works and exact
        return works

    def _draw(self, name: str) -> Tensor:
        i = self.names.index(name)
        mean, log_variance = self._means[i], self._log_variances[i]
        noise = torch.randn(
            mean.shape, generator=self.generator, dtype=mean.dtype, device=self.generator.device
        )
        drawn: Tensor = _Drawn.apply(  # type: ignore[no-untyped-call]
            mean, log_variance, noise.to(mean.device)
        )
        return drawn

    def _with_noisy_layers(self, wanted: Callable[[nn.Module], bool]) -> _Skeleton:
        local = copy.deepcopy(self._plain[0])
        uses: dict[int, int] = {}
        for _, tensor in local.named_parameters(remove_duplicate=False):
            uses[id(tensor)] = uses.get(id(tensor), 0) + 1
        layers, covered = [], set()
        for path, module in list(local.named_modules()):
            own = dict(module.named_parameters(recurse=False))
            if not has_local_form(module) or not wanted(module):
                continue
            if any(uses[id(t)] > 1 for t in own.values()):
                continue
            keys = [f"{path}.{k}" if path else k for k in ("weight", "bias") if k in own]
            layer = GaussianLayer(
                module,
                [self.means[k] for k in keys],
                [self.log_variances[k] for k in keys],
                self.generator,
                keys,
            )
            layers.append(layer)
            covered.update(keys)
            if not path:
                local = layer
                break
            parent, _, child = path.rpartition(".")
            setattr(local.get_submodule(parent), child, layer)
        rest = [name for name in self.names if name not in covered]
        return _Skeleton(local, layers, rest)


class _Drawn(torch.autograd.Function):
    """The weights θ + e^{ρ/2} ξ; the derivative in ρ is half the noise that was added."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
        scaled = (log_variance / 2).exp_().mul_(noise)
        ctx.save_for_backward(scaled)
        return mean + scaled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (scaled,) = ctx.saved_tensors
        (g,) = gradients
        return g, (g * scaled).div_(2) if ctx.needs_input_grad[1] else None, None


def refuse_learned_buffers(model: nn.Module) -> None:
    """Batch normalization keeps averages of the data that no prior covers."""
    as_module(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModel(
                f"{name or 'the model'} is a batch normalization, whose running averages are "
                "learned from the data and have no prior; use GroupNorm or LayerNorm"
            )


def fresh_initialization(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a model with every layer's own random initialization drawn anew.

    Whatever the weights of `model` have seen, these have not.

    >>> old = nn.Linear(2, 2)
    >>> new = fresh_initialization(old, 0)
    >>> bool((old.weight == new.weight).any())
    False
    """
    refuse_learned_buffers(model)
    try:
        return drawn_anew(model, seed)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"{error}; give the untrained network as prior=module and say prior_data=()"
        ) from None


def _one_tensor(outputs: object) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise UnsupportedModel(
            f"the model returns {type(outputs).__name__}; wrap it so that it returns one tensor"
        )
    return outputs


def spread_like(model: nn.Module, fraction: float) -> Parameters:
    """A start for the spreads: a fraction of each tensor's own root mean square.

    >>> spread_like(nn.Linear(3, 1, bias=False), 0.5)["weight"].shape
    torch.Size([])
    """
    module_with_values(model)
    positive_number(fraction, "the fraction")
    values = {k: p.detach() for k, p in model.named_parameters() if p.is_floating_point()}
    if not values:
        raise UnsupportedModel("the model has no parameter of real numbers, and so no spreads")
    sizes = {k: float(p.square().mean().sqrt()) for k, p in values.items()}
    typical = max(sizes.values())
    # a tensor of zeros (a bias) has no size of its own
    return {k: torch.tensor(fraction * (v or typical or 1.0)) for k, v in sizes.items()}
