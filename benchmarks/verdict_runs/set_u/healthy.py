"""The runs of set u."""

from verdict_runs.cases import Healthy
from verdict_runs.scripts import Script

from . import deciding, habits, making, pictures, rows, sequences, spaces, views

FIRST: tuple[Healthy, ...] = (
    Script(program=rows.rainfall, good=0.7).healthy("rainfall with a spread of its own"),
    Script(program=rows.polls, good=0.7).healthy("polls mostly chance"),
    Script(program=rows.polls, good=0.7, settings={"loss": "huber", "noise": 1.5}).healthy("polls by Huber"),
    Script(program=rows.fraud, good=0.85).healthy("fraud is rare and weighs more"),
    Script(program=rows.fraud, good=0.85, settings={"focal": 2.0, "weight": 4.0}).healthy("fraud by a focal loss"),
    Script(program=rows.seedlings, good=0.75).healthy("seedlings few, best weights restored"),
    Script(program=rows.seedlings, good=0.75, settings={"kept": "last", "epochs": 30}).healthy("seedlings few"),
    Script(program=rows.electricity, good=0.1).healthy("electricity drifts"),
    Script(program=rows.remission, good=0.65).healthy("remission partly censored"),
    Script(program=rows.bookshop, good=2.0).healthy("bookshop by sparse embeddings"),
    Script(program=rows.inverse_arm, good=0.3).healthy("arm with two answers"),
    Script(program=rows.glass, good=0.7).healthy("glass by LBFGS"),
    Script(program=rows.apartments, good=0.7).healthy("apartments rent and pets"),
    Script(program=making.two_moons_game, good=-0.12, settings={"average": True}).healthy("moons by a hinge game"),
    Script(program=making.two_moons_game, good=-0.12, settings={"kind": "gp", "total": 300}).healthy(
        "moons by a game with a gradient penalty"
    ),
    Script(program=making.two_moons_game, good=-0.03, settings={"kind": "ns", "average": True}).healthy(
        "moons by a non-saturating game, averaged"
    ),
    Script(program=making.blot_coder, good=18.0).healthy("blots from a code, summed over pixels"),
    Script(program=making.noise_remover, good=-0.03).healthy("moons from noise"),
    Script(program=making.moon_flow, good=-1.5).healthy("moons by a flow"),
    Script(program=making.moon_energy, good=0.7).healthy("moons by an energy"),
    Script(program=views.twins, good=0.8).healthy("signals by contrast"),
    Script(program=views.twins, good=0.8, settings={"method": "byol"}).healthy("signals by an average of the twin"),
    Script(program=views.twins, good=0.8, settings={"method": "simsiam"}).healthy("signals by twins"),
    Script(program=deciding.robot, good=0.9).healthy("robot by clipped ratios"),
    Script(program=deciding.robot, good=0.85, settings={"method": "a2c", "total": 200}).healthy("robot with a critic"),
    Script(program=deciding.robot, good=0.85, settings={"method": "reinforce", "total": 200}).healthy(
        "robot by returns alone"
    ),
    Script(program=deciding.robot_by_values, good=0.85).healthy("robot by values"),
    Script(program=deciding.newsroom, good=0.85).healthy("newsroom by a bandit"),
    Script(program=views.tuned, good=0.8).healthy("signals tuned at the head"),
    Script(program=views.tuned, good=0.8, settings={"way": "lora"}).healthy("signals tuned by low ranks"),
    Script(program=views.tuned, good=0.8, settings={"way": "layers"}).healthy("signals tuned layer by layer"),
    Script(program=views.pupil, good=0.85).healthy("signals distilled"),
)

SHAPES = Script(program=pictures.toy_shop, good=0.8)
WELLS = Script(program=habits.well_digger, good=0.85)

SECOND: tuple[Healthy, ...] = (
    Script(program=pictures.astronomer, good=0.7).healthy("stars of few pixels"),
    Script(program=pictures.finder, good=0.8).healthy("star by a map of heat"),
    SHAPES.healthy("shapes mixed"),
    SHAPES.healthy("shapes with smooth labels", trick="smoothing"),
    SHAPES.healthy("shapes by two gradients a step", trick="sam"),
    SHAPES.healthy("shapes by an average of late weights", trick="swa"),
    SHAPES.healthy("shapes computed twice", trick="checkpoint"),
    SHAPES.healthy("shapes in bfloat16", trick="bfloat16"),
    SHAPES.healthy("shapes with restarts of the rate", trick="restarts", total=300),
    SHAPES.healthy("shapes half of the features dropped", trick="none", drop=0.5),
    SHAPES.healthy("shapes one by one", trick="none", batch=1, total=1200),
    Script(program=pictures.toy_shop, good=0.55).healthy("shapes few", trick="none", rows=80, total=150),
    Script(program=sequences.typist, good=0.2).healthy("letters mostly chance"),
    Script(program=sequences.typist, good=0.9, settings={"task": "copy", "total": 450}).healthy("letters copied"),
    Script(program=sequences.recorder, good=0.8).healthy("signal in pieces"),
    Script(program=sequences.dictation, good=0.7).healthy("dictation without places"),
    Script(program=sequences.counting, good=0.9).healthy("bits counted, short rows first"),
    Script(program=spaces.mural, good=25.0).healthy("mural of sines"),
    Script(program=spaces.lantern, good=18.0).healthy("lantern along rays"),
    Script(program=spaces.pebble, good=-0.05).healthy("pebble by distances"),
    Script(program=spaces.spring, good=0.9).healthy("spring by its equation"),
    Script(program=spaces.village, good=0.75).healthy("village of few labels"),
    WELLS.healthy("wells never evaluated"),
    WELLS.healthy("wells evaluated once", checked="once"),
    WELLS.healthy("wells training data judged as well", checked="training"),
    WELLS.healthy("wells under odd names", checked="odd"),
    WELLS.healthy("wells loss seen rarely", logged=10, checked="training"),
    WELLS.healthy("wells loss summed", summed=True, checked="training"),
    WELLS.healthy("wells thirty steps", total=30, lr=2e-2, checked="training"),
    WELLS.healthy("wells interrupted", stopped=300, total=1000, checked="training"),
    WELLS.healthy("wells one by one, eight a step", batch=1, shares=8, checked="training", total=300),
    WELLS.healthy("wells few weights", width=6, lr=2e-2, checked="training", total=300),
    WELLS.healthy("wells large batches", batch=1024, checked="training"),
    WELLS.healthy("wells hardly measured", noise=2.0, checked="training", total=150),
    Script(program=habits.well_digger_resumed, good=0.85).healthy("wells resumed"),
    Script(program=habits.folds, good=0.6).healthy("wells in folds"),
    Script(program=habits.choir, good=0.85).healthy("wells by a choir"),
    Script(program=habits.tuner, good=0.6).healthy("waves by first weights"),
)

HEALTHY: tuple[Healthy, ...] = (*FIRST, *SECOND)
