"""Configs as plain JSON values: how they are stored, flattened and compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from fieldwatch.base import InputError


class ConfigMismatch(InputError):  # noqa: N818  says what is wrong
    """The stored config and the given one differ; continuing would be another experiment."""


def plain_values(config: Any) -> dict[str, Any]:
    """A config (dataclass or mapping) as plain JSON values; None becomes empty."""
    if config is None:
        return {}
    # A round trip through JSON: what is compared later is exactly what is stored.
    return orjson.loads(orjson.dumps(config, default=str, option=orjson.OPT_NON_STR_KEYS))


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with one level of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        inner = _as_config(value)
        found |= {f"{prefix}{key}": value} if inner is None else flattened(inner, f"{prefix}{key}.")
    return found


def config_differences(
    stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Leaves that differ, by dotted key: ``(stored, given)``; a missing leaf is None."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(stored.keys() | given.keys()):
        old = stored.get(key)
        new = given.get(key)
        one = _as_config(old)
        other = _as_config(new)
        if one is not None and other is not None:
            found |= config_differences(one, other, f"{prefix}{key}.")
        elif old != new:
            found[f"{prefix}{key}"] = (old, new)
    return found


def _as_config(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def refuse_mismatch(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise when a run would be continued with another config.

    Raises:
        ConfigMismatch: names every key that differs, and what to do.
    """
    changed = config_differences(stored, given)
    if changed:
        lines = "\n".join(f"  {key}: stored {old!r}, given {new!r}" for key, (old, new) in changed.items())
        raise ConfigMismatch(
            f"{folder} holds a run with another config:\n{lines}\n"
            f"Continue it as it is with `fieldwatch resume {folder}`, or choose another folder with --out"
        )
