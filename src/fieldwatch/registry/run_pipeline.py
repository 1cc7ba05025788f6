"""The pipeline of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import InputError
from fieldwatch.record import read_manifest
from fieldwatch.registry.installed import find_pipeline, pipeline_names, working_pipelines
from fieldwatch.registry.pipeline import Pipeline


def pipeline_name_of(folder: Path) -> str | None:
    """Return the name of the pipeline that trained a run; None for a user-written training loop.

    Raises:
        NotARun: the folder holds no run.
    """
    # A damaged run.json may contain anything, so check every type.
    about = cast("Mapping[str, Any] | list[Any]", read_manifest(folder).about)
    name = about.get("pipeline") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else None


def population_of(folder: Path) -> str:
    """Return the plural noun for the primitives of a run's model, for messages.

    Raises:
        NotARun: the folder holds no run.
    """
    name = pipeline_name_of(folder)
    # A broken package must not make a message fail, so it counts as not installed.
    working, _ = working_pipelines()
    return next((each.population for each in working if each.name == name), "primitives")


def pipeline_of(folder: Path, capability: str = "") -> Pipeline:
    """Return the installed pipeline that trained a run.

    Args:
        folder: run folder.
        capability: field of `Pipeline` that must be set, such as ``evaluate``; empty for none.

    Raises:
        NotARun: the folder holds no run.
        InputError: the run was trained by a user-written loop, by a pipeline that is not installed, or by one without
            the capability; the message lists the pipelines that have it.
        PipelineError: the pipeline cannot be loaded.
    """
    name = pipeline_name_of(folder)
    # An unknown name does not fail here: the message below lists the installed pipelines.
    pipeline = find_pipeline(name) if name is not None and name in pipeline_names() else None
    if pipeline is not None and (not capability or getattr(pipeline, capability)):
        return pipeline
    # This may import every pipeline, which is acceptable before an error.
    able = [each for each in pipeline_names() if not capability or getattr(find_pipeline(each), capability)]
    raise InputError(
        f"{folder} holds a run of {name or 'a loop of your own'}: expected one of a pipeline"
        f"{' with ' + capability if capability else ''}: {', '.join(able) or 'none is installed'}"
    )
