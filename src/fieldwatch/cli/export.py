"""``fieldwatch export RUN --to bitstream``: a trained clip as one small file, read back and measured."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from fieldwatch.cli.ending import print_json, print_places, reading_input
from fieldwatch.cli.opening import open_stored
from fieldwatch.cli.training import check_writable
from fieldwatch.pipelines.video import Device, Exported, export_bitstream
from fieldwatch.pipelines.video.bitstream import CodecOptions

COMPARED = (
    ("PSNR train, pooled (dB)", "Eval/Pooled/train_psnr", 3),
    ("PSNR held out, pooled (dB)", "Eval/Pooled/val_psnr", 3),
    ("SSIM train", "Eval/SSIM/train", 4),
    ("SSIM held out", "Eval/SSIM/val", 4),
    ("semantic similarity train", "Eval/Frame/train_clip_sim", 4),
    ("semantic similarity held out", "Eval/Frame/val_clip_sim", 4),
)
"""Rows of the table: label, tag, digits."""
DROPPED_MORE = 1


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write a run's network as one compressed file, then decode that file and say what it costs and what it lost.

    Example: fieldwatch export runs/bunny --to bitstream --psnr-drop 0.1 -o bunny.fwv

    The file is all that `fieldwatch infer video` needs. Exits with 1 when --psnr-drop could not be kept.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    to: Literal["bitstream"]
    """What to write."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The file; default RUN/products/video-<step>.fwv."""
    checkpoint: str = "best"
    """best (by held-out PSNR), last, or a step."""
    bits: int = 8
    """Bits per weight, 1 to 12."""
    embedding_bits: int = 8
    """Bits per entry of the frames' codes (hnerv), 1 to 12."""
    psnr_drop: float | None = None
    """Take bits from tensors where it shows least, as long as training PSNR drops by at most so many dB."""
    clip_head: bool = True
    """Store the semantic head, for search."""
    device: Device = "auto"
    """Where to draw."""
    json: bool = False
    """Print the figures as JSON, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch export", args=arguments)
    with reading_input():
        options = CodecOptions(bits=chosen.bits, embedding_bits=chosen.embedding_bits, with_clip_head=chosen.clip_head)
    stored = open_stored(chosen.run, chosen.checkpoint, chosen.device)
    path = chosen.out or chosen.run / "products" / f"video-{stored.step}.fwv"
    console = Console(stderr=chosen.json)
    with reading_input():
        check_file(path)
        check_writable(path.parent)
        with console.status("exporting") as status:
            exported = export_bitstream(stored, path, options, psnr_drop=chosen.psnr_drop, stage=status.update)
    too_much = chosen.psnr_drop is not None and exported.drop > chosen.psnr_drop
    if chosen.json:
        print_json({"run": chosen.run, "step": stored.step, **figures(exported)})
    else:
        console.print(table(exported))
        print_places(
            console, {"bitstream": path.absolute(), "draw it": f"fieldwatch infer video {shlex.quote(str(path))} --mp4"}
        )
    if too_much:
        lost = f"{exported.drop:.3f} dB where --psnr-drop {chosen.psnr_drop:g} was asked for"
        Console(stderr=True).print(f"[yellow]the file loses {lost}[/]: raise --bits or the drop", soft_wrap=True)
    return DROPPED_MORE if too_much else 0


def check_file(path: Path) -> None:
    """Refuse to write over a folder.

    Raises:
        IsADirectoryError: the path is one.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name the file itself, as in -o {path / 'clip.fwv'}")


def table(exported: Exported) -> Table:
    """Size, quality and speed of the file, beside the checkpoint's."""
    written = exported.written
    whole = Table(title="bitstream, decoded from the file", title_justify="left")
    for column in ("", "checkpoint", "file", "change"):
        whole.add_column(column, justify="left" if not column else "right")
    ratio = exported.plain_bytes / written.bytes
    whole.add_row("bytes", f"{exported.plain_bytes:,}", f"{written.bytes:,}", f"{ratio:.1f} times smaller")
    whole.add_row("bits per pixel", f"{written.bpp * ratio:.4f}", f"{written.bpp:.4f}", "")
    for label, tag, digits in COMPARED:
        before, after = exported.before.get(tag), exported.after.get(tag)
        if before is not None and after is not None:
            whole.add_row(label, f"{before:.{digits}f}", f"{after:.{digits}f}", f"{after - before:+.{digits}f}")
    whole.add_row("decoding (frames per second)", "", f"{exported.frames_per_second:.1f}", "")
    whole.add_row("loading (seconds)", "", f"{exported.loading_seconds:.2f}", "")
    return whole


def figures(exported: Exported) -> dict[str, Any]:
    """The same for a script, with the bytes of every part."""
    written = exported.written
    return {
        "file": written.path.absolute(),
        "bytes": written.bytes,
        "bpp": written.bpp,
        "checkpoint_bytes": exported.plain_bytes,
        "ratio": exported.plain_bytes / written.bytes,
        "psnr_drop": exported.drop,
        "before": exported.before,
        "after": exported.after,
        "frames_per_second": exported.frames_per_second,
        "loading_seconds": exported.loading_seconds,
        "clip_head": exported.options.with_clip_head,
        "bits": {"default": exported.options.bits, **exported.options.by_prefix},
        "breakdown": written.breakdown,
    }
