"""`Rollback`: when a run returns to a checkpoint, how often, and which updates it then skips."""

from dataclasses import dataclass
from typing import NamedTuple


class TrainingDivergence(NamedTuple):
    """Divergence of a run: the suspected steps and the observed cause.

    Attributes:
        first: first bad step; the state before it is assumed to be good.
        last: last step whose batch is suspected; ``first - 1`` if no batch is suspected.
        noticed_at: step whose recorded values revealed the divergence.
        cause: description of the observation.
    """

    first: int
    last: int
    noticed_at: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """Policy for automatic rollback of a diverged run to its last good checkpoint.

    A run is rolled back if

    * the loss stays far above its usual value for many steps in a row (the usual value is the sum of the running
      medians of its terms over the last 64 good steps, with the weights of the current step),
    * a single gradient is so large that the optimizer's moments would remember it for thousands of steps,
    * parameters, moments or buffers become non-finite, or
    * ``Guard(max_refusals=...)`` updates in a row were refused.

    When the bad steps are repeated, their updates are skipped. The result is bit for bit that of a run in which they
    were skipped from the start.

    Args:
        factor: ratio of a loss to its usual value above which the step counts as high.
        patience: number of consecutive high steps that count as divergence; shorter spikes are ignored.
        surge: ratio of a gradient norm to its usual value above which a single step counts as divergence.
        margin: number of steps before the first and after the last bad step that are skipped too. The restored
            checkpoint precedes all of them, since a state from just before the divergence cannot be trusted.
        at_most: maximum number of consecutive rollbacks; each skips about twice as many steps as the one before.
            After that the run stops with ``Diverged``.
        settled: number of good steps after a divergence before the count of rollbacks is reset.
        skip: ranges (first, last) of steps whose updates are skipped from the start. Taken from the ``rolled_back``
            events of a run, they reproduce it.

    Raises:
        ValueError: an argument is out of bounds.
    """

    factor: float = 10.0
    patience: int = 32
    surge: float = 1e6
    margin: int = 2
    at_most: int = 3
    settled: int = 256
    skip: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the bounds of all arguments."""
        _refuse_below("factor", self.factor, 1.5)
        _refuse_below("surge", self.surge, 10.0)
        for name, least in (("patience", 1), ("margin", 0), ("at_most", 1), ("settled", 0)):
            _refuse_below(name, getattr(self, name), least)
        for first, last in self.skip:
            if not 0 <= first <= last:
                raise ValueError(
                    f"Rollback(skip=...) must hold (first, last) with 0 <= first <= last, got ({first}, {last})"
                )

    def skipped(self, span: tuple[int, int], tries: int) -> tuple[int, int]:
        """Return the first and last step to skip for a divergence; empty (last < first) if no batch is suspected.

        Args:
            span: first and last suspected step, over all rollbacks for this divergence.
            tries: number of earlier rollbacks for this divergence.
        """
        first, last = span
        # Without a suspected batch there is nothing to skip: the run only returns to the checkpoint.
        if last < first:
            return first, last
        # Each further rollback adds half the range on either side, so that it skips about twice as many steps.
        wider = self.margin if not tries else max(self.margin, (last - first + 1) // 2)
        return max(first - wider, 0), last + wider


def _refuse_below(name: str, value: float, least: float) -> None:
    # `not >=` also rejects NaN.
    if not value >= least:
        raise ValueError(f"Rollback({name}=...) must be at least {least:g}, got {value}")
