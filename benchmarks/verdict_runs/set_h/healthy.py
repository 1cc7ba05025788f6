"""Healthy runs of set h: sound, though many look odd."""

import dataclasses

from verdict_runs.cases import Healthy

from .pipelines import HEALTHY_PIPELINES
from .plants import (
    CROWDS,
    CURRENTS,
    DIALECT,
    DUNES,
    GLANCES,
    GLIDER,
    HARVEST,
    LEDGER,
    MINT,
    MOTHS,
    MOTHS_IN_PARTS,
    ORGANS,
    PIECES,
    PLUMAGE,
    POSTCARD,
    ROADS,
    SHELLS,
    SURGE,
    TIDES,
    WELL,
    WHALES,
)

HEALTHY: tuple[Healthy, ...] = (
    MOTHS.healthy("moths up and down", cyclic=True),
    MOTHS.healthy("moths two mixed with their labels", mixed=True),
    MOTHS.healthy("moths branches left out", left_out=0.2),
    MOTHS.healthy("moths drawn by their rarity", sampler="picture"),
    dataclasses.replace(MOTHS, good=0.7).healthy("moths one label of five wrong", wrong=0.2),
    MOTHS_IN_PARTS.healthy("moths eight exposures"),
    CROWDS.healthy("crowds few heads first", easy_first=True),
    ORGANS.healthy("organs"),
    CURRENTS.healthy("currents"),
    POSTCARD.healthy("postcard"),
    PIECES.healthy("pieces one tag of ten wrong", wrong=0.1),
    DIALECT.healthy("dialect head first", total=180),
    DIALECT.healthy("dialect of low rank, sixty texts", rank=4, rows=60),
    WHALES.healthy("whales"),
    WHALES.healthy("whales with weights of four bits", bits=4),
    LEDGER.healthy("ledger stopped early"),
    LEDGER.healthy("ledger four folds", folds=4),
    HARVEST.healthy("harvest weighed by doubt", weighed="by doubt"),
    SURGE.healthy("surge"),
    SURGE.healthy("surge learned as it comes", online=True),
    TIDES.healthy("tides with gaps"),
    dataclasses.replace(ROADS, good=0.6).healthy("roads one region of five wrong", wrong=0.2),
    PLUMAGE.healthy("plumage"),
    GLANCES.healthy("glances"),
    MINT.healthy("mint one-sided labels", smooth=0.9),
    DUNES.healthy("dunes"),
    SHELLS.healthy("shells"),
    GLIDER.healthy("glider in gusts", gusts=0.2),
    WELL.healthy("well"),
    *HEALTHY_PIPELINES,
)
