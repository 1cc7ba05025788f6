"""Lazy imports of the public names of a package."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, names: Mapping[str, Sequence[str]], *, home: str = "") -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` (PEP 562) that imports each public name at its first use.

    The package, and those of its modules that do not need torch, can then be imported without loading torch. For type
    checkers, the package imports the same names under ``TYPE_CHECKING``.

    Args:
        package: ``__name__`` of the package.
        names: public names by the module of ``home`` that defines them.
        home: package that contains the modules; ``package`` itself if empty.

    Raises:
        AttributeError: the package has no such public name (raised by the returned function).
    """
    homes = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {', '.join(homes)}")
        return getattr(import_module(f"{home or package}.{homes[name]}"), name)

    return get
