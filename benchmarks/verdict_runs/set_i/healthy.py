"""Healthy runs of set i: sound, though many look odd."""

import dataclasses

from verdict_runs.cases import Healthy

from .pipelines import HEALTHY_PIPELINES
from .plants import (
    CELLAR,
    CITIES,
    COINS,
    COMPASS,
    DEPOT,
    ENGINE,
    FABLES,
    FERRY,
    FOGHORNS,
    GROTTO,
    KIOSK,
    LESIONS,
    MEMORY,
    MILL,
    MUSHROOMS,
    PARCELS,
    PARISH,
    PEBBLE,
    POSTURES,
    REVIEWS,
    SIGILS,
    SPIRALS,
    UNDERSTUDY,
)

HEALTHY: tuple[Healthy, ...] = (
    MUSHROOMS.healthy("mushrooms in half precision with a scaler", half=True),
    MUSHROOMS.healthy("mushrooms up and down", cyclic=True),
    MUSHROOMS.healthy("mushrooms few of them poisonous", share=0.2, epochs=16),
    PARCELS.healthy("parcels"),
    LESIONS.healthy("lesions by their overlap alone", mixed=False),
    LESIONS.healthy("lesions first layer held for a while", held_layers=60),
    COMPASS.healthy("compass long warm-up", warm_up=160),
    ENGINE.healthy("engine"),
    REVIEWS.healthy("reviews by their length", by_length=True),
    REVIEWS.healthy("reviews with a random table that is held", held_table=True, total=400),
    CITIES.healthy("cities names are rare", rare=0.15, epochs=24),
    FABLES.healthy("fables adapters, computed twice", saved="yes"),
    FABLES.healthy("fables all weights, slowly", trained="all", lr=2e-3, warm_up=0.5),
    SPIRALS.healthy("spirals drawn by an average", averaged=True),
    COINS.healthy("coins critic twice as often", critic_steps=2),
    POSTURES.healthy("postures"),
    POSTURES.healthy("postures more numbers than needed", wide=True, rising=False),
    GROTTO.healthy("grotto coarse first", coarse_first=True),
    PEBBLE.healthy("pebble"),
    CELLAR.healthy("cellar sixteen shares", shares=16),
    dataclasses.replace(CELLAR, good=0.65).healthy(
        "cellar back to its best", kept="copy", bottles=60, wrong=0.25, total=300
    ),
    FERRY.healthy("ferry rate falls on plateaus", plateau=True),
    DEPOT.healthy("depot", epochs=20),
    MEMORY.healthy("depot hooks keep the last", hooks="last"),
    MILL.healthy("mill four jobs", jobs=4, rate_after="unchanged"),
    PARISH.healthy("parish a third of the edges left out", thinned=0.33),
    SIGILS.healthy("sigils"),
    UNDERSTUDY.healthy("understudy very warm", heat=8.0, hard=0.5),
    FOGHORNS.healthy("foghorns"),
    dataclasses.replace(FOGHORNS, good=0.55).healthy("foghorns in a storm", heavy=True, total=300),
    KIOSK.healthy("kiosk rewarded at the end", late=True, total=260),
    *HEALTHY_PIPELINES,
)
