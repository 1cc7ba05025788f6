"""`LoopChecks`: all checks of a loop, called by its steps."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.measure import Terms
from fieldwatch.record import tags
from fieldwatch.run.loop_checks.averages import AverageCheck
from fieldwatch.run.loop_checks.embeddings import EmbeddingCheck
from fieldwatch.run.loop_checks.evaluations import EvaluationModeCheck, RandomCheck
from fieldwatch.run.loop_checks.forwards import FIRST, ForwardCheck, ForwardSnapshot
from fieldwatch.run.loop_checks.frozen_norms import FrozenNorms
from fieldwatch.run.loop_checks.leaves import LeafCheck
from fieldwatch.run.loop_checks.loss_forms import (
    LossFormCheck,
    chance_levels,
    compares_outputs,
    floors,
    has_yes_no_loss,
)
from fieldwatch.run.loop_checks.modes import ModeCheck
from fieldwatch.run.loop_checks.optimizers import OptimizerCheck
from fieldwatch.run.loop_checks.streaks import Streaks
from fieldwatch.run.loop_checks.terms import TermCheck
from fieldwatch.run.loop_checks.trainable import FreezeCheck, ModuleParameters
from fieldwatch.run.loop_checks.uncleared import ForeignGradients, UnclearedGradients
from fieldwatch.run.loop_checks.untrained import (
    UntrainedCheck,
    coarse_parameters,
    frozen_output,
    frozen_share,
    odd_settings,
    settings_of,
)
from fieldwatch.run.tracked_objects import TrackedObjects, optimizers_in

EVERY = 16
"""Number of updates between two comparisons of all parameters, which cost about 0.1 microseconds per parameter."""

LATEST = 10_000
"""Step up to which the first update is awaited: a loop without any is not examined closely forever."""


class LoopChecks:
    """Checks of the tracked modules and their optimizers at each update, recorded as events.

    Args:
        tracked: tracked objects.
        event: function that records an event at the current step.
    """

    def __init__(self, tracked: TrackedObjects, event: Callable[..., None]) -> None:
        self._tracked = tracked
        self._event = event
        self._modes = ModeCheck()
        self._parameters = ModuleParameters()
        self._frozen = FreezeCheck()
        self._optimizers = OptimizerCheck()
        self._uncleared = UnclearedGradients()
        self._foreign = ForeignGradients()
        self._embeddings = EmbeddingCheck()
        self._frozen_norms = FrozenNorms()
        self._terms = TermCheck()
        self._loss_forms = LossFormCheck()
        self._leaves = LeafCheck()
        self._facts: set[tuple[str, str]] = set()
        self._first_loss: int | None = None
        self._first_update: int | None = None
        self._forwards = ForwardCheck()
        self._random = RandomCheck()
        self._evaluation_modes = EvaluationModeCheck()
        self._of_one = Streaks()
        self._untrained = UntrainedCheck()
        self._averages = AverageCheck()
        self._updates = 0
        self._latest: tuple[Optimizer, ...] = ()

    def open(self) -> None:
        """Begin to look at the forwards of the tracked modules."""
        # Modules of TorchScript take no hooks.
        modules = {
            name: item
            for name, item in self._tracked.items.items()
            if isinstance(item, nn.Module) and not isinstance(item, torch.jit.ScriptModule)
        }
        self._forwards.open(modules)
        self._embeddings.open(modules)
        self._modes.start(modules.values())

    def close(self) -> None:
        """Leave the modules as they were."""
        self._forwards.close()
        self._embeddings.close()
        self._untrained.close()

    def finish(self) -> None:
        """Record what the end of a training shows."""
        for drift in self._frozen_norms.drifts():
            self._event(tags.FROZEN_NORMS, **drift)

    def begin(self, step: int, *, detailed: bool) -> None:
        """Note the index of a step that begins, and whether it records details."""
        # A loop may fill a memory before its first update: what counts are the steps from there on.
        first = self._first_update
        early = step < LATEST if first is None else step < first + FIRST
        self._forwards.begin(due=early or detailed)
        self._random.begin()

    def snapshot(self) -> ForwardSnapshot | None:
        """Return what a retry of the step must restore; None if that is nothing."""
        return self._forwards.snapshot()

    def restore(self, snapshot: ForwardSnapshot | None) -> None:
        """Discard what was measured since the snapshot was taken."""
        self._forwards.restore(snapshot)

    @contextmanager
    def evaluation(self) -> Generator[None]:
        """Look at an evaluation that restores the random numbers."""
        self._embeddings.begin_evaluation()
        try:
            with self._random.paused():
                yield
        finally:
            optimizers = list(optimizers_in(self._tracked.items))
            for facts in self._embeddings.end_evaluation(optimizers):
                self._event(tags.UNTRAINED_ROWS, **facts)

    def at_record(self, step: int) -> Mapping[str, Tensor]:
        """Check the evaluation whose results are being recorded, if it is one.

        Args:
            step: index of the step.

        Returns:
            Values to record with the step.
        """
        facts = self._random.at_record()
        if facts is not None:
            self._event("random_numbers", **facts)
        return self.between_steps(step)

    def between_steps(self, step: int) -> Mapping[str, Tensor]:
        """Check an evaluation between two steps, as loops over epochs have it.

        What is drawn there may be the next epoch's order, so that random numbers say nothing.

        Args:
            step: index of the last step.

        Returns:
            Values to record with the step.
        """
        for mode in self._evaluation_modes.check(step, self._updates, self._forwards.in_train_mode()):
            self._event("evaluation_mode", **mode)
        for answer in self._forwards.answers():
            self._event(tags.EVALUATION_OUTPUT, **answer)
        return self._forwards.at_record()

    def at_terms(self, step: int, terms: Terms) -> None:
        """Check whether each loss term trains something.

        Args:
            step: index of the step.
            terms: loss terms with their graph; detached terms are ignored.
        """
        if not terms.total.requires_grad:
            return
        for facts in self._terms.check(step, terms, self._trained):
            self._event("term_without_gradient", **facts, frozen=self._frozen.any_frozen)
        if self._first_loss is None:
            self._first_loss = step
        for form in self._loss_forms.check(step - self._first_loss, terms):
            self._event("loss_form", **form)
        if step == self._first_loss:
            self._leaves.walk(terms)
            for floor in floors(terms):
                self._once("loss_floor", **floor)
            for level in chance_levels(terms):
                self._once("chance_level", **level)
            if has_yes_no_loss(terms):
                self._once("yes_no_loss")
            if compares_outputs(terms):
                self._once("compared_outputs")

    def _once(self, kind: str, **facts: Any) -> None:
        """Record an event of a term; a step in several pieces asks for each of them."""
        key = (kind, str(facts.get("term", "")))
        if key not in self._facts:
            self._facts.add(key)
            self._event(kind, **facts)

    def is_first_update(self, step: int) -> bool:
        """Return whether the updates of a step are the first ones of the run."""
        return self._first_update == step

    def at_update(self, step: int, optimizers: Sequence[Optimizer]) -> Mapping[str, Tensor]:
        """Check everything that an update depends on, before it.

        Args:
            step: index of the step.
            optimizers: optimizers of the update.

        Returns:
            Values to record with the step.
        """
        if not self._updates:
            self._prepare(step)
        # The optimizers of the previous update are known.
        if optimizers != self._latest:
            self._add_optimizers(optimizers)
        if not self._updates:
            self._begin(optimizers)
        if not self._untrained.done:
            self._check_untrained(step)
        if self._updates % EVERY == 0 or self._frozen.pending:
            self._check_parameters(step)
        self._updates += 1
        if not self._modes.unchanged(step):
            self._check_modes(step)
        if self._embeddings.pending or not self._foreign.done:
            self._check_first_updates(optimizers)
        left = self._uncleared.check(optimizers)
        values = self._forwards.at_update()
        if values:
            self._check_batches(step)
        if left is not None:
            values[tags.UNCLEARED] = left
        return values

    def _prepare(self, step: int) -> None:
        """Note the first update of this segment, and what is there by then."""
        if self._first_update is None:
            self._first_update = step
        self._optimizers.add_items(self._tracked.items)
        self._scan()

    def _check_first_updates(self, optimizers: Sequence[Optimizer]) -> None:
        """Check what shows at the first updates: look-ups of padding, and gradients of other losses."""
        for facts in self._embeddings.padding():
            self._event(tags.PADDING_ROWS, **facts)
        foreign = None if self._foreign.done else self._foreign.check(optimizers)
        if foreign is not None:
            self._event(tags.FOREIGN_GRADIENT, **foreign)

    def _add_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        renewed = self._optimizers.renewed(optimizers, self._updates)
        if renewed is not None:
            self._event("optimizer_renewed", **renewed)
        self._optimizers.add(optimizers)
        self._latest = tuple(optimizers)

    def _check_modes(self, step: int) -> None:
        for change in self._modes.check(step):
            self._event("mode", **asdict(change))

    def _check_untrained(self, step: int) -> None:
        untrained = self._untrained.check(step, self._modules)
        if untrained is not None:
            self._event("without_gradient", **untrained)

    def _begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Record what is settled at the first update."""
        held = self._optimizers.held()
        self._frozen_norms.begin(self._modules())
        if torch.is_anomaly_enabled():
            self._event("anomaly_detection")
        self._untrained.begin(self._parameters, held)
        self._averages.begin(self._modules(), held)
        frozen = frozen_output(self._parameters, held)
        if frozen is not None:
            self._event("frozen_output", **frozen)
        share = frozen_share(self._parameters, held)
        if share is not None:
            self._event("frozen_share", **share)
        for odd in odd_settings(optimizers, self._modules()):
            self._event("odd_setting", **odd)
        coarse = coarse_parameters(self._parameters, held)
        if coarse is not None:
            self._event("half_parameters", **coarse)
        for settings in settings_of(optimizers):
            if settings["weight_decay"]:
                self._event("weight_decay", **settings)

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far, so that a resumed run records what the undisturbed one does."""
        return {
            "forwards": self._forwards.state_dict(),
            "first_loss": self._first_loss,
            "first_update": self._first_update,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what was measured."""
        self._forwards.load_state_dict(state["forwards"])
        # Checkpoints of earlier versions do not have them; they examined the first steps.
        self._first_loss = state.get("first_loss", 0)
        self._first_update = state.get("first_update", 0)

    def measure(self) -> Mapping[str, Tensor]:
        """Return values that are worth measuring only every few steps."""
        return self._averages.measure()

    def after_update(self) -> None:
        """Note that the update is done: what the loop does now is an evaluation."""
        self._random.at_update()

    def _check_batches(self, step: int) -> None:
        for item, modules in self._forwards.batches_of_one().items():
            updates = self._of_one.hold(item, step)
            if updates:
                self._event("batch_of_one", item=item, modules=modules, updates=updates)

    def _check_parameters(self, step: int) -> None:
        if not self._parameters.is_current():
            self._scan()
            self._optimizers.restart()
        changes = self._frozen.check(step, self._parameters, self._optimizers.held)
        if changes is not None:
            self._event("requires_grad", **changes)
            # Parameters that were unfrozen need an optimizer too.
            self._optimizers.restart()
        forgotten = self._optimizers.check(self._parameters, self._updates)
        if forgotten is not None:
            self._event("not_in_optimizer", **forgotten)
        if self._leaves.pending:
            listed = {id(each) for each in self._parameters.read()}
            loose = self._leaves.check(self._updates, self._optimizers.held(), listed, self._modules())
            if loose is not None:
                self._event("loose_parameters", **loose)

    def _scan(self) -> None:
        modules = self._modules()
        self._modes.scan(modules)
        self._parameters.scan(modules)

    def _modules(self) -> Mapping[str, nn.Module]:
        """Return the tracked and watched modules by name, each once."""
        owners = {**self._tracked.watched.owners(), **self._tracked.items}
        by_id: dict[int, tuple[str, Any]] = {}
        for name, owner in owners.items():
            if isinstance(owner, nn.Module):
                by_id.setdefault(id(owner), (name, owner))
        return dict(by_id.values())

    def _trained(self) -> set[int]:
        """Return the ids of all parameters that the run knows to be trained."""
        # Reading the gradients rescans the groups in which densification has replaced parameters.
        self._tracked.watched.gradients()
        return {id(parameter) for parameter in self._tracked.parameters()} | self._optimizers.held()
