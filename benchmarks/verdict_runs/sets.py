"""All cases by name."""

from . import healthy_a, healthy_b, plants_a, plants_b, set_s, set_t
from .cases import Healthy, Order, Plant, Train
from .set_c import healthy as healthy_c
from .set_c import plants as plants_c
from .set_d import healthy as healthy_d
from .set_d import plants as plants_d
from .set_e import healthy as healthy_e
from .set_e import plants as plants_e
from .set_f import healthy as healthy_f
from .set_f import plants as plants_f
from .set_g import healthy as healthy_g
from .set_g import plants as plants_g
from .set_h import healthy as healthy_h
from .set_h import plants as plants_h
from .set_i import healthy as healthy_i
from .set_i import plants as plants_i
from .set_j import healthy as healthy_j
from .set_j import plants as plants_j
from .set_k import healthy as healthy_k
from .set_k import plants as plants_k
from .set_l import healthy as healthy_l
from .set_l import plants as plants_l
from .set_u import healthy as healthy_u

PLANTS: dict[str, tuple[Plant, ...]] = {
    "a": plants_a.PLANTS,
    "b": plants_b.PLANTS,
    "c": plants_c.PLANTS,
    "d": plants_d.PLANTS,
    "e": plants_e.PLANTS,
    "f": plants_f.PLANTS,
    "g": plants_g.PLANTS,
    "h": plants_h.PLANTS,
    "i": plants_i.PLANTS,
    "j": plants_j.PLANTS,
    "k": plants_k.PLANTS,
    "l": plants_l.PLANTS,
    "s": set_s.PLANTS,
    "t": set_t.PLANTS,
    "u": (),
}
HEALTHY: dict[str, tuple[Healthy, ...]] = {
    "a": healthy_a.HEALTHY,
    "b": healthy_b.HEALTHY,
    "c": healthy_c.HEALTHY,
    "d": healthy_d.HEALTHY,
    "e": healthy_e.HEALTHY,
    "f": healthy_f.HEALTHY,
    "g": healthy_g.HEALTHY,
    "h": healthy_h.HEALTHY,
    "i": healthy_i.HEALTHY,
    "j": healthy_j.HEALTHY,
    "k": healthy_k.HEALTHY,
    "l": healthy_l.HEALTHY,
    "s": set_s.HEALTHY,
    "t": set_t.HEALTHY,
    "u": healthy_u.HEALTHY,
}


def all_plants() -> dict[str, Plant]:
    """Return the plants of all sets by name."""
    return {plant.name: plant for plants in PLANTS.values() for plant in plants}


def all_healthy() -> dict[str, Healthy]:
    """Return the healthy runs of all sets by name."""
    return {run.name: run for runs in HEALTHY.values() for run in runs}


def sound_training_of(order: Order) -> Train:
    """Return the training of a case without its fault: with the right remedy applied, if that is what removes it."""
    healthy = all_healthy().get(order.name)
    if healthy is not None:
        return healthy.train
    plant = all_plants()[order.name]
    return plant.repaired(plant.ideal)


def training_of(order: Order) -> Train:
    """Return what an order trains."""
    healthy = all_healthy().get(order.name)
    if healthy is not None:
        return healthy.train
    plant = all_plants()[order.name]
    return plant.repaired(order.advice) if order.repaired else plant.broken
