"""``fieldwatch export RUN --to ...``: what was trained, or what was recorded, as files for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, TypeGuard

import tyro

from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.cli.export_record import export_the_record
from fieldwatch.cli.pipeline import pipeline_of
from fieldwatch.record.exports import TARGETS as RECORD
from fieldwatch.record.exports import Target

TARGETS = {
    "video": ("bitstream",),
    "splats": ("ply", "3dgs", "pt"),
    "refined": ("ply", "3dgs", "pt"),
    "normals": ("ply", "glb", "obj", "poses", "maps"),
}
"""What there is to write of the runs of each pipeline, besides the record, which every run has."""
_OF_THE_RECORD = ("run", "to", "out", "overwrite", "json")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write what a run trained or recorded as files for others.

    Example: fieldwatch export runs/bunny --to bitstream --psnr-drop 0.1 -o bunny.fwv

    Example: fieldwatch export runs/garden --to ply -o garden.ply

    Example: fieldwatch export runs/bear --to parquet -o bear-record

    Of every run, a loop of your own included, the record: parquet or csv, a folder of tables with one row per step
    and one column per metric (steps, epochs, events); tensorboard, event files with one clean curve per metric. What a
    resume has voided is left out. Parquet needs pip install 'fieldwatch[parquet]'.

    Of a video: its network as one compressed file, decoded again to say what it costs and what it lost; the file is all
    that `fieldwatch infer video` needs. Exits with 1 when --psnr-drop could not be kept.

    Of splats: ply, for viewers; 3dgs, the output folder of a 3DGS training (-c of `fieldwatch train splats` and other
    tools read it); pt, the checkpoint of the original SuGaR. Of a refined mesh the same, of
    the Gaussians bound to it; its pt also holds the mesh.

    Of normals: ply, glb or obj, the mesh in the world of the data; poses, the data set again with the poses of the
    training (cameras_sphere.npz) and COLMAP's text files; maps, normals, masks and depth that the surface shows.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    to: Literal["parquet", "csv", "tensorboard", "bitstream", "ply", "3dgs", "pt", "glb", "obj", "poses", "maps"]
    """What to write."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The file, or the folder for the record, 3dgs, poses and maps; default RUN/products/<what>-<step>."""
    overwrite: bool = False
    """Record: replace an export that is there."""
    checkpoint: str = "best"
    """What was trained: best (by held-out PSNR, or by the mean angular error), last, or a step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What was trained: where to draw."""
    json: bool = False
    """Print what was written as JSON, and nothing else on standard output."""
    resolution: int | None = None
    """Normals: cells of the mesh along a side of its box, at most 512; default: as in the training."""
    bits: int = 8
    """Bitstream: bits per weight, 1 to 12."""
    embedding_bits: int = 8
    """Bitstream: bits per entry of the frames' codes (hnerv), 1 to 12."""
    psnr_drop: float | None = None
    """Bitstream: take bits from tensors where it shows least, while training PSNR drops by at most so many dB."""
    clip_head: bool = True
    """Bitstream: store the semantic head, for search."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch export", args=arguments)
    with reading_input():
        pipeline = pipeline_of(chosen.run)
    targets = (*TARGETS.get(pipeline or "", ()), *RECORD)
    if chosen.to not in targets:
        raise BadInput(
            f"--to {chosen.to} is not for {chosen.run}, a run of {pipeline or 'a loop of your own'}: "
            f"use --to {' or --to '.join(targets)}"
        )
    if _is_record(chosen.to):
        _refuse_flags(chosen)
        return export_the_record(chosen.run, chosen.to, chosen.out, overwrite=chosen.overwrite, json=chosen.json)
    if chosen.overwrite:
        raise BadInput(f"--overwrite: it belongs to the record, and --to {chosen.to} replaces its file; leave it out")
    trained = import_module("fieldwatch.cli.export_trained")  # brings torch, which the record does without
    return int(trained.export_trained(chosen))


def _is_record(to: str) -> TypeGuard[Target]:
    return to in RECORD


def _refuse_flags(chosen: Arguments) -> None:
    """Refuse flags that mean nothing to the record.

    Raises:
        BadInput: names the first one that is set.
    """
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        if field.name not in _OF_THE_RECORD and value != field.default:
            flag = field.name.replace("_", "-")
            raise BadInput(
                f"--{flag} {value}: it is about what was trained, and --to {chosen.to} is the record; leave it out"
            )
