"""The error for a sink whose library is not installed."""

from fieldwatch.base import MissingPackageError


class MissingExtra(MissingPackageError):  # noqa: N818  says what is wanted
    """An optional library is not installed.

    Args:
        extra: the extra of this package that brings it.
    """

    def __init__(self, extra: str) -> None:
        super().__init__(f"the {extra} sink needs a library that is not installed: pip install 'fieldwatch[{extra}]'")
