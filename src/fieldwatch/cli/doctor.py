"""``fieldwatch doctor``: what machine this is, what is installed, what a data set holds and what is wrong with it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from fieldwatch.cli.doctor_data import Kind, kind_of, report_of
from fieldwatch.cli.doctor_machine import describe_machine, print_machine
from fieldwatch.cli.doctor_normals import NormalOptions
from fieldwatch.cli.doctor_report import DataReport, print_report
from fieldwatch.cli.ending import BadInput, print_json, print_places, reading_input
from fieldwatch.cli.opening import refuse_set


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Look at this machine and at what is installed; with --data, at a data set and what is wrong with it.

    Example: fieldwatch doctor

    Example: fieldwatch doctor --data diligent/bear --picture bear.png

    --data is recognised by what is in it: normal maps (with cameras_sphere.npz, or own captures with COLMAP's model),
    photos with cameras (COLMAP, transforms.json), frames (a folder of pictures, a video file), Gaussians (PLY, 3DGS
    folder). It is read as the training would read it, and nothing is written but the picture that was asked for.

    Of the machine: cores, memory, disk, GPU and driver, torch's build, kernels, extras and programs with what they
    bring, limits, the clock, and whether runs can be written here.

    Exits with 0 when nothing is worse than a note, 1 with warnings or errors, 2 when the data cannot be read or are
    not known; the message says what was wanted.
    """

    data: Path | None = None
    """A folder or file; without it, the machine is looked at."""
    kind: Literal["auto", "normals", "photos", "frames", "gaussians"] = "auto"
    """What the data are; auto recognises them."""
    picture: Path | None = None
    """Write a contact sheet of normal maps: normals, outline of the mask (white), of the visual hull (red)."""
    axes: Literal["opengl", "opencv", "auto"] | None = None
    """Of normals in the files; by the layout, if not given."""
    normals: str | None = None
    """Name of the folder of normals, where there are several."""
    exclude: tuple[str, ...] = ()
    """Views of normal maps to leave out: numbers or names."""
    fill_holes: bool = False
    """Add holes of masks to them where there are normals in the holes."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch doctor", args=arguments)
    if chosen.data is None:
        others = ("kind", "picture", "axes", "normals", "exclude", "fill_holes")
        refuse_set(chosen, others, "it is about a data set, and --data is not given")
        machine = describe_machine()
        if chosen.json:
            print_json(asdict(machine))
        else:
            print_machine(Console(highlight=False), machine)
        return 1 if machine.ill else 0
    report = _look(chosen, chosen.data.expanduser())
    if chosen.json:
        print_json(asdict(report))
    else:
        console = Console(highlight=False)
        print_report(console, report)
        if chosen.picture is not None:
            print_places(console, {"picture": chosen.picture.expanduser().absolute()})
    return 1 if report.ill else 0


def _look(chosen: Arguments, path: Path) -> DataReport:
    """Read the data; what is wrong with the folder itself ends the command.

    Raises:
        BadInput: it cannot be read, or is of no known kind.
    """
    try:
        kind: Kind = kind_of(path) if chosen.kind == "auto" else chosen.kind
        if kind != "normals":
            only = ("picture", "axes", "normals", "exclude", "fill_holes")
            refuse_set(chosen, only, f"it is about normal maps, and {path} holds {kind}")
        options = NormalOptions(
            axes=chosen.axes,
            normals=chosen.normals,
            exclude=tuple(int(one) if one.isdecimal() else one for one in chosen.exclude),
            fill_holes=chosen.fill_holes,
            picture=chosen.picture,
        )
        with reading_input():
            return report_of(path, kind, options)
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
