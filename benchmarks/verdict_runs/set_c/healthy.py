"""Healthy runs of set c: sound, though some look odd."""

import dataclasses

from verdict_runs.cases import Healthy
from verdict_runs.commands import SPLATS, VIDEO, Command
from verdict_runs.scenes import bunny_frames, plush_scene
from verdict_runs.scripts import Script

from . import agents, sequences
from .plants import (
    ADAPTERS,
    BARS,
    CART,
    CELLS,
    CODES,
    CONTRAST,
    CORRIDOR,
    DENSITY,
    EXPERTS,
    FORECAST,
    GLYPHS,
    GRAPH,
    ISLANDS,
    MOONS,
    OFFERS,
    PHOTO,
    PLACES,
    REVERSAL,
    SALES,
    SPECTRUM,
    STUDENT,
    TAGGING,
    TORUS,
    WHEEL,
    YARD,
)

HEALTHY: tuple[Healthy, ...] = (
    REVERSAL.healthy("reversal"),
    REVERSAL.healthy("reversal in two parts", stop=130),
    TAGGING.healthy("tagging"),
    FORECAST.healthy("forecast"),
    Script(program=sequences.forecast, good=0.9).healthy("forecast plain recurrence clipped", kind="rnn"),
    GLYPHS.healthy("glyphs"),
    GLYPHS.healthy("glyphs one cycle", schedule="cycle"),
    GLYPHS.healthy("glyphs warm restarts", schedule="restarts", epochs=8),
    GLYPHS.healthy("glyphs bfloat16", scaler="bfloat16"),
    GLYPHS.healthy("glyphs float16 with a scaler", scaler="float16"),
    GLYPHS.healthy("glyphs half of the units dropped", drop=0.5, smoothing=0.2),
    GLYPHS.healthy("glyphs easy ones first", curriculum=True),
    GLYPHS.healthy("glyphs shifted at random", augment=True, epochs=8),
    CELLS.healthy("cells"),
    CELLS.healthy("cells eight slides by heart", amount=8, by_heart=True),
    PHOTO.healthy("photo"),
    PHOTO.healthy("photo rate to zero", final=0.0),
    CONTRAST.healthy("contrast"),
    SALES.healthy("sales"),
    dataclasses.replace(SALES, good=0.6).healthy("sales heavy tails", tails=True),
    SALES.healthy("sales five batches per update", micro=5, total=160),
    SPECTRUM.healthy("spectrum"),
    OFFERS.healthy("offers"),
    GRAPH.healthy("graph"),
    EXPERTS.healthy("experts"),
    DENSITY.healthy("density below zero"),
    BARS.healthy("bars"),
    BARS.healthy("bars divergence warmed up", warm=True),
    CODES.healthy("codes"),
    MOONS.healthy("moons"),
    ISLANDS.healthy("islands"),
    PLACES.healthy("places"),
    CART.healthy("cart"),
    CORRIDOR.healthy("corridor"),
    STUDENT.healthy("student"),
    ADAPTERS.healthy("adapters"),
    Script(program=agents.unfreeze, good=0.8).healthy("glyphs unfrozen layer by layer"),
    YARD.healthy("yard"),
    Command(
        pipeline="splats",
        words=f"{SPLATS} --schedule-scale 0.04 --regularization none --longer-side 72 --growth none --background white",
        write=plush_scene,
        good=15.0,
    ).healthy("plush of 72 pixels"),
    TORUS.healthy("torus"),
    WHEEL.healthy("wheel"),
    Command(pipeline="video", words=f"{VIDEO} --epochs 40", write=bunny_frames(12, (40, 20), 4), good=20.0).healthy(
        "bunny of twelve frames"
    ),
)
