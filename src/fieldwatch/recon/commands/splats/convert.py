"""``fieldwatch convert splats FILE -o FILE``: write Gaussians in another format, and report what it loses."""

from collections.abc import Sequence
from pathlib import Path

from fieldwatch.cli.kit import BadInput, Terminal, check_writable, print_json, print_paths, read_flags, reading_input
from fieldwatch.recon.commands.splats.flags import ConvertSplatsFlags
from fieldwatch.recon.commands.splats.losses import about_written, print_losses
from fieldwatch.recon.data.gaussians import WRITABLE, format_of, read_gaussians, write_gaussians


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(ConvertSplatsFlags, prog="fieldwatch convert splats", arguments=arguments)
    to = chosen.to or format_of(chosen.out)
    check_output(chosen, to)
    assert to is not None  # noqa: S101  checked above
    with reading_input():
        cloud = read_gaussians(chosen.gaussians)
        check_writable(chosen.out.parent)
        written = write_gaussians(chosen.out, cloud, to)
    if chosen.json:
        about = {"gaussians": written.gaussians, "file": written.path.absolute(), "format": to, "bytes": written.size}
        print_json(about | about_written(written) | {"notes": [*cloud.notes, *written.notes]})
        return 0
    console = Terminal()
    console.print(f"{written.gaussians:,} Gaussians, {written.size:,} bytes")
    for note in cloud.notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)
    print_losses(console, written)
    print_paths(console, {to: written.path.absolute()})
    return 0


def check_output(chosen: ConvertSplatsFlags, to: str | None) -> None:
    """Refuse a name without a known format, a folder, and the input itself.

    Raises:
        BadInput: the file cannot be written so.
    """
    if to is None:
        endings = ", ".join(WRITABLE.values())
        raise BadInput(f"-o {chosen.out} has none of the endings {endings}: give another name, or --to")
    if chosen.out.is_dir():
        raise BadInput(f"-o {chosen.out} is a folder: give a file, as in -o {chosen.out / f'scene{WRITABLE[to]}'}")
    if is_same_file(chosen.out, chosen.gaussians.expanduser()):
        raise BadInput(f"-o {chosen.out} is the input, which is never changed: give another name")


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are one existing file."""
    return one.exists() and other.exists() and one.samefile(other)
