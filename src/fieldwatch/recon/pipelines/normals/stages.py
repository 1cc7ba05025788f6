"""Training stages of a normals run: which loss term has which weight from which iteration on."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fieldwatch import InputError

TERMS = ("normal", "depth", "mask", "eikonal", "point_cloud", "surface", "consistency")
"""All loss terms, in the order in which they are summed; each is a field of `TrainingStage`."""


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """Loss weights from one nominal iteration on. Terms with weight 0 are not computed.

    Attributes:
        name: name of the phase.
        start: nominal iteration of the first step.
        ramp: nominal iterations over which weights are interpolated linearly from the previous stage's.
        normal: weight of the difference between rendered and observed normals.
        depth: weight of the difference from the integrated depth, after fitting one scale per view.
        mask: weight of the cross-entropy between opacity and silhouette.
        eikonal: weight of (||grad f|| - 1)^2 at the samples.
        point_cloud: weight of the distance between neighboring views' points of integrated depth (PMNI's pc).
        surface: weight of |f| at those points (PMNI's sdf).
        consistency: weight of the difference between the normals two views observe at one point (PMNI's con).
    """

    name: str
    start: int = 0
    ramp: int = 0
    normal: float = 0.0
    depth: float = 0.0
    mask: float = 0.0
    eikonal: float = 0.0
    point_cloud: float = 0.0
    surface: float = 0.0
    consistency: float = 0.0


PAPER_STAGES = (
    "warm-up@0 depth=0.1 mask=3 eikonal=1",
    "mask-depth@500 depth=0.1 mask=3 eikonal=1",
    "normals@2500+2500 normal=1 depth=1 mask=5 eikonal=1",
    "depth-out@10000+10000 normal=1 mask=5 eikonal=1",
    "refinement@20000 normal=1 mask=5 eikonal=1",
)
"""Warm-up, mask and depth, normals ramped up from 2,500 to 5,000, depth ramped down to 0 by 20,000, refinement."""

# NAME@START[+RAMP], followed by TERM=WEIGHT pairs, which are split and checked separately.
_FORM = re.compile(r"(?P<name>[\w-]+)@(?P<start>\d+)(?:\+(?P<ramp>\d+))?(?P<weights>(?:\s+\w+=\S+)*)\s*")


def read_stages(texts: Sequence[str]) -> tuple[TrainingStage, ...]:
    """Parse stages such as ``normals@2500+2500 normal=1 mask=5 eikonal=1``.

    Raises:
        ValueError: a text has another form, an unknown term, or a weight that is not a number.
    """
    return tuple(map(_read, texts))


def _read(text: str) -> TrainingStage:
    match = _FORM.fullmatch(text.strip())
    pairs = [pair.split("=", 1) for pair in match["weights"].split()] if match else []
    unknown = sorted({term for term, _ in pairs} - set(TERMS))
    if match is None or unknown or len({term for term, _ in pairs}) < len(pairs):
        raise InputError(
            f"stage {text!r} is not NAME@START[+RAMP] TERM=WEIGHT ..., e.g. 'normals@2500+2500 normal=1 mask=5' "
            f"(each term at most once; terms: {', '.join(TERMS)})"
        )
    try:
        weights = {term: float(weight) for term, weight in pairs}
    except ValueError as error:
        raise InputError(f"stage {text!r} has a weight that is not a number ({error}); write normal=1.0") from error
    return TrainingStage(name=match["name"], start=int(match["start"]), ramp=int(match["ramp"] or 0), **weights)


def weights_at(stages: Sequence[TrainingStage], iteration: float) -> dict[str, float]:
    """Return the weights of all terms active at a nominal iteration."""
    last = max((i for i, stage in enumerate(stages) if stage.start <= iteration), default=0)
    now = stages[last]
    # The first stage has no predecessor: it is its own, so a ramp in it has no effect.
    before = stages[max(last - 1, 0)]
    share = 1.0 if now.ramp == 0 else min((iteration - now.start) / now.ramp, 1.0)
    # Terms with weight 0 are dropped, because the objective does not compute absent terms.
    mixed = {term: _mixed(getattr(before, term), getattr(now, term), share) for term in TERMS}
    return {term: weight for term, weight in mixed.items() if weight > 0}


def _mixed(before: float, now: float, share: float) -> float:
    # Without this case rounding would change a constant weight within a ramp.
    return now if before == now else before + share * (now - before)


def refuse_disorder(stages: Sequence[TrainingStage], nominal: int) -> None:
    """Check that stages form a valid training schedule.

    Raises:
        InputError: there are no stages, they are out of order, names repeat, a weight is negative or not finite, a ramp
            is longer than its stage, or a stage has no positive weight.
    """
    starts = [stage.start for stage in stages]
    if not stages or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
        raise InputError(
            f"expected at least one stage, the first starting at 0 and each after the one before, got starts {starts}"
        )
    if len({stage.name for stage in stages}) != len(stages):
        raise InputError(f"stages must have unique names, got {[stage.name for stage in stages]}")
    ends = [*starts[1:], nominal]
    for stage, end in zip(stages, ends, strict=True):
        weights = {term: getattr(stage, term) for term in TERMS}
        wrong = {term: weight for term, weight in weights.items() if not 0 <= weight < math.inf}
        if wrong:
            raise InputError(f"weights of stage {stage.name!r} must be finite and at least 0, got {wrong}")
        if not any(weights.values()):
            raise InputError(f"every weight of stage {stage.name!r} is 0, so it trains nothing; leave the stage out")
        # Stages after the end of training are not checked: a shorter `nominal` leaves them unused.
        if stage.ramp < 0 or (stage.start < nominal and stage.ramp > end - stage.start):
            raise InputError(
                f"the ramp of stage {stage.name!r} must not be longer than the stage, got a ramp of {stage.ramp} "
                f"iterations in a stage of {end - stage.start}"
            )
