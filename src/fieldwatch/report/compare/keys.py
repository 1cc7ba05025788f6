"""Differences between the configs of runs, and between their machines and versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from fieldwatch.report.compare.side import Side

SEEDS = ("seed", "random_seed", "rng_seed", "manual_seed", "global_seed", "torch_seed", "np_seed")


class Absent:
    """Type of `ABSENT`, the value of a key that a run does not have."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


def differing(known: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the keys whose values differ between runs, with the value of each run.

    Args:
        known: flat mapping of each run.
    """
    keys = dict.fromkeys(key for values in known.values() for key in values)
    by_key = {key: {run: values.get(key, ABSENT) for run, values in known.items()} for key in keys}
    return {key: values for key, values in by_key.items() if not _all_equal(list(values.values()))}


def config_differences_of(sides: Sequence[Side]) -> dict[str, dict[str, Any]]:
    """Return the differing keys of the configs; runs without a known config are left out.

    TensorBoard stores only numbers and texts, and not all of them. If one of the configs comes from TensorBoard, values
    are therefore compared as text, and keys missing in its configs are not a difference.
    """
    known = {side.name: side.config for side in sides if side.config is not None}
    kinds = {side.name: side.kind for side in sides if side.config is not None}
    if len(set(kinds.values())) < 2:
        return differing(known)
    keys = dict.fromkeys(key for config in known.values() for key in config)
    differences: dict[str, dict[str, Any]] = {}
    for key in keys:
        values = {run: _text(config[key]) if key in config else ABSENT for run, config in known.items()}
        # Our own configs are complete, so a key that is missing in one of them is a difference.
        reliable = [value for run, value in values.items() if value is not ABSENT or kinds[run] == "fieldwatch"]
        if not _all_equal(reliable):
            differences[key] = values
    return differences


def environment_differences_of(sides: Sequence[Side]) -> dict[str, dict[str, Any]]:
    """Return the differing versions, git states, hosts, devices and commands, as far as they are known."""
    return differing({side.name: side.environment for side in sides if side.environment})


def is_seed(key: str) -> bool:
    """Return whether a key of a config is a random seed."""
    # Keys are joined by dots in our configs, by slashes in hyperparameters of other programs.
    return key.rpartition(".")[2].rpartition("/")[2].lower() in SEEDS


def seed_of(side: Side) -> str:
    """Return the random seed of a run as text; empty if its config has none."""
    config = side.config or {}
    return ", ".join(str(config[key]) for key in sorted(config) if is_seed(key))


def identity_of(side: Side) -> str | None:
    """Return a text that is equal for runs that differ only in their seed; None if the config is not known."""
    # An empty config does not show that two runs are the same experiment.
    if not side.config:
        return None
    settings = {key: value for key, value in side.config.items() if not is_seed(key)}
    return repr((side.kind, side.pipeline, sorted((key, repr(value)) for key, value in settings.items())))


def _text(value: Any) -> str:
    # TensorBoard stores every number as a double: 3 and 3.0 must be equal.
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _all_equal(values: Sequence[Any]) -> bool:
    # With types, since True == 1 and 1 == 1.0, which are different settings.
    return all(type(value) is type(values[0]) and value == values[0] for value in values[1:])
