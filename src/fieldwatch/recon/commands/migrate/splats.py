"""The command line of ``fieldwatch train splats``: flags of the original scripts."""

from collections.abc import Sequence

from fieldwatch.pipeline import CommandLine
from fieldwatch.recon.commands.migrate.sugar import translate_flags


def read(words: Sequence[str]) -> CommandLine:
    """Translate the flags of the original scripts.

    Raises:
        BadInput: a flag of theirs that means nothing here; the message says what does.
    """
    return CommandLine(arguments=translate_flags(words))
