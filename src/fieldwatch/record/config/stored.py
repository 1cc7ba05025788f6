"""Rebuild config dataclasses from the plain JSON values in run.json."""

import types
import typing
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from fieldwatch.base import InputError
from fieldwatch.record.config.names import with_current_names
from fieldwatch.record.manifest import Manifest, NotARun, read_manifest

Config = TypeVar("Config")


def config_from_plain(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a config dataclass from its stored plain JSON values.

    Nested dataclasses, tuples, lists, paths and None are restored. Values of ``Literal`` fields must be known choices.
    Former names (`formerly`) are read as well.

    Args:
        kind: config dataclass; its annotations determine the types.
        values: field values by name; missing fields take their defaults.

    Raises:
        InputError: if a key or choice is unknown (the run was made by another version), or the dataclass rejects a
            value.
        TypeError: if a value has a type that the dataclass does not accept.
    """
    values = with_current_names(kind, values)
    annotations = typing.get_type_hints(kind)
    unknown = sorted(values.keys() - {field.name for field in fields(cast("Any", kind))})
    if unknown:
        names = ", ".join(unknown)
        raise InputError(
            f"stored config has keys {names} that {kind.__name__} does not have: use the version that created the run"
        )
    return kind(**{name: _typed(annotations[name], value, name) for name, value in values.items()})


def preset_values(manifest: Manifest) -> dict[str, Any]:
    """Return the plain values of the preset that a run started from: its config with all overrides reverted."""
    # Copy deeply: the nested dicts belong to the manifest.
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
        pipeline: name of the pipeline that the run must belong to.
        kind: config dataclass of the pipeline.

    Raises:
        NotARun: if the folder holds no run or a run of another pipeline, or if its run.json is damaged.
    """
    manifest = read_manifest(folder)
    about = cast("Mapping[str, Any] | list[Any]", manifest.about)  # a damaged run.json may hold any JSON here
    recorded_pipeline = about.get("pipeline") if isinstance(about, Mapping) else None
    if recorded_pipeline != pipeline:
        raise NotARun(
            f"{folder} holds a run of {recorded_pipeline or 'a loop of your own'}: this command opens {pipeline} runs"
        )
    try:
        return config_from_plain(kind, manifest.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise NotARun(
            f"{folder / 'run.json'} does not contain a valid {pipeline} config ({error}): restore the file"
        ) from error


def preset_of_run(folder: Path, pipeline: str, kind: type[Config]) -> Config:
    """Return the preset that a pipeline's run started from: its config with all overrides reverted.

    Args:
        folder: the run folder.
        pipeline: name of the pipeline that the run must belong to.
        kind: config dataclass of the pipeline.

    Raises:
        NotARun: under the same conditions as :func:`config_of_run`.
    """
    # Validates folder and pipeline; the config itself is not needed.
    config_of_run(folder, pipeline, kind)
    return config_from_plain(kind, preset_values(read_manifest(folder)))


def _typed(annotation: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to its annotated type."""
    # The members of a union, or the single annotated type.
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    if isinstance(value, Mapping):
        values = cast("Mapping[str, Any]", value)
        kind = next((option for option in options if is_dataclass(option)), None)
        return values if kind is None else config_from_plain(cast("type[Any]", kind), values)
    if isinstance(value, list):
        return _sequence(options, cast("list[Any]", value), name)
    # With ``str | Path`` a string stays a string: JSON does not record which one it was.
    if isinstance(value, str) and Path in options and str not in options:
        return Path(value)
    _refuse_unknown_choice(options, value, name)
    return value


def _sequence(options: tuple[Any, ...], values: list[Any], name: str) -> Any:
    """Convert a JSON list to its annotated tuple or list type."""
    for option in options:
        origin = typing.get_origin(option)
        inner = typing.get_args(option)
        if origin is list:
            return [_typed(inner[0], value, name) for value in values]
        # `tuple[X, ...]` has any length; `tuple[X, Y]` has a fixed one.
        if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_typed(inner[0], value, name) for value in values)
        if origin is tuple and len(inner) == len(values):
            return tuple(_typed(kind, value, name) for kind, value in zip(inner, values, strict=True))
    return tuple(values)


def _refuse_unknown_choice(options: tuple[Any, ...], value: Any, name: str) -> None:
    """Raise InputError if a ``Literal`` field has an unknown value.

    Dataclasses do not check their annotations, so an invalid choice would otherwise fail much later.
    """
    literal = [option for option in options if typing.get_origin(option) is typing.Literal]
    # If the union has members other than Literal and None, any value may be valid.
    if not literal or len(literal) + (type(None) in options) < len(options) or value is None:
        return
    known = [choice for option in literal for choice in typing.get_args(option)]
    if value not in known:
        raise InputError(
            f"stored config has {name} = {value!r}, expected one of {', '.join(map(repr, known))}: use the version "
            "that created the run, or restore the file"
        )


def _is_union(annotation: Any) -> bool:
    # At runtime, `X | Y` and `Union[X, Y]` have different types.
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
