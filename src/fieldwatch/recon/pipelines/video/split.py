"""Split of frames into training and held-out sets, in the `a_b_c` notation."""

import random
from dataclasses import dataclass
from typing import Literal

from fieldwatch import InputError

Label = Literal["train", "val", "unused"]


@dataclass(frozen=True, kw_only=True)
class FrameSplit:
    """Frame indices of each set, ascending; together they cover all frames.

    Attributes:
        rule: the notation that was parsed.
        train: training frames.
        val: held-out frames, for evaluation.
        unused: frames in neither set.
        notes: remarks for the readers of the results.
    """

    rule: str
    train: tuple[int, ...]
    val: tuple[int, ...]
    unused: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """Set of each frame, in frame order."""
        train = set(self.train)
        val = set(self.val)
        count = len(train) + len(val) + len(self.unused)
        return tuple("train" if i in train else "val" if i in val else "unused" for i in range(count))


def parse_split(rule: str) -> tuple[int, int, int]:
    """Parse `a_b_c`.

    Raises:
        InputError: unless 1 <= a <= b <= c.
    """
    try:
        a, b, c = (int(part) for part in rule.split("_"))
    # Wrong number of parts or not integers: fails the check below like any invalid rule.
    except ValueError:
        a = 0
        b = 0
        c = 0
    if not 1 <= a <= b <= c:
        msg = (
            "--data-split must be a_b_c with 1 <= a <= b <= c (of every c frames the first a are for training, those "
            f"from the b-th on are held out), e.g. 7_7_8, got {rule!r}"
        )
        raise InputError(msg)
    return a, b, c


def split_frames(
    count: int, rule: str = "7_7_8", *, shuffle: bool = False, allow_empty_validation: bool = False
) -> FrameSplit:
    """Split frames by their position modulo c: below a for training, from b on held out, in between unused.

    This is the rule of the original trainer as implemented. Despite its documentation, 9_10_10 holds out *nothing* (a
    tenth is dropped), which is an error here unless requested.

    Args:
        count: number of frames.
        rule: the notation; with `1_1_1` every frame is for training.
        shuffle: shuffle the frames with Python's `Random(0)` first; positions then refer to the shuffled order.
        allow_empty_validation: allow that nothing is held out.

    Raises:
        InputError: the rule is invalid, there are no frames, or nothing would be held out.
    """
    a, b, c = parse_split(rule)
    if count < 1:
        msg = f"a split needs at least one frame, got {count}"
        raise InputError(msg)
    # `order[k]` is the frame at position k.
    order = list(range(count))
    if shuffle:
        random.Random(0).shuffle(order)  # noqa: S311 - the original's order, not a secret
    # Positions count in the order of the frames, which is random if shuffled.
    position = {frame: index % c for index, frame in enumerate(order)}
    train = tuple(i for i in range(count) if position[i] < a)
    val = tuple(i for i in range(count) if position[i] >= b)
    unused = tuple(i for i in range(count) if a <= position[i] < b)
    notes: list[str] = []
    if not val:
        problem = _nothing_held_out(count, rule)
        # With a = b = c an empty validation set is intended.
        if not allow_empty_validation and not a == b == c:
            raise InputError(problem)
        notes.append(problem if a < b else f"every frame is for training ({rule}): no held-out quality is reported")
    if unused:
        notes.append(f"{len(unused)} of {count} frames are in neither set ({rule})")
    return FrameSplit(rule=rule, train=train, val=val, unused=unused, notes=tuple(notes))


def _nothing_held_out(count: int, rule: str) -> str:
    a, b, c = parse_split(rule)
    if b < c:  # the rule holds frames out, but the clip is too short for one
        other = f"{count - 1}_{count - 1}_{count}" if count > 1 else "1_1_1"
        return f"--data-split {rule} holds out none of {count} frames, the first would be frame {b}: use {other}"
    other = f"{a}_{a}_{c}" if a < c else f"{c - 1}_{c - 1}_{c}" if c > 1 else "7_7_8"
    unused = f" but leaves {(c - a) / c:.0%} of them unused" if a < b else ""
    return (
        f"--data-split {rule} holds out no frames{unused}: use {other} to hold out {max(c - a, 1)} of {c}, "
        "or 1_1_1 to train on every frame"
    )
