"""Compares a resumed run of every pipeline, stopped at every kind of place, with one that was not stopped.

The losses of every step and the final state must be equal bit for bit. Negative controls show that the comparison is
meaningful: each part of the state in turn is left as in a new object, and then the run must differ.
"""

import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fieldwatch import Checkpoints, Interrupted, read_history
from fieldwatch.run.saving import RunCheckpoints
from fieldwatch.run.session import Session
from identical_runs import OF_THE_CLOCK, leaves
from torture.rows import Row, judged

NEAR = 12
"""Steps after which a control compares losses; if they are equal, it continues to the end."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a checkpoint that a resumed run needs.

    Attributes:
        name: display name.
        leaves: patterns of the paths of its values.
        at: stop point after which it is missing.
    """

    name: str
    leaves: tuple[str, ...]
    at: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training that is stopped and resumed.

    Attributes:
        name: display name.
        train: function that trains in a folder, or resumes the run in it.
        stops: numbers of finished steps by the name of what happens there, in order.
        parts: parts of a checkpoint, for the negative controls.
        harmless: patterns of values that may be missing, with the reasons.
    """

    name: str
    train: Callable[[Path], object]
    stops: Mapping[str, int]
    parts: Sequence[Part] = ()
    harmless: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Results of a run.

    Attributes:
        losses: loss of every step.
        state: content of the last checkpoint.
        numbers: all other recorded numbers that do not depend on the speed of the machine.
    """

    losses: list[float]
    state: dict[str, Any]
    numbers: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> "Trace":
        """Read the results from a run folder."""
        record = read_history(folder)
        losses = record["Loss/total"]
        names = [name for name in record.names() if not name.startswith(OF_THE_CLOCK)]
        if losses.steps.tolist() != list(range(len(losses))):
            raise AssertionError(f"{folder}: a step is missing or duplicate")
        return cls(
            losses=losses.values.tolist(),
            state=dict(Checkpoints(folder / "checkpoints").read("last")),
            numbers={name: (record[name].steps, record[name].values) for name in names},
        )


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal bit for bit."""
    if isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        return np.asarray(one).tobytes() == np.asarray(other).tobytes() and np.shape(one) == np.shape(other)
    return repr(one) == repr(other)


def differences(one: Any, other: Any) -> list[str]:
    """Return the paths of the values that differ."""
    here = dict(leaves(one))
    there = dict(leaves(other))
    missing = [path for path in {**here, **there} if path not in here or path not in there]
    return missing + [path for path in here.keys() & there.keys() if not same(here[path], there[path])]


@contextmanager
def stopped_after(done: int | None) -> Iterator[None]:
    """Send SIGTERM at the end of a step, as a scheduler does."""
    original = Session.end_step

    def end_step(session: Session) -> None:
        if session.log.step_index + 1 == done:
            os.kill(os.getpid(), signal.SIGTERM)
        original(session)

    with patch.object(Session, "end_step", end_step):
        yield


@contextmanager
def without(patterns: Sequence[str]) -> Iterator[None]:
    """Restore everything except the named values, which keep the state of the new objects."""
    original = RunCheckpoints.set_items

    def set_items(checkpoints: RunCheckpoints, items: Mapping[str, Any], **options: Any) -> None:
        original(checkpoints, {name: _Lacking(name, item, patterns) for name, item in items.items()}, **options)

    with patch.object(RunCheckpoints, "set_items", set_items):
        yield


class _Lacking:
    """An item that restores all of its state except some values."""

    def __init__(self, name: str, item: Any, patterns: Sequence[str]) -> None:
        self._name = name
        self._item = item
        self._patterns = patterns

    def state_dict(self) -> Any:
        """Return the state."""
        return self._item if isinstance(self._item, Mapping | Tensor) else self._item.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Restore the state."""
        kept = _replaced(state, deepcopy(self.state_dict()), self._patterns, self._name)
        if not isinstance(self._item, Mapping | Tensor):
            self._item.load_state_dict(kept)
            return
        with torch.no_grad():
            for (_, target), (_, stored) in zip(leaves(self._item), leaves(kept), strict=True):
                target.copy_(stored)


def _replaced(tree: Any, fresh: Any, patterns: Sequence[str], path: str) -> Any:
    """Return a stored tree in which the named values come from that of a new object."""
    if any(fnmatchcase(path, pattern) for pattern in patterns):
        return fresh if fresh is not None and np.shape(_sized(fresh)) == np.shape(_sized(tree)) else _nothing(tree)
    if isinstance(tree, Mapping):
        return {key: _replaced(tree[key], _of(fresh, key), patterns, f"{path}/{key}") for key in tree}
    if isinstance(tree, list | tuple) and any(isinstance(one, Tensor | Mapping | list | tuple) for one in tree):
        return type(tree)(_replaced(one, _of(fresh, i), patterns, f"{path}/{i}") for i, one in enumerate(tree))
    return tree


def _of(tree: Any, key: Any) -> Any:
    """Return the value of a tree under a key; None if it has none."""
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError):
        return None


def _sized(tree: Any) -> Any:
    """Return a tensor, or a number for a value without a shape."""
    return tree if isinstance(tree, Tensor | np.ndarray) else 0


def _nothing(tree: Any) -> Any:
    """Return a placeholder for a value that a new object does not have yet, such as the moments of an optimizer."""
    if isinstance(tree, Tensor):
        return torch.zeros_like(tree)
    if isinstance(tree, Mapping):
        return {key: _nothing(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)()
    return type(tree)()


def trained(case: Case, folder: Path, *, stop: int | None = None, lacking: Sequence[str] = ()) -> None:
    """Train or resume like a new process, with other random numbers than the last one."""
    seed = 1 + (stop or 0) if folder.exists() else 0
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  runs save the global state
    torch.manual_seed(seed)
    with warnings.catch_warnings(), stopped_after(stop), without(lacking) if lacking else nullcontext():
        warnings.simplefilter("ignore")
        try:
            case.train(folder)
            code = None
        except Interrupted as end:
            code = end.code
    if code != (None if stop is None else 128 + signal.SIGTERM):
        raise AssertionError(f"{case.name}: expected to stop at {stop}, exited with {code}")


def whole_run(case: Case, folder: Path) -> Trace:
    """Train without a stop."""
    trained(case, folder / "whole")
    return Trace.of(folder / "whole")


def stopped_run(case: Case, folder: Path) -> Trace:
    """Train with all stops, one after the other; keep a copy of the run folder of each."""
    parts = folder / "parts"
    for name, done in case.stops.items():
        trained(case, parts, stop=done)
        shutil.copytree(parts, folder / name)
    trained(case, parts)
    return Trace.of(parts)


def stop_rows(case: Case, folder: Path, whole: Trace) -> list[Row]:
    """Return one row per stop point."""
    found = stopped_run(case, folder)
    ends = [*list(case.stops.values())[1:], len(whole.losses)]
    state = differences(whole.state, found.state) + differences(whole.numbers, found.numbers)
    rows: list[Row] = []
    for (name, done), end in zip(case.stops.items(), ends, strict=True):
        wrong = [step for step in _unlike(whole, found, done) if step < end]
        last = end == len(whole.losses)
        told = f"{end - done - len(wrong)} of {end - done} losses" + f", {len(state)} other values differ" * last
        why = f"first at step {wrong[0]}" if wrong else ", ".join(state[:5]) * last
        good = not wrong and not (state and last)
        what = f"{case.name}, stopped {name} (step {done})"
        group = f"{case.name}: stopped and resumed"
        rows.append(judged("P4", what, "bit-equal", told, good=good, why=why, group=group))
    return rows


def control_row(case: Case, part: Part, folder: Path, whole: Trace) -> Row:
    """Return one row for a part: without it, the run must differ."""
    copy = folder / "control"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / part.at, copy)
    what = f"{case.name}, resumed {part.at} without {part.name}"
    done = case.stops[part.at]
    group = f"{case.name}: resumed without one part of its state"
    near = min(done + NEAR, len(whole.losses) - 1)
    try:
        trained(case, copy, stop=near, lacking=part.leaves)
        wrong = _unlike(whole, Trace.of(copy), done)
        state: list[str] = []
        if not wrong:
            trained(case, copy)
            found = Trace.of(copy)
            wrong = _unlike(whole, found, done)
            state = differences(whole.state, found.state) + differences(whole.numbers, found.numbers)
    except (RuntimeError, ValueError, ArithmeticError) as error:
        said = f"the run stops: {type(error).__name__}"
        return judged("P4", what, "differs", said, good=True, why=str(error).partition("\n")[0][:200], group=group)
    told = (
        f"{len(wrong)} losses from step {wrong[0]} on"
        if wrong
        else f"{len(state)} of {len(state)} other values: {', '.join(state[:3])}"
    )
    return judged("P4", what, "differs", told, good=bool(wrong or state), group=group)


def _unlike(whole: Trace, found: Trace, first: int) -> list[int]:
    """Return the steps from the first one on at which the losses differ."""
    return [step for step in range(first, len(found.losses)) if not same(whole.losses[step], found.losses[step])]


def uncovered(case: Case, folder: Path) -> list[str]:
    """Return the values of the checkpoints at the stops that no part covers and that are not listed as harmless."""
    patterns = [*case.harmless, *(pattern for part in case.parts for pattern in part.leaves)]
    paths = {path for at in case.stops for path, _ in leaves(Trace.of(folder / at).state)}
    return sorted(path for path in paths if not any(fnmatchcase(path, pattern) for pattern in patterns))


def case_rows(case: Case, folder: Path, parts: Sequence[str] | None = None) -> list[Row]:
    """Return all rows of a case.

    Args:
        case: the case to train.
        folder: empty working folder.
        parts: names of the controls to run; None for all.
    """
    whole = whole_run(case, folder)
    rows = stop_rows(case, folder, whole)
    if case.parts and "*" not in case.harmless:  # the whole state is always present
        left = uncovered(case, folder)
        told = f"{len(left)} without" + f": {', '.join(left[:5])}" * bool(left)
        rows.append(judged("P4", f"{case.name}, values with a control or a reason", "all", told, good=not left))
    chosen = [part for part in case.parts if parts is None or part.name in parts]
    return rows + [control_row(case, part, folder, whole) for part in chosen]


def run_resume_matrix(folder: Path, *, quick: bool = False) -> list[Row]:
    """Test every pipeline, stopped everywhere, and then every part of its state left out.

    Args:
        folder: empty working folder.
        quick: whether to run only splats, with one control of each kind.
    """
    from torture.resume_cases import QUICK, every_case, splats_case  # noqa: PLC0415  the cases import this module

    if quick:
        return case_rows(splats_case(folder / "data", streams=False), folder, QUICK)
    rows: list[Row] = []
    for number, case in enumerate(every_case(folder / "data")):
        (folder / str(number)).mkdir()
        rows += case_rows(case, folder / str(number))
    return rows
