"""Evaluation of a checkpoint: the request to a pipeline, and its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import output_path

# Repeats the definition in fieldwatch.checkpoint, whose import would load torch.
CheckpointSelector = Literal["best", "last"] | int
"""Checkpoint to use: the best by the ranking metric, the last, or that of a step."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Arguments of ``fieldwatch eval``.

    Attributes:
        run: run folder.
        config: config that the run was started with.
        checkpoint: checkpoint to evaluate.
        device: device to evaluate on.
        out: output folder chosen by the user; None for the default, see `folder`.
        options: flags of the pipeline, an instance of its ``evaluate_options``; None if it has none.
        console: `rich.console.Console` that displays progress.
    """

    run: Path
    config: Any
    checkpoint: CheckpointSelector
    device: Literal["auto", "cpu", "cuda"]
    out: Path | None
    options: Any
    # Any, so that this package does not import rich.
    console: Any

    def folder(self, step: int) -> Path:
        """Return the output folder for a checkpoint.

        Args:
            step: finished steps of the checkpoint.
        """
        # One folder per checkpoint, so that evaluations of several checkpoints do not overwrite each other.
        return self.out or output_path(self.run, "products", f"eval-{step}")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Result of an evaluation.

    Attributes:
        step: finished steps of the checkpoint.
        metrics: metrics by tag.
        headline: short description of the evaluation.
        details: further entries for ``--json``.
        files: written files by kind; ``metrics.json`` is written automatically unless it is among them.
        display: renderables (text or any rich object) printed below the headline; a table of all metrics if empty.
    """

    step: int
    metrics: Mapping[str, float]
    headline: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    display: Sequence[Any] = ()
