"""Flags that the video pipeline adds to shared commands."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Flags of ``fieldwatch eval``."""

    positions_frames: int = 10
    """Video: number of evenly spaced frames at which positions between patches are scored, too; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Flags of ``fieldwatch export --to bitstream``."""

    bits: int = 8
    """Bitstream: bits per weight, 1 to 12."""
    embedding_bits: int = 8
    """Bitstream: bits per entry of the frame embeddings (hnerv), 1 to 12."""
    psnr_drop: float | None = None
    """Bitstream: reduce the bits of the least sensitive tensors while training PSNR drops by at most this many dB."""
    shrink_epochs: int = 0
    """Bitstream: train on for so many passes with quantized weights and a price on their bits, for a file of about half
    the size; PSNR may drop by --psnr-drop, or 0.5 dB. The run keeps its weights."""
    clip_head: bool = True
    """Bitstream: also store the semantic head, for search."""
