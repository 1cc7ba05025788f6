"""Set t: faults that rules learned to tell after sets a and b, on which they were tuned, with healthy twins."""

from functools import partial

from . import scenes, tasks_more
from .cases import Healthy, Plant
from .planting import Loop
from .plants_b import OBJECT, PLUSH

RARE = Loop(task=tasks_more.rare_stripes, good=0.95)
DISTILLED = Loop(task=tasks_more.distilled, good=-0.1)
COUNTING = Loop(task=tasks_more.counting, good=0.95)
LIKES = Loop(task=tasks_more.likes, good=0.25)

PLANTS: tuple[Plant, ...] = (
    RARE.varied("rare stripes weights upside down", "class weights", partial(tasks_more.rare_stripes, exponent=1.0)),
    DISTILLED.varied("distilled from chances", "no logarithm", partial(tasks_more.distilled, logarithms=False)),
    COUNTING.varied(
        "counting padded on the left", "padding", partial(tasks_more.counting, prompt="padded on the left")
    ),
    LIKES.varied("likes ten times over", "overfits", partial(tasks_more.likes, width=24, steps=1200, decay=0.0)),
    PLUSH.spoilt("plush every second photo upside down", "photos turned", scenes.change_photos(2, scenes.upside_down)),
    PLUSH.spoilt("plush every second photo magnified", "photos magnified", scenes.change_photos(2, scenes.magnified)),
    OBJECT.spoilt("object slopes too flat", "slopes too flat", scenes.flatten_normals(0.35)),
)

HEALTHY: tuple[Healthy, ...] = (
    RARE.healthy("rare stripes weighted"),
    DISTILLED.healthy("distilled"),
    COUNTING.healthy("counting"),
    LIKES.healthy("likes"),
)
