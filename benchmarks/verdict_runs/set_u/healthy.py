"""The runs of set u."""

from verdict_runs.cases import Healthy
from verdict_runs.scripts import Script

from . import deciding, making, rows, views

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

HEALTHY: tuple[Healthy, ...] = FIRST
