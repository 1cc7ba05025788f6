"""Optional libraries: imported when a feature asks for them; a missing one is an error that says what installs it."""

import re
from collections.abc import Collection
from importlib import import_module, metadata
from types import ModuleType

from fieldwatch.base.errors import MissingPackageError

# Where the name of a distribution is not the name of its module.
_DISTRIBUTIONS = {"PIL": "pillow", "pynvml": "nvidia-ml-py", "skimage": "scikit-image", "mlflow": "mlflow-skinny"}
_EXTRA = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*["']([\w-]+)["']""")
# Extras that gather others, or serve the development of fieldwatch: never the advice.
_GATHERING = {"all", "dev"}


def import_extra(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import an optional library.

    Args:
        module: its top-level module.
        extra: the extra of fieldwatch that installs it.
        needed_for: the feature, as the subject of the message.

    Raises:
        MissingPackageError: it is not installed. The message has the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # Only the library itself: what an installed library fails to import is not cured by our extra.
        if error.name != module:
            raise
        raise MissingPackageError(
            f"{needed_for} needs the package {module}, which is not installed: pip install 'fieldwatch[{extra}]'"
        ) from error


def missing_package(
    error: ModuleNotFoundError, *, needed_for: str, preferred: Collection[str]
) -> MissingPackageError | None:
    """Explain an import that failed because an extra is not installed.

    Args:
        error: the failed import.
        needed_for: what asked for it, as the subject of the message.
        preferred: extras that fit the caller best, if several install the library.

    Returns:
        The error to show; None if no extra of fieldwatch installs that module, so that the import is a bug.
    """
    module = (error.name or "").partition(".")[0]
    extras = _extras_with(_DISTRIBUTIONS.get(module, module))
    if not extras:
        return None
    extra = next((extra for extra in extras if extra in preferred), extras[0])
    return MissingPackageError(
        f"{needed_for} needs the package {module}, which is not installed: pip install 'fieldwatch[{extra}]'"
    )


def _extras_with(distribution: str) -> list[str]:
    """List the extras of the installed fieldwatch that install a distribution, also through another extra."""
    direct: dict[str, set[str]] = {}
    for requirement in metadata.requires("fieldwatch") or ():
        match = _EXTRA.match(requirement)
        if match is not None:
            # An extra that brings another one is written as a requirement of fieldwatch itself, fieldwatch[mesh].
            inner = re.match(r"fieldwatch\[([\w,-]+)\]", requirement)
            direct.setdefault(match[2], set()).update(inner[1].split(",") if inner else {_normal(match[1])})
    wanted = _normal(distribution)
    found = {extra for extra, needs in direct.items() if wanted in needs}
    # One round is enough for extras of extras: they are nested one deep.
    found |= {extra for extra, needs in direct.items() if needs & found}
    return sorted(found - _GATHERING, key=lambda extra: (len(direct[extra]), extra))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
