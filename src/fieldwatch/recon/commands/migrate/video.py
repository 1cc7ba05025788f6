"""The command line of ``fieldwatch train video``: flags of the original scripts."""

from collections.abc import Sequence

from fieldwatch.cli.kit import renamed
from fieldwatch.pipeline import CommandLine

ORIGINAL_FLAGS = {
    "--data-path": "--data",
    "-s": "--data",
    "--scene-path": "--data",
    "--outf": "--out",
    "--crop-list": "--crop",
    "--resize-list": "--resize",
    "-b": "--batch",
    "--batchSize": "--batch",
    "--e": "--epochs",
    "-e": "--epochs",
    "--manualSeed": "--seed",
}
"""Flags of the original scripts, by the name they have here."""


def read(words: Sequence[str]) -> CommandLine:
    """Rename the flags of the original scripts."""
    return CommandLine(arguments=renamed(words, ORIGINAL_FLAGS))
