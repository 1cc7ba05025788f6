"""Flags of ``fieldwatch doctor``; no torch is needed for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.doctor_data import AUTO, data_kinds
from fieldwatch.cli.options import extended
from fieldwatch.registry import resolve


@dataclass(frozen=True, kw_only=True)
class DoctorFlags:
    """Check this machine and its installation; with --data, check a data set.

    Example: fieldwatch doctor

    Example: fieldwatch doctor --data diligent/bear --picture bear.png

    The kind of data is recognized by its files; --kind lists the kinds that the installed pipelines know. Data is read
    as a training would read it, and nothing is written except the picture that --picture names.

    The machine check covers cores, memory, disk, GPU and driver, the torch build, kernels, extras and programs, limits,
    the clock, and whether runs can be written here.

    Exit codes: 0 if nothing is worse than a note, 1 with warnings or errors, 2 if the data cannot be read or its kind
    is not known.
    """

    data: Path | None = None
    """Folder or file to check; without it, the machine is checked."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""


def data_options() -> dict[str, type]:
    """Return the additional flags of each kind of data that has any, by kind."""
    return {name: resolve(kind.options) for name, kind in data_kinds().items() if kind.options}


def doctor_flags(_: Sequence[str] = ()) -> type[DoctorFlags]:
    """Return the flags; the choices of ``--kind`` depend on the installed pipelines."""
    about_kind = tyro.conf.arg(help="Kind of the data; auto recognizes it.")
    choice = Annotated[Literal[(AUTO, *data_kinds())], about_kind]  # pyright: ignore[reportInvalidTypeForm]  the choices are known when it runs
    return extended(DoctorFlags, data_options(), [("kind", choice, field(default=AUTO))])
