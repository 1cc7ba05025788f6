"""Command line of ``fieldwatch train splats``: translates the flags of the original scripts."""

from collections.abc import Sequence

from fieldwatch.pipeline import CommandLine
from fieldwatch.recon.commands.migrate.sugar import translate


def read(words: Sequence[str]) -> CommandLine:
    """Translate the flags of the original scripts.

    Raises:
        BadInput: a flag has no counterpart; the message says what to use instead.
    """
    return translate(words)
