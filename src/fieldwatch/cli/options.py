"""Flags that pipelines add to shared commands, such as ``fieldwatch eval``."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any

from fieldwatch.cli.output import BadInput
from fieldwatch.record import NotARun
from fieldwatch.registry import Pipeline, find_pipeline, pipeline_name_of, pipeline_names, working_pipelines


def flags_with_options(
    base: type, option_field: str, arguments: Sequence[str], choices: Sequence[tuple[str, Any, Any]] = ()
) -> Any:
    """Return a class with the flags of a command and those that pipelines add to it.

    Args:
        base: a dataclass of the command's flags.
        option_field: the field of `Pipeline` that refers to the further flags.
        arguments: the words of the command line. A flag that two pipelines have belongs to the one whose run is among
            them.
        choices: further fields of the class, see `extended`.

    Returns:
        A class derived from ``base``; `options_of` returns a pipeline's part of an instance.

    Raises:
        PipelineError: the package of the pipeline that trained the run cannot be used.
    """
    return extended(base, _of_pipelines(option_field, _owner_among(arguments)), choices)


def options_of(chosen: Any, pipeline: Pipeline | None) -> Any:
    """Return a pipeline's part of a command line; None if it adds no flags.

    Args:
        chosen: an instance of what `flags_with_options` returned.
        pipeline: whose run the command is about; None for a training loop of the user's own.

    Raises:
        BadInput: a flag of another pipeline is set.
    """
    owner = pipeline.name if pipeline else "a loop of your own"
    for name in pipeline_names():
        options = getattr(chosen, group_field(name), None)
        if name != owner and options is not None:
            refuse_changed(options, f"it applies to runs of {name}, and this is a run of {owner}")
    return getattr(chosen, group_field(owner), None) if pipeline else None


def refuse_options(chosen: Any, why: str) -> None:
    """Refuse every flag that a pipeline has added.

    Raises:
        BadInput: one is set.
    """
    for name in pipeline_names():
        options = getattr(chosen, group_field(name), None)
        if options is not None:
            refuse_changed(options, why)


def refuse_changed(options: Any, why: str) -> None:
    """Refuse a group of flags of which one is set.

    Raises:
        BadInput: a flag is set; the message gives flag, value and reason.
    """
    usual = type(options)()
    for each in fields(options):
        value = getattr(options, each.name)
        if value != getattr(usual, each.name):
            raise BadInput(f"--{each.name.replace('_', '-')} {value}: {why}; leave the flag out")


def _of_pipelines(option_field: str, owner: str | None) -> dict[str, type]:
    """Return the classes of flags by pipeline, the owner's first."""
    pipelines = list(working_pipelines()[0])
    if owner is not None and owner in pipeline_names():
        first = find_pipeline(owner)
        pipelines = [first, *(each for each in pipelines if each != first)]
    return {each.name: kind for each in pipelines if (kind := each.load(option_field)) is not None}


def extended(base: type, groups: Mapping[str, type], choices: Sequence[tuple[str, Any, Any]] = ()) -> type:
    """Return a dataclass with the flags of another one and those of some groups.

    Args:
        base: a dataclass.
        groups: further dataclasses by name; one that repeats a flag is left out.
        choices: further fields: name, type, `dataclasses.field`.
    """
    taken = {each.name for each in fields(base)}
    added = list(choices)
    for name, kind in groups.items():
        names = {each.name for each in fields(kind)}
        # Two pipelines may have a flag of the same name: the first one keeps it.
        if taken.isdisjoint(names):
            added.append((group_field(name), kind, field(default_factory=kind)))
            taken |= names
    explained = {"__doc__": base.__doc__}
    return make_dataclass(base.__name__, added, bases=(base,), frozen=True, kw_only=True, namespace=explained)


def _owner_among(arguments: Sequence[str]) -> str | None:
    """Return the pipeline of the first word that is a run folder; None without such a word."""
    for word in arguments:
        # The flags are not parsed yet: which are valid depends on the run that is named among the words.
        if os.path.isfile(os.path.join(word, "run.json")):  # noqa: PTH113, PTH118  a word may be no path at all
            try:
                return pipeline_name_of(Path(word))
            except NotARun:  # damaged: the command itself says so
                return None
    return None


def group_field(name: str) -> str:
    """Return the name of the field that holds a group's flags."""
    return f"options_of_{name.replace('-', '_')}"
