"""Which pipelines are installed: the entry points of all packages, imported one by one when they are needed."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from fieldwatch.base import InputError
from fieldwatch.registry.pipeline import Pipeline

GROUP: Final = "fieldwatch.pipelines"
"""The group of entry points."""


class PipelineError(Exception):
    """An installed package offers a pipeline that cannot be used: a bug of that package, chained where there is one."""


class UnknownPipeline(InputError):  # noqa: N818  it names what is unknown, not a fault
    """No installed package offers the pipeline that was asked for."""


def pipeline_names() -> tuple[str, ...]:
    """Return the names of all installed pipelines, in alphabetical order; none of them is imported."""
    return tuple(_entry_points_by_name())


@cache
def find_pipeline(name: str) -> Pipeline:
    """Return an installed pipeline.

    Raises:
        UnknownPipeline: no package offers it.
        PipelineError: its package cannot be imported, or offers something else; or two packages offer the name.
    """
    offers = _entry_points_by_name().get(name)
    if offers is None:
        known = ", ".join(pipeline_names()) or "none; install fieldwatch again (pip install -e .)"
        raise UnknownPipeline(f"no pipeline {name!r} is installed: expected one of {known}")
    # Which of them would win depends on the order of the path: nobody should rely on it.
    if len(offers) > 1:
        origins = ", ".join(sorted(offer.value for offer in offers))
        raise PipelineError(f"several packages offer a pipeline {name!r} ({origins}): uninstall all but one")
    return _load(offers[0])


def installed_pipelines() -> tuple[Pipeline, ...]:
    """Return every installed pipeline, in alphabetical order.

    Raises:
        PipelineError: one of them cannot be used.
    """
    return tuple(map(find_pipeline, pipeline_names()))


def working_pipelines() -> tuple[tuple[Pipeline, ...], dict[str, PipelineError]]:
    """Return the pipelines that can be imported, and why others cannot, by name: for lists that should not fail."""
    working: list[Pipeline] = []
    broken: dict[str, PipelineError] = {}
    for name in pipeline_names():
        try:
            working.append(find_pipeline(name))
        # One broken package must not hide the others.
        except PipelineError as error:
            broken[name] = error
    return tuple(working), broken


@cache
def _entry_points_by_name() -> dict[str, list[EntryPoint]]:
    """Group the entry points by name; a package that is found twice on the path counts once."""
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for offer in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        # The backport importlib_metadata, once imported, answers for the standard library with a class of its own.
        by_name.setdefault(offer.name, {})[offer.value] = EntryPoint(offer.name, offer.value, offer.group)
    return {name: list(offers.values()) for name, offers in by_name.items()}


def _load(offer: EntryPoint) -> Pipeline:
    try:
        pipeline = offer.load()
    except Exception as error:  # code of strangers: any of its errors becomes one that names the package
        raise PipelineError(f"the pipeline {offer.name!r} ({offer.value}) cannot be imported: {error}") from error
    if not isinstance(pipeline, Pipeline) or pipeline.name != offer.name:
        is_named = f"a pipeline named {pipeline.name!r}" if isinstance(pipeline, Pipeline) else repr(pipeline)
        raise PipelineError(
            f"the entry point {offer.name!r} ({offer.value}) is {is_named}: expected a fieldwatch.pipeline.Pipeline of "
            "that name"
        )
    return pipeline
