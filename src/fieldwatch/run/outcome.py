"""What a finished run leaves behind, whatever was trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from fieldwatch.health import Finding
from fieldwatch.run.run import Run


@runtime_checkable
class HasMetrics(Protocol):
    """What the evaluation of every pipeline has."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Value by tag; what was not measured is absent."""
        ...


Evaluation = TypeVar("Evaluation", bound=HasMetrics)


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Evaluation]):
    """What a finished run leaves behind.

    Attributes:
        folder: the run folder.
        evaluation: the last one; None where a finished run was opened again.
        findings: what the rules said.
        exit_code: 0, or 1 with an error among the findings; warnings do not count.
        products: files that were made of the model, by what they are.
    """

    folder: Path
    evaluation: Evaluation | None
    findings: tuple[Finding, ...]
    exit_code: int
    products: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation | None, products: Mapping[str, Path] | None = None) -> Self:
        """Gather it from a run that has ended."""
        return cls(
            folder=run.folder,
            evaluation=evaluation,
            findings=tuple(run.findings),
            exit_code=run.exit_code,
            products=products or {},
        )

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the last evaluation, by tag; empty without one."""
        return self.evaluation.metrics if self.evaluation else {}
