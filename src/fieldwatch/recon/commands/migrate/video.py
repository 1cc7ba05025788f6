"""Command line of ``fieldwatch train video``: translates the flags of the original scripts."""

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
"""Flags of `fieldwatch train video` by flag of the original scripts."""


def read(words: Sequence[str]) -> CommandLine:
    """Rename the flags of the original scripts."""
    return CommandLine(arguments=renamed(words, ORIGINAL_FLAGS))
