"""Public: what a pipeline has beyond its loop, so that the program's commands know it. See docs/pipelines.md.

Importing it loads no torch: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.checkpoint import StoredStateError, load_part, part_of
    from fieldwatch.record import (
        A_SHARE,
        AT_LEAST_ONE,
        FINITE_WEIGHT,
        MEMORY_TAB,
        NOT_NEGATIVE,
        POSITIVE,
        Better,
        config_from_plain,
        config_of_run,
        holds_run,
        plain,
        read_manifest,
        refuse_out_of_bounds,
    )
    from fieldwatch.registry import Command, CommandLine, DataKind, EvaluationRequest, Job, Pipeline, Scores, Which
    from fieldwatch.run import Device, Outcome, RunChoices, choose_device, run_options

__all__ = [
    "AT_LEAST_ONE",
    "A_SHARE",
    "FINITE_WEIGHT",
    "MEMORY_TAB",
    "NOT_NEGATIVE",
    "POSITIVE",
    "Better",
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
    "Which",
    "choose_device",
    "config_from_plain",
    "config_of_run",
    "holds_run",
    "lazy_names",
    "load_part",
    "part_of",
    "plain",
    "read_manifest",
    "refuse_out_of_bounds",
    "run_options",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checkpoint": ["StoredStateError", "load_part", "part_of"],
        "record": [
            "AT_LEAST_ONE",
            "A_SHARE",
            "Better",
            "FINITE_WEIGHT",
            "MEMORY_TAB",
            "NOT_NEGATIVE",
            "POSITIVE",
            "config_from_plain",
            "config_of_run",
            "holds_run",
            "plain",
            "read_manifest",
            "refuse_out_of_bounds",
        ],
        "registry": [
            "Command",
            "CommandLine",
            "DataKind",
            "EvaluationRequest",
            "Job",
            "Pipeline",
            "Scores",
            "Which",
        ],
        "run": ["Device", "Outcome", "RunChoices", "choose_device", "run_options"],
    },
    home="fieldwatch",
)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
