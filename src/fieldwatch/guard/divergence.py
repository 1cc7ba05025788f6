"""What divergence is answered with: where it began, how often a run goes back, which updates are skipped then."""

from dataclasses import dataclass
from typing import NamedTuple


class TrainingDivergence(NamedTuple):
    """Why a run cannot go on as it is.

    Attributes:
        first: first bad step; the state before it is taken for good.
        last: last step whose batch is suspected; one less than ``first`` where no batch is.
        noticed_at: the step whose row revealed it.
        cause: what was observed, as text.
    """

    first: int
    last: int
    noticed_at: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """When a run goes back to its last good checkpoint by itself, and how often.

    It goes back when a loss is far above its usual value for many steps in a row (its usual value: the running medians
    of its terms over the last 64 good steps, under the weights of the step); when one gradient is so large that the
    optimizer's moments remember it for thousands of steps; when parameters, moments or buffers turn non-finite; and
    when ``Guard(max_refusals=...)`` updates in a row were refused. The updates of the bad steps are skipped when these
    steps come again: the run is then, bit for bit, the run in which they were skipped from the start.

    Args:
        factor: a loss this many times its usual value is high.
        patience: this many high steps in a row are divergence; a shorter jump is left to come back by itself.
        surge: a gradient norm this many times its usual value is divergence at once.
        margin: steps before the first and after the last bad one that are skipped too. The checkpoint gone back to
            lies before all of them, so that a state from just before the divergence was noticed is not trusted.
        at_most: times in a row that the run goes back; each time the skipped stretch is about twice as long. Then it
            stops with ``Diverged``.
        settled: good steps after a divergence, after which the count begins anew.
        skip: stretches of steps, first and last, whose updates are skipped from the start: repeats a run that went
            back, whose events ``rolled_back`` name them.

    Raises:
        ValueError: a number is out of its bounds.
    """

    factor: float = 10.0
    patience: int = 32
    surge: float = 1e6
    margin: int = 2
    at_most: int = 3
    settled: int = 256
    skip: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that no run could be watched with."""
        _refuse_below("factor", self.factor, 1.5)
        _refuse_below("surge", self.surge, 10.0)
        for name, least in (("patience", 1), ("margin", 0), ("at_most", 1), ("settled", 0)):
            _refuse_below(name, getattr(self, name), least)
        for first, last in self.skip:
            if not 0 <= first <= last:
                raise ValueError(f"Rollback(skip=...) has ({first}, {last}): wanted first and last step, first <= last")

    def skipped(self, span: tuple[int, int], tries: int) -> tuple[int, int]:
        """The stretch to skip for a divergence, first and last step; empty (last < first) where no batch is suspected.

        Args:
            span: first and last suspected step, of all tries.
            tries: how often the run has gone back for it before.
        """
        first, last = span
        if last < first:
            return first, last
        # Each further try adds half the stretch on either side, so that it skips about twice as much.
        wider = self.margin if not tries else max(self.margin, (last - first + 1) // 2)
        return max(first - wider, 0), last + wider


def _refuse_below(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ValueError(f"Rollback({name}={value}): wanted at least {least:g}")
