"""What is decided about a run before it begins, in four records: saving, guard, declarations, outputs."""

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
"""Errors of an evaluation that training survives: files, values, numbers, memory. Anything else is a bug."""


def general_rules() -> tuple[Rule, ...]:
    """Return the rules for any run; they are imported when a run needs them."""
    from fieldwatch.health import GENERAL  # noqa: PLC0415  at first use: a run may have other rules

    return GENERAL


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When checkpoints are written, which stay, and what becomes of those that the folder holds already.

    Attributes:
        every: steps between checkpoints; "auto" for as often as ``autosave`` allows, None for none before the end.
        autosave: how long training may wait for checkpoints, and how much work may be lost.
        keep: which checkpoints stay; None for the default :class:`Retention`.
        mirror: a URL that fsspec knows: every checkpoint is copied there, and a run without any is restored from
            there. Empty for no mirror, or for the one that a resumed run had before.
        resume: "auto" continues a run found in the folder, "must" needs one, "never" refuses one; "start-over" moves
            the checkpoints of one aside and starts from step 0.
    """

    every: Every = "auto"
    autosave: Autosave | None = None
    keep: Retention | None = None
    mirror: str = ""
    resume: Resume = "auto"


@dataclass(frozen=True, kw_only=True)
class Guard:
    """When a run that goes wrong stops, goes back, or is reported as hung.

    Attributes:
        max_refusals: refused updates in a row after which the run has diverged.
        rollback: when a diverged run returns to its last good checkpoint and skips the bad updates; None stops it with
            :class:`Diverged` instead.
        hang_timeout: seconds without a sign of life after which all stacks are written; "auto" derives them from the
            pace of the steps, None switches the watchdog off.
    """

    max_refusals: int = 10
    rollback: Rollback | None = None
    hang_timeout: HangTimeout = "auto"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a run says about itself beyond its config; reports, rules and dashboards read it.

    Attributes:
        preset: the configuration that the run's was derived from, so that the difference is recorded.
        windows: per loss term, when it is meant to be active; a term that is silent then is a finding.
        phases: named stretches of training.
        metrics: the declared metrics; with them, recording a name that is not declared is an error.
        layout: the arrangement of TensorBoard's custom-scalar tab; None derives one from the metrics.
        about: further facts for ``run.json``.
    """

    preset: Any = None
    windows: Mapping[str, Window] = field(default_factory=dict[str, Window])
    phases: Sequence[Phase] = ()
    metrics: Catalogue | None = None
    layout: Layout | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Who reads the rows of a run besides its journal, and how much each row holds.

    Attributes:
        rules: the health rules.
        sinks: where rows go besides the journal, or a function from the run folder to them, called once the folder
            belongs to this process.
        sink_names: names of further sinks, which ``fieldwatch resume`` turns on again; kept in ``run.json``.
        detail_every: steps between two records of the largest gradient, parameter statistics and update sizes.
    """

    rules: Sequence[Rule] = field(default_factory=general_rules)
    sinks: Sinks = default_sinks
    sink_names: Sequence[str] = ()
    detail_every: int = 50
