"""``fieldwatch completion SHELL``: a script that completes commands, flags, their values and run folders."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from fieldwatch.cli.commands import all_commands, flags_of
from fieldwatch.cli.completion_scripts import bash_script, fish_script, zsh_script
from fieldwatch.cli.completion_table import completed_flags
from fieldwatch.cli.flag_help import read_flags


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Print a script for tab completion of commands, flags, their values and run folders.

    Example: fieldwatch completion bash > ~/.local/share/bash-completion/completions/fieldwatch

    Example: fieldwatch completion zsh > ~/.zfunc/_fieldwatch     (a folder of your fpath)

    Example: fieldwatch completion fish > ~/.config/fish/completions/fieldwatch.fish

    To try it in this shell only: eval "$(fieldwatch completion bash)". The script is self-contained: Tab starts no
    Python.
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Shell that reads the script."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch completion", arguments=arguments)
    script = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[chosen.shell]
    # Everything is resolved now: the script itself must start no Python.
    commands = all_commands()
    take_runs = [name for name, command in commands.items() if command.takes_run]
    sys.stdout.write(script({name: completed_flags(flags_of(name)) for name in commands}, take_runs))
    return 0
