"""Evaluating a checkpoint: what the command asks of a pipeline, and what the pipeline answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import output_path

CheckpointSelector = Literal["best", "last"] | int
"""A checkpoint: the best by the ranking metric, the last, or the one of a step."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """One call of ``fieldwatch eval``.

    Attributes:
        run: the run folder.
        config: the settings that the run was started with.
        checkpoint: which one to evaluate.
        device: where to evaluate.
        out: the folder that the user chose for the files; see `folder`.
        options: the pipeline's own flags, an instance of its ``evaluate_options``; None where it has none.
        console: where progress is displayed; a `rich.console.Console`.
    """

    run: Path
    config: Any
    checkpoint: CheckpointSelector
    device: Literal["auto", "cpu", "cuda"]
    out: Path | None
    options: Any
    console: Any

    def folder(self, step: int) -> Path:
        """Return the folder for the files of a checkpoint."""
        return self.out or output_path(self.run, "products", f"eval-{step}")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What an evaluation found.

    Attributes:
        step: finished steps of the checkpoint.
        metrics: values by tag.
        headline: what was evaluated, in a few words.
        details: further facts for ``--json``.
        files: what was written, by what it is; ``metrics.json`` is written for the pipeline unless it is among them.
        display: what the terminal prints below the headline: text or anything that rich prints; a table of all metrics
            if empty.
    """

    step: int
    metrics: Mapping[str, float]
    headline: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    display: Sequence[Any] = ()
