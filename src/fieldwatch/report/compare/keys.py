"""What differs between the configs of runs, and between the machines and versions they ran on."""

from collections.abc import Mapping, Sequence
from typing import Any

from fieldwatch.report.compare.side import Side

SEEDS = ("seed", "random_seed", "rng_seed", "manual_seed", "global_seed", "torch_seed", "np_seed")


class Absent:
    """Stands where a run has no such key."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


def differing(known: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the keys whose values are not the same in all runs, each with every run's value.

    Args:
        known: per run a flat mapping.
    """
    keys = dict.fromkeys(key for values in known.values() for key in values)
    found = {key: {run: values.get(key, ABSENT) for run, values in known.items()} for key in keys}
    return {key: values for key, values in found.items() if not _all_equal(list(values.values()))}


def config_differences_of(sides: Sequence[Side]) -> dict[str, dict[str, Any]]:
    """Return the keys of the configs that differ; runs whose config nobody knows are left out.

    TensorBoard keeps numbers and texts only, and not all of them: beside its configs values are compared by their text,
    and a key that it does not have says nothing.
    """
    known = {side.name: side.config for side in sides if side.config is not None}
    kinds = {side.name: side.kind for side in sides if side.config is not None}
    if len(set(kinds.values())) < 2:
        return differing(known)
    keys = dict.fromkeys(key for config in known.values() for key in config)
    found: dict[str, dict[str, Any]] = {}
    for key in keys:
        values = {run: _text(config[key]) if key in config else ABSENT for run, config in known.items()}
        telling = [value for run, value in values.items() if value is not ABSENT or kinds[run] == "fieldwatch"]
        if not _all_equal(telling):
            found[key] = values
    return found


def environment_differences_of(sides: Sequence[Side]) -> dict[str, dict[str, Any]]:
    """Return what differs between versions, git states, hosts, devices and commands, where they are known."""
    return differing({side.name: side.environment for side in sides if side.environment})


def is_seed(key: str) -> bool:
    """Whether a key of a config names the seed of the random numbers."""
    return key.rpartition(".")[2].rpartition("/")[2].lower() in SEEDS


def seed_of(side: Side) -> str:
    """Return the seed of a run as text; empty where its config names none."""
    config = side.config or {}
    return ", ".join(str(config[key]) for key in sorted(config) if is_seed(key))


def identity_of(side: Side) -> str | None:
    """Return what two runs that differ by their seed only have in common; None where the config is not known."""
    if not side.config:
        return None
    plain = {key: value for key, value in side.config.items() if not is_seed(key)}
    return repr((side.kind, side.pipeline, sorted((key, repr(value)) for key, value in plain.items())))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _all_equal(values: Sequence[Any]) -> bool:
    return all(type(value) is type(values[0]) and value == values[0] for value in values[1:])
