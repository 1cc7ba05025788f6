"""Healthy runs of set f: sound, though many look odd."""

import dataclasses

from verdict_runs.cases import Healthy

from .pipelines import HEALTHY_PIPELINES
from .plants import (
    ARGON,
    BALANCE,
    BASKET,
    BIRDS,
    CAPTIONS,
    DENOISE,
    FEW,
    FLATLAND,
    FOLIAGE,
    HEAT,
    HOSPITAL,
    KRIGE,
    LINKS,
    LOANS,
    PARITY,
    RADAR,
    RING,
    RINGS,
    RIVER,
    SMS,
    STRESS,
    WARDS,
)

HEALTHY: tuple[Healthy, ...] = (
    HOSPITAL.healthy("hospital stopped early", patience=3, lr=1e-2, epochs=20),
    RIVER.healthy("river warm restarts", cycles=60),
    BASKET.healthy("basket"),
    STRESS.healthy("stress"),
    DENOISE.healthy("denoise two sounds per batch", batch=2, total=160),
    RADAR.healthy("radar"),
    dataclasses.replace(FOLIAGE, good=0.5).healthy(
        "leaves a third of the labels wrong", noisy=0.3, smoothing=0.1, total=220
    ),
    BIRDS.healthy("birds body frozen", first=60, frozen=4),
    BIRDS.healthy("birds average with its norms", average="with norms"),
    dataclasses.replace(BIRDS, good=0.45).healthy("birds eighty pictures", few=80),
    FLATLAND.healthy("flatland"),
    HEAT.healthy("heat"),
    RINGS.healthy("rings drawn by an average", ema=0.98),
    KRIGE.healthy("krige LBFGS", lbfgs=True, total=12),
    LINKS.healthy("links"),
    ARGON.healthy("argon forces only", energies=0.0),
    CAPTIONS.healthy("captions of one side", sides=1),
    WARDS.healthy("wards very different", skew=8.0, local=5),
    BALANCE.healthy("balance six poles", lives=6, total=90),
    dataclasses.replace(LOANS, good=0.65).healthy("loans a quarter of the labels wrong", noise=0.25),
    LOANS.healthy("loans stops early and goes back", epochs=30, patience=3, drop=0.0, decay=0.0),
    FEW.healthy("few labels"),
    RING.healthy("ring of clusters"),
    PARITY.healthy("parity after a plateau"),
    SMS.healthy("messages"),
    *HEALTHY_PIPELINES,
)
