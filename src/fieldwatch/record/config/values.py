"""Configs as plain JSON values: conversion, flattening and comparison."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from fieldwatch.base import InputError


class ConfigMismatch(InputError):  # noqa: N818  named after the finding
    """Raised when a run would be resumed with a config that differs from the stored one."""


def plain_values(config: Any) -> dict[str, Any]:
    """Convert a config (dataclass or mapping) to plain JSON values; None becomes an empty dict."""
    if config is None:
        return {}
    # Round trip through JSON, so that later comparisons see exactly the stored values.
    return orjson.loads(orjson.dumps(config, default=str, option=orjson.OPT_NON_STR_KEYS))


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested config to a single level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inner = _as_config(value)
        flat |= {f"{prefix}{key}": value} if inner is None else flattened(inner, f"{prefix}{key}.")
    return flat


def config_differences(
    stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the leaves that differ as ``{dotted key: (stored, given)}``; a missing leaf counts as None."""
    differences: dict[str, tuple[Any, Any]] = {}
    # Sorted, so that error messages are deterministic.
    for key in sorted(stored.keys() | given.keys()):
        old = stored.get(key)
        new = given.get(key)
        old_config = _as_config(old)
        new_config = _as_config(new)
        if old_config is not None and new_config is not None:
            differences |= config_differences(old_config, new_config, f"{prefix}{key}.")
        elif old != new:
            differences[f"{prefix}{key}"] = (old, new)
    return differences


def _as_config(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def refuse_mismatch(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to resume a run with a config that differs from the stored one.

    Raises:
        ConfigMismatch: if any leaf differs; the message lists all of them and how to proceed.
    """
    # List all differences at once, so that the user can fix them in a single attempt.
    changed = config_differences(stored, given)
    if changed:
        lines = "\n".join(f"  {key}: stored {old!r}, given {new!r}" for key, (old, new) in changed.items())
        raise ConfigMismatch(
            f"{folder} holds a run with a different config:\n{lines}\n"
            f"Resume it with its stored config, `fieldwatch resume {folder}`, or choose another folder with --out"
        )
