"""What was trained as files for other programs: hands each pipeline's runs to its own writer."""

from collections.abc import Sequence
from typing import Any

from fieldwatch.cli.ending import reading_input
from fieldwatch.cli.export_normals import export_normals
from fieldwatch.cli.export_splats import export_splats
from fieldwatch.cli.export_video import export_video
from fieldwatch.cli.opening import RunFlags, refuse_set
from fieldwatch.cli.pipeline import pipeline_of
from fieldwatch.pipelines.video.bitstream import CodecOptions

CODEC: Sequence[str] = ("bits", "embedding_bits", "psnr_drop", "clip_head")


def export_trained(chosen: Any) -> int:
    """Write a run's model.

    Args:
        chosen: the command's arguments; ``to`` is one of those of the run's pipeline.

    Raises:
        BadInput: a flag means nothing here, the run cannot be opened, or the file not be written.
    """
    flags = RunFlags(run=chosen.run, checkpoint=chosen.checkpoint, device=chosen.device, json=chosen.json)
    if pipeline_of(chosen.run) == "normals":
        refuse_set(chosen, CODEC, f"it belongs to --to bitstream, and --to is {chosen.to}")
        if chosen.to in {"poses", "maps"}:
            refuse_set(chosen, ("resolution",), f"it belongs to meshes, and --to is {chosen.to}")
        return export_normals(flags, chosen.to, chosen.out, chosen.resolution)
    refuse_set(chosen, ("resolution",), f"it belongs to the meshes of normals, and {chosen.run} holds none")
    if chosen.to == "bitstream":
        with reading_input():
            options = CodecOptions(
                bits=chosen.bits, embedding_bits=chosen.embedding_bits, with_clip_head=chosen.clip_head
            )
        return export_video(flags, chosen.out, options, chosen.psnr_drop)
    refuse_set(chosen, CODEC, f"it belongs to --to bitstream, and --to is {chosen.to}")
    return export_splats(flags, chosen.to, chosen.out)
