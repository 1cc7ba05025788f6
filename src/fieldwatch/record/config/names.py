"""Settings that were renamed: configs of earlier versions are read under their current names."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, cast, get_args, get_type_hints

from fieldwatch.record.config.values import plain_values

_FORMER: Final = "fieldwatch.formerly"


def formerly(name: str, **values: str) -> dict[str, Any]:
    """Return metadata of a dataclass field that had another name in earlier versions.

    Args:
        name: former name of the field.
        **values: current spelling of each renamed value, by its former spelling.

    Example:
        >>> @dataclass(frozen=True)
        ... class Options:
        ...     neighbors: int = field(default=16, metadata=formerly("neighbours"))
    """
    return {_FORMER: (name, values)}


def with_current_names(kind: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored plain values under the current names of a config dataclass.

    Args:
        kind: config dataclass; of any other class, such as dict, nothing is renamed.
        stored: values as read from run.json; nested configs are renamed as well.
    """
    current = dict(stored)
    for field, inner_kind in _fields_of(kind):
        former, values = cast("tuple[str, Mapping[str, str]]", field.metadata.get(_FORMER, (field.name, {})))
        if former in current:
            value = current.pop(former)
            current[field.name] = values.get(value, value) if isinstance(value, str) else value
        inner = current.get(field.name)
        if isinstance(inner, Mapping):
            current[field.name] = with_current_names(inner_kind, cast("Mapping[str, Any]", inner))
    return current


def as_stored_now(kind: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored plain values as this version would store the same config, for comparisons.

    Former names are replaced, and settings that the config did not have yet take their defaults.

    Args:
        kind: config dataclass; of any other class, the values are returned unchanged.
        stored: values as read from run.json.
    """
    return _with_defaults(kind, with_current_names(kind, stored))


def _with_defaults(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    complete = dict(values)
    for field, inner_kind in _fields_of(kind):
        if field.name not in complete:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if default is not MISSING:
                complete |= plain_values({field.name: default})
        elif isinstance(complete[field.name], Mapping):
            complete[field.name] = _with_defaults(inner_kind, complete[field.name])
    return complete


def _fields_of(kind: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields of a dataclass, each with the dataclass that it holds or its annotation."""
    if isinstance(kind, type) and is_dataclass(kind):
        annotations = get_type_hints(kind)
        for field in fields(kind):
            annotation = annotations[field.name]
            yield field, next((option for option in get_args(annotation) if is_dataclass(option)), annotation)
