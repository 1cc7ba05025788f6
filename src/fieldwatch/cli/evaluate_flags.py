"""Flags of ``fieldwatch eval``; no torch is needed for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.cli.options import flags_with_options
from fieldwatch.cli.run_flags import RunFlags


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(RunFlags):
    """Evaluate a checkpoint on its training data and on held-out data.

    Example: fieldwatch eval runs/bunny --checkpoint best

    The pipeline that trained the run decides what is measured. Tables, pictures and metrics.json are written to a
    folder. The run itself is not changed.
    """

    out: Path | None = None
    """Folder for the files; by default RUN/products/eval-<step>."""


def evaluate_flags(arguments: Sequence[str]) -> type[EvaluateFlags]:
    """Return the flags, with those that pipelines add.

    Raises:
        PipelineError: the package of the pipeline that trained the run cannot be used.
    """
    return flags_with_options(EvaluateFlags, "evaluate_options", arguments)
