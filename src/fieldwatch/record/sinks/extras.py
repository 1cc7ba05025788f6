"""Error for a sink whose optional library is not installed."""

from fieldwatch.base import MissingPackageError


class MissingExtra(MissingPackageError):  # noqa: N818  named after the finding
    """Raised when an optional library is not installed.

    Args:
        extra: extra of this package that installs the library.
    """

    def __init__(self, extra: str) -> None:
        super().__init__(f"the {extra} sink needs a library that is not installed: pip install 'fieldwatch[{extra}]'")
