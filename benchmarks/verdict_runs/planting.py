"""Makes plants of loops: a task, the edits that spoil it, and those that the remedy would make."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from . import edits
from .cases import Healthy, Plant, Train
from .faults import FAULTS
from .games import GameEdit, Rules, playing
from .resumed import figure_of_moments, in_two_parts
from .supervised import Edit, Task, training


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop that a fault is planted in.

    Attributes:
        task: sound training.
        good: figure that a sound run reaches.
        also: edits of the broken and the repaired run.
        repair: edits of the repaired run; empty if it is enough to leave the fault out.
        names: texts that the cause has to contain.
        stop: step at which the run stops and is continued; 0 for a run in one part.
    """

    task: Task
    good: float
    also: tuple[Edit, ...] = ()
    repair: tuple[Edit, ...] = ()
    names: tuple[str, ...] = ()
    stop: int = 0

    def train(self, *changes: Edit) -> Train:
        """Return the training with changes."""
        if self.stop:
            return in_two_parts(self.task, self.stop, *self.also, *changes)
        return training(self.task, *self.also, *changes)

    def plant(self, name: str, fault: str, *planted: Edit) -> Plant:
        """Plant a fault."""
        return Plant(
            name=name,
            fault=FAULTS[fault],
            broken=self.train(*planted),
            repaired=edits.always(self.train(*self.repair)),
            good=self.good,
            names=self.names,
        )

    def rated(self, name: str, fault: str, value: float, *, sound: float) -> Plant:
        """Plant a learning rate; the repair is the advised one."""
        change = edits.raise_rate if value < sound else edits.lower_rate
        return Plant(
            name=name,
            fault=FAULTS[fault],
            broken=self.train(edits.rate(value)),
            repaired=change(self.task, value, *self.also),
            good=self.good,
            ideal=f"lr={sound}",
        )

    def varied(self, name: str, fault: str, broken: Task) -> Plant:
        """Plant a fault by another task; the repair is this one."""
        return Plant(
            name=name,
            fault=FAULTS[fault],
            broken=training(broken, *self.also),
            repaired=edits.always(self.train(*self.repair)),
            good=self.good,
        )

    def leaking(self, name: str, floats: int) -> Plant:
        """Plant a leak of so many floats per step."""

        def train(*, leak: bool) -> Train:
            kept: list[Tensor] = []
            changes = [edits.keep_graphs(kept, floats)] if leak else []
            return self.train(*changes, edits.figure_of_memory(kept))

        return Plant(
            name=name,
            fault=FAULTS["memory leak"],
            broken=train(leak=True),
            repaired=edits.always(train(leak=False)),
            good=self.good,
        )

    def left_in_evaluation(self, name: str) -> Plant:
        """Plant an evaluation that leaves the model in evaluation mode."""
        loop = dataclasses.replace(self, also=(edits.figure_of_mode,), repair=(edits.evaluate_by_hand(),), good=1.0)
        return loop.plant(name, "eval mode left on", edits.evaluate_by_hand(train_mode=False))

    def evaluated_in_training(self, name: str) -> Plant:
        """Plant an evaluation in training mode."""
        also = (edits.figure_of_evaluation_mode,)
        loop = dataclasses.replace(self, also=also, repair=(edits.evaluate_by_hand(),), good=1.0)
        return loop.plant(name, "dropout in evaluation", edits.evaluate_by_hand(evaluate_mode=False))

    def reseeding(self, name: str, seed: int, every: int) -> Plant:
        """Plant evaluations, so many steps apart, that set the seed of the training."""
        also = (edits.figure_of_coverage, lambda parts: setattr(parts, "every", every))
        loop = dataclasses.replace(self, also=also, good=0.9)
        return loop.plant(name, "random numbers consumed", edits.reseeds(seed))

    def drawing(self, name: str) -> Plant:
        """Plant an evaluation that draws from the training's generator."""
        loop = dataclasses.replace(self, also=(edits.figure_of_generator,), good=1.0)
        return loop.plant(name, "random numbers consumed", edits.draws_random_numbers)

    def fresh_optimizer(self, name: str, stop: int, change: Edit) -> Plant:
        """Plant a continuation whose optimizer starts anew."""
        loop = dataclasses.replace(self, also=(figure_of_moments(stop),), stop=stop, good=1.0)
        return loop.plant(name, "fresh optimizer", change)

    def healthy(self, name: str, *changes: Edit) -> Healthy:
        """Return the sound run."""
        return Healthy(name=name, train=self.train(*changes), good=self.good)


def game_plant(name: str, fault: str, rules: Rules, *planted: GameEdit, good: float) -> Plant:
    """Plant a fault in a game; the repair leaves it out."""
    repaired: Callable[[str], Train] = edits.always(playing(rules))
    return Plant(name=name, fault=FAULTS[fault], broken=playing(rules, *planted), repaired=repaired, good=good)
