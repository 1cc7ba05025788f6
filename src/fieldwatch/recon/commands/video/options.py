"""Flags that neural video adds to the commands that all pipelines share."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Flags of ``fieldwatch eval``."""

    positions_frames: int = 10
    """Video: frames, evenly spaced, at which places between the patches are scored too; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Flags of ``fieldwatch export --to bitstream``."""

    bits: int = 8
    """Bitstream: bits per weight, 1 to 12."""
    embedding_bits: int = 8
    """Bitstream: bits per entry of the frames' codes (hnerv), 1 to 12."""
    psnr_drop: float | None = None
    """Bitstream: take bits from tensors where it shows least, while training PSNR drops by at most so many dB."""
    clip_head: bool = True
    """Bitstream: store the semantic head, for search."""
