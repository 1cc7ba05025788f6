"""fieldwatch: train neural reconstructions you can see into, in runs you cannot lose."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.base import InputError
    from fieldwatch.checkpoint import (
        Autosave,
        CheckpointError,
        Checkpoints,
        ResumableLoader,
        Retention,
        Shuffled,
        preserve_random_state,
    )
    from fieldwatch.guard import Diverged, Rollback, Verdict
    from fieldwatch.health import GENERAL, Finding, Rule, examine
    from fieldwatch.measure import Phase, Terms, Window
    from fieldwatch.record import TOOLKIT, Block, Catalogue, History, Metric, Row, Sink, WriterFailed, read_history
    from fieldwatch.record.charts import Layout
    from fieldwatch.record.config import ConfigMismatch
    from fieldwatch.registry import Command, DataKind, EvaluationRequest, Job, Pipeline, Scores
    from fieldwatch.run import (
        Declared,
        Guard,
        Interrupted,
        MicroBatches,
        Outcome,
        Outputs,
        Profile,
        Ranks,
        Run,
        RunChoices,
        Saving,
        Step,
        StepOutput,
        choose_device,
        default_sinks,
        profile_tensors,
        run_options,
    )

__all__ = [
    "GENERAL",
    "TOOLKIT",
    "Autosave",
    "Block",
    "Catalogue",
    "CheckpointError",
    "Checkpoints",
    "Command",
    "ConfigMismatch",
    "DataKind",
    "Declared",
    "Diverged",
    "EvaluationRequest",
    "Finding",
    "Guard",
    "History",
    "InputError",
    "Interrupted",
    "Job",
    "Layout",
    "Metric",
    "MicroBatches",
    "Outcome",
    "Outputs",
    "Phase",
    "Pipeline",
    "Profile",
    "Ranks",
    "ResumableLoader",
    "Retention",
    "Rollback",
    "Row",
    "Rule",
    "Run",
    "RunChoices",
    "Saving",
    "Scores",
    "Shuffled",
    "Sink",
    "Step",
    "StepOutput",
    "Terms",
    "Verdict",
    "Window",
    "WriterFailed",
    "choose_device",
    "default_sinks",
    "examine",
    "preserve_random_state",
    "profile_tensors",
    "read_history",
    "run_options",
]


__getattr__ = lazy_names(  # so that reading a record needs no torch
    __name__,
    {
        "base": [
            "InputError",
        ],
        "checkpoint": [
            "Autosave",
            "CheckpointError",
            "Checkpoints",
            "ResumableLoader",
            "Retention",
            "Shuffled",
            "preserve_random_state",
        ],
        "guard": [
            "Diverged",
            "Rollback",
            "Verdict",
        ],
        "health": [
            "Finding",
            "GENERAL",
            "Rule",
            "examine",
        ],
        "measure": [
            "Phase",
            "Terms",
            "Window",
        ],
        "record": [
            "Block",
            "Catalogue",
            "History",
            "Metric",
            "Row",
            "Sink",
            "TOOLKIT",
            "WriterFailed",
            "read_history",
        ],
        "record.charts": [
            "Layout",
        ],
        "record.config": [
            "ConfigMismatch",
        ],
        "registry": [
            "Command",
            "DataKind",
            "EvaluationRequest",
            "Job",
            "Pipeline",
            "Scores",
        ],
        "run": [
            "Declared",
            "Guard",
            "Interrupted",
            "MicroBatches",
            "Outcome",
            "Outputs",
            "Profile",
            "Ranks",
            "Run",
            "RunChoices",
            "Saving",
            "Step",
            "StepOutput",
            "choose_device",
            "default_sinks",
            "profile_tensors",
            "run_options",
        ],
    },
)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
