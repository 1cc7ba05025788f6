"""Public API for writing a pipeline that the ``fieldwatch`` commands support, see docs/pipelines.md.

Importing this package does not load torch: each name is imported at its first use.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.checkpoint import StoredStateError, load_item, seed_everything, stored_item
    from fieldwatch.record import Better, holds_run, read_manifest
    from fieldwatch.record.charts import MEMORY_TAB
    from fieldwatch.record.config import (
        AT_LEAST_ONE,
        FINITE_WEIGHT,
        FRACTION,
        NOT_NEGATIVE,
        POSITIVE,
        config_from_plain,
        config_of_run,
        formerly,
        plain_values,
        refuse_out_of_bounds,
    )
    from fieldwatch.registry import (
        CheckpointSelector,
        Command,
        CommandLine,
        DataKind,
        EvaluationRequest,
        Job,
        Pipeline,
        Scores,
    )
    from fieldwatch.run import Device, Outcome, RunChoices, choose_device, run_options

__all__ = [
    "AT_LEAST_ONE",
    "FINITE_WEIGHT",
    "FRACTION",
    "MEMORY_TAB",
    "NOT_NEGATIVE",
    "POSITIVE",
    "Better",
    "CheckpointSelector",
    "Command",
    "CommandLine",
    "DataKind",
    "Device",
    "EvaluationRequest",
    "Job",
    "Outcome",
    "Pipeline",
    "RunChoices",
    "Scores",
    "StoredStateError",
    "choose_device",
    "config_from_plain",
    "config_of_run",
    "formerly",
    "holds_run",
    "load_item",
    "plain_values",
    "read_manifest",
    "refuse_out_of_bounds",
    "run_options",
    "seed_everything",
    "stored_item",
]

__getattr__, __dir__ = lazy_names(__name__)
