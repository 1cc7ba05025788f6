"""Which pipeline a run belongs to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import InputError
from fieldwatch.record import read_manifest
from fieldwatch.registry.installed import find_pipeline, pipeline_names, working_pipelines
from fieldwatch.registry.pipeline import Pipeline


def pipeline_name_of(folder: Path) -> str | None:
    """Return the name of the pipeline that trained a run; None for a training loop of the user's own.

    Raises:
        NotARun: the folder holds no run.
    """
    about = cast("Mapping[str, Any] | list[Any]", read_manifest(folder).about)  # a damaged run.json may hold anything
    name = about.get("pipeline") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else None


def population_of(folder: Path) -> str:
    """Return what the model of a run grows and prunes, in the plural, for texts.

    Raises:
        NotARun: the folder holds no run.
    """
    name = pipeline_name_of(folder)
    working, _ = working_pipelines()  # for a word in a text, a package that cannot be used counts as not installed
    return next((each.population for each in working if each.name == name), "primitives")


def pipeline_of(folder: Path, capability: str = "") -> Pipeline:
    """Return the installed pipeline that trained a run.

    Args:
        folder: the run folder.
        capability: a field of `Pipeline` that has to be filled, such as ``evaluate``.

    Raises:
        NotARun: the folder holds no run.
        InputError: a loop of the user's own trained it, a pipeline that is not installed, or one that lacks the
            capability; the message lists those that have it.
        PipelineError: the pipeline's package cannot be used.
    """
    name = pipeline_name_of(folder)
    # A name that nobody offers is no error yet: the message below lists what is installed.
    pipeline = find_pipeline(name) if name is not None and name in pipeline_names() else None
    if pipeline is not None and (not capability or getattr(pipeline, capability)):
        return pipeline
    able = [each for each in pipeline_names() if not capability or getattr(find_pipeline(each), capability)]
    raise InputError(
        f"{folder} holds a run of {name or 'a loop of your own'}: expected one of a pipeline"
        f"{' with ' + capability if capability else ''}: {', '.join(able) or 'none is installed'}"
    )
