"""When the details of a step are measured: all at once for a small model, spread over several steps for others."""

from dataclasses import dataclass
from typing import Final

from fieldwatch.measure.parameter_groups import ParameterGroups

AT_ONCE: Final = 1 << 22
"""Cost of a model, in entries, up to which all details are measured in one step."""
GROUP_COST: Final = 1 << 14
"""Cost of a group besides its entries: the operations on a small tensor take as long as reading this many entries."""
MOST_PARTS: Final = 32
"""Largest number of steps over which the groups are spread."""
_BEFORE_GROUPS: Final = 4
"""Steps of the details of the whole model, which come first: one each."""


@dataclass(frozen=True, kw_only=True)
class DueDetails:
    """Details that a step measures.

    Attributes:
        largest: whether to measure the largest gradient.
        precision: whether to measure what float16 lost of the gradients.
        most_gradients: number of gradients to sample for it; None for all.
        averages: whether to compare the averages of the weights with them.
        buffers: whether to measure the buffers of the modules.
        moments: whether to measure the state of the optimizers as a whole.
        groups: names of the groups whose parameters and update to measure; None for all. If they are named, so is the
            state that the optimizers keep for each of them.
    """

    largest: bool = False
    precision: bool = False
    most_gradients: int | None = None
    averages: bool = False
    buffers: bool = False
    moments: bool = False
    groups: tuple[str, ...] | None = ()


NO_DETAILS: Final = DueDetails()
_ALL: Final = DueDetails(largest=True, precision=True, averages=True, buffers=True, moments=True, groups=None)
_FIRST: Final = (
    DueDetails(largest=True),
    DueDetails(precision=True, most_gradients=128),
    DueDetails(averages=True),
    DueDetails(buffers=True),
)


class DetailSchedule:
    """Spreads the details of a large model over several steps, so that none of them takes much longer than the others.

    Each interval of ``every`` steps begins with its last step, ``every - 1``, ``2 * every - 1`` and so on. The schedule
    depends only on the index of the step and on the sizes of the groups, so that a resumed run measures the same.

    Args:
        every: number of steps between two measurements.
        watched: parameter groups.

    Attributes:
        nothing: what most steps measure.
    """

    nothing: Final = NO_DETAILS

    def __init__(self, every: int, watched: ParameterGroups) -> None:
        self._every = every
        self._watched = watched
        self._spread: bool | None = None

    def first(self) -> DueDetails:
        """Return what the first update measures: how far it moves the parameters, if the model is small.

        A rate that is far too high has overwritten the parameters before the first interval ends.
        """
        return DueDetails(groups=None) if sum(self._costs()) <= AT_ONCE else NO_DETAILS

    def due(self, index: int) -> DueDetails:
        """Return what the step with this index measures."""
        offset = (index + 1) % self._every
        if index + 1 < self._every or offset >= _BEFORE_GROUPS + MOST_PARTS:
            return NO_DETAILS
        # Later steps of an interval ask only for a large model, whose steps are slow.
        if offset == 0 or self._spread is None:
            spread_steps = self._every - _BEFORE_GROUPS
            self._spread = spread_steps > 1 and len(self._watched.names()) > 1 and sum(self._costs()) > AT_ONCE
        if not self._spread:
            return NO_DETAILS if offset else _ALL
        if offset < _BEFORE_GROUPS:
            return _FIRST[offset]
        groups = self._part(offset - _BEFORE_GROUPS)
        return DueDetails(groups=groups) if groups else NO_DETAILS

    def _part(self, number: int) -> tuple[str, ...]:
        """Return the groups of one part: consecutive ones, such that all parts cost about the same."""
        costs = self._costs()
        parts = min(len(costs), MOST_PARTS, self._every - _BEFORE_GROUPS)
        total = sum(costs)
        found: list[str] = []
        before = 0
        for name, cost in zip(self._watched.names(), costs, strict=True):
            # The middle of a group decides, so that a large one does not count for the part where it begins.
            if (2 * before + cost) * parts // (2 * total) == number:
                found.append(name)
            before += cost
        return tuple(found)

    def _costs(self) -> list[int]:
        watched = self._watched
        return [GROUP_COST + sum(each.numel() for each in watched.read(name)) for name in watched.names()]
