"""Extras: the error for a library that is not installed contains the command that installs it."""

import re
from collections.abc import Collection
from importlib import metadata

from fieldwatch.base.errors import MissingPackageError

# Modules whose distribution has a different name.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "google": "tensorboard",  # google.protobuf comes with it
    "mlflow": "mlflow-skinny",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
}
# Matches requirements such as: trimesh>=4.5; extra == "mesh"
_EXTRA = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*["']([\w-]+)["']""")
# Extras that only combine others, or are for developers of fieldwatch, are never recommended.
_GATHERING = {"all", "dev"}


def missing_package(error: ModuleNotFoundError, *, preferred: Collection[str]) -> MissingPackageError | None:
    """Explain an import that failed because an extra is not installed.

    Args:
        error: error of the failed import.
        preferred: extras to recommend if several install the library.

    Returns:
        The error to raise; None if no extra of fieldwatch installs the module, so the import is a bug.
    """
    module = (error.name or "").partition(".")[0]
    distribution = _DISTRIBUTIONS.get(module, module)
    extras = _extras_with(distribution)
    if not extras:
        return None
    extra = next((extra for extra in extras if extra in preferred), extras[0])
    return MissingPackageError(
        f"this needs the package {distribution}, which is not installed: pip install 'fieldwatch[{extra}]'"
    )


def _extras_with(distribution: str) -> list[str]:
    """Return the extras of the installed fieldwatch that install a distribution, directly or through another extra."""
    direct: dict[str, set[str]] = {}
    for requirement in metadata.requires("fieldwatch") or ():
        match = _EXTRA.match(requirement)
        if match is not None:
            # An extra that includes another one is a requirement on fieldwatch itself, such as fieldwatch[mesh].
            inner = re.match(r"fieldwatch\[([\w,-]+)\]", requirement)
            direct.setdefault(match[2], set()).update(inner[1].split(",") if inner else {_normal(match[1])})
    normalized = _normal(distribution)
    extras = {extra for extra, needs in direct.items() if normalized in needs}
    # A single pass finds extras that include extras, since they are nested only one level deep.
    extras |= {extra for extra, needs in direct.items() if needs & extras}
    return sorted(extras - _GATHERING, key=lambda extra: (len(direct[extra]), extra))


def _normal(name: str) -> str:
    # The normalization of distribution names in PEP 503.
    return re.sub(r"[-_.]+", "-", name).lower()
