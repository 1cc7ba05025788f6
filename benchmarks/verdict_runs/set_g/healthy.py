"""Healthy runs of set g: sound, though many look odd."""

import dataclasses

from verdict_runs.cases import Healthy

from .pipelines import HEALTHY_PIPELINES
from .plants import (
    ACCENTS,
    ACCENTS_MEAN,
    ACRES,
    BUOYS,
    CALLS,
    CLICKS,
    DEMAND,
    DICE,
    DRAINS,
    GLAZE,
    MELODIES,
    MEMBRANE,
    MORTAR,
    REEF,
    SEALS,
    TAXI,
    TUTOR,
    TWINS,
)

HEALTHY: tuple[Healthy, ...] = (
    MELODIES.healthy("melodies cosine to zero"),
    MELODIES.healthy("melodies four pieces per update, one note of ten wrong", pieces=4, noise=0.1),
    DEMAND.healthy("demand"),
    DEMAND.healthy("demand warm restarts", restarts=75),
    CALLS.healthy("calls"),
    CALLS.healthy("calls two mixed to one", mixed=0.5),
    CALLS.healthy("calls four kinds rare", rare=0.1),
    ACRES.healthy("acres nine of ten pixels without a label", labeled=0.1),
    ACRES.healthy("acres hard pixels first", focus=2.0),
    BUOYS.healthy("buoys mirrored with their boxes", flips=True),
    ACCENTS.healthy("accents body unfrozen"),
    dataclasses.replace(ACCENTS, good=0.2).healthy("accents head alone", first=-1),
    ACCENTS_MEAN.healthy("accents judged by a slow average"),
    dataclasses.replace(MORTAR, good=0.35).healthy(
        "mortar sixty recipes, stopped early", rows=60, patience=6, epochs=80
    ),
    dataclasses.replace(MORTAR, good=0.75).healthy("mortar one strength of ten far off", tails=0.1),
    MORTAR.healthy("mortar float16 whose scaler skips", scaler=2.0**30),
    CLICKS.healthy("clicks one of fourteen"),
    TUTOR.healthy("tutor"),
    DICE.healthy("dice"),
    SEALS.healthy("seals drawn by an average", ema=0.97),
    GLAZE.healthy("glaze that goes back and forth", critic_rounds=3),
    TWINS.healthy("twins"),
    REEF.healthy("reef"),
    TAXI.healthy("taxi"),
    DRAINS.healthy("drains four parts per update", parts=4),
    MEMBRANE.healthy("membrane finished by LBFGS", finish=25, total=250),
    *HEALTHY_PIPELINES,
)
