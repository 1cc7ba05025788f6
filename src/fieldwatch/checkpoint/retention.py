"""Retention of checkpoints: the last N, every M steps, the best K, pinned ones, and always the last verified one."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

CheckpointSelector = int | Literal["last", "best"]
"""Selects a stored checkpoint: a step number, the highest step, or the best by the retention's metric."""


@dataclass(frozen=True, kw_only=True)
class RetentionCandidate:
    """Properties of a stored checkpoint that retention depends on.

    Attributes:
        step: step of the checkpoint.
        metrics: metrics saved with the checkpoint.
        pinned: whether the user pinned it.
        verified: whether this process wrote it or verified all its hashes.
        seconds: training time at the checkpoint; None if it was saved without one.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    pinned: bool = False
    verified: bool = False
    seconds: float | None = None


DIGITS = {"step": 10, "ckpt": 6}
"""Minimum number of digits of the step in a folder's name."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Rules that decide which checkpoints to keep; a checkpoint is kept if any of them applies.

    Attributes:
        last: number of checkpoints with the highest steps to keep, at least 1.
        every: keep all checkpoints whose step is a multiple of this number; 0 to disable.
        steps: keep the checkpoints of these steps, if they are saved.
        within: keep checkpoints that are at most this many seconds of training apart, as far as they are saved that
            often, so that ``fieldwatch replay`` reaches every step within this time; 0 to disable.
        best: number of best checkpoints by ``metric`` to keep; has no effect without ``metric``.
        metric: name of the metric, among those passed to ``save``, that ranks checkpoints.
        better: whether higher or lower values of ``metric`` are better.
        name: naming of the folders: "step" for step_0000000400, "ckpt" for ckpt_000400 as in neural surface trainers.
            Both are read, regardless of this setting.

    Raises:
        ValueError: if a number is below its bound, or ``better`` or ``name`` is unknown.
    """

    last: int = 2
    every: int = 0
    steps: Collection[int] = ()
    within: float = 0.0
    best: int = 1
    metric: str = ""
    better: Literal["higher", "lower"] = "higher"
    name: Literal["step", "ckpt"] = "step"

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 0), ("within", 0), ("best", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"Retention({name}={getattr(self, name)}): it must be {least} or more")
        if self.better not in ("higher", "lower"):
            raise ValueError(f"Retention(better={self.better!r}): it must be 'higher' or 'lower'")
        if self.name not in DIGITS:
            raise ValueError(f"Retention(name={self.name!r}): it must be 'step' or 'ckpt'")

    def ranked(self, candidates: Sequence[RetentionCandidate]) -> list[RetentionCandidate]:
        """Return the candidates with a metric that is not NaN, best first; among equals, the later step first."""
        with_metric = [
            candidate for candidate in candidates if not math.isnan(candidate.metrics.get(self.metric, math.nan))
        ]
        sign = -1.0 if self.better == "higher" else 1.0
        return sorted(with_metric, key=lambda candidate: (sign * candidate.metrics[self.metric], -candidate.step))

    def kept(self, candidates: Sequence[RetentionCandidate]) -> set[int]:
        """Return the steps to keep, which always include the highest verified step."""
        steps = sorted(candidate.step for candidate in candidates)
        verified = sorted(candidate.step for candidate in candidates if candidate.verified)
        # The last verified checkpoint is always kept, because newer ones may turn out to be damaged.
        kept = {*steps[-self.last :], *verified[-1:]}
        # every=0 disables the rule.
        kept.update(step for step in steps if self.every and step % self.every == 0)
        kept.update(step for step in steps if step in self.steps)
        kept.update(self._kept_for_replay(candidates))
        kept.update(candidate.step for candidate in self.ranked(candidates)[: self.best])
        kept.update(candidate.step for candidate in candidates if candidate.pinned)
        return kept

    def _kept_for_replay(self, candidates: Sequence[RetentionCandidate]) -> set[int]:
        """Return the fewest steps that leave no gap longer than ``within``, as far as the candidates allow."""
        timed = [(candidate.step, candidate.seconds) for candidate in candidates if candidate.seconds is not None]
        if not self.within or not timed:
            return set()
        timed.sort()
        kept = {timed[0][0], timed[-1][0]}
        reached = timed[0][1]
        # A checkpoint is needed if the one after it would be too far from the last one that is kept.
        for (step, seconds), (_, following) in pairwise(timed[1:]):
            if following - reached > self.within:
                kept.add(step)
                reached = seconds
        return kept
