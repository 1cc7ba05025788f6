"""Read and validate the plan, a TOML file that lists scenes, before anything starts."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from fieldwatch.base import LONGEST_NAME, InputError, output_name
from fieldwatch.many.scene import PlannedScene

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED_NAMES: Final = frozenset({"console", "many.jsonl", "report.html", "summary.json", "summary.csv"})
_NUMBERS: Final = {"cpus": "cpus", "gpus": "gpus", "memory": "memory_gib", "timeout": "timeout", "retries": "retries"}
_DRIVER_FLAGS: Final = frozenset({"out", "resume", "json", "supervise"})
_SCENE_KEYS: Final = frozenset({"name", "pipeline", "env", *_NUMBERS})


class PlanError(InputError):
    """Raised when a plan is invalid; the message names scene and key, the expected value and what to do."""


def read_plan(path: Path, pipelines: Sequence[str]) -> tuple[PlannedScene, ...]:
    """Read a plan with ``[defaults]``, ``[defaults.PIPELINE]`` and one ``[[scene]]`` per scene.

    The keys of a scene take precedence over the defaults of its pipeline, and those over the general defaults. Flags of
    pipelines are not validated here.

    Args:
        path: path of the plan.
        pipelines: names of the pipelines that `fieldwatch train` supports.

    Raises:
        PlanError: if the file is not TOML or has no scenes, a name is missing, repeated or not a valid folder name, or
            a value is invalid.
        OSError: if the file cannot be read.
    """
    try:
        stored = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is not valid TOML ({error}): fix that line; see examples/scenes.toml") from error
    unknown = stored.keys() - {"defaults", "scene"}
    if unknown:
        raise PlanError(f"{path} has {_listed(unknown)} at the top level: a plan has only [defaults] and [[scene]]")
    tables = stored.get("scene", [])
    if not isinstance(tables, list) or not tables:
        raise PlanError(f"{path} has no scenes: add one [[scene]] for each, with a name and a pipeline")
    general, special = _defaults(path, stored.get("defaults", {}), pipelines)
    scenes = tuple(_scene(number, table, general, special, pipelines) for number, table in enumerate(tables, start=1))
    _refuse_repeated_names(scenes)
    return scenes


def _defaults(path: Path, table: Any, pipelines: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the defaults for all scenes, and those for the scenes of each pipeline."""
    if not isinstance(table, dict):
        raise PlanError(f"{path}: defaults must be a table, [defaults] followed by key = value lines, got {table!r}")
    table = cast("dict[str, Any]", table)
    special = {name: value for name, value in table.items() if name in pipelines and isinstance(value, dict)}
    general = {_key(name): value for name, value in table.items() if name not in special}
    return general, {name: {_key(key): value for key, value in table.items()} for name, table in special.items()}


def _scene(
    number: int,
    table: Any,
    general: Mapping[str, Any],
    special: Mapping[str, Mapping[str, Any]],
    pipelines: Sequence[str],
) -> PlannedScene:
    if not isinstance(table, dict):
        raise PlanError(f"scene {number} must be a table, [[scene]] followed by key = value lines, got {table!r}")
    keys = {_key(name): value for name, value in cast("dict[str, Any]", table).items()}
    name = _name(number, keys)
    pipeline = keys.get("pipeline", general.get("pipeline"))
    if not isinstance(pipeline, str) or pipeline not in pipelines:
        raise PlanError(f"scene {name!r}: pipeline must be one of {', '.join(pipelines)}, got {pipeline!r}")
    values = {**general, **special.get(pipeline, {}), **keys}
    # Environment variables are merged one by one, whereas a flag of the scene replaces the default as a whole.
    env = {**general.get("env", {}), **special.get(pipeline, {}).get("env", {}), **keys.get("env", {})}
    reserved = _DRIVER_FLAGS & values.keys()
    if reserved:
        raise PlanError(
            f"scene {name!r}: {_listed(reserved)} cannot be set in a plan: run folders are always OUT/{name} and are "
            "resumed there"
        )
    return PlannedScene(
        name=name,
        pipeline=pipeline,
        flags={key: _flag_words(name, key, value) for key, value in values.items() if key not in _SCENE_KEYS},
        env={key: _variable(name, key, value) for key, value in env.items()},
        **{field: _number(name, key, values[key]) for key, field in _NUMBERS.items() if key in values},
    )


def _name(number: int, table: Mapping[str, Any]) -> str:
    name = table.get("name")
    # The name becomes a folder next to the driver's files, so it must not collide with them.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or output_name(name) != name or name in _RESERVED_NAMES:
        raise PlanError(
            f"scene {number}: name must be a folder name of at most {LONGEST_NAME} letters, digits, '.', '_' and '-' "
            f"that starts with a letter or digit and is none of {_listed(_RESERVED_NAMES)}, got {name!r}"
        )
    return name


def _refuse_repeated_names(scenes: tuple[PlannedScene, ...]) -> None:
    """Raise PlanError if two scenes would write to the same folder."""
    names: dict[str, str] = {}
    # Compare in lower case: on case-insensitive file systems, A and a are the same folder.
    for scene in scenes:
        other = names.get(scene.name.lower())
        if other is not None:
            raise PlanError(
                f"two scenes are named {other!r} and {scene.name!r}: each needs a distinct name, used for its folder"
            )
        names[scene.name.lower()] = scene.name


def _number(scene: str, key: str, value: Any) -> Any:
    """Return a validated resource amount or number of retries.

    Raises:
        PlanError: if the value is not a number or out of bounds.
    """
    whole = key == "retries"
    least = {"cpus": 0.01, "timeout": 1e-3}.get(key, 0)
    kinds = int if whole else (int, float)
    # A bool is an int in Python, but not a valid amount.
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value < least:
        unit = {"memory": " of GiB", "timeout": " of seconds"}.get(key, "")
        kind = "an integer" if whole else f"a number{unit}"
        raise PlanError(f"scene {scene!r}: {key} must be {kind}, at least {least:g}, got {value!r}")
    # Ray accepts fractions of a processor or GPU only below 1.
    if key in ("cpus", "gpus") and value > 1 and value != int(value):
        raise PlanError(f"scene {scene!r}: {key} must be an integer or a fraction below 1, got {value!r}")
    return value if whole else float(value)


def _flag_words(scene: str, key: str, value: Any) -> tuple[str, ...]:
    """Convert a key and its value to command-line arguments.

    Raises:
        PlanError: if the value has a type that no flag accepts.
    """
    # Test for bool first: a bool is also an int.
    if isinstance(value, bool):
        return (f"--{key}",) if value else (f"--no-{key}",)
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return (f"--{key}", *(str(item) for item in value))
    if isinstance(value, str | int | float):
        # With "=", a value that starts with a dash is not mistaken for a flag.
        return (f"--{key}={value}",)
    raise PlanError(
        f"scene {scene!r}: {key} must be a string, a number, true, false or a list of strings or numbers, got {value!r}"
    )


def _variable(scene: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"scene {scene!r}: env.{key} must be a string in quotes, got {value!r}")
    return value


def _key(name: str) -> str:
    # Plans may spell flags with underscores, as is usual in TOML.
    return name.replace("_", "-")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
