"""``fieldwatch doctor``: what machine this is, what is installed, what a data set holds and what is wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fieldwatch.cli.doctor_data import AUTO, data_kinds, kind_of
from fieldwatch.cli.doctor_machine import describe_machine, print_machine
from fieldwatch.cli.doctor_report import DataReport, print_report
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.options import extended, group_field, refuse_changed
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.cli.run_flags import refuse_set
from fieldwatch.record import Terminal
from fieldwatch.registry import resolve


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Look at this machine and at what is installed; with --data, at a data set and what is wrong with it.

    Example: fieldwatch doctor

    Example: fieldwatch doctor --data diligent/bear --picture bear.png

    --data is recognized by what is in it: --kind lists what the installed pipelines know. It is read as the training
    would read it, and nothing is written but the picture that was asked for.

    Of the machine: cores, memory, disk, GPU and driver, torch's build, kernels, extras and programs with what they
    bring, limits, the clock, and whether runs can be written here.

    Exits with 0 when nothing is worse than a note, 1 with warnings or errors, 2 when the data cannot be read or are
    not known; the message says what was wanted.
    """

    data: Path | None = None
    """A folder or file; without it, the machine is looked at."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    # The choices of --kind depend on the installed pipelines, so the class of flags is made here.
    kinds = data_kinds()
    options = {name: resolve(kind.options) for name, kind in kinds.items() if kind.options}
    about_kind = tyro.conf.arg(help="What the data are; auto recognizes them.")
    choice = Annotated[Literal[(AUTO, *kinds)], about_kind]  # pyright: ignore[reportInvalidTypeForm]  the choices are known when it runs
    flags = extended(Arguments, options, [("kind", choice, field(default=AUTO))])
    chosen = read_flags(flags, prog="fieldwatch doctor", arguments=arguments)
    if chosen.data is None:
        refuse_set(chosen, ("kind",), "it is about a data set, and --data is not given")
        _refuse_options(chosen, options, "it is about a data set, and --data is not given")
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
        BadInput: they cannot be read, or are of no known kind.
    """
    try:
        kind = kind_of(path) if chosen.kind == AUTO else data_kinds()[chosen.kind]
        others = [name for name in options if name != kind.name]
        for name in others:
            _refuse_options(chosen, [name], f"it is about {data_kinds()[name].title}, and {path} holds {kind.name}")
        with reading_input():
            return resolve(kind.report)(path, getattr(chosen, group_field(kind.name), None))
    except PermissionError as error:
        raise _closed(error, path) from error
    except BadInput as error:
        cause = error.__cause__
        if isinstance(cause, PermissionError) and str(cause) == str(error):  # nobody has said more about it
            raise _closed(cause, path) from error
        raise


def _closed(error: PermissionError, path: Path) -> BadInput:
    what = error.filename or path
    return BadInput(f"{what} may not be read or written by you (permission denied): ask its owner, or copy the data")
