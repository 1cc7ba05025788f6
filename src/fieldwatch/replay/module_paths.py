"""Paths of the modules whose `forward` is running, such as ``model.layers.2``."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModulePaths:
    """Follows the forward calls of all modules while it is entered.

    Args:
        items: tracked objects; a module below one of them is named by its path, any other by its class.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._names: dict[int, str] = {}
        for name, item in items.items():
            if isinstance(item, nn.Module):
                for path, module in item.named_modules():
                    self._names.setdefault(id(module), f"{name}.{path}" if path else name)
        self._running: list[str] = []
        self._hooks = ExitStack()

    @property
    def innermost(self) -> str:
        """Path of the innermost module that is running; empty outside of modules."""
        return self._running[-1] if self._running else ""

    def __enter__(self) -> Self:
        before = register_module_forward_pre_hook(self._enter_module)
        # Also called if forward raises, or the path would stay.
        after = register_module_forward_hook(self._leave_module, always_call=True)
        self._hooks.callback(before.remove)
        self._hooks.callback(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        self._running.clear()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(id(module), type(module).__name__))

    def _leave_module(self, _: nn.Module, __: Any, ___: Any) -> None:
        if self._running:
            self._running.pop()
