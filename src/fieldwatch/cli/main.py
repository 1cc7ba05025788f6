"""Finds the command that was asked for, runs it, and turns what went wrong into one clear message and an exit code."""

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata

from rich.table import Table
from rich.text import Text

from fieldwatch.base import InputError, missing_package, printable
from fieldwatch.cli.commands import all_commands, find_command, flags_of, runner_of
from fieldwatch.cli.flag_help import HELP_ALL, print_help, wants_help
from fieldwatch.cli.supervise import is_supervised, reporting_exit, supervise
from fieldwatch.record import Terminal
from fieldwatch.registry import working_pipelines

USAGE = 2
FAILED = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 done, 1 done with findings that count as failure (of a training: errors, with --strict warnings, too),
        2 wrong usage or bad input, 3 diverged or failed, 4 supervised and given up, 128 and the signal (130, 143, 138,
        129) interrupted after saving.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        _print_help()
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"fieldwatch {metadata.version('fieldwatch')}\n")
        return 0
    return _run(words)


def _run(words: Sequence[str]) -> int:
    """Run a command, and tell what ended it."""
    name = words[0]
    try:
        command = find_command(words)
        if command is None:
            return _unknown(words)
        name = command
        return _call(name, words[len(name.split()) :])
    except InputError as error:
        _print_input_error(name, error)
        return USAGE
    except KeyboardInterrupt:  # a training saves first, and ends by itself; all else leaves nothing half written
        sys.stderr.write(f"\nfieldwatch {name}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  process border: a bug is shown whole and ends with its own exit code
        return _tell_failure(name, error)


def _tell_failure(name: str, error: Exception) -> int:
    """Show a bug whole; an import that only lacks an extra is no bug."""
    if isinstance(error, ModuleNotFoundError):
        missing = missing_package(error, needed_for="this", preferred=name.split())
        if missing is not None:
            _print_input_error(name, missing)
            return USAGE
    traceback.print_exception(error)
    sys.stderr.write(f"fieldwatch {name}: failed; the traceback above says where\n")
    return FAILED


def _call(name: str, arguments: Sequence[str]) -> int:
    # Help needs the flags alone: the module that runs a command may take seconds to import torch.
    kind = flags_of(name, arguments) if wants_help(arguments) else None
    if kind is not None:
        print_help(kind, prog=f"fieldwatch {name}", everything=HELP_ALL in arguments)
        raise SystemExit(0)  # as tyro does after its help
    # Decided from the words alone: the supervisor must stay small and import no torch.
    if is_supervised(name, arguments):
        return supervise(name, arguments)
    with reporting_exit():
        return int(runner_of(name)(arguments))


def _print_input_error(name: str, error: InputError) -> None:
    Terminal(stderr=True, soft_wrap=True).print(Text(f"fieldwatch {name}: ", "bold red"), end="")
    sys.stderr.write(printable("\n".join((str(error), *getattr(error, "__notes__", ())))) + "\n")


def _unknown(words: Sequence[str]) -> int:
    asked = " ".join(word for word in words[:2] if not word.startswith("-"))
    commands = all_commands()
    near = difflib.get_close_matches(asked, commands, n=1, cutoff=0.4)
    hint = f"; did you mean `fieldwatch {near[0]}`?" if near else ""
    sys.stderr.write(f"fieldwatch: there is no command {asked!r}{hint} Commands: {', '.join(commands)}\n")
    return USAGE


def _print_help() -> None:
    console = Terminal(markup=True)
    console.print("[bold]fieldwatch[/]: train neural reconstructions you can see into, in runs you cannot lose.\n")
    table = Table.grid(padding=(0, 3))
    for name, command in all_commands().items():
        table.add_row(f"  [bold]fieldwatch {name}[/]", command.about)
    console.print(table)
    pipelines, broken = working_pipelines()
    begin = ", ".join(f"[bold]fieldwatch {each.start_command}[/]" for each in pipelines if not each.trained_by)
    console.print(f"\nEvery command explains itself with --help. To begin: {begin}")
    for error in broken.values():
        console.print(Text(f"warning: {error}", "yellow"), soft_wrap=True)
    console.print('Tab completion: eval "$(fieldwatch completion bash)" (or zsh, fish)', highlight=False)
