"""Export of a neural video to a compressed file, for ``fieldwatch export``; the file is decoded and evaluated."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fieldwatch import InputError
from fieldwatch.cli.kit import RunFlags, Terminal, check_writable, open_stored, print_json, print_paths, reading_input
from fieldwatch.files import output_path
from fieldwatch.recon.commands.video.options import ExportOptions
from fieldwatch.recon.pipelines.video import ExportedBitstream, export_bitstream, open_run
from fieldwatch.recon.pipelines.video.bitstream import CodecOptions

COMPARED = (
    ("PSNR train, pooled (dB)", "Eval/Pooled/train_psnr", 3),
    ("PSNR held out, pooled (dB)", "Eval/Pooled/val_psnr", 3),
    ("SSIM train", "Eval/SSIM/train", 4),
    ("SSIM held out", "Eval/SSIM/val", 4),
    ("semantic similarity train", "Eval/Frame/train_clip_sim", 4),
    ("semantic similarity held out", "Eval/Frame/val_clip_sim", 4),
)
"""Rows of the table: label, tag, number of decimals."""
DROPPED_MORE = 1


def export_video(chosen: RunFlags, _to: str, out: Path | None, options: ExportOptions) -> int:
    """Write a run's network as one compressed file, decode it, and report size and loss of quality.

    Args:
        chosen: flags, with run, checkpoint and device.
        out: file to write; None means RUN/products.
        options: bits, whether to store the semantic head, and the allowed drop in dB, see `export_bitstream`.

    Returns:
        0, or 1 if PSNR drops by more than `--psnr-drop`.

    Raises:
        BadInput: the run cannot be opened, or the file cannot be written.
    """
    codec = CodecOptions(bits=options.bits, embedding_bits=options.embedding_bits, with_clip_head=options.clip_head)
    stored = open_stored(partial(open_run, device=chosen.device), chosen.run, chosen.checkpoint)
    path = out or output_path(chosen.run, "products", f"video-{stored.step}.fwv")
    console = Terminal(stderr=chosen.json)
    with reading_input():
        check_file(path)
        check_writable(path.parent)
        with console.status("exporting") as status:
            exported = export_bitstream(
                stored,
                path,
                codec,
                psnr_drop=options.psnr_drop,
                shrink_epochs=options.shrink_epochs,
                stage=status.update,
            )
    # The file is kept either way; the exit code reports that the goal was missed.
    allowed = exported.allowed_drop
    too_much = allowed is not None and exported.drop > allowed
    if chosen.json:
        print_json({"run": chosen.run, "step": stored.step, **figures(exported)})
    else:
        console.print(table(exported))
        print_paths(
            console,
            {"bitstream": path.absolute(), "render it": f"fieldwatch infer video {shlex.quote(str(path))} --mp4"},
        )
    if too_much:
        other = "--shrink-epochs" if options.shrink_epochs else "--bits"
        lost = f"{exported.drop:.3f} dB, more than --psnr-drop {allowed:g}"
        Terminal(stderr=True).print(
            Text.assemble((f"the file loses {lost}", "yellow"), f": raise {other} or --psnr-drop"), soft_wrap=True
        )
    return DROPPED_MORE if too_much else 0


def check_file(path: Path) -> None:
    """Refuse a folder in place of the file.

    Raises:
        InputError: the path is a folder.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a file, as in -o {path / 'clip.fwv'}")


def table(exported: ExportedBitstream) -> Table:
    """Return a table that compares size, quality and speed of the file and the checkpoint."""
    written = exported.written
    whole = Table(title="bitstream, decoded from the file", title_justify="left")
    for column in ("", "checkpoint", "file", "change"):
        whole.add_column(column, justify="left" if not column else "right")
    # Relative to the stored float weights, not to the video.
    ratio = exported.plain_bytes / written.bytes
    whole.add_row("bytes", f"{exported.plain_bytes:,}", f"{written.bytes:,}", f"{ratio:.1f} times smaller")
    whole.add_row("bits per pixel", f"{written.bpp * ratio:.4f}", f"{written.bpp:.4f}", "")
    for label, tag, digits in COMPARED:
        before = exported.before.get(tag)
        after = exported.after.get(tag)
        if before is not None and after is not None:
            whole.add_row(label, f"{before:.{digits}f}", f"{after:.{digits}f}", f"{after - before:+.{digits}f}")
    whole.add_row("decoding (frames per second)", "", f"{exported.frames_per_second:.1f}", "")
    whole.add_row("loading (seconds)", "", f"{exported.loading_seconds:.2f}", "")
    return whole


def figures(exported: ExportedBitstream) -> dict[str, Any]:
    """Return the result as plain values, with the size of every part in bytes."""
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
