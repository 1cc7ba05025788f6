"""Options of a run, grouped into four dataclasses: saving, guard, declarations, outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from fieldwatch.base import InputError
from fieldwatch.checkpoint import Autosave, CheckpointSelector, Every, Retention
from fieldwatch.guard import Rollback
from fieldwatch.health import Rule
from fieldwatch.measure import Phase, Window
from fieldwatch.record import Catalogue, Sink
from fieldwatch.record.charts import Layout
from fieldwatch.run.sinks import LOG_EVERY, Sinks, default_sinks, rank_log
from fieldwatch.run.start import Resume

HangTimeout: TypeAlias = float | Literal["auto"] | None
FAILURES: tuple[type[Exception], ...] = (OSError, ValueError, ArithmeticError, MemoryError, torch.OutOfMemoryError)
"""Exceptions of an evaluation that training survives: files, values, arithmetic, memory. Others are bugs."""


def general_rules() -> tuple[Rule, ...]:
    """Return the built-in rules for any run, imported on demand."""
    from fieldwatch.health import GENERAL  # noqa: PLC0415  at first use: a run may have other rules

    return GENERAL


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When checkpoints are written, which are kept, and how existing ones are treated.

    Attributes:
        every: number of steps between checkpoints; "auto" saves as often as ``autosave`` allows, None only at the end.
        autosave: limits for the time that training waits for checkpoints and for the work that a crash may lose.
        keep: retention policy; None for the default :class:`Retention`.
        mirror: fsspec URL to which every checkpoint is copied; a folder without checkpoints is restored from it.
            Empty for no mirror, or, in a resumed run, for its previous mirror.
        resume: "auto" resumes a run if the folder holds one, "must" requires one, "never" refuses to use one;
            "start-over" moves its checkpoints and results aside and starts from step 0; its config may differ then.
        resume_from: checkpoint that :meth:`Run.resume` restores by default: "last", "best" or a step. With an earlier
            one than the last, the later ones are renamed to ``abandoned-...``, and their steps are trained again.

    Raises:
        InputError: ``resume_from`` chooses a checkpoint, but ``resume`` forbids to use it.
    """

    every: Every = "auto"
    autosave: Autosave | None = None
    keep: Retention | None = None
    mirror: str = ""
    resume: Resume = "auto"
    resume_from: CheckpointSelector = "last"

    def __post_init__(self) -> None:
        """Check that the two settings about resuming agree."""
        if self.resume_from != "last" and self.resume in ("never", "start-over"):
            raise InputError(
                f"Saving(resume={self.resume!r}, resume_from={self.resume_from!r}): expected resume='auto' or 'must' "
                "with a checkpoint to resume from"
            )


@dataclass(frozen=True, kw_only=True)
class Guard:
    """When a failing run is stopped, rolled back, or reported as hung.

    Attributes:
        max_refusals: number of consecutive refused updates after which the run counts as diverged.
        rollback: policy for returning a diverged run to its last good checkpoint and skipping the bad updates; None
            raises :class:`Diverged` instead.
        hang_timeout: seconds without a heartbeat after which the stacks of all threads are written; "auto" derives it
            from the duration of the steps, None disables the watchdog.
    """

    max_refusals: int = 10
    rollback: Rollback | None = None
    hang_timeout: HangTimeout = "auto"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Description of a run beyond its config, read by reports, rules and dashboards.

    Attributes:
        preset: configuration that the run's config was derived from; the difference between them is recorded.
        windows: loss term to the steps in which it should be active; a term that stays zero there is a finding.
        phases: named intervals of training.
        metrics: catalogue of declared metrics; if given, recording an undeclared name is an error.
        layout: layout of TensorBoard's custom-scalar tab; None derives one from the metrics.
        about: further entries for ``run.json``.
        data_findings: what a check of the data found, each with ``name``, ``severity``, ``message`` and ``remedy``;
            recorded as events, so that the verdict comes back to them.
    """

    preset: Any = None
    windows: Mapping[str, Window] = field(default_factory=dict[str, Window])
    phases: Sequence[Phase] = ()
    metrics: Catalogue | None = None
    layout: Layout | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_findings: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Consumers of a run's rows besides its journal, and the detail of the rows.

    Attributes:
        rules: health rules.
        sinks: destinations of the rows besides the journal, or a function that creates them from the run folder; it
            is called once this process has locked the folder. None for those of `default_sinks`.
        log_every: number of steps between two summary lines of the default ``log.txt``; stored in ``run.json``, so
            that ``fieldwatch resume`` uses it again.
        sink_names: names of further sinks; stored in ``run.json``, so that ``fieldwatch resume`` enables them again.
        detail_every: number of steps between two records of the largest gradient, parameter statistics and update
            sizes. For a model of several groups and millions of parameters, they are spread over the steps in between.
        keep_code: whether to store the script, and the modules that it imported from its own folder, in ``code.zip``.
        compare_earlier: whether to compare the result at the end with earlier runs in the same parent folder, of the
            same program on the same data; a far worse one is a finding.

    Raises:
        InputError: ``log_every`` is less than 1.
    """

    rules: Sequence[Rule] = field(default_factory=general_rules)
    sinks: Sinks | None = None
    log_every: int = LOG_EVERY
    sink_names: Sequence[str] = ()
    # These values need further passes over all parameters, so they are not recorded at every step.
    detail_every: int = 50
    keep_code: bool = True
    compare_earlier: bool = True

    def __post_init__(self) -> None:
        """Check the interval of the log."""
        if self.log_every < 1:
            raise InputError(f"Outputs(log_every={self.log_every}): expected 1 step or more")

    def open_sinks(self, folder: Path, *, first: bool) -> Sequence[Sink]:
        """Return the sinks of a rank; all ranks but the first have only a text log.

        Args:
            folder: folder that the rank writes to.
            first: whether it is the first rank.
        """
        if not first:
            return rank_log(folder, log_every=self.log_every)
        if self.sinks is None:
            return default_sinks(folder, log_every=self.log_every)
        return self.sinks(folder) if callable(self.sinks) else self.sinks
