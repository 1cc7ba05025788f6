"""Installed pipelines, found through entry points and imported one by one on demand."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from fieldwatch.base import InputError
from fieldwatch.registry.pipeline import Pipeline

GROUP: Final = "fieldwatch.pipelines"
"""Name of the entry point group."""


class PipelineError(Exception):
    """An installed pipeline is unusable because of a bug in its package, which is chained if it raised an error."""


class UnknownPipeline(InputError):  # noqa: N818  an input error, not a fault
    """No installed package provides the requested pipeline."""


def pipeline_names() -> tuple[str, ...]:
    """Return the names of all installed pipelines in alphabetical order, without importing them."""
    return tuple(_entry_points_by_name())


@cache
def find_pipeline(name: str) -> Pipeline:
    """Return an installed pipeline.

    Raises:
        UnknownPipeline: no installed package provides the pipeline.
        PipelineError: the package cannot be imported, its entry point is not a valid pipeline, or several packages
            provide the name.
    """
    offers = _entry_points_by_name().get(name)
    if offers is None:
        known = ", ".join(pipeline_names()) or "none; install fieldwatch again (pip install -e .)"
        raise UnknownPipeline(f"no pipeline {name!r} is installed: expected one of {known}")
    # The choice would depend on the order of sys.path, so refuse to choose.
    if len(offers) > 1:
        origins = ", ".join(sorted(offer.value for offer in offers))
        raise PipelineError(f"several packages provide a pipeline {name!r} ({origins}): uninstall all but one")
    return _load(offers[0])


def installed_pipelines() -> tuple[Pipeline, ...]:
    """Return every installed pipeline, in alphabetical order.

    Raises:
        PipelineError: a pipeline cannot be loaded.
    """
    return tuple(map(find_pipeline, pipeline_names()))


def working_pipelines() -> tuple[tuple[Pipeline, ...], dict[str, PipelineError]]:
    """Return the usable pipelines, and the errors of the others by name, for listings that must not fail."""
    working: list[Pipeline] = []
    broken: dict[str, PipelineError] = {}
    for name in pipeline_names():
        try:
            working.append(find_pipeline(name))
        # A broken package must not hide the others.
        except PipelineError as error:
            broken[name] = error
    return tuple(working), broken


# Cached, since this scans the metadata of all installed packages.
@cache
def _entry_points_by_name() -> dict[str, list[EntryPoint]]:
    """Group the entry points by name; a package that appears twice on sys.path counts once."""
    # Keyed by value too: an editable installation may list the same entry point twice.
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for offer in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        # The backport importlib_metadata, once imported, makes entry_points() return its own class: convert it.
        by_name.setdefault(offer.name, {})[offer.value] = EntryPoint(offer.name, offer.value, offer.group)
    return {name: list(offers.values()) for name, offers in by_name.items()}


def _load(offer: EntryPoint) -> Pipeline:
    try:
        pipeline = offer.load()
    except Exception as error:  # code of strangers: it may raise anything, so name its package
        raise PipelineError(f"the pipeline {offer.name!r} ({offer.value}) cannot be imported: {error}") from error
    # Pipelines are looked up by the name of their entry point, before they are imported.
    if not isinstance(pipeline, Pipeline) or pipeline.name != offer.name:
        is_named = f"a pipeline named {pipeline.name!r}" if isinstance(pipeline, Pipeline) else repr(pipeline)
        raise PipelineError(
            f"the entry point {offer.name!r} ({offer.value}) is {is_named}: expected a fieldwatch.pipeline.Pipeline "
            "with that name"
        )
    return pipeline
