"""`Outcome`: the result of a finished run of any pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from fieldwatch.health import Finding, explain
from fieldwatch.record import read_events
from fieldwatch.run.run import Run


@runtime_checkable
class HasMetrics(Protocol):
    """Interface of the evaluation of every pipeline."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics by tag; a metric that was not measured is absent."""
        ...


Evaluation = TypeVar("Evaluation", bound=HasMetrics)


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Evaluation]):
    """Result of a finished run.

    Attributes:
        folder: run folder.
        evaluation: last evaluation; None if a run was opened that had already finished.
        findings: findings of the rules.
        exit_code: 1 if the findings contain an error, otherwise 0; warnings do not count.
        products: files exported from the model, by kind.
    """

    folder: Path
    evaluation: Evaluation | None
    findings: tuple[Finding, ...]
    exit_code: int
    products: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation | None, products: Mapping[str, Path] | None = None) -> Self:
        """Create the outcome of a run that has ended."""
        return cls(
            folder=run.folder,
            evaluation=evaluation,
            findings=explain(run.findings, read_events(run.folder)),
            exit_code=run.exit_code,
            products=products or {},
        )

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last evaluation by tag; empty if there is none."""
        return self.evaluation.metrics if self.evaluation else {}
