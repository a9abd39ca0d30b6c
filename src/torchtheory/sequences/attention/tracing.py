"""Functions of torch that a pass calls, with the module whose forward makes the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class NamedCalls(TorchFunctionMode):
    """Every call of a function of torch in a pass, with the module whose forward makes it.

    Attributes:
        path: names and kinds of the modules that run, the outermost first.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.path: list[tuple[str, str]] = [("", type(model).__name__)]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Inside it is known which module's forward runs."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name)))
            handles.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.path.append((name, type(module).__name__))
            self.enters(name, args)

        return enter

    def _leaving(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        name, _ = self.path.pop()
        self.leaves(name, result)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        self.calls_function(func, args, named, result)
        return result

    def enters(self, name: str, args: tuple[Any, ...]) -> None:
        """A module is called."""

    def leaves(self, name: str, result: Any) -> None:
        """A module has returned."""

    def calls_function(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        """A function has returned."""
