"""Lazy imports of the public names of a package."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module-level ``__getattr__`` and ``__dir__`` (PEP 562) that import each public name at its first use.

    The package writes its imports under ``if TYPE_CHECKING:``, where type checkers and readers expect them::

        if TYPE_CHECKING:
            from package.module import Name

        __all__ = ["Name"]
        __getattr__, __dir__ = lazy_names(__name__)

    ``from package import Name`` then loads ``package.module`` and no other module of the package. Thus torch and
    optional libraries are loaded only if a name that needs them is used.

    Args:
        package: ``__name__`` of the package.

    Raises:
        AttributeError: the package has no such public name (raised by the returned function).
    """
    places: dict[str, tuple[str, str]] = {}

    def get(name: str) -> Any:
        # The import system looks up names such as __path__, which no package imports lazily.
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not places:
            places.update(_imports_for_type_checkers(package))
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {', '.join(places)}")
        module, original = places[name]
        # Looking up a submodule on the package would call this function again.
        if module == package:
            return import_module(f"{package}.{original}")
        # Import as a from-import does, since the name may be a submodule that is not loaded yet.
        value = getattr(__import__(module, fromlist=[original]), original)
        # From now on an ordinary attribute: a loop may write `fieldwatch.Terms` in every step.
        setattr(sys.modules[package], name, value)
        return value

    def public() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, public


def _imports_for_type_checkers(package: str) -> dict[str, tuple[str, str]]:
    """Return the names that a package imports under ``if TYPE_CHECKING:``, each with its module and original name."""
    spec = find_spec(package)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a package with source files, got {package}: cannot find its lazy names")
    source = spec.loader.get_source(package)  # pyright: ignore[reportAttributeAccessIssue]  source loaders have it
    return {
        alias.asname or alias.name: (statement.module, alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
