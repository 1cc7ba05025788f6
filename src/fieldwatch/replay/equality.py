"""Comparison of a replay with the record of the run: losses and gradient norms to the bit, parameters to the bit."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwatch.checkpoint import Checkpoints, DamageError, Item, StoredStateError, gather
from fieldwatch.record import CHECKPOINTS, History, Manifest, git_state, tags, versions
from fieldwatch.replay.operation import number_of
from fieldwatch.run import machine_facts

COMPARED = (tags.LOSS, "Gradients", "LearningRate", tags.GUARD, tags.SAMPLE)
"""Groups of metrics that are compared; times and memory differ from run to run."""
SHOWN = 20
_UNKNOWN_REASON = (
    "the machine and the versions are those that the run recorded: state that no checkpoint contains (a generator, a "
    "data loader, a variable of the loop), a changed file of the data or of the code, or an operation that is not "
    "deterministic"
)


class Equality:
    """Compares every replayed step with the journal, and every reached checkpoint with the stored one.

    Args:
        run: run folder.
        history: record of the run.
        manifest: contents of its run.json.
    """

    def __init__(self, run: Path, history: History, manifest: Manifest) -> None:
        self._store = Checkpoints(run / CHECKPOINTS)
        self._history = history
        self._manifest = manifest
        self._names = [name for name in history.names() if tags.kind(name) in COMPARED]
        self._steps: list[int] = []
        self._values = 0
        self._not_recorded: list[int] = []
        self._ended: dict[str, Any] | None = None
        self._checkpoints: list[dict[str, Any]] = []

    def add_step(self, index: int, values: Mapping[str, float]) -> None:
        """Compare the values of a step with its row in the journal."""
        if index in self._steps:
            return
        recorded = {name: value for name in self._names if (value := self._recorded(name, index)) is not None}
        if not recorded:
            self._not_recorded.append(index)
            return
        self._steps.append(index)
        differing: list[dict[str, Any]] = []
        for name in recorded.keys() & values.keys():
            self._values += 1
            if not _same_float(recorded[name], values[name]):
                differing.append(
                    {"metric": name, "recorded": number_of(recorded[name]), "replayed": number_of(values[name])}
                )
        if differing and self._ended is None:
            differing.sort(key=lambda row: str(row["metric"]))
            self._ended = {"step": index, "values": differing[:SHOWN], "count": len(differing)}

    def add_state(self, done: int, items: Mapping[str, Item]) -> None:
        """Compare the state after a number of steps with the checkpoint of that step, if the run has one."""
        if done not in self._store.steps() or any(row["step"] == done for row in self._checkpoints):
            return
        try:
            stored = self._store.read(done)
        # Damaged, or deleted meanwhile by the training.
        except (DamageError, StoredStateError):
            return
        unequal: list[str] = []
        tensors = 0
        for name, item in items.items():
            if name not in stored:
                continue
            known = dict(_leaves(stored[name], name))
            for place, value in _leaves(gather({name: item})[name], name):
                tensors += 1
                if place not in known or not _same_value(known[place], value):
                    unequal.append(place)
        self._checkpoints.append({"step": done, "values": tensors, "unequal": unequal[:SHOWN], "count": len(unequal)})

    def plain(self, step: int, device: str) -> dict[str, Any]:
        """Return the comparison as plain values.

        Args:
            step: replayed step; the machine of the process that trained it is compared.
            device: device of the replay.
        """
        equal = self._ended is None and not any(row["count"] for row in self._checkpoints)
        return {
            "equal": equal,
            "steps": len(self._steps),
            "first": min(self._steps, default=None),
            "last": max(self._steps, default=None),
            "values": self._values,
            "not_recorded": self._not_recorded[:SHOWN],
            "ended": self._ended,
            "checkpoints": self._checkpoints,
            "differences": self._differences(step, device),
            "reasons": [] if equal else self._reasons(step, device),
        }

    def _recorded(self, name: str, index: int) -> float | None:
        series = self._history[name]
        place = int(np.searchsorted(series.steps, index))
        return float(series.values[place]) if place < len(series) and series.steps[place] == index else None

    def _differences(self, step: int, device: str) -> list[dict[str, str]]:
        """Return what differs between the process that trained a step and this one."""
        segments = [s for s in self._manifest.segments if int(s.get("step", 0)) <= step]
        segment = segments[-1] if segments else dict[str, Any]()
        recorded: dict[str, Any] = {**self._manifest.versions}
        recorded |= {key: segment[key] for key in machine_facts(device) if key in segment}
        recorded["commit"] = self._manifest.git.get("commit")
        now: dict[str, Any] = {**versions(), **machine_facts(device), "commit": git_state().get("commit")}
        return [
            {"what": name, "recorded": str(value), "here": str(now.get(name))}
            for name, value in recorded.items()
            if value is not None and now.get(name) != value
        ]

    def _reasons(self, step: int, device: str) -> list[str]:
        """Return the likely reasons why the numbers differ, the most likely first."""
        found = [f"{d['what']}: {d['here']} here, {d['recorded']} in the run" for d in self._differences(step, device)]
        found += [str(event.get("reason")) for event in self._history.events("not_kept")]
        return found or [_UNKNOWN_REASON]


def _same_float(recorded: float, replayed: float) -> bool:
    # The journal has the digits of float32 values, and those of numbers in full.
    one = np.float32(recorded)
    other = np.float32(replayed)
    return recorded == replayed or bool(one == other) or bool(np.isnan(one) and np.isnan(other))


def _leaves(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{place}.{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{place}.{index}")
    else:
        yield place, tree


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and bool(torch.equal(_bits(one), _bits(other)))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor on the CPU, so that NaN equals itself and 0 differs from -0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
