"""Entry point: finds and runs the command, and turns errors into one message and an exit code."""

import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
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
        0 if done; 1 if done with findings that count as failure (of a training: errors, with --strict also warnings);
        2 for wrong usage or bad input; 3 if diverged or failed; 4 if the supervisor gave up; 128 + the signal (130,
        143, 138, 129) if interrupted after saving.
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
    """Run a command, and report the error that ended it."""
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
    # A training handles Ctrl-C itself and saves; other commands write files atomically.
    except KeyboardInterrupt:
        sys.stderr.write(f"\nfieldwatch {name}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has closed it: keep Python from failing again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  process border: a bug is printed with its traceback and has its own exit code
        return _tell_failure(name, error)


def _tell_failure(name: str, error: Exception) -> int:
    """Print the traceback of a bug; for a missing extra, print how to install it."""
    if isinstance(error, ModuleNotFoundError):
        missing = missing_package(error, preferred=name.split())
        if missing is not None:
            _print_input_error(name, missing)
            return USAGE
    traceback.print_exception(error)
    sys.stderr.write(f"fieldwatch {name}: failed; see the traceback above\n")
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
    # Flags after the words would only disturb the comparison.
    entered = " ".join(word for word in words[:2] if not word.startswith("-"))
    commands = all_commands()
    near = " or ".join(f"`fieldwatch {command}`" for command in _similar(entered.split(), commands))
    hint = f"; did you mean {near}?" if near else ""
    sys.stderr.write(f"fieldwatch: there is no command {entered!r}{hint} Commands: {', '.join(commands)}\n")
    return USAGE


def _similar(entered: Sequence[str], commands: Iterable[str]) -> list[str]:
    """Return the commands that may be meant: all that share the closest word, or the one whose second word is given."""
    by_first: dict[str, list[str]] = {}
    by_second: dict[str, list[str]] = {}
    for command in commands:
        first, _, second = command.partition(" ")
        by_first.setdefault(first, []).append(command)
        by_second.setdefault(second, []).append(command)
    word, *rest = entered or ("",)
    first = difflib.get_close_matches(word, by_first, n=1)
    if not first:
        # A command without its first word, such as `splats`.
        second = difflib.get_close_matches(word, [name for name in by_second if name], n=1)
        return by_second[second[0]] if second else []
    candidates = {command.partition(" ")[2]: command for command in by_first[first[0]]}
    chosen = difflib.get_close_matches(rest[0], candidates, n=1) if rest else []
    return [candidates[chosen[0]]] if chosen else list(candidates.values())


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
