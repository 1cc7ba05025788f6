"""Export of trained Gaussians to the formats of other programs, for ``fieldwatch export``."""

import shlex
from functools import partial
from pathlib import Path

from fieldwatch.cli.kit import (
    BadInput,
    RunFlags,
    Terminal,
    check_writable,
    open_stored,
    print_json,
    print_paths,
    reading_input,
)
from fieldwatch.files import output_path
from fieldwatch.recon.commands.splats.losses import about_written, print_losses
from fieldwatch.recon.data.gaussians import WRITABLE, WrittenGaussians, write_gaussians
from fieldwatch.recon.pipelines.splats import (
    RefinedRun,
    StoredRun,
    fused_cloud,
    open_drawn_run,
    write_coarse_file,
    write_refined_file,
    write_stage0,
)

NAMES = {f: f"splats-{{}}{suffix}" for f, suffix in WRITABLE.items()} | {"3dgs": "3dgs-{}", "pt": "coarse-{}.pt"}
"""Default file names, with a placeholder for the step."""


def export_splats(chosen: RunFlags, to: str, out: Path | None, _options: None) -> int:
    """Write a run's Gaussians.

    Args:
        chosen: flags, with run, checkpoint and device.
        to: format: ply, compressed-ply, spz, sog, splat, 3dgs or pt.
        out: file or folder; None means RUN/products.

    Raises:
        BadInput: the run cannot be opened, or the file cannot be written.
    """
    stored = open_stored(partial(open_drawn_run, device=chosen.device), chosen.run, chosen.checkpoint)
    path = out or output_path(chosen.run, "products", NAMES[to].format(stored.step))
    check_kind(path, to)
    with reading_input():
        check_writable(path.parent)
        written = write(stored, to, path)
    # For a folder (--to 3dgs), `file` is the PLY file in it.
    file = written.path if isinstance(written, WrittenGaussians) else written
    iteration = iteration_of(stored)
    size = file.stat().st_size
    if chosen.json:
        about = {"run": chosen.run, "step": stored.step, "iteration": iteration}
        about |= {"gaussians": len(stored.model.gaussians), "file": file.absolute(), "bytes": size}
        print_json(about | (about_written(written) if isinstance(written, WrittenGaussians) else {}))
        return 0
    console = Terminal()
    console.print(f"{len(stored.model.gaussians):,} Gaussians of step {stored.step}, {size:,} bytes")
    if isinstance(written, WrittenGaussians):
        print_losses(console, written)
    lines: dict[str, str | Path] = {to: path.absolute()}
    if to == "3dgs":
        lines["train from it"] = f"fieldwatch train splats -c {shlex.quote(str(path))} -i {iteration}"
    print_paths(console, lines)
    return 0


def check_kind(path: Path, to: str) -> None:
    """Refuse a file in place of a folder, and a folder in place of a file.

    Raises:
        BadInput: the path is of the other kind.
    """
    if to == "3dgs" and path.is_file():
        raise BadInput(f"{path} is a file, but --to 3dgs writes a folder: give another name with -o")
    if to != "3dgs" and path.is_dir():
        raise BadInput(f"{path} is a folder: give a file, as in -o {path / NAMES[to].format('garden')}")


def iteration_of(stored: StoredRun) -> int:
    """Return the nominal iteration of the checkpoint, as counted in the papers, for any --schedule-scale."""
    return round(stored.step / stored.scene.plan.scale)


def write(stored: StoredRun, to: str, path: Path) -> Path | WrittenGaussians:
    """Write the Gaussians; return the file that holds them, with its losses if it is of a viewers' format."""
    model = stored.model
    scene = stored.scene
    iteration = iteration_of(stored)
    if to in WRITABLE:
        return write_gaussians(path, fused_cloud(model), to, antialiased=model.antialiased)
    if to == "3dgs":
        return write_stage0(model, scene, path, iteration, config=stored.config)
    epoch = stored.step // len(scene.photos.train)
    # Refined Gaussians live on a mesh: SuGaR stores them in another layout.
    if isinstance(stored, RefinedRun):
        return write_refined_file(path, stored.bound, iteration=iteration, epoch=epoch)
    return write_coarse_file(path, model, iteration=iteration, epoch=epoch)
