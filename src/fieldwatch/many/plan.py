"""The plan: a TOML file that names scenes. What is wrong with it is said before anything starts."""

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
    """The plan cannot be used: the message says which scene and key, what was wanted and what to do."""


def read_plan(path: Path, pipelines: Sequence[str]) -> tuple[PlannedScene, ...]:
    """Read a plan: ``[defaults]``, ``[defaults.PIPELINE]`` and one ``[[scene]]`` each; flags are not judged here.

    A scene's own keys win over those of its pipeline's defaults, and those over the defaults of all.

    Args:
        path: the file.
        pipelines: names that `fieldwatch train` knows.

    Raises:
        PlanError: no TOML, no scene, a name that is missing, taken or no folder name, or a value no flag can have.
        OSError: the file cannot be read.
    """
    try:
        stored = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is no TOML file ({error}): mend that line; examples/scenes.toml shows one") from error
    unknown = stored.keys() - {"defaults", "scene"}
    if unknown:
        raise PlanError(f"{path} has {_listed(unknown)} at its top: a plan has [defaults] and [[scene]] only")
    tables = stored.get("scene", [])
    if not isinstance(tables, list) or not tables:
        raise PlanError(f"{path} names no scene: write one [[scene]] each, with a name and a pipeline")
    general, special = _defaults(path, stored.get("defaults", {}), pipelines)
    scenes = tuple(_scene(number, table, general, special, pipelines) for number, table in enumerate(tables, start=1))
    _refuse_repeated_names(scenes)
    return scenes


def _defaults(path: Path, table: Any, pipelines: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What holds for all scenes, and what for those of one pipeline."""
    if not isinstance(table, dict):
        raise PlanError(f"{path}: defaults is {table!r}: wanted a table, [defaults] with key = value lines below it")
    table = cast("dict[str, Any]", table)
    special = {name: value for name, value in table.items() if name in pipelines and isinstance(value, dict)}
    general = {_key(name): value for name, value in table.items() if name not in special}
    return general, {name: {_key(key): each for key, each in value.items()} for name, value in special.items()}


def _scene(
    number: int,
    table: Any,
    general: Mapping[str, Any],
    special: Mapping[str, Mapping[str, Any]],
    pipelines: Sequence[str],
) -> PlannedScene:
    if not isinstance(table, dict):
        raise PlanError(f"scene {number} is {table!r}: wanted a table, [[scene]] with key = value lines below it")
    keys = {_key(name): value for name, value in cast("dict[str, Any]", table).items()}
    name = _name(number, keys)
    pipeline = keys.get("pipeline", general.get("pipeline"))
    if not isinstance(pipeline, str) or pipeline not in pipelines:
        raise PlanError(f"scene {name!r}: pipeline is {pipeline!r}: wanted one of {', '.join(pipelines)}")
    values = {**general, **special.get(pipeline, {}), **keys}
    env = {**general.get("env", {}), **special.get(pipeline, {}).get("env", {}), **keys.get("env", {})}
    reserved = _DRIVER_FLAGS & values.keys()
    if reserved:
        raise PlanError(
            f"scene {name!r}: {_listed(reserved)} is not for a plan: runs go to OUT/{name}, and go on there"
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
    # The name becomes a folder beside the driver's own files.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or output_name(name) != name or name in _RESERVED_NAMES:
        raise PlanError(
            f"scene {number}: name is {name!r}: wanted a folder name of letters, digits, '.', '_' and '-' that begins "
            f"with a letter or digit, at most {LONGEST_NAME} bytes long, and is none of {_listed(_RESERVED_NAMES)}"
        )
    return name


def _refuse_repeated_names(scenes: tuple[PlannedScene, ...]) -> None:
    """Two scenes must not write into one folder; on some disks case does not tell names apart."""
    names: dict[str, str] = {}
    # Lower case: on some file systems A and a are one folder.
    for scene in scenes:
        other = names.get(scene.name.lower())
        if other is not None:
            raise PlanError(
                f"two scenes are named {other!r} and {scene.name!r}: each needs a name, and folder, of its own"
            )
        names[scene.name.lower()] = scene.name


def _number(scene: str, key: str, value: Any) -> Any:
    """A number of resources or tries.

    Raises:
        PlanError: it is none, or out of its bounds.
    """
    whole = key == "retries"
    least = {"cpus": 0.01, "timeout": 1e-3}.get(key, 0)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value < least:
        unit = {"memory": " of GiB", "timeout": " of seconds"}.get(key, "")
        kind = "a whole number" if whole else f"a number{unit}"
        raise PlanError(f"scene {scene!r}: {key} is {value!r}: wanted {kind}, {least:g} or more")
    if key in ("cpus", "gpus") and value > 1 and value != int(value):
        raise PlanError(f"scene {scene!r}: {key} is {value!r}: wanted a whole number, or a share below 1")
    return value if whole else float(value)


def _flag_words(scene: str, key: str, value: Any) -> tuple[str, ...]:
    """A key with its value as words of a command line.

    Raises:
        PlanError: a value that no flag can have.
    """
    if isinstance(value, bool):
        return (f"--{key}",) if value else (f"--no-{key}",)
    if isinstance(value, list) and value and all(isinstance(each, str | int | float) for each in value):
        return (f"--{key}", *(str(each) for each in value))
    if isinstance(value, str | int | float):
        return (f"--{key}={value}",)
    raise PlanError(
        f"scene {scene!r}: {key} is {value!r}: a flag takes text, a number, true or false, or a list of them"
    )


def _variable(scene: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"scene {scene!r}: env.{key} is {value!r}: wanted text, written in quotes")
    return value


def _key(name: str) -> str:
    return name.replace("_", "-")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
