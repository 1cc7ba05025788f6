"""Options of a run, grouped into four dataclasses: saving, guard, declarations, outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from fieldwatch.checkpoint import Autosave, Every, Retention
from fieldwatch.guard import Rollback
from fieldwatch.health import Rule
from fieldwatch.measure import Phase, Window
from fieldwatch.record import Catalogue
from fieldwatch.record.charts import Layout
from fieldwatch.run.sinks import Sinks, default_sinks
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
            "start-over" moves its checkpoints aside and starts from step 0.
    """

    every: Every = "auto"
    autosave: Autosave | None = None
    keep: Retention | None = None
    mirror: str = ""
    resume: Resume = "auto"


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
    """

    preset: Any = None
    windows: Mapping[str, Window] = field(default_factory=dict[str, Window])
    phases: Sequence[Phase] = ()
    metrics: Catalogue | None = None
    layout: Layout | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Consumers of a run's rows besides its journal, and the detail of the rows.

    Attributes:
        rules: health rules.
        sinks: destinations of the rows besides the journal, or a function that creates them from the run folder; it
            is called once this process has locked the folder.
        sink_names: names of further sinks; stored in ``run.json``, so that ``fieldwatch resume`` enables them again.
        detail_every: number of steps between two records of the largest gradient, parameter statistics and update
            sizes.
    """

    rules: Sequence[Rule] = field(default_factory=general_rules)
    sinks: Sinks = default_sinks
    sink_names: Sequence[str] = ()
    # These values need further passes over all parameters, so they are not recorded at every step.
    detail_every: int = 50
