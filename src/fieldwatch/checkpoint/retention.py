"""Which checkpoints stay: the last N, every M steps, the best K, the pinned; never fewer than the last good one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RetentionCandidate:
    """What retention needs to know of a stored checkpoint.

    Attributes:
        step: its step.
        metrics: the figures it was saved with.
        pinned: the user wants it kept.
        verified: this process wrote it, or checked all its hashes.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    pinned: bool = False
    verified: bool = False


DIGITS = {"step": 10, "ckpt": 6}
"""Digits of the step in a folder's name, at least."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """A union of rules; a checkpoint stays when any of them wants it.

    Attributes:
        last: keep this many of the highest steps, at least 1.
        every: keep all whose step is a multiple of this; 0 keeps none for that reason.
        best: keep this many of the best by ``metric``; needs ``metric`` to have an effect.
        metric: the name, among the metrics given to ``save``, that says what is best.
        better: which way ``metric`` is good.
        name: what folders are called: "step" is step_0000000400, "ckpt" is ckpt_000400, as neural surface trainers
            have it. Both are read, whichever is written.

    Raises:
        ValueError: a number is below its bound, or the name is another one.
    """

    last: int = 2
    every: int = 0
    best: int = 1
    metric: str = ""
    better: Literal["higher", "lower"] = "higher"
    name: Literal["step", "ckpt"] = "step"

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 0), ("best", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"Retention({name}={getattr(self, name)}): it must be {least} or more")
        if self.better not in ("higher", "lower"):
            raise ValueError(f"Retention(better={self.better!r}): it must be 'higher' or 'lower'")
        if self.name not in DIGITS:
            raise ValueError(f"Retention(name={self.name!r}): it must be 'step' or 'ckpt'")

    def ranked(self, candidates: Sequence[RetentionCandidate]) -> list[RetentionCandidate]:
        """Sort those that have the metric (and not NaN), best first; of equals the later step first."""
        with_metric = [
            candidate for candidate in candidates if not math.isnan(candidate.metrics.get(self.metric, math.nan))
        ]
        sign = -1.0 if self.better == "higher" else 1.0
        return sorted(with_metric, key=lambda candidate: (sign * candidate.metrics[self.metric], -candidate.step))

    def kept(self, candidates: Sequence[RetentionCandidate]) -> set[int]:
        """Return the steps that stay.

        The highest verified step is among them whatever the rules say: as long as newer ones have not been checked,
        it is the one a run can rely on.
        """
        steps = sorted(candidate.step for candidate in candidates)
        verified = sorted(candidate.step for candidate in candidates if candidate.verified)
        # The verified one stays whatever the rules say: newer ones may turn out to be damaged.
        kept = {*steps[-self.last :], *verified[-1:]}
        kept.update(step for step in steps if self.every and step % self.every == 0)
        kept.update(candidate.step for candidate in self.ranked(candidates)[: self.best])
        kept.update(candidate.step for candidate in candidates if candidate.pinned)
        return kept
