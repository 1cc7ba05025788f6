"""``fieldwatch doctor``: check this machine and its installation, or a data set."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fieldwatch.cli.doctor_data import AUTO, data_kinds, kind_of
from fieldwatch.cli.doctor_flags import data_options, doctor_flags
from fieldwatch.cli.doctor_machine import describe_machine, print_machine
from fieldwatch.cli.doctor_report import DataReport, print_report
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.options import group_field, refuse_changed
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.cli.run_flags import refuse_set
from fieldwatch.record import Terminal
from fieldwatch.registry import resolve


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    # Each kind of data may add flags; they are refused for the other kinds.
    options = data_options()
    chosen = read_flags(doctor_flags(), prog="fieldwatch doctor", arguments=arguments)
    if chosen.data is None:
        refuse_set(chosen, ("kind",), "it needs --data, which is not given")
        _refuse_options(chosen, options, "it needs --data, which is not given")
        machine = describe_machine()
        if chosen.json:
            print_json(asdict(machine))
        else:
            print_machine(Terminal(highlight=False), machine)
        return 1 if machine.has_problems else 0
    report = _examined(chosen, chosen.data.expanduser(), options)
    if chosen.json:
        print_json(asdict(report))
    else:
        console = Terminal(highlight=False)
        print_report(console, report)
        if report.files:
            print_paths(console, {name: path.absolute() for name, path in report.files.items()})
    return 1 if report.has_problems else 0


def _refuse_options(chosen: Any, names: Iterable[str], why: str) -> None:
    for name in names:
        options = getattr(chosen, group_field(name), None)
        if options is not None:
            refuse_changed(options, why)


def _examined(chosen: Any, path: Path, options: Mapping[str, type]) -> DataReport:
    """Read and check the data.

    Raises:
        BadInput: the data cannot be read, or its kind is unknown.
    """
    try:
        kind = kind_of(path) if chosen.kind == AUTO else data_kinds()[chosen.kind]
        others = [name for name in options if name != kind.name]
        for name in others:
            _refuse_options(chosen, [name], f"it applies to {data_kinds()[name].title}, and {path} holds {kind.name}")
        with reading_input():
            return resolve(kind.report)(path, getattr(chosen, group_field(kind.name), None))
    except PermissionError as error:
        raise _closed(error, path) from error
    except BadInput as error:
        cause = error.__cause__
        # Replace the system's bare text only; a pipeline may have explained the error better.
        if isinstance(cause, PermissionError) and str(cause) == str(error):
            raise _closed(cause, path) from error
        raise


def _closed(error: PermissionError, path: Path) -> BadInput:
    file = error.filename or path
    return BadInput(f"{file} cannot be read or written (permission denied): ask its owner, or copy the data")
