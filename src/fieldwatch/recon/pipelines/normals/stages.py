"""The staged weights of a normals run, as data: which term counts how much from which iteration on."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fieldwatch import InputError

TERMS = ("normal", "depth", "mask", "eikonal", "point_cloud", "surface", "consistency")
"""Every term, in the order they are added; fields of `Stage`."""


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """Weights from one nominal iteration on; 0 leaves a term out, and nothing for it is computed.

    Attributes:
        name: of the phase.
        start: nominal iteration of its first step.
        ramp: nominal iterations over which weights go, linearly, from the stage before to this one's.
        normal: of the difference between rendered and observed normals.
        depth: of the difference to the integrated depth, after one scale per view.
        mask: of the cross-entropy between opacity and silhouette.
        eikonal: of (||grad f|| - 1)^2 at the samples.
        point_cloud: of the distance between neighbouring views' points of integrated depth (PMNI's pc).
        surface: of |f| at those points (PMNI's sdf).
        consistency: of the difference between the normals that two views observed of one place (PMNI's con).
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
"""Warm-up, mask and depth, normals from 2,500 to full at 5,000, depth out by 20,000, refinement."""

_FORM = re.compile(r"(?P<name>[\w-]+)@(?P<start>\d+)(?:\+(?P<ramp>\d+))?(?P<weights>(?:\s+\w+=\S+)*)\s*")


def read_stages(texts: Sequence[str]) -> tuple[TrainingStage, ...]:
    """Read stages from their texts, such as ``normals@2500+2500 normal=1 mask=5 eikonal=1``.

    Raises:
        ValueError: a text of another form, a term that there is not, or a weight that is no number.
    """
    return tuple(map(_read, texts))


def _read(text: str) -> TrainingStage:
    found = _FORM.fullmatch(text.strip())
    pairs = [pair.split("=", 1) for pair in found["weights"].split()] if found else []
    unknown = sorted({term for term, _ in pairs} - set(TERMS))
    if found is None or unknown or len({term for term, _ in pairs}) < len(pairs):
        raise InputError(
            f"stage {text!r} is not NAME@START[+RAMP] TERM=WEIGHT ..., such as 'normals@2500+2500 normal=1 mask=5' "
            f"(each term once, of: {', '.join(TERMS)})"
        )
    try:
        weights = {term: float(weight) for term, weight in pairs}
    except ValueError as error:
        raise InputError(f"stage {text!r} has a weight that is no number ({error}): write normal=1.0") from error
    return TrainingStage(name=found["name"], start=int(found["start"]), ramp=int(found["ramp"] or 0), **weights)


def weights_at(stages: Sequence[TrainingStage], iteration: float) -> dict[str, float]:
    """Return the weight of every term that counts at a nominal iteration."""
    last = max((i for i, stage in enumerate(stages) if stage.start <= iteration), default=0)
    now = stages[last]
    # The first stage has none before it: a ramp in it changes nothing.
    before = stages[max(last - 1, 0)]
    share = 1.0 if now.ramp == 0 else min((iteration - now.start) / now.ramp, 1.0)
    mixed = {term: _mixed(getattr(before, term), getattr(now, term), share) for term in TERMS}
    return {term: weight for term, weight in mixed.items() if weight > 0}


def _mixed(before: float, now: float, share: float) -> float:
    return now if before == now else before + share * (now - before)


def refuse_disorder(stages: Sequence[TrainingStage], nominal: int) -> None:
    """Refuse stages that no training can follow.

    Raises:
        InputError: none, out of order, names twice, weights that are none, a ramp longer than its stage, or a stage in
            which nothing counts.
    """
    starts = [stage.start for stage in stages]
    if not stages or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
        raise InputError(f"stages start at {starts}: wanted at least one, the first at 0, each after the one before")
    if len({stage.name for stage in stages}) != len(stages):
        raise InputError(f"stages are called {[stage.name for stage in stages]}: give each a name of its own")
    ends = [*starts[1:], nominal]
    for stage, end in zip(stages, ends, strict=True):
        weights = {term: getattr(stage, term) for term in TERMS}
        wrong = {term: weight for term, weight in weights.items() if not 0 <= weight < math.inf}
        if wrong:
            raise InputError(f"stage {stage.name!r} has the weights {wrong}: wanted finite numbers, 0 or more")
        if not any(weights.values()):
            raise InputError(f"in stage {stage.name!r} every weight is 0: nothing would be trained; leave it out")
        if stage.ramp < 0 or (stage.start < nominal and stage.ramp > end - stage.start):
            raise InputError(
                f"stage {stage.name!r} ramps over {stage.ramp} iterations and lasts {end - stage.start}: "
                "wanted 0 or more, at most as long as the stage"
            )
