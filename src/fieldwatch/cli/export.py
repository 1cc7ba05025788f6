"""``fieldwatch export RUN --to ...``: what was trained, as files for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.cli.export_normals import export_normals
from fieldwatch.cli.export_splats import export_splats
from fieldwatch.cli.export_video import export_video
from fieldwatch.cli.opening import RunFlags, refuse_set
from fieldwatch.cli.pipeline import by_pipeline, pipeline_of
from fieldwatch.pipelines.video.bitstream import CodecOptions

TARGETS = {
    "video": ("bitstream",),
    "splats": ("ply", "3dgs", "pt"),
    "refined": ("ply", "3dgs", "pt"),
    "normals": ("ply", "glb", "obj", "poses", "maps"),
}
"""What there is to write of the runs of each pipeline."""
_CODEC = ("bits", "embedding_bits", "psnr_drop", "clip_head")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunFlags):
    """Write what a run trained as files for others.

    Example: fieldwatch export runs/bunny --to bitstream --psnr-drop 0.1 -o bunny.fwv

    Example: fieldwatch export runs/garden --to ply -o garden.ply

    Of a video: its network as one compressed file, decoded again to say what it costs and what it lost; the file is all
    that `fieldwatch infer video` needs. Exits with 1 when --psnr-drop could not be kept.

    Of splats: ply, for viewers; 3dgs, the output folder of a 3DGS training (-c of `fieldwatch train splats` and other
    tools read it); pt, the checkpoint of the original SuGaR. Of a refined mesh the same, of
    the Gaussians bound to it; its pt also holds the mesh.

    Of normals: ply, glb or obj, the mesh in the world of the data; poses, the data set again with the poses of the
    training (cameras_sphere.npz) and COLMAP's text files; maps, normals, masks and depth that the surface shows.
    """

    to: Literal["bitstream", "ply", "3dgs", "pt", "glb", "obj", "poses", "maps"]
    """What to write."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The file, or the folder for 3dgs, poses and maps; default RUN/products/<what>-<step>."""
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
    targets = by_pipeline(chosen.run, TARGETS)
    if chosen.to not in targets:
        raise BadInput(
            f"--to {chosen.to} is not for {chosen.run}, whose pipeline is another: use --to {' or --to '.join(targets)}"
        )
    if pipeline_of(chosen.run) == "normals":
        refuse_set(chosen, _CODEC, f"it belongs to --to bitstream, and --to is {chosen.to}")
        if chosen.to in {"poses", "maps"}:
            refuse_set(chosen, ("resolution",), f"it belongs to meshes, and --to is {chosen.to}")
        return export_normals(chosen, chosen.to, chosen.out, chosen.resolution)
    refuse_set(chosen, ("resolution",), f"it belongs to the meshes of normals, and {chosen.run} holds none")
    if chosen.to == "bitstream":
        with reading_input():
            options = CodecOptions(
                bits=chosen.bits, embedding_bits=chosen.embedding_bits, with_clip_head=chosen.clip_head
            )
        return export_video(chosen, chosen.out, options, chosen.psnr_drop)
    refuse_set(chosen, _CODEC, f"it belongs to --to bitstream, and --to is {chosen.to}")
    return export_splats(chosen, chosen.to, chosen.out)
