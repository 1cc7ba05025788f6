"""Registry of pipelines: one object per pipeline, discovered through the entry points of installed packages.

Neither this package nor a pipeline object imports torch, since a pipeline object refers to its code by name.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.registry.evaluation import CheckpointSelector, EvaluationRequest, Scores
    from fieldwatch.registry.installed import (
        GROUP,
        PipelineError,
        UnknownPipeline,
        find_pipeline,
        installed_pipelines,
        pipeline_names,
        working_pipelines,
    )
    from fieldwatch.registry.job import Job
    from fieldwatch.registry.pipeline import Command, CommandLine, DataKind, Pipeline, Reference, resolve
    from fieldwatch.registry.run_pipeline import pipeline_name_of, pipeline_of, population_of

__all__ = [
    "GROUP",
    "CheckpointSelector",
    "Command",
    "CommandLine",
    "DataKind",
    "EvaluationRequest",
    "Job",
    "Pipeline",
    "PipelineError",
    "Reference",
    "Scores",
    "UnknownPipeline",
    "find_pipeline",
    "installed_pipelines",
    "pipeline_name_of",
    "pipeline_names",
    "pipeline_of",
    "population_of",
    "resolve",
    "working_pipelines",
]

__getattr__, __dir__ = lazy_names(__name__)
