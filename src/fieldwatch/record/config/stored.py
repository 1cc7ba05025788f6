"""Configs read back: from the plain JSON values of run.json to the dataclasses they were."""

import types
import typing
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from fieldwatch.base import InputError
from fieldwatch.record.manifest import Manifest, NotARun, read_manifest

Config = TypeVar("Config")


def config_from_plain(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a config dataclass from the plain JSON values it was stored as.

    Nested dataclasses, tuples, lists, paths and None come back as they were; a choice must be one that is known.

    Args:
        kind: a dataclass; what its annotations name decides.
        values: of its fields; fields that are missing take their defaults.

    Raises:
        InputError: a key or a choice is unknown (the run was made by another version), or the dataclass refuses.
        TypeError: a value is not of a kind that the dataclass can take.
    """
    annotations = typing.get_type_hints(kind)
    unknown = sorted(values.keys() - {field.name for field in fields(cast("Any", kind))})
    if unknown:
        names = ", ".join(unknown)
        raise InputError(
            f"stored config has keys {names} that {kind.__name__} does not know: use the version that made it"
        )
    return kind(**{name: _typed(annotations[name], value, name) for name, value in values.items()})


def preset_values(manifest: Manifest) -> dict[str, Any]:
    """Return the plain values of the preset that a run was derived from: its config with what differs undone."""
    values = deepcopy(dict(manifest.config))
    for key, (original, _) in manifest.preset_difference.items():
        *outer, name = key.split(".")
        inner = values
        for part in outer:
            inner = inner[part]
        inner[name] = original
    return values


def config_of_run(folder: Path, pipeline: str, kind: type[Config]) -> Config:
    """Return the config that a pipeline's run was started with.

    Args:
        folder: the run folder.
        pipeline: whose run it has to be.
        kind: its config dataclass.

    Raises:
        NotARun: the folder holds no run, one of another pipeline, or its run.json was damaged.
    """
    manifest = read_manifest(folder)
    about = cast("Mapping[str, Any] | list[Any]", manifest.about)  # a damaged run.json may hold anything there
    found = about.get("pipeline") if isinstance(about, Mapping) else None
    if found != pipeline:
        raise NotARun(f"{folder} holds a run of {found or 'a loop of your own'}: this command opens {pipeline} runs")
    try:
        return config_from_plain(kind, manifest.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise NotARun(
            f"the config in {folder / 'run.json'} is not a {pipeline} run's ({error}): restore the file"
        ) from error


def preset_of_run(folder: Path, pipeline: str, kind: type[Config]) -> Config:
    """Return the preset that a pipeline's run was derived from: its config with what differs undone.

    Args:
        folder: the run folder.
        pipeline: whose run it has to be.
        kind: its config dataclass.

    Raises:
        NotARun: as in :func:`config_of_run`.
    """
    config_of_run(folder, pipeline, kind)
    return config_from_plain(kind, preset_values(read_manifest(folder)))


def _typed(annotation: Any, value: Any, name: str) -> Any:
    """Return a JSON value as the annotation has it."""
    # The alternatives of a union, or the one type there is.
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    if isinstance(value, Mapping):
        values = cast("Mapping[str, Any]", value)
        kind = next((option for option in options if is_dataclass(option)), None)
        return values if kind is None else config_from_plain(cast("type[Any]", kind), values)
    if isinstance(value, list):
        return _sequence(options, cast("list[Any]", value), name)
    # A str that could be both stays a str: JSON does not say which it was.
    if isinstance(value, str) and Path in options and str not in options:
        return Path(value)
    _refuse_unknown_choice(options, value, name)
    return value


def _sequence(options: tuple[Any, ...], values: list[Any], name: str) -> Any:
    """Return a JSON list as the tuple or list it was."""
    for option in options:
        origin = typing.get_origin(option)
        inner = typing.get_args(option)
        if origin is list:
            return [_typed(inner[0], value, name) for value in values]
        if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_typed(inner[0], value, name) for value in values)
        if origin is tuple and len(inner) == len(values):
            return tuple(_typed(kind, value, name) for kind, value in zip(inner, values, strict=True))
    return tuple(values)


def _refuse_unknown_choice(options: tuple[Any, ...], value: Any, name: str) -> None:
    """Dataclasses do not check their annotations: a choice that is not one would be found out much later."""
    literal = [option for option in options if typing.get_origin(option) is typing.Literal]
    # Other types in the union accept any value; None is a choice of its own.
    if not literal or len(literal) + (type(None) in options) < len(options) or value is None:
        return
    known = [choice for option in literal for choice in typing.get_args(option)]
    if value not in known:
        raise InputError(
            f"stored config has {name} = {value!r}, known are {', '.join(map(repr, known))}: use the version that made "
            "it, or restore the file"
        )


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
