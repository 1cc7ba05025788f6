"""Public names of a package that are imported when they are first used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, names: Mapping[str, Sequence[str]], *, home: str = "") -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` (PEP 562) that imports each public name at its first use.

    A package whose names need torch can then be imported without it, and so can its modules that do not need torch.
    For type checkers, the package imports the same names under ``TYPE_CHECKING``.

    Args:
        package: the package's ``__name__``.
        names: the public names by the module that defines them, a module of ``home``.
        home: a package; ``package`` itself if empty.

    Raises:
        AttributeError: the package has no such public name (raised by the returned function).
    """
    homes = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {', '.join(homes)}")
        return getattr(import_module(f"{home or package}.{homes[name]}"), name)

    return get
