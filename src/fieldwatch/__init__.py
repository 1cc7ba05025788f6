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
    from fieldwatch.record import TOOLKIT, Block, Catalogue, History, Metric, Sink, WriterFailed, follow, read_history
    from fieldwatch.record.charts import Chart, Layout, Margin, Tab
    from fieldwatch.record.config import ConfigMismatch
    from fieldwatch.record.exports import export_record
    from fieldwatch.report.account import account_of
    from fieldwatch.run import (
        Declared,
        Guard,
        Interrupted,
        MicroBatches,
        Outputs,
        Profile,
        RankLost,
        Ranks,
        Run,
        Saving,
        Step,
        StepOutput,
        default_sinks,
        profile_tensors,
    )

__all__ = [
    "GENERAL",
    "TOOLKIT",
    "Autosave",
    "Block",
    "Catalogue",
    "Chart",
    "CheckpointError",
    "Checkpoints",
    "ConfigMismatch",
    "Declared",
    "Diverged",
    "Finding",
    "Guard",
    "History",
    "InputError",
    "Interrupted",
    "Layout",
    "Margin",
    "Metric",
    "MicroBatches",
    "Outputs",
    "Phase",
    "Profile",
    "RankLost",
    "Ranks",
    "ResumableLoader",
    "Retention",
    "Rollback",
    "Rule",
    "Run",
    "Saving",
    "Shuffled",
    "Sink",
    "Step",
    "StepOutput",
    "Tab",
    "Terms",
    "Verdict",
    "Window",
    "WriterFailed",
    "account_of",
    "default_sinks",
    "examine",
    "export_record",
    "follow",
    "preserve_random_state",
    "profile_tensors",
    "read_history",
]


__getattr__, __dir__ = lazy_names(__name__)
